"""Bounds of results by bounds of the operands, for the rows of the operator table.

Results are within their bounds if the operands are within theirs, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..graph import OPERANDS, Node, Value
from ..tensor import Array
from ..types import DType, dtype_of, shape_of, static_dims
from .channel_map import MAX_EXTENT
from .inference import input_shapes, integer_of
from .interval import UNBOUNDED, ZERO, Interval, concatenated, enclosing, interval
from .row import Bounds, Constants, Function, MakeFunction


def always(low: float, high: float) -> Bounds:
    """Make the bounds of an operator whose results are between two numbers."""
    return lambda node, x, constants: [interval(low, high)] * len(node.outputs)


def rising(function: Function, low: float = -math.inf, high: float = math.inf) -> Bounds:
    """Make the bounds of a function that never falls, and is defined between `low` and `high`."""
    return lambda node, x, constants: [x[0].clipped(low, high).map(function)]


def falling(function: Function, low: float = -math.inf, high: float = math.inf) -> Bounds:
    """Make the bounds of a function that never rises, and is defined between `low` and `high`."""

    def bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
        image = x[0].clipped(low, high).map(function)
        return [Interval(image.high, image.low)]

    return bounds


Turns = Callable[[Node], Sequence[float]]
"""The numbers at which a function changes between rising and falling."""


def turning(make: MakeFunction, turns: Turns = lambda node: ()) -> Bounds:
    """Make the bounds of a function that rises or falls between its turns."""

    def bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
        function, data = make(node), x[0]
        inner = [np.clip(turn, data.low, data.high) for turn in turns(node)]
        return [enclosing([_limit(function, point) for point in (*data.corners, *inner)])]

    return bounds


def _limit(function: Function, x: Array) -> Array:
    """Return the function at x, and for infinities at a great number.

    At infinity x * sigmoid(x) is NaN.
    """
    great = 1e30
    found = function(np.clip(x, -great, great))
    return np.asarray(
        np.where(np.isinf(x) & (np.abs(found) > great / 1e6), np.copysign(math.inf, found), found)
    )


def cast_bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound Cast: an integer has no fraction."""
    dtype = dtype_of(node.output.type)
    if dtype is None or dtype.kind == "bool":
        return [dtype_bounds(node.output)]
    return [x[0] if dtype.kind == "float" else x[0].map(np.trunc)]


def of_same_data_or_zero(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound a result that is the data, with some elements replaced by 0."""
    return [x[0].hull(ZERO)]


def operand_bounds(
    node: Node, x: Sequence[Interval], name: str, absent: Interval = UNBOUNDED
) -> Interval:
    """Return the bounds of the operand `name`, of which `x` has those of all."""
    return absent if node[name] is None else x[OPERANDS[node.op][name]]


def of_operands(first: str, *others: str) -> Bounds:
    """Make the bounds of results whose elements are elements of some operands."""

    def bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
        rest = [operand_bounds(node, x, name).whole for name in others]
        return [operand_bounds(node, x, first).whole.hull(*rest)]

    return bounds


def joined(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound Concat: along its axis each part has its own interval, if the extents are known."""
    shapes = input_shapes(node)
    rank, axis = len(shapes[0] or ()), integer_of(node, "axis", 1)
    extents = [
        shape[axis]
        for shape in shapes
        if shape is not None and len(shape) == rank and -rank <= axis < rank
    ]
    known = static_dims(tuple(extents))
    if known is None or len(known) < len(x) or sum(known) > MAX_EXTENT:
        return [x[0].whole.hull(*[part.whole for part in x[1:]])]
    return [concatenated(x, known, axis % rank, rank)]


def up_to_extent(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound indices along the axis `axis` of the data."""
    axis, shape = node.attrs.get("axis", 0), shape_of(node.operand().type)
    extents = (
        (shape or (None,))
        if not isinstance(axis, int) or shape is None
        else shape[axis : axis + 1 or None]
    )
    known = [extent for extent in extents if isinstance(extent, int)]
    return [interval(0, max(known) - 1 if len(known) == len(extents) and known else math.inf)]


def dtype_bounds(value: Value) -> Interval:
    """Return the bounds of truth values and small integers, unbounded for other types."""
    dtype = dtype_of(value.type)
    if dtype is not None and dtype.kind == "bool":
        return interval(0, 1)
    return _integers_of(dtype) if dtype is not None and dtype.bits <= 16 else UNBOUNDED


def representable(value: Value, found: Interval) -> Interval:
    """Return the interval of `value`, given the one without overflow or rounding of integers."""
    dtype = dtype_of(value.type)
    if dtype is None or dtype.kind not in ("int", "uint"):
        narrow = dtype_bounds(value)
        return Interval(np.maximum(found.low, narrow.low), np.minimum(found.high, narrow.high))
    limits = _integers_of(dtype)
    if (found.low < limits.low).any() or (found.high > limits.high).any():
        return dtype_bounds(value)
    return found.map(np.trunc)


def _integers_of(dtype: DType) -> Interval:
    """Return the bounds of a type of integers, unbounded for any other type."""
    if dtype.kind not in ("int", "uint"):
        return UNBOUNDED
    signed = dtype.kind == "int"
    return interval(-(2.0 ** (dtype.bits - 1)) if signed else 0, 2.0 ** (dtype.bits - signed) - 1)


def extents_product(node: Node, axes: Sequence[int] | None) -> float:
    """Return the number of elements along `axes`, all by default; infinity if it is unknown."""
    shape = shape_of(node.operand().type)
    if shape is None:
        return math.inf
    picked = (
        shape
        if axes is None
        else [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)]
    )
    return math.prod([float(extent) if isinstance(extent, int) else math.inf for extent in picked])
