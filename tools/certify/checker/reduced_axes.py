"""Reductions in a row: the same elements are reduced by one over all of their axes.

Sums and products of integers wrap, and extrema are exact, in any order. The mean of means of
equally many numbers is the mean of all, up to rounding, which integers do not have.
"""

from __future__ import annotations

from collections.abc import Iterator

from .congruence import Congruence
from .operators import SIMPLE_REDUCTIONS
from .program import Datum, Operation, Unproved

MAX_ROW = 16
"""Most reductions in a row."""

ONE = -1
"""Stands for an axis of extent 1 in place of one that is reduced."""

Reduced = tuple[int, frozenset[int], tuple[int, ...]]
"""The class of the data, the axes reduced, and the axes left, with ONE for kept ones."""


def reductions(proof: Congruence, operation: Operation) -> Iterator[Reduced]:
    """Yield the data of an operation and of its kind before it, with all they reduce."""
    row: list[Operation] = []
    value: Datum | None = operation.outputs[0]
    while value is not None and len(row) < MAX_ROW:
        producer = value.producer
        if (
            producer is None
            or (producer.kind, producer.domain) != (operation.kind, "")
            or operation.domain
        ):
            return
        if producer.kind not in SIMPLE_REDUCTIONS or producer.version != operation.version:
            return
        data = producer.operand(0)
        if (
            data is None
            or data.rank is None
            or (producer.kind == "ReduceMean" and not data.is_float)
        ):
            return
        row.append(producer)
        left, gone = tuple(range(data.rank)), frozenset[int]()
        for each in reversed(row):
            axes = _axes(each, len(left))
            if axes is None:
                return
            gone |= {left[axis] for axis in axes} - {ONE}
            if each.attributes.get("keepdims", 1):
                left = tuple(ONE if i in axes else axis for i, axis in enumerate(left))
            else:
                left = tuple(axis for i, axis in enumerate(left) if i not in axes)
        yield proof.term_of(data), gone, left
        value = proof.first_of(data)


def _axes(operation: Operation, rank: int) -> set[int] | None:
    """Return the axes that a reduction reduces, None if they are unknown."""
    axes = operation.integers("axes", 1)
    if axes is None and operation.operand(1) is not None:
        return None
    if not axes:
        return set() if operation.attributes.get("noop_with_empty_axes", 0) else set(range(rank))
    return {axis % rank for axis in axes} if all(-rank <= axis < rank for axis in axes) else None


def check_same_reduction(proof: Congruence, source: Operation, result: Operation) -> None:
    """Prove that two operations reduce the same elements of one value. Raises Unproved."""
    if source.kind != result.kind or source.version != result.version:
        raise Unproved("the operators differ")
    if not set(reductions(proof, source)) & set(reductions(proof, result)):
        raise Unproved("they reduce other elements")
