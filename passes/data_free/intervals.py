"""Intervals of values with one number a channel."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...ir.ops.interval import UNBOUNDED, Interval
from ...ir.tensor import Array
from ...ir.types import Shape
from .moments import Moments

Ends = tuple[int | None, Array, Array]
"""An axis, and the low and high end of each channel along it; without an axis, one channel."""


def interval_of(found: Moments | None, shape: Shape) -> Interval:
    """Return the known range of a value, as arrays that broadcast against it, or no bounds."""
    if found is None:
        return UNBOUNDED
    if found.axis is None or shape is None or not 0 <= found.axis < len(shape):
        return Interval(found.low, found.high).whole
    view = [-1 if axis == found.axis else 1 for axis in range(len(shape))]
    return Interval(found.low.reshape(view), found.high.reshape(view))


def ends_of(interval: Interval, shape: Shape, preferred: int | None) -> Ends:
    """Return an interval with one number a channel, along `preferred` if it varies there."""
    low, high = np.broadcast_arrays(*interval.corners)
    rank = low.ndim if shape is None else len(shape)
    axes = [axis + rank - low.ndim for axis, extent in enumerate(low.shape) if extent > 1]
    if shape is None or not axes or low.ndim > rank:
        return None, np.array([low.min(initial=math.inf)]), np.array([high.max(initial=-math.inf)])
    axis = next((each for each in (preferred, 1) if each in axes), axes[-1])
    count = low.shape[axis - rank + low.ndim]
    return (
        axis,
        to_channels(low, rank, axis, count, np.min),
        to_channels(high, rank, axis, count, np.max),
    )


def to_channels(
    array: Array, rank: int, axis: int | None, count: int, function: Callable[..., Array]
) -> Array:
    """Reduce an array that broadcasts at `rank` to `count` numbers along `axis`."""
    if axis is None or array.ndim > rank or not array.ndim:
        return np.full(count, float(function(array)))
    padded = array.reshape((1,) * (rank - array.ndim) + array.shape)
    kept = function(padded, axis=tuple(i for i in range(rank) if i != axis))
    if kept.size in (1, count):
        return np.array(np.broadcast_to(kept, (count,)))
    return np.full(count, float(function(kept)))
