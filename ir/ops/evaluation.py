"""Evaluation with numpy that operators of several families share.

An operator is evaluated exactly as ONNX defines it or not at all: an evaluation raises
`NotEvaluable` if the result would depend on the runtime (a float out of an integer's range,
division by zero, an unknown attribute form).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ..graph import OPERANDS, Node
from ..tensor import Array
from ..types import F64, dtype_of
from .row import Evaluate, Inputs

MAX_BYTES = 1 << 28
"""Bound on a computed result, except folded weights: an Expand must not exhaust the memory."""


class NotEvaluable(Exception):
    """A node's result cannot be computed here; the message says why."""


def operand(inputs: Inputs) -> Array:
    """Return the first input, which must be there."""
    array = inputs[0] if inputs else None
    if array is None:
        raise NotEvaluable("its first input is absent")
    return array


def operands(inputs: Inputs) -> list[Array]:
    """Return all inputs, which must be there."""
    found = [array for array in inputs if array is not None]
    if len(found) < len(inputs):
        raise NotEvaluable("an input is absent")
    return found


def listed_operand(node: Node, inputs: Inputs, name: str) -> list[int] | None:
    """Return the integers of an operand, None if it is absent."""
    index = OPERANDS[node.op][name]
    array = inputs[index] if index < len(inputs) else None
    return None if array is None else [int(item) for item in array.ravel()]


def check_size(size: int, like: Array) -> None:
    """Refuse a result that exceeds MAX_BYTES, before it is allocated.

    It has `size` elements of the dtype of `like`.
    """
    if size * like.itemsize > MAX_BYTES:
        raise NotEvaluable(f"the result would take {size * like.itemsize} bytes")


def has_wide_parameter(node: Node) -> bool:
    """Return whether the second operand is a float64 affine parameter beside narrower data.

    Beside such a parameter, or if FoldScaleAxis marked the product of a weight and its factor with
    `folded`, the node means the exact product or sum. It is rounded to the data's dtype when the
    value is used: a chain of them is rounded once.
    """
    if len(node.inputs) != 2:
        return False
    if "folded" in node.attrs:
        return True
    data, parameter = node.inputs
    assert data is not None and parameter is not None
    return dtype_of(parameter.type) is F64 and dtype_of(data.type) not in (F64, None)


def align(parameter: Array, axis: int, rank: int) -> Array:
    """View `parameter` so that its first axis broadcasts against axis `axis` of `rank`.

    `axis` is counted from the left.
    """
    axis += rank if axis < 0 else 0
    if axis < 0 or axis + parameter.ndim > rank:
        raise NotEvaluable(
            f"a parameter of rank {parameter.ndim} does not fit at axis {axis} of rank {rank}"
        )
    return parameter.reshape(parameter.shape + (1,) * (rank - axis - parameter.ndim))


def aligned_operands(node: Node, inputs: Inputs) -> tuple[Array, Array]:
    """Return both operands, the second viewed so that it broadcasts as `axis` says."""
    a, b = operands(inputs)
    axis = node.attrs.get("axis")
    if isinstance(axis, int):
        b = align(b, axis, a.ndim)
    return a, b


def binary(function: Callable[[Array, Array], Array], *, wide: bool = False) -> Evaluate:
    """Make the evaluation of an operator with two operands of one dtype.

    If `wide`, the second may be a float64 parameter.
    """

    def evaluate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
        a, b = aligned_operands(node, inputs)
        if wide and has_wide_parameter(node):
            if a.dtype.kind == "c":
                raise NotEvaluable("a float64 parameter beside complex numbers")
            a = a.astype(np.float64, copy=False)
            size = prod(np.broadcast_shapes(a.shape, b.shape))
            if size > max(a.size, b.size):
                check_size(size, a)
        elif a.dtype != b.dtype or a.dtype == object:
            raise NotEvaluable(f"operands are {a.dtype} and {b.dtype}")
        else:
            check_size(prod(np.broadcast_shapes(a.shape, b.shape)), a)
        with np.errstate(all="ignore"):
            return (function(a, b),)

    return evaluate


def unary(function: Callable[[Array], Array]) -> Evaluate:
    """Make the evaluation of an operator that maps each element to one of the same dtype."""

    def evaluate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
        data = operand(inputs)
        with np.errstate(all="ignore"):
            return (np.asarray(function(data), dtype=data.dtype),)

    return evaluate


def identity(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Return the input."""
    return (operand(inputs),)
