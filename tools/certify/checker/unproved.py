"""Steps without an identity: results that are taken for values of the source, and what rests on
them.

Such a step is no proof. So whoever reads a certificate is told of each one, with the operators of
the result that nothing else covers, and the outputs that depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .congruence import RESULT
from .program import Datum, Operation, Program, Unproved, operations_of, static
from .relations import Relations

UNPROVED = "unproved"
"""The name that these steps have in place of an identity's."""

OUTPUT, DECLARATION = "output", "declaration"
"""Places of steps beside operations: an output, and the extents that the result declares."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """An unproved step. `operators` counts those of the result that rest on it alone."""

    step: int
    where: str
    rules: tuple[str, ...]
    operators: int
    outputs: tuple[str, ...]


def assume(proof: Relations, step: Mapping[str, Any], operation: Operation) -> None:
    """Take the results of an operation for values of the source. Raises Unproved."""
    names = step.get("values")
    if proof.side != RESULT or not isinstance(names, list) or not any(names):
        raise Unproved("it names no value of the source for a result")
    for value, name in zip(operation.outputs, names, strict=True):
        if name is None:
            proof.give(value, proof.term((UNPROVED, value.label)))
            continue
        first = proof.value_of_source(name)
        if not are_alike(value, first):
            raise Unproved(f"{value.label!r} has another type than {name!r} of the source")
        proof.shape(first)  # that of the class is not one that only follows from this step
        proof.give(value, proof.term_of(first))
        value.stored = first.stored


def are_alike(value: Datum, first: Datum) -> bool:
    """Return whether a result may be a value of the source by its type."""
    if value.kind != first.kind or first.rank is None or value.rank not in (None, first.rank):
        return value.kind == first.kind and value.rank is first.rank is None
    pairs = zip(value.extents or (), first.extents or (), strict=False)
    return not any(static(pair) is not None and pair[0] != pair[1] for pair in pairs)


def assumptions(
    result: Program, unproven: Iterable[Operation], steps: Sequence[Mapping[str, Any]]
) -> list[Assumption]:
    """Return the unproved ones of `steps`, which were replayed and left operations `unproven`."""
    places: dict[Operation, int] = {}
    found: list[tuple[int, Mapping[str, Any], Operation | None]] = []
    for number, step in enumerate(steps, 1):
        if step["identity"] == UNPROVED:
            operation = _operation(result, step)
            found.append((number, step, operation))
            if operation is not None:
                places[operation] = places.get(operation, 0) | 1 << number
    open_ones = set(unproven)
    outputs = _marked(result, places) if found else {}
    return [
        Assumption(
            number,
            _place(step, operation),
            tuple(map(str, step.get("rules") or ())),
            0 if step["at"] == DECLARATION else _count(operation, open_ones),
            tuple(
                name
                for name, marks in outputs.items()
                if marks & 1 << number or (step["at"], step["operation"]) == (OUTPUT, name)
            ),
        )
        for number, step, operation in found
    ]


def _operation(result: Program, step: Mapping[str, Any]) -> Operation | None:
    """Return the operation of a step, or the one that computes its value."""
    if step["at"] == OUTPUT:
        names = [name for name, _ in result.results]
        return result.body.outputs[names.index(step["operation"])].producer
    if step["at"] == DECLARATION:
        return result.data[step["operation"]].producer
    return result.operations[step["operation"]]


def _place(step: Mapping[str, Any], operation: Operation | None) -> str:
    if step["at"] == OUTPUT:
        return f"the output {step['operation']!r}"
    if step["at"] == DECLARATION or operation is None:
        return f"the declared extents of {step['operation']!r}"
    return f"{operation.kind} {operation.label!r}"


def _count(operation: Operation | None, unproven: set[Operation]) -> int:
    """Return how many operations before one, itself included, follow from no other step."""
    seen: set[Operation] = set()
    stack = [operation]
    while stack:
        each = stack.pop()
        if each is None or each in seen:
            continue
        seen.add(each)
        inner = [one for body in each.bodies.values() for one in operations_of(body)]
        stack += [one for one in inner if one in unproven]
        before = (value.producer for value in each.inputs if value is not None)
        stack += [one for one in before if one in unproven]
    return len(seen)


def _marked(result: Program, places: Mapping[Operation, int]) -> dict[str, int]:
    """Return the bits of `places` for each output: those of operations that it depends on."""
    marks: dict[Datum, int] = {}
    for operation in operations_of(result.body):
        read = list(operation.inputs)
        for body in operation.bodies.values():
            read += [*body.outputs, *(each for one in operations_of(body) for each in one.outputs)]
        bits = places.get(operation, 0)
        for value in read:
            bits |= 0 if value is None else marks.get(value, 0)
        if bits:
            marks.update((value, bits) for value in operation.outputs)
    pairs = zip(result.results, result.body.outputs, strict=True)
    return {name: marks.get(value, 0) for (name, _), value in pairs}
