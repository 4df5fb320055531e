"""Affine relations y = scale * x + shift in float64, and proofs that numbers are roundings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from onnx import TensorProto

from .program import Array, Extents

SLACK = 2.0**-49
"""Bound on float64's error, as a share of the sum of magnitudes that made a number."""

GROWTH = 2.0**16
"""Most times that a free number may exceed the source's greatest of its kind, or 1."""

NARROW: dict[int, float] = {TensorProto.FLOAT16: 2.0**9, TensorProto.BFLOAT16: 2.0**11}
"""How many times less that is for types with fewer digits."""


@dataclass(frozen=True, eq=False, slots=True)
class Line:
    """y = scale * x + shift. The arrays have one axis for each of x, and are broadcast against it.

    `reach` is the sum of magnitudes that `shift` was computed from, which bounds its error.
    """

    scale: Array
    shift: Array
    reach: Array

    @classmethod
    def of(cls, scale: Array, shift: Array, reach: Array | None = None) -> Line:
        """Return the line with these arrays, which have one rank."""
        return cls(scale, shift, np.abs(shift) if reach is None else reach)

    @classmethod
    def identity(cls, rank: int) -> Line:
        """Return y = x, which is one object for each rank."""
        return _identity(rank)

    @property
    def rank(self) -> int:
        """The number of axes of x."""
        return self.scale.ndim

    @property
    def key(self) -> tuple[Any, ...]:
        """The numbers, as lines that are the same have them."""
        arrays = self.scale, self.shift, self.reach
        return tuple(part for each in arrays for part in (each.shape, each.tobytes()))

    @property
    def has_shift(self) -> bool:
        """Whether a shift is other than zero, as far as float64 can tell."""
        return not (np.abs(self.shift) <= SLACK * self.reach).all()

    @property
    def has_scale(self) -> bool:
        """Whether a scale is other than one, as far as float64 can tell."""
        return not (np.abs(self.scale - 1.0) <= SLACK).all()

    @property
    def is_identity(self) -> bool:
        """Whether y = x."""
        return not self.has_scale and not self.has_shift

    @property
    def is_finite(self) -> bool:
        """Whether all numbers are finite, and there are some: of none, all would be true."""
        return all(
            array.size > 0 and bool(np.isfinite(array).all())
            for array in (self.scale, self.shift, self.reach)
        )

    @property
    def restored(self) -> Line:
        """The line of y that is x, and zero where a scale is zero."""
        scale = np.where(self.scale == 0.0, 0.0, 1.0 / self.scale)
        return Line(scale, -scale * self.shift, np.abs(scale) * self.reach)

    @property
    def spread(self) -> Array:
        """The greatest scale or 1 / scale, and magnitude added to x, if the scale is not zero."""
        scale = np.abs(self.scale)
        shares = (
            np.maximum(scale, 1.0 / scale),
            np.maximum(np.abs(self.shift), self.reach) / scale,
        )
        return np.array([np.where(scale == 0.0, 0.0, each).max(initial=0.0) for each in shares])

    def after(self, inner: Line) -> Line:
        """Return the line of x for self(inner(x))."""
        if inner is _identity(inner.rank):
            return self
        scale = scaled(self.scale, inner.scale)
        shift = self.scale * inner.shift + self.shift
        return Line(scale, shift, np.abs(self.scale) * inner.reach + self.reach)

    def inverse(self) -> Line | None:
        """Return the line of y that is x, None if a scale is zero."""
        made = self.restored
        return made if made.is_finite and made.scale.all() else None

    def over(self, inner: Line) -> Line | None:
        """Return a line of inner(x) that is this line of x, or None.

        Where inner(x) is constant, this line has to be, too.
        """
        gone = inner.scale == 0.0
        if (gone & (self.scale != 0.0)).any():
            return None
        scale = np.where(gone, 0.0, self.scale / np.where(gone, 1.0, inner.scale))
        made = Line(
            scale, self.shift - scale * inner.shift, self.reach + np.abs(scale) * inner.reach
        )
        is_kept = ((scale == 0.0) == (self.scale == 0.0)).all()  # not too small for float64
        return made if made.is_finite and is_kept else None

    @property
    def projection(self) -> Line:
        """The line that y is of itself, which is a constant where y is one."""
        gone = self.scale == 0.0
        given = np.where(gone, 0.0, 1.0), np.where(gone, self.shift, 0.0)
        scale, shift = (_levelled(each, 0.0 * each) for each in given)
        same = tuple(
            axis for axis in range(self.rank) if scale.shape[axis] == shift.shape[axis] == 1
        )
        return Line(scale, shift, np.where(gone, self.reach, 0.0).max(axis=same, keepdims=True))

    def with_scale(self, scale: Array, fixed: Line) -> Line:
        """Return an equal line with another scale if `fixed` projects x to constants."""
        gone = fixed.scale == 0.0
        shift = self.scale * fixed.shift + self.shift - scale * fixed.shift
        reach = np.abs(self.scale) * fixed.reach + self.reach + np.abs(scale) * fixed.reach
        return Line(
            np.where(gone, scale, self.scale),
            np.where(gone, shift, self.shift),
            np.where(gone, reach, self.reach),
        )

    def without_shift(self, fixed: Line) -> Line:
        """Return an equal line without shift if `fixed` projects x to constants."""
        value = self.scale * fixed.shift + self.shift
        can = (fixed.scale == 0.0) & ((fixed.shift != 0.0) | (value == 0.0))
        scale = np.where(value == 0.0, 1.0, value / np.where(fixed.shift == 0.0, 1.0, fixed.shift))
        can &= np.isfinite(scale) & ((value != 0.0) | (fixed.shift == 0.0))
        zero = np.where(can, 0.0, 1.0)
        return Line(np.where(can, scale, self.scale), zero * self.shift, zero * self.reach)

    def filled(self, fixed: Line, axes: Sequence[int]) -> Line:
        """Return an equal line that has a neighbour's scale if `fixed` says x is constant."""
        gone, scale = np.broadcast_arrays(fixed.scale == 0.0, self.scale)
        known = np.where(gone, np.nan, scale)
        for axis in axes:
            known = np.take_along_axis(
                known, np.isnan(known).argmin(axis=axis, keepdims=True), axis
            )
        made = self.with_scale(np.where(gone, np.where(np.isnan(known), 1.0, known), scale), fixed)
        most = np.maximum(np.maximum(1.0, np.abs(made.shift)), np.abs(made.scale * fixed.shift))
        is_lost = gone & (made.reach > GROWTH * most)  # in numbers that are added and taken away
        return self if is_lost.any() else made.tidy()

    def tidy(self) -> Line:
        """Return the line without scales and shifts that float64 cannot tell from none."""
        plain = Line.identity(self.rank)
        scale = _levelled(self.scale, SLACK * np.abs(self.scale)) if self.has_scale else plain.scale
        if not self.has_shift:
            return Line(scale, plain.shift, plain.reach)
        shift = _levelled(self.shift, SLACK * self.reach)
        same = tuple(
            axis for axis in range(self.rank) if scale.shape[axis] == shift.shape[axis] == 1
        )
        # Along axes of one number the least reach holds: a greater one would widen the bound.
        return Line(scale, shift, self.reach.min(axis=same, keepdims=True))

    def near(self, other: Line) -> bool:
        """Whether both are one line, as far as float64 can tell."""
        if not self.scale.size or not other.scale.size:
            return False
        first, second = self.scale.item(0), other.scale.item(0)
        if abs(first - second) > SLACK * max(abs(first), abs(second)):
            return False
        scales = np.abs(self.scale - other.scale) <= SLACK * np.maximum(
            np.abs(self.scale), np.abs(other.scale)
        )
        shifts = np.abs(self.shift - other.shift) <= SLACK * (self.reach + other.reach)
        return bool(scales.all() and shifts.all())

    def drowns(self, source: Line) -> bool:
        """Whether the data are lost in numbers added and removed, far beyond the source's line."""
        return bool((self.reach > GROWTH * np.maximum(1.0, source.reach)).any())

    def map(self, change: Callable[[Array], Array]) -> Line:
        """Return the line whose three arrays are changed in the same way."""
        return Line(change(self.scale), change(self.shift), change(self.reach))

    def taken(self, axis: int, positions: Array) -> Line:
        """Return the line of the elements at positions of an axis."""
        return self.map(
            lambda array: array if array.shape[axis] == 1 else array.take(positions, axis=axis)
        )

    def is_uniform_along(self, axes: tuple[int, ...]) -> bool:
        """Whether all numbers along `axes` are one."""
        return all(array.shape[axis] == 1 for array in (self.scale, self.shift) for axis in axes)

    def fits(self, extents: Extents) -> bool:
        """Whether the line varies only along axes known to have as many elements."""
        if extents is None or len(extents) != self.rank:
            return extents is None
        return all(
            array.shape[axis] in (1, extent)
            for array in (self.scale, self.shift)
            for axis, extent in enumerate(extents)
            if isinstance(extent, int)
        )

    def vector(self, axis: int) -> tuple[Array, Array, Array] | None:
        """Return scale, shift and reach along `axis`, None if they vary along another one."""
        found = []
        arrays: Sequence[Array] = (self.scale, self.shift, self.reach)
        if len({each.shape for each in arrays}) > 1:
            arrays = np.broadcast_arrays(*arrays)
        for array in arrays:
            if array.size != array.shape[axis]:
                return None
            found.append(array.reshape(-1))
        return found[0], found[1], found[2]


