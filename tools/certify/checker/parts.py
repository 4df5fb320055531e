"""Parts of a tensor: of Split, SequenceAt of SplitToSequence, Slice, and Gather of a Range.

Two parts of one tensor between the same positions are equal, whichever operator cuts them. The
positions are expressions of extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .integers import Extent, Integers, is_natural, maximum, minus, plus, quotient
from .program import Datum, Operation, Unproved
from .result_extents import axis_of, bounds_of, numbers_of, place_of

Places = dict[int, tuple[Extent, Extent]]
"""The first position and the one behind the last, by axis."""


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """The elements of `data` between two positions of some axes."""

    data: Datum
    places: Places


PARTS = frozenset(("Split", "SequenceAt", "Slice", "Gather"))
MAX_CUTS = 16
"""Most cuts in a row."""


def parts_of(operation: Operation, integers: Integers) -> list[Part]:
    """For each result, return which part of which whole tensor it holds.

    Raises Unproved.
    """
    return [_whole(part, integers) for part in _cut(operation, integers)]


def select_alike(first: Operation, second: Operation, integers: Integers) -> bool:
    """Return whether two Slices select the same positions of their data."""
    try:
        return _slice(first, integers).places == _slice(second, integers).places
    except Unproved:
        return False


def _cut(operation: Operation, integers: Integers) -> list[Part]:
    if operation.domain or operation.kind not in PARTS:
        raise Unproved("it is no operator of parts")
    if operation.kind == "Split":
        given = numbers_of(integers, operation, "split", 1)
        return _split(operation, len(operation.outputs), given, integers)
    if operation.kind == "SequenceAt":
        return [_element(operation, integers)]
    return [(_slice if operation.kind == "Slice" else _range)(operation, integers)]


def _whole(part: Part, integers: Integers) -> Part:
    """Return a part of a part as one."""
    for _ in range(MAX_CUTS):
        before = part.data.producer
        try:
            outer = None if before is None else _cut(before, integers)[part.data.index]
        except Unproved:
            return part
        if outer is None:
            return part
        places = dict(outer.places)
        for axis, (first, end) in part.places.items():
            start = places[axis][0] if axis in places else 0
            places[axis] = plus(start, first), plus(start, end)
        part = Part(outer.data, places)
    return part


def _axis(operation: Operation, integers: Integers) -> tuple[Datum, int, Extent]:
    """Return the data, the axis counted from the front, and its extent. Raises Unproved."""
    data = operation.operand(0)
    shape = None if data is None else integers.shape_of(data)
    if data is None or shape is None:
        raise Unproved("the rank is unknown")
    axis = axis_of(operation, len(shape))
    return data, axis, shape[axis]


def _split(
    operation: Operation, count: int, sizes: Sequence[Extent] | None, integers: Integers
) -> list[Part]:
    """Return the parts of a Split or SplitToSequence; by default equal, but for the last."""
    data, axis, extent = _axis(operation, integers)
    if sizes is None:
        if operation.operand(1) is not None:
            raise Unproved("the sizes are not known")
        each = quotient(extent, count)
        if each is not None:
            sizes = [each] * count
        elif isinstance(extent, int) and operation.attributes.get("num_outputs") is not None:
            most = -(-extent // count)
            sizes = [min(most, extent - i * most) for i in range(count)]
        else:
            raise Unproved("the parts are not equal")
    # A runtime refuses sizes whose sum is another one.
    is_sum = plus(*sizes) == extent or not all(isinstance(each, int) for each in (*sizes, extent))
    if not is_sum or len(sizes) != count or not all(map(is_natural, sizes)):
        raise Unproved("the parts are not all of the data")
    places = [plus(*sizes[:i]) for i in range(count)]
    return [Part(data, {axis: pair}) for pair in zip(places, [*places[1:], extent], strict=True)]


def _element(operation: Operation, integers: Integers) -> Part:
    """Return the part that SequenceAt takes of a SplitToSequence that keeps its axis."""
    sequence, position = operation.operand(0), integers.of(operation.operand(1))
    split = None if sequence is None else sequence.producer
    if (
        split is None
        or split.domain
        or split.kind != "SplitToSequence"
        or position is None
        or position.size != 1
        or not isinstance(position.item(), int)
    ):
        raise Unproved("it is no part of a SplitToSequence at a constant position")
    sizes = _sizes(split, integers)
    place = int(position.item())
    if not -len(sizes) <= place < len(sizes):
        raise Unproved("the sequence has no such position")
    return _split(split, len(sizes), sizes, integers)[place]


def _sizes(split: Operation, integers: Integers) -> list[Extent]:
    """Return the sizes of the parts of a SplitToSequence. Raises Unproved."""
    given = split.operand(1)
    sizes = integers.of(given)
    if sizes is not None and sizes.ndim == 1:
        return list(sizes)
    _, _, extent = _axis(split, integers)
    if not isinstance(extent, int):
        raise Unproved("the extent along the axis is unknown")
    if given is None:
        if not split.attributes.get("keepdims", 1):
            raise Unproved("the parts lose their axis")
        return [1] * extent
    step = None if sizes is None or sizes.ndim else sizes.item()
    if not isinstance(step, int) or step < 1:
        raise Unproved("the sizes are not known")
    return [min(step, extent - i) for i in range(0, extent, step)]


def _slice(operation: Operation, integers: Integers) -> Part:
    data = operation.operand(0)
    shape = None if data is None else integers.shape_of(data)
    if data is None or shape is None:
        raise Unproved("the rank is unknown")
    places: Places = {}
    for axis, (start, end, step) in bounds_of(operation, len(shape), integers).items():
        if step != 1:
            raise Unproved("the slice has other steps than one")
        first, last = (place_of(each, shape[axis], 0, shape[axis]) for each in (start, end))
        places[axis] = first, last if first == 0 else maximum(first, last)
    return Part(data, places)


def _range(operation: Operation, integers: Integers) -> Part:
    """Return the part that a Gather takes at a Range of positions in a row."""
    data, axis, extent = _axis(operation, integers)
    indices = operation.operand(1)
    counted = None if indices is None else indices.producer
    if counted is None or counted.domain or counted.kind != "Range":
        raise Unproved("the positions are no Range")
    given = [integers.of(each) for each in counted.inputs]
    first, end, step = (None if each is None or each.size != 1 else each.item() for each in given)
    if first is None or end is None or step != 1 or not is_natural(first):
        raise Unproved("the positions are not known, or not in a row")
    if not is_natural(minus(extent, end)):
        raise Unproved("a position may be beyond the last")
    return Part(data, {axis: (first, maximum(first, end))})


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
