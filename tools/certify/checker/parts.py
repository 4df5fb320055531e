"""Parts of a tensor along one axis: of Split, SequenceAt of SplitToSequence, and Slice.

Two parts of one tensor between the same positions are equal, whichever operator cuts them.
"""

from __future__ import annotations

from dataclasses import dataclass

from .program import Datum, Operation, Unproved
from .slices import bounds_of


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """The elements of `data` from position `first` up to `end` of `axis`."""

    data: Datum
    axis: int
    first: int
    end: int


PARTS = frozenset(("Split", "SequenceAt", "Slice"))
MAX_CUTS = 16
"""Most cuts in a row."""


def parts_of(operation: Operation) -> list[Part]:
    """For each result, return which slice of which whole tensor it holds.

    Raises Unproved.
    """
    return [_whole(part) for part in _cut(operation)]


def _cut(operation: Operation) -> list[Part]:
    if operation.domain or operation.kind not in PARTS:
        raise Unproved("it is no operator of parts")
    if operation.kind == "Split":
        return _split(operation, len(operation.outputs), operation.integers("split", 1))
    return [_element(operation) if operation.kind == "SequenceAt" else _slice(operation)]


def _whole(part: Part) -> Part:
    """Return a part of a part along the same axis as one."""
    for _ in range(MAX_CUTS):
        before = part.data.producer
        try:
            outer = None if before is None else _cut(before)[part.data.index]
        except Unproved:
            return part
        if outer is None or outer.axis != part.axis:
            return part
        part = Part(outer.data, part.axis, outer.first + part.first, outer.first + part.end)
    return part


def _axis(operation: Operation, data: Datum, given: int) -> tuple[int, int]:
    """Return an axis counted from the front, and its extent.

    Raises Unproved where one is unknown.
    """
    if data.extents is None or not -len(data.extents) <= given < len(data.extents):
        raise Unproved("the rank is unknown, or the axis does not exist")
    axis = given % len(data.extents)
    extent = data.extents[axis]
    if not isinstance(extent, int):
        raise Unproved("the extent along the axis is unknown")
    return axis, extent


def _data(operation: Operation) -> Datum:
    data = operation.operand(0)
    if data is None:
        raise Unproved("the data are absent")
    return data


def _split(operation: Operation, count: int, sizes: list[int] | None) -> list[Part]:
    """Return the parts of a Split or SplitToSequence; by default equal, but for the last."""
    data = _data(operation)
    axis, extent = _axis(operation, data, int(operation.attributes.get("axis", 0)))
    if sizes is None:
        if operation.operand(1) is not None:
            raise Unproved("the sizes are not constant")
        each = -(-extent // count)
        if extent % count and operation.attributes.get("num_outputs") is None:
            raise Unproved("the parts are not equal")
        sizes = [min(each, extent - i * each) for i in range(count)]
    if sum(sizes) != extent or len(sizes) != count or min(sizes, default=0) < 0:
        raise Unproved("the parts are not all of the data")
    return [Part(data, axis, sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(count)]


def _element(operation: Operation) -> Part:
    """Return the part that SequenceAt takes of a SplitToSequence that keeps its axis."""
    sequence, position = _data(operation), operation.constant(1)
    split = sequence.producer
    if (
        split is None
        or split.domain
        or split.kind != "SplitToSequence"
        or position is None
        or position.size != 1
    ):
        raise Unproved("it is no part of a SplitToSequence at a constant position")
    data = _data(split)
    _, extent = _axis(split, data, int(split.attributes.get("axis", 0)))
    given = split.operand(1)
    if given is None:
        if not split.attributes.get("keepdims", 1):
            raise Unproved("the parts lose their axis")
        sizes = [1] * extent
    else:
        stored = split.constant(1)
        if stored is None or (stored.ndim == 0 and int(stored) < 1) or stored.ndim > 1:
            raise Unproved("the sizes are not constant")
        step = int(stored) if stored.ndim == 0 else 0
        starts = range(0, extent, step) if step else ()
        if stored.ndim:
            sizes = [int(each) for each in stored]
        else:
            sizes = [min(step, extent - i) for i in starts]
    place = int(position.reshape(()))
    if not -len(sizes) <= place < len(sizes):
        raise Unproved("the sequence has no such position")
    return _split(split, len(sizes), sizes)[place]


def _slice(operation: Operation) -> Part:
    data = _data(operation)
    bounds = bounds_of(operation, data.rank or 0)
    if len(bounds) != 1:
        raise Unproved("the bounds are of several axes")
    ((axis, own),) = bounds.items()
    if own is None or own.step != 1:
        raise Unproved("the bounds are not constant, or the slice has other steps than one")
    _, extent = _axis(operation, data, axis)
    first, end, _ = own.indices(extent)
    return Part(data, axis, first, max(first, end))


def rejoined(values: list[Datum], axis: int) -> list[Datum]:
    """Return the values that a Concat joins; a Split's results in a row become its data."""
    found: list[Datum] = []
    place = 0
    while place < len(values):
        split = values[place].producer
        here = values[place]
        count = 1
        is_first = (
            split is not None and not split.domain and split.kind == "Split" and here.index == 0
        )
        if split is not None and is_first and here.rank and here.term >= 0:
            data, own = split.operand(0), int(split.attributes.get("axis", 0)) % here.rank
            row = values[place : place + len(split.outputs)]
            if (
                data is not None
                and own == axis
                and [each.term for each in row] == [e.term for e in split.outputs]
            ):
                here, count = data, len(split.outputs)
        found.append(here)
        place += count
    return found
