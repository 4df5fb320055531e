"""Slice: the positions it selects along each axis, and the composition of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .affine_operators import own_line
from .lines import Line
from .program import Array, Datum, Operation, Unproved

END = (1 << 31) - 1
"""Least bound of a Slice that is behind all elements of any axis."""

MAX_SLICES = 16
"""Most operators in a row that are looked at as one Slice."""

Places = dict[int, Array]
"""The positions that are selected, by axis."""


def bounds_of(operation: Operation, rank: int) -> dict[int, slice | None]:
    """Return the bounds of a Slice by axis, None for computed ones. Raises Unproved."""
    starts, ends = operation.numbers("starts", 1), operation.numbers("ends", 2)
    axes, steps = operation.integers("axes", 3), operation.integers("steps", 4)
    if any(
        given is None and operation.operand(i) is not None for i, given in ((3, axes), (4, steps))
    ):
        raise Unproved("the axes or the steps are not constant")
    is_constant = starts is not None and ends is not None
    if axes is None and starts is None:
        raise Unproved("the bounds are not constant")
    axes = list(range(len(starts or ()))) if axes is None else axes
    if any(not -rank <= axis < rank for axis in axes) or len({axis % rank for axis in axes}) < len(
        axes
    ):
        raise Unproved("an axis does not exist, or is cut twice")
    if not is_constant:
        return dict.fromkeys(axis % rank for axis in axes)
    steps = [1] * len(axes) if steps is None else steps
    parts = zip(axes, starts or (), ends or (), steps, strict=True)
    return {
        axis % rank: None if start is None or end is None else slice(start, end, step)
        for axis, start, end, step in parts
    }


def selected(bounds: slice | None, extent: object) -> Array:
    """Return the positions of an axis that bounds select. Raises Unproved."""
    if bounds is None or not isinstance(extent, int):
        raise Unproved("the bounds are not constant, or the extent along the axis is unknown")
    start, end, step = bounds.start, bounds.stop, bounds.step
    if step < 0 and (start < -extent or end > extent):
        raise Unproved("a slice begins before the first element, or ends behind the last one")
    return np.arange(extent)[slice(start, None if step < 0 and end < -extent else end, step)]


def places_of(operation: Operation) -> Places:
    """Return the positions that a Slice selects. Raises Unproved."""
    data = operation.operand(0)
    if operation.domain or operation.kind != "Slice" or data is None or data.extents is None:
        raise Unproved("it is no Slice, or the rank is unknown")
    places: Places = {}
    for axis, bounds in bounds_of(operation, len(data.extents)).items():
        positions = selected(bounds, data.extents[axis])
        if len(positions) != data.extents[axis] or (np.diff(positions) != 1).any():
            places[axis] = positions
    return places


def cut(line: Line, places: Places) -> Line:
    """Return the line of the elements at positions."""
    for axis, positions in places.items():
        line = line.taken(axis, positions)
    return line


def sliced(value: Datum, same: Callable[[Datum], Datum]) -> Iterator[tuple[Datum, Places, Line]]:
    """Yield the values of which one selects affine elements, with positions and line.

    `same` may give another value that is equal.
    """
    places: Places = {}
    line = Line.identity(value.rank or 0)
    for _ in range(MAX_SLICES):
        value = same(value)
        producer = None if value.index else value.producer
        own = None if producer is None else own_line(producer)
        if producer is None or value.rank != line.rank:
            return
        if own is not None:
            value, line = own[0], line.after(cut(own[1], places))
            continue
        for axis, positions in places_of(producer).items():
            places[axis] = positions[places[axis]] if axis in places else positions
        value = producer.inputs[0] or value
        yield value, dict(places), line
