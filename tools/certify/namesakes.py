"""Values of both models with one name, from which a proof can go on where no identity covers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .checker.program import Block, Datum, Operation, Program
from .checker.unproved import are_alike


class Namesakes:
    """The results of operations that may be the values of the source with their names.

    They are read by operators that read these, or are outputs as they are. A name alone says
    little: a layer keeps the name of its result when a fold scales it.
    """

    def __init__(self, source: Program, result: Program) -> None:
        self._source = source
        self._kept = set(_outputs(source.body, source))
        self._owners = _outputs(result.body, result)

    def of(self, operation: Operation) -> list[str | None] | None:
        """Return the names of an operation's results in the source, or None."""
        found = [
            self._name(value) if value.readers or value in self._owners else None
            for value in operation.outputs
        ]
        is_read = any(value.readers or value in self._owners for value in operation.outputs)
        return None if not is_read or "" in found else found

    def _name(self, value: Datum) -> str:
        first = self._source.data.get(value.label)
        if first is None or first.term < 0 or not are_alike(value, first):
            return ""
        readers = [{(each.kind, each.label) for each in _readers(one)} for one in (value, first)]
        is_kept = readers[0] <= readers[1] and (value not in self._owners or first in self._kept)
        return first.label if is_kept else ""

    def behind(self, ends: Iterable[Operation]) -> set[str]:
        """Return the operations at, or else behind, these whose results have namesakes."""
        found: set[str] = set()
        seen: set[Operation] = set()
        stack = list(ends)
        while stack:
            operation = stack.pop()
            if operation in seen:
                continue
            seen.add(operation)
            if self.of(operation) is not None:
                found.add(operation.label)
                continue
            for value in operation.outputs:
                owner = self._owners.get(value)
                stack += [*value.readers, *([] if owner is None else [owner])]
        return found


def _readers(value: Datum) -> Iterator[Operation]:
    """Yield the operations that read a value, also behind an Identity."""
    for each in value.readers:
        if each.kind == "Identity" and not each.domain:
            yield from _readers(each.outputs[0])
        else:
            yield each


def _outputs(body: Block, program: Program) -> dict[Datum, Operation | None]:
    """Return the outputs of a model and of the bodies in it, with the operations around these."""
    found: dict[Datum, Operation | None] = dict.fromkeys(body.outputs)
    for operation in program.operations.values():
        for inner in operation.bodies.values():
            found.update((value, operation) for value in inner.outputs)
    return found
