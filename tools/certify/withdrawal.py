"""Which rewrites a compile takes back because no identity covers them, round by round.

In every round the operators of the source are left alone from which those come where the proof
ends. If it ends there again, their neighbours are, too: at the distance 1, 2, 4, ... At last
nothing is rewritten, and the result is the source.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator

from ...ir.graph import Node, Value, flatten_origins, is_constant
from ...ir.module import Module
from ...passes.keeping import leave_alone
from ...result import Gap

MAX_ROUNDS = 8
"""Most compiles after the first; the last one rewrites nothing."""

MAX_NAMED = 5
"""Most operators that a warning names."""

IDENTITY = "identity"
"""The operator that is removed without an identity of certificates: its result is its operand."""

NO_OPERATORS = ("constant", "variable", "return")


class Withdrawal:
    """The operators of a source that are left alone because their rewrites have no proof.

    `is_whole` is whether nothing may be rewritten, and `rounds` the number of proofs that ended at
    a gap.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.is_whole = False
        self._origins: set[int] = set()
        self._tries: dict[str, int] = {}
        self._left: dict[str, tuple[dict[int, str], list[str]]] = {}
        self._sentence = ""

    def extend(
        self, gap: Gap, failed: Module, name_of: Callable[[Value], str], source: Module
    ) -> None:
        """Leave more operators of `source` alone after the compile `failed` with `gap`.

        `name_of` gives the names of values in its result. Where `is_whole` is true afterwards, no
        pass may run.
        """
        self.rounds += 1
        known = {_origin(node): node for node in source.walk() if _is_operator(node)}
        before = len(self._origins)
        if self.rounds < MAX_ROUNDS:
            for label, origins in _blocked(gap.labels, failed, name_of):
                if not origins.isdisjoint(known):
                    self._add(label, origins & known.keys(), known, failed)
        self.is_whole = len(self._origins) == before
        self._sentence = gap.sentence
        leave_alone(source, {each for each in self._origins if known[each].op != IDENTITY})

    def _add(self, label: str, origins: set[int], known: dict[int, Node], failed: Module) -> None:
        """Add operators around `origins`, farther each time, until one is new or none is left."""
        tries, size = self._tries.get(label, 0), 0
        near = _around(origins, (1 << tries) >> 1, known)
        while near <= self._origins and size < len(near):
            tries, size = tries + 1, len(near)
            near = _around(origins, (1 << tries) >> 1, known)
        self._tries[label] = tries + 1
        self._origins |= near
        nodes, rules = self._left.setdefault(label, ({}, []))
        named = {each: known[each] for each in sorted(near) if known[each].op != IDENTITY}
        nodes.update((each, node.description) for each, node in named.items())
        rules.extend(rule for rule in _rules(failed, named.values()) if rule not in rules)

    def warnings(self) -> list[str]:
        """Return a sentence for each gap: rules without identity, and operators left alone."""
        hint = "compile without a certificate to rewrite"
        if self.is_whole:
            return [f"{self._sentence}; so the model is left as it is; {hint} it all the same"]
        found = []
        for nodes, rules in self._left.values():
            names = list(nodes.values())
            if not names:
                continue
            are, them = ("is", "it") if len(names) == 1 else ("are", "them")
            if len(names) > MAX_NAMED:
                names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} more"]
            listed = " and ".join([", ".join(names[:-1]), names[-1]][len(names) == 1 :])
            rewrites = ", ".join(rules) or "a rewrite"
            found.append(
                f"no identity covers {rewrites} at {listed}, which {are} left"
                f" alone; {hint} {them} all the same"
            )
        return found


def _is_operator(node: Node) -> bool:
    return bool(node.origins) and node.op not in NO_OPERATORS


def _origin(node: Node) -> int:
    """Return the id of a node of a module as it was read."""
    return flatten_origins(node.origins)[0]


def _blocked(
    labels: Iterable[str], failed: Module, name_of: Callable[[Value], str]
) -> Iterator[tuple[str, set[int]]]:
    """Yield the labels of operators and their constants, with the nodes' origins."""
    by_name: dict[str, list[Node]] = {}
    for node in failed.walk():
        for value in node.outputs if node.op not in NO_OPERATORS else ():
            by_name.setdefault(name_of(value), []).append(node)
    for label in labels:
        found: set[int] = set()
        for node in by_name.get(_name_in(label, by_name), ()):
            constants = (
                value.node for value in node.inputs if is_constant(value) and value is not None
            )
            for each in (node, *constants):
                if each is not None:
                    found.update(flatten_origins((each.origins, each.inherited)))
        if found:
            yield label, found


def _name_in(label: str, names: Container[str]) -> str:
    """Return the value's name in a proof's `label`, which follows the path of bodies.

    onnx appends a number to the names in functions that it inlines.
    """
    for text in (label, label.rpartition("__")[0]):
        while text not in names and "/" in text:
            text = text.partition("/")[2]
        if text in names:
            return text
    return ""


def _around(origins: set[int], distance: int, known: dict[int, Node]) -> set[int]:
    """Return source operators at most so many edges away, along the data or against."""
    found, border = set(origins), set(origins)
    while border and distance:
        border = {other for each in border for other in _neighbours(known[each])} - found
        found |= border
        distance -= 1
    return found


def _neighbours(node: Node) -> Iterator[int]:
    """Yield the operators of a node's operands, results and bodies, and the one around."""
    read = [*node.inputs, *(value for region in node.regions for value in region.outputs)]
    near = [None if value is None else value.node for value in read]
    near += [user for value in node.outputs for user in value.users]
    near.append(None if node.graph is None else node.graph.parent)
    yield from (_origin(each) for each in near if each is not None and _is_operator(each))


def _rules(module: Module, nodes: Iterable[Node]) -> list[str]:
    """Return the rules that were applied to operators of these names."""
    names = {
        repr(name)
        for node in nodes
        for name in (node.name, *(value.source_name for value in node.outputs))
    }
    log = module.debug_counter.log or ()
    return list(dict.fromkeys(rule for rule, where in log if where.partition(" ")[2] in names))
