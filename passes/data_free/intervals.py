"""Intervals of values with one number a channel, by rows of the operator table and layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...ir.graph import Node
from ...ir.ops.bounds import extents_product, operand_bounds
from ...ir.ops.inference import input_shape
from ...ir.ops.interval import UNBOUNDED, ZERO, Interval, added, interval, multiplied, repeated
from ...ir.ops.views import normalizes_last_axis
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


def contracted(node: Node) -> float:
    """Return how many products a matrix product or convolution sums up."""
    if node.op == "einsum":
        return math.inf
    shape = input_shape(node, "rhs" if node.op == "matmul" else "weight")
    if node.op in ("matmul", "nn.dense"):
        terms = extents_product(node, (0 if node.attrs.get("transA", 0) else -1,))
        extent = None
        if shape:
            extent = shape[-1 if node.attrs.get("transB", 0) else max(-2, -len(shape))]
        return float(extent) if terms == math.inf and isinstance(extent, int) else terms
    if shape is None or len(shape) < 2:
        return math.inf
    kept = shape[1:] if node.op == "nn.conv" else (shape[0], *shape[2:])
    return math.prod([float(extent) if isinstance(extent, int) else math.inf for extent in kept])


def product_bounds(node: Node, x: Sequence[Interval]) -> Interval:
    """Return the interval of a product or convolution of two computed operands.

    The rows of a Softmax along its last axis add up to 1: the product with them is an average.
    """
    first = node.operand().node
    is_softmax = first is not None and first.op == "nn.softmax" and normalizes_last_axis(first)
    if node.op == "matmul" and is_softmax:
        return x[1].whole
    product = repeated(multiplied(x[0].whole, x[1].whole), contracted(node))
    if node.op in ("nn.conv", "nn.conv_transpose"):
        product = product.hull(ZERO)
    bias = ZERO if node.op == "matmul" else operand_bounds(node, x, "bias", ZERO).whole
    if node.op == "nn.dense":
        alpha, beta = (node.attrs.get(name, 1.0) for name in ("alpha", "beta"))
        assert isinstance(alpha, int | float) and isinstance(beta, int | float)
        product, bias = (
            multiplied(product, interval(alpha, alpha)),
            multiplied(bias, interval(beta, beta)),
        )
    return added(product, bias)
