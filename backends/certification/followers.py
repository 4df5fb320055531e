"""Affines of the source that follow a value, position by position: a fold may have moved each of them up to it.

Positions along an axis go along in a line: its scale at an element is the number of the element's position, so the
rows of the checker that let a line pass say where positions go. Number 0 stands for elements of other values.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator

import numpy as np

from ...certifier.affine_operators import own_line
from ...certifier.clamps import clamp_of
from ...certifier.constant_operands import TOGETHER
from ...certifier.crossing import CROSSINGS
from ...certifier.lines import Line, along
from ...certifier.program import Datum, Operation, Unproved
from ...ir.tensor import Array

Numbers = tuple[Array, Array]
"""Scale and shift at each position; NaN where an affine does not reach it."""

MAX_DEPTH = 12
"""Most operators between a value and an affine that moved up to it."""

MAX_FOUND = 96
"""Most affines of a value."""

SNAP = {"float64": 2.0**-46, "float32": 2.0**-20}
"""The distance, relative to the magnitudes, at which a number is taken for the rounding of another."""


def followers(
    value: Datum, start: Numbers, axis: int, same: Callable[[Datum], list[Datum]]
) -> Iterator[tuple[Array, Array]]:
    """Yield the affine of a value that `start` is, and those that follow it, by position along an axis."""
    yield start
    count, found = start[0].size, 0
    rank = value.rank or 0
    positions = along(np.arange(1.0, count + 1.0), axis, rank)
    stack = [(value, Line.of(positions, np.zeros((1,) * rank)), start, 0)]
    while stack and found < MAX_FOUND:
        here, line, numbers, depth = stack.pop()
        if depth > MAX_DEPTH:
            continue
        for equal in same(here):
            for reader in equal.readers:
                own = own_line(reader)
                after = None if own is None else _after(own[1], line, numbers)
                if after is not None:
                    yield after
                    found += 1
                    stack.append((reader.outputs[0], line, after, depth + 1))
                    stack.append((reader.outputs[0], line, numbers, depth + 1))  # one that stays where it is
                elif own is None:
                    stack.extend((result, each, numbers, depth + 1) for result, each in _behind(reader, equal, line))


def _after(own: Line, positions: Line, numbers: Numbers) -> Numbers | None:
    """Return an affine behind numbers of positions, None where one position has several numbers."""
    if own.rank != positions.rank:
        return None
    try:
        arrays = np.broadcast_arrays(positions.scale, own.scale, own.shift)
    except ValueError:
        return None
    places, scale, shift = (each.reshape(-1) for each in arrays)
    used = places > 0
    index = places[used].astype(np.int64) - 1
    made = np.full(numbers[0].size, np.nan), np.full(numbers[0].size, np.nan)
    for array, given in zip(made, (scale[used], shift[used]), strict=True):
        array[index] = given
        if (array[index] != given).any():
            return None
    return made[0] * numbers[0], made[0] * numbers[1] + made[1]


def _behind(reader: Operation, value: Datum, positions: Line) -> Iterator[tuple[Datum, Line]]:
    """Yield the results of an operator that an affine may cross, with the positions of their elements."""
    if clamp_of(reader) is not None:
        yield reader.outputs[0], positions
        return
    crossing = None if reader.domain else CROSSINGS.get(reader.kind)
    if crossing is None:
        return
    lines = {i: positions for i, each in enumerate(reader.inputs) if each is value}
    if reader.kind in TOGETHER:
        plain = np.zeros((1,) * positions.rank)
        other = Line.of(plain, plain) if reader.kind == "Concat" else positions
        lines = {i: lines.get(i, other) for i in range(reader.kind == "Where", len(reader.inputs))}
    try:
        found = crossing(reader, lines)
    except (Unproved, ValueError, IndexError, TypeError, KeyError):
        return
    for result, line in zip(reader.outputs, found, strict=False):
        if line is not None and result.rank == line.rank:
            yield result, line


def snapped(given: Numbers, reach: Array, candidates: list[Numbers], dtype: str) -> Numbers:
    """Return numbers with each replaced by the nearest candidate that it may be a rounding of."""
    limit = SNAP.get(dtype, 2.0**-8)
    scale = _nearest(given[0], [each for each, _ in candidates], limit * np.abs(given[0]))
    shifts = [shift for _, shift in candidates]
    with np.errstate(all="ignore"):
        shifts += [scale * (shift / own) for own, shift in candidates]
    return scale, _nearest(given[1], shifts, limit * reach)


def _nearest(given: Array, candidates: list[Array], limit: Array) -> Array:
    best, distance = given.copy(), np.array(limit, np.float64)
    for each in candidates:
        with np.errstate(all="ignore"):
            off = np.abs(each - given)
        is_near = np.isfinite(each) & (off <= distance)
        best, distance = np.where(is_near, each, best), np.where(is_near, off, distance)
    return best


def encoded(array: Array) -> float | str:
    """Return numbers as a certificate states them: one number, or float64 in base64."""
    flat = np.ascontiguousarray(array, "<f8").reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return float(flat[0])
    return b64encode(flat.tobytes()).decode()
