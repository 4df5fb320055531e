"""Provenance: the imported nodes that each node comes from, and the fate of those that are gone.

The `Rewriter` writes all of it. Records that belong to one pass or analysis stand in a `SideTable`,
which the Rewriter keeps informed.
"""

from __future__ import annotations

from typing import TypeVar

from .graph import Node, Origins, Value, flatten_origins, is_constant
from .record import ValueRecord


class Refusal(ValueRecord):
    """Why an affine stays: a reason code of the fold map, and a sentence that names the obstacle.

    `notes` has a line for every way that was tried, with the operators that the affine would have
    passed.
    """

    code: str
    detail: str
    notes: tuple[str, ...] = ()


class Declined(Exception):
    """Raised by a rule that does not apply, or by a reader that it calls, with the `reason`."""

    @property
    def reason(self) -> str:
        """The last argument.

        Rules decline thousands of times: a constructor in Python would take longer.
        """
        return str(self.args[-1])


class Refused(Declined):
    """Raised by a rule of an affine that does not apply, with the `refusal` that says why."""

    def __init__(self, code: str, detail: str, notes: tuple[str, ...] = ()) -> None:
        super().__init__(code, detail)
        self.refusal = Refusal(code, detail, notes)

    @classmethod
    def of(cls, refusal: Refusal) -> Refused:
        """Return the exception that carries `refusal`."""
        return cls(refusal.code, refusal.detail, refusal.notes)


class SideTable:
    """Records keyed by nodes or values, kept right by the Rewriter.

    This is MLIR's RewriterBase::Listener. A subclass has a constructor without arguments;
    `Provenance.table` makes the one instance of a module.
    """

    def node_erased(self, node: Node, heir: Node | None) -> None:
        """Hear that `node` goes; `heir` computes the same, or is None."""

    def value_replaced(self, old: Value, new: Value) -> None:
        """Hear that `new` now stands for `old`, under its name and with its elements."""

    def value_forwarded(self, old: Value, new: Value) -> None:
        """Hear that readers of `old` read the equal `new` now, which keeps its own name."""


MERGED = "went into another operator by"
REMOVED = "it has no effect; dropped by"

Table = TypeVar("Table", bound=SideTable)


class Consumed:
    """Origins that rules consumed, each with a sentence that names the pass and the rule."""

    __slots__ = ("_notes", "_origins", "_sentences")

    def __init__(self) -> None:
        self._origins: list[Origins] = []
        self._notes: list[str] = []
        self._sentences: dict[tuple[str, str, str], str] = {}

    def add(self, origins: Origins, note: str, running: str, rule: str) -> None:
        """Add the origins that `rule`, which may have no name, of the pass `running` consumed."""
        key = (note, running, rule)
        sentence = self._sentences.get(key)
        if sentence is None:
            sentence = self._sentences[key] = (
                f"{note} {running}.{rule}" if rule else f"{note} {running}"
            )
        self._origins.append(origins)
        self._notes.append(sentence)

    def first_notes(self) -> dict[int, str]:
        """Return, for each origin, the sentence on the rule that consumed it first. O(origins)."""
        seen: set[int] = set()
        first: dict[int, str] = {}
        for origins, sentence in zip(self._origins, self._notes, strict=True):
            for origin in flatten_origins(origins, seen):
                first.setdefault(origin, sentence)
        return first


class Provenance:
    """The record of one module.

    - `refusals` says by origin why an affine stays.
    - `merged` are the origins that a rule consumed, `replaced` those that it made another operator
      of.
    - `dropped` lists the origins that nothing in the module descends from any more.
    - `tables` are the side tables by their class, `node_tables` and `value_tables` those that
      listen to either.
    - `passes` are those that ran, and `running` is the name of the one that runs; `is_foreign` says
      that it is one of another package. `foreign` are the nodes that such passes made. They compute
      no affine of the source, unless they stand in its place and read its data.
    """

    def __init__(self) -> None:
        self.refusals: dict[int, Refusal] = {}
        self.merged = Consumed()
        self.replaced = Consumed()
        self.dropped: list[Origins] = []
        self.passes: list[str] = []
        self.running = "a rewrite"
        self.is_foreign = False
        self.foreign: set[Node] = set()
        self.tables: dict[type[SideTable], SideTable] = {}
        self.node_tables: list[SideTable] = []
        self.value_tables: list[SideTable] = []

    def table(self, kind: type[Table]) -> Table:
        """Return the module's table of that kind, which is made when it is first asked for."""
        found = self.tables.get(kind)
        if found is None:
            found = self.tables[kind] = kind()
            if kind.node_erased is not SideTable.node_erased:
                self.node_tables.append(found)
            if kind.value_replaced is not SideTable.value_replaced:
                self.value_tables.append(found)
        assert isinstance(found, kind)
        return found

    def refuse(self, origins: Origins, refusal: Refusal) -> None:
        """Record why `origins` stay. O(origins)."""
        self.refusals.update(dict.fromkeys(flatten_origins(origins), refusal))

    def consume(self, node: Node, heir: Node | None, rule: str, note: str) -> None:
        """Record that `rule` of the running pass erased `node` in favour of `heir`.

        The `note` is MERGED, or REMOVED if its result was equal to an operand, which its readers
        read now. An heir that was made from `node` shares its origins. If it is another operator,
        it may or may not compute the same: whoever asks knows which operators do.
        """
        if heir is not None and heir in self.foreign and heir.origins is node.origins:
            data = {value for value in node.inputs if value is not None and not is_constant(value)}
            if not data.isdisjoint(heir.inputs):
                self.foreign.discard(heir)
        if heir is None or heir.origins is not node.origins or heir.op == "constant":
            self.merged.add(node.origins, note, self.running, rule)
        elif heir.op != node.op:
            self.replaced.add(node.origins, MERGED, self.running, rule)

    def merged_origins(self) -> dict[int, str]:
        """Return, for each origin that was consumed, the sentence on its first rule."""
        return self.merged.first_notes()

    def replaced_origins(self) -> dict[int, str]:
        """Return, for each origin that became another operator, the sentence on its first rule."""
        return self.replaced.first_notes()