@lru_cache(maxsize=64)
def _identity(rank: int) -> Line:
    """Return y = x."""
    one, zero = np.ones((1,) * rank), np.zeros((1,) * rank)
    for each in (one, zero):
        each.setflags(write=False)
    return Line(one, zero, zero)


def scaled(array: Array, factor: Array) -> Array:
    """Return the product, NaN where it is too small for float64, which takes it for zero."""
    made = array * factor
    if made.all():
        return np.asarray(made)
    return np.where((made == 0.0) & (array != 0.0) & (factor != 0.0), np.nan, made)


def _levelled(array: Array, slack: Array) -> Array:
    """Return the array with extent 1 along axes of one number, but for `slack`."""
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            first = array.take([0], axis=axis)
            if (np.abs(array - first) <= slack).all():
                array, slack = first, slack.min(axis=axis, keepdims=True)
    return array


def shared_scale(lines: Mapping[int, Line], fixed: Mapping[int, Line]) -> Array | None:
    """Return a scale that lines have where they are not free, or None.

    A line is free where `fixed` says that x is constant.
    """
    rank = max(line.rank for line in lines.values())
    if any(line.rank != rank for line in lines.values()):
        return None
    scale = np.full((1,) * rank, np.nan)
    for i, line in lines.items():
        own = np.where(fixed[i].scale == 0.0, np.nan, line.scale) if i in fixed else line.scale
        scale = np.where(np.isnan(scale), own, scale)
    return np.where(np.isnan(scale), 1.0, scale)


