"""Affines of the source that follow a value, by position: a fold may have moved them to it.

Positions go along in a line: its scale at an element is the number of the element's position, so
the rows of the checker that let a line pass say where positions go. Number 0 stands for elements of
other values.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ...ir.tensor import Array
from .checker.affine_operators import own_line
from .checker.clamps import clamp_of
from .checker.constant_operands import TOGETHER
from .checker.crossing import CROSSINGS
from .checker.lines import Line, along
from .checker.program import Datum, Operation, Unproved, product, static
from .checker.reordering import VIEWS, Groups, moved
from .checker.weighted_layers import parameters, weights_of

MAX_DEPTH = 12
"""Most operators between a value and an affine that moved up to it."""

MAX_SEEN = 512
"""Most values behind one that are looked at."""

MAX_FOUND = 96
"""Most affines of a value."""

SNAP = {"float64": 2.0**-46, "float32": 2.0**-20}
"""The relative distance at which a number is taken for the rounding of another."""


@dataclass(frozen=True, slots=True)
class ElementwiseAffine:
    """An affine by position: scale, shift, and scale of the rest behind it. NaN at its end.

    `count` elements were added up: each has its share of a shift behind that.
    """

    scale: Array
    shift: Array
    gain: Array
    count: int = 1

    def times(self, scale: Array | float, shift: Array | float) -> ElementwiseAffine:
        """Return another affine after this one."""
        return ElementwiseAffine(
            scale * self.scale,
            scale * self.shift + shift / self.count,
            scale * self.gain,
            self.count,
        )

    @property
    def key(self) -> tuple[bytes, ...]:
        """The numbers as a key of dictionaries."""
        return self.scale.tobytes(), self.shift.tobytes(), self.gain.tobytes()

    def is_same(self, other: ElementwiseAffine) -> bool:
        """Whether another affine has the same scales and shifts."""
        return np.array_equal(self.scale, other.scale) and np.array_equal(self.shift, other.shift)


Seen = Callable[[Datum, Datum], Groups | None]
"""Returns how the second value, made of the first, is a view of it, or None."""

_State = tuple[Datum, Line | None, ElementwiseAffine, int]
"""A value, its elements' positions (None if affines must be of one number), and the affine."""


def followers(
    value: Datum,
    start: ElementwiseAffine,
    extents: tuple[int, ...],
    same: Callable[[Datum], list[Datum]],
    seen: Seen,
) -> Iterator[ElementwiseAffine]:
    """Yield the affine that `start` is, and those that follow it, by position in `extents`."""
    yield start
    count, rank = start.scale.size, len(extents)
    yield from _followers(value, start, np.arange(count).reshape(extents), same, seen)
    for axis in range(rank):  # operators that join elements let numbers along the other axes pass
        if 1 < extents[axis] < count:
            places = along(np.arange(extents[axis]), axis, rank)
            yield from _followers(
                value, start, places, same, seen, np.broadcast_to(places, extents).reshape(-1)
            )


def _followers(
    value: Datum,
    start: ElementwiseAffine,
    places: Array,
    same: Callable[[Datum], list[Datum]],
    seen: Seen,
    groups: Array | None = None,
) -> Iterator[ElementwiseAffine]:
    """Yield the affines that follow a value.

    `groups` has the place of each element where several have one.
    """
    found, tried, passed = 0, set[object](), set[object]()
    positions = Line.of(places + 1.0, np.zeros((1,) * places.ndim))
    stack: list[_State] = [(value, positions, start, 0)]
    while stack and found < MAX_FOUND and len(passed) < MAX_SEEN:
        here, line, numbers, depth = stack.pop()
        state = (here, None if line is None else line.scale.tobytes(), numbers.key)
        if state in passed:
            continue
        passed.add(state)
        if depth < MAX_DEPTH:
            readers = [(each, equal) for equal in same(here) for each in equal.readers]
        else:
            readers = []
        for reader, equal in readers:
            own = own_line(reader)
            if own is None:
                stack.extend(
                    (*each, depth + 1) for each in _behind(reader, equal, line, numbers, seen)
                )
                continue
            stack.append((reader.outputs[0], line, numbers, depth + 1))  # it stays where it is
            after = _after(own[1], line, numbers, groups)
            if after is None:
                key = None
            else:
                key = (reader.outputs[0], after.key)
            if after is not None and key not in tried and not after.is_same(numbers):
                tried.add(key)
                yield after
                found += 1
                stack.append((reader.outputs[0], line, after, depth + 1))


def _after(
    own: Line, positions: Line | None, numbers: ElementwiseAffine, groups: Array | None
) -> ElementwiseAffine | None:
    """Return an affine behind numbers of positions, None if one position has several numbers.

    `groups` has the position of each number where several have one.
    """
    if own.scale.size == own.shift.size == 1:
        return numbers.times(float(own.scale.item()), float(own.shift.item()))
    if positions is None or own.rank != positions.rank:
        return None
    try:
        arrays = np.broadcast_arrays(positions.scale, own.scale, own.shift)
    except ValueError:
        return None
    places, scale, shift = (each.reshape(-1) for each in arrays)
    used = places > 0
    index = places[used].astype(np.int64) - 1
    if (index >= numbers.scale.size).any():  # a sum of a value with itself adds positions
        return None
    made = np.full(numbers.scale.size, np.nan), np.full(numbers.scale.size, np.nan)
    for array, given in zip(made, (scale[used], shift[used]), strict=True):
        array[index] = given
        if (array[index] != given).any():
            return None
    if groups is None:
        return numbers.times(*made)
    return numbers.times(made[0][groups], made[1][groups])


