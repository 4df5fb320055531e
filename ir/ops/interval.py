"""Interval arithmetic on bounds of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..record import Record
from ..tensor import Array


class Interval(Record):
    """Bounds of a value: float64 arrays that broadcast against it, of its rank or of shape [].

    Ends may be infinite.
    """

    low: Array
    high: Array

    @property
    def corners(self) -> tuple[Array, Array]:
        """Both ends."""
        return self.low, self.high

    @property
    def magnitude(self) -> Array:
        """The greatest absolute value."""
        return np.asarray(np.maximum(np.abs(self.low), np.abs(self.high)))

    @property
    def whole(self) -> Interval:
        """The one interval of all elements, as arrays of shape []."""
        return Interval(
            np.asarray(self.low.min(initial=math.inf)), np.asarray(self.high.max(initial=-math.inf))
        )

    def map(self, function: Callable[[Array], Array]) -> Interval:
        """Return the interval of a function that never falls."""
        return Interval(function(self.low), function(self.high))

    def clipped(self, low: float, high: float) -> Interval:
        """Clip the interval to [low, high]; an empty result becomes the nearer end."""
        return self.map(lambda x: np.clip(x, low, high))

    def hull(self, *others: Interval) -> Interval:
        """Return the least interval that contains this one and the others."""
        every = (self, *others)
        low, high = every[0].corners
        for other in others:
            low, high = np.minimum(low, other.low), np.maximum(high, other.high)
        return Interval(low, high)


def interval(low: float, high: float) -> Interval:
    """Return the interval of two numbers."""
    return Interval(np.array(float(low)), np.array(float(high)))


UNBOUNDED = interval(-math.inf, math.inf)
ZERO = interval(0, 0)


def enclosing(candidates: Sequence[Array]) -> Interval:
    """Return the least interval that contains all candidates.

    NaN, as of 0 times infinity, stands for 0.
    """
    numbers = [np.where(np.isnan(each), 0.0, each) for each in candidates]
    stacked = np.stack(np.broadcast_arrays(*numbers))
    return Interval(stacked.min(axis=0), stacked.max(axis=0))


def added(*terms: Interval) -> Interval:
    """Return the interval of a sum."""
    return Interval(
        np.asarray(sum([term.low for term in terms], np.zeros(()))),
        np.asarray(sum([term.high for term in terms], np.zeros(()))),
    )


def negated(x: Interval) -> Interval:
    """Return the interval of -x."""
    return Interval(-x.high, -x.low)


def multiplied(x: Interval, y: Interval) -> Interval:
    """Return the interval of x y."""
    return enclosing([a * b for a in x.corners for b in y.corners])


def inverted(x: Interval) -> Interval:
    """Return the interval of 1 / x, unbounded if x may be zero."""
    crosses = (x.low <= 0) & (x.high >= 0)
    return Interval(
        np.where(crosses, np.where(x.low == 0, 1 / np.maximum(x.high, 0), -math.inf), 1 / x.high),
        np.where(crosses, np.where(x.high == 0, 1 / np.minimum(x.low, -0.0), math.inf), 1 / x.low),
    )


def repeated(x: Interval, count: float) -> Interval:
    """Return the interval of a sum of 1 to `count` terms that all lie in x.

    If `count` is infinite the number is unknown, and may be 0.
    """
    total = Interval(
        np.minimum(x.low, _times(x.low, count)), np.maximum(x.high, _times(x.high, count))
    )
    return total.hull(ZERO) if math.isinf(count) else total


def _times(x: Array, count: float) -> Array:
    return np.asarray(np.where(x == 0, 0.0, x * count))


def concatenated(
    parts: Sequence[Interval], extents: Sequence[int], axis: int, rank: int
) -> Interval:
    """Return the interval of values of `rank`, of `extents` along `axis`, joined along it."""
    views = [part.map(lambda v: v.reshape(v.shape or (1,) * rank)) for part in parts]
    shape = list(np.max([view.low.shape for view in views], axis=0))
    shape[axis] = 1
    ends = []
    for arrays in zip(*[view.corners for view in views], strict=True):
        full = [
            np.broadcast_to(array, [extent if i == axis else n for i, n in enumerate(shape)])
            for array, extent in zip(arrays, extents, strict=True)
        ]
        ends.append(np.concatenate(full, axis=axis))
    return Interval(*ends)