def along(vector: Array, axis: int, rank: int) -> Array:
    """Return a vector as an array of `rank` axes that varies along `axis`."""
    extents = [1] * rank
    extents[axis] = vector.size
    return vector.reshape(extents)


FORMATS = {
    "float16": (11, -14),
    "bfloat16": (8, -126),
    "float32": (24, -126),
    "float64": (53, -1022),
}
"""The digits of a type, and the exponent of its least normal number."""


def vanishes(exact: Array, dtype: np.dtype[Any]) -> Array:
    """Return where a number is subnormal in a type and loses digits, but not zero."""
    return np.asarray((exact != 0) & (np.abs(exact) < 2.0 ** FORMATS[dtype.name][1]))


def is_rounding(stored: Array, exact: Array, reach: Array | None = None) -> bool:
    """Whether all of `stored` are roundings of numbers within float64's error of `exact`.

    The error is relative to `reach`, by default the numbers' own magnitudes. Rounding is monotone,
    so the roundings of both ends of the interval enclose the elements.
    """
    if stored.shape != exact.shape or not (reach is None or np.isfinite(reach).all()):
        return False
    wide = stored if stored.dtype.kind == "f" else stored.astype(np.float64)
    if not np.isfinite(wide).all():
        return False  # an overflow
    others = exact.astype(stored.dtype) != stored
    if not others.any():
        return True  # the rounding of the number itself is between those of the ends
    if not np.isfinite(exact).all():
        return False
    if reach is not None:
        reach = np.broadcast_to(reach, exact.shape)[others]
    exact, stored = exact[others], stored[others]
    slack = SLACK * np.maximum(0.0 if reach is None else reach, np.abs(exact))
    low = (exact - slack).astype(stored.dtype).astype(np.float64)
    high = (exact + slack).astype(stored.dtype).astype(np.float64)
    numbers = stored.astype(np.float64)
    return bool(((low <= numbers) & (numbers <= high)).all())