def _behind(
    reader: Operation, value: Datum, positions: Line | None, numbers: ElementwiseAffine, seen: Seen
) -> Iterator[tuple[Datum, Line | None, ElementwiseAffine]]:
    """Yield the results of an operator that an affine may cross, with their positions."""
    crossing = None if reader.domain else CROSSINGS.get(reader.kind)
    if reader.kind == "ReduceSum":
        numbers = replace(numbers, count=numbers.count * _summands(reader))
    if clamp_of(reader) is not None:
        yield reader.outputs[0], positions, numbers
    elif reader.kind in VIEWS:
        groups, line = seen(value, reader.outputs[0]), None
        if groups is not None and positions is not None:
            with suppress(Unproved, ValueError, IndexError):
                line = positions.map(lambda array: moved(array, groups))
        yield from ((each, line, numbers) for each in reader.outputs)
    elif crossing is not None and positions is None:
        yield from ((each, None, numbers) for each in reader.outputs)
    elif crossing is not None and positions is not None:
        if reader.kind == "Sub" and reader.operand(1) is value:
            numbers = numbers.times(-1.0, 0.0)
        lines = {i: positions for i, each in enumerate(reader.inputs) if each is value}
        if reader.kind in TOGETHER:
            plain = np.zeros((1,) * positions.rank)
            other = Line.of(plain, plain) if reader.kind == "Concat" else positions
            lines = {
                i: lines.get(i, other) for i in range(reader.kind == "Where", len(reader.inputs))
            }
        found: Sequence[Line | None] = [None] * len(reader.outputs)
        with suppress(Unproved, ValueError, IndexError, TypeError, KeyError):
            found = crossing(reader, lines)
        for result, line in zip(reader.outputs, found, strict=False):
            yield result, line if line is not None and result.rank == line.rank else None, numbers


def _summands(reduction: Operation) -> int:
    """Return how many elements become one, 1 if that is unknown."""
    sizes = [
        static(each.extents)
        for each in (reduction.inputs[0], reduction.outputs[0])
        if each is not None
    ]
    if None in sizes:
        return 1
    return max(1, product(sizes[0] or ()) // max(1, product(sizes[1] or ())))


def snapped(
    scale: Array, shift: Array, reach: Array, candidates: list[ElementwiseAffine], dtype: str
) -> tuple[Array, Array]:
    """Return scale and shift, each number replaced by the candidate that it rounds."""
    limit = SNAP.get(dtype, 2.0**-8)
    # In a difference, the second operand is negative.
    candidates = [*candidates, *(each.times(-1.0, 0.0) for each in candidates)]
    scale = _nearest(scale, [each.scale for each in candidates], limit * np.abs(scale))
    shifts = [each.shift for each in candidates]
    shifts += [scale * (each.shift / each.scale) for each in candidates]
    shifts += [each.shift / each.gain for each in candidates]
    return scale, _nearest(shift, shifts, limit * reach)


def _nearest(given: Array, candidates: list[Array], limit: Array) -> Array:
    best, distance = given.copy(), np.array(limit, np.float64)
    for each in candidates:
        off = np.abs(each - given)
        is_near = np.isfinite(each) & (off <= distance)
        best, distance = np.where(is_near, each, best), np.where(is_near, off, distance)
    return best


def approximate(source: Operation, result: Operation) -> Line | None:
    """Return the affine from one layer to another with the same data, as stored."""
    given, made, rank = weights_of(source), weights_of(result), source.outputs[0].rank or 0
    if given is None or made is None:
        try:
            pairs = [parameters(each, Line.identity(rank)) for each in (source, result)]
        except (Unproved, ValueError, IndexError):
            return None
        (old, old_bias), (new, new_bias) = (
            [part.astype(np.float64) for part in pair] for pair in pairs
        )
    else:
        if given.matrix.shape != made.matrix.shape or given.axis != made.axis or rank <= made.axis:
            return None
        count = len(given.matrix)
        before = given.factor * given.matrix.reshape(count, -1)
        after = made.factor * made.matrix.reshape(count, -1)
        place = np.arange(count), np.abs(before).argmax(axis=1)
        old, new = (along(each[place], made.axis, rank) for each in (before, after))
        plain = np.zeros((1,) * rank)
        old_bias, new_bias = (
            plain if each.bias is None else each.bias_factor * each.bias.exact
            for each in (given, made)
        )
    scale = np.where(old == 0, 1.0, new / np.where(old == 0, 1.0, old))
    line = Line.of(scale, new_bias - scale * old_bias, np.abs(new_bias) + np.abs(scale * old_bias))
    return line if line.is_finite else None


def encoded(array: Array) -> float | str:
    """Return numbers as a certificate states them: one number, or float64 in base64."""
    flat = np.ascontiguousarray(array, "<f8").reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return float(flat[0])
    return b64encode(flat.tobytes()).decode()
