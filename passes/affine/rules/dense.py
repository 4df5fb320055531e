"""Gemm and MatMul as layers that absorb affines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ....ir.graph import Node
from ....ir.ops.inference import input_shapes
from ....ir.provenance import Refused
from ....ir.tensor import Array
from ....ir.types import shape_of
from ....support.statement import states
from ..algebra.affine import Affine
from ..algebra.layers import (
    Fold,
    LayerNumbers,
    Weight,
    check_channels,
    of_data,
    of_result,
    operands,
    read_weight,
)
from ..algebra.operands import Parameters
from ..algebra.stored import is_stored
from ..algebra.transfer import Transfer, sole_affine
from .affine_rule import AffineRule, layer


def _dense(
    node: Node, params: Parameters, *, any_bias: bool = False
) -> tuple[Weight, Array | None, bool, float]:
    """Return the weight, beta * C with its columns last, transB, and the beta of the new bias."""
    weight, bias = operands(node, params, any_bias=any_bias)
    if weight.rank != 2:
        raise Refused("channel_mismatch", f"{node.description}: the weight has rank {weight.rank}")
    transposed = bool(node.attrs.get("transB", 0))
    columns = weight.shape[0 if transposed else 1]
    beta = node.attrs.get("beta", 1.0)
    assert isinstance(beta, float | int)
    if bias is None:
        return weight, None, transposed, 1.0
    if bias.ndim > 2 or (bias.ndim and bias.shape[-1] not in (1, columns)):
        raise Refused("channel_mismatch", f"{node.description}: C has shape {list(bias.shape)}")
    if not beta:
        return weight, np.zeros(columns), transposed, 1.0
    bias = bias * float(beta)
    bias = np.broadcast_to(bias, (*bias.shape[:-1], columns))
    return weight, bias, transposed, float(beta)


@states(
    "affine(gemm(x, w, c, alpha, beta), s, t, 1, 2) == gemm(x, w * s, (s * (beta * c) + t) / beta,"
    " alpha, beta); affine(gemm(x, w, None, alpha, 1), s, t, 1, 2) == gemm(x, w * s, t, alpha, 1);"
    " affine(gemm(x, w, c0, alpha, 0), s, t, 1, 2) == gemm(x, w * s, t, alpha, 1)"
)
def dense_result(node: Node, affine: Affine, params: Parameters) -> Fold:
    """Gemm: s (alpha A B + beta C) + t = alpha A (s B) + beta C', C' = (s beta C + t) / beta."""
    weight, bias, transposed, beta = _dense(node, params)
    columns = 0 if transposed else 1
    largest = params.largest(weight.value, weight.array, (1 - columns,))
    fold = Fold(node, affine, 1, columns, 1, weight.dtype, beta=beta)
    spread = _over_rows if transposed else _over_columns
    return of_result(fold, LayerNumbers(weight, largest, spread, bias))


def _over_rows(scale: Array) -> Array:
    return scale.reshape(-1, 1)


def _over_columns(scale: Array) -> Array:
    return scale.reshape(1, -1)


@states(
    "gemm(affine(x, s, t, 1, 2), w, c, alpha, beta) == gemm(x, along(s, 0, 2) * w, c + alpha / beta"
    " * (t @ w), alpha, beta); gemm(affine(x, s, t, 1, 2), w, None, alpha, 1) == gemm(x, along(s,"
    " 0, 2) * w, alpha * (t @ w), alpha, 1)"
)
def dense_data(node: Node, affine: Affine, params: Parameters) -> Fold:
    """Gemm: rows of B take the scale of A's columns, and C' = C + (alpha / beta) shift B."""
    weight, bias, transposed, beta = _dense(node, params, any_bias=not affine.has_shift)
    matrix = weight.array.T if transposed else weight.array
    axis = 0 if node.attrs.get("transA", 0) else 1
    check_channels(node, affine, axis, matrix.shape[0])
    alpha = node.attrs.get("alpha", 1.0)
    assert isinstance(alpha, float | int)
    shift = np.broadcast_to(affine.shift, (matrix.shape[0],))
    response = float(alpha) * (shift @ matrix) if affine.has_shift else np.zeros(matrix.shape[1])
    columns = 0 if transposed else 1
    largest = params.largest(weight.value, matrix, (1,))
    fold = Fold(node, affine, 1, columns, 1, weight.dtype, beta=beta)
    spread = _over_columns if transposed else _over_rows
    return of_data(fold, LayerNumbers(weight, largest, spread, bias), response)


def _matrix(node: Node, params: Parameters) -> tuple[Weight, int]:
    """Return the constant operand of a MatMul, and which one it is."""
    side = next((side for side in (1, 0) if is_stored(node.inputs[side], params)), 1)
    weight = read_weight(node, side, params)
    shape, data = shape_of(node.output.type), input_shapes(node)[1 - side]
    if shape is None or data is None:
        detail = f"{node.description}: the rank of its data or result is unknown"
        raise Refused("unknown_rank", detail)
    if weight.rank < 2 or weight.rank > len(shape) or len(data) < 2:
        detail = f"{node.description}: an operand is a vector or the weight has more axes"
        raise Refused("channel_mismatch", detail)
    return weight, side


@states(
    "affine(x @ w, s, t, r - 1, r) == x @ (w * s) + t; "
    "affine(w @ x, s, t, r - 2, r) == along(s, 0, 2) * w @ x + along(t, 0, 2)"
)
def matmul_result(node: Node, affine: Affine, params: Parameters) -> Fold:
    """MatMul: x W has its channels on the last axis, W x on the one before.

    There is no slot for a bias: the fold leaves a shift to be added.
    """
    weight, side = _matrix(node, params)
    channel = _weight_axis(weight)
    numbers = _product_numbers(weight, channel, params)
    fold = Fold(node, affine, side, channel, _result_axis(node, side), weight.dtype)
    return of_result(fold, numbers)


def _product_numbers(weight: Weight, channel: int, params: Parameters) -> LayerNumbers:
    """Return the numbers of a MatMul whose weight an affine scales along the axis `channel`."""
    others = tuple(axis for axis in range(weight.rank) if axis != channel)
    largest = params.largest(weight.value, weight.array, others)
    tail = (1,) * (weight.rank - 1 - channel)
    return LayerNumbers(weight, largest, lambda scale: scale.reshape(-1, *tail), slot=False)


@states(
    "affine(x, s, t, r - 1, r) @ w == x @ (along(s, 0, 2) * w) + t @ w; "
    "w @ affine(x, s, t, r - 2, r) == w * s @ x + along(w @ t, 0, 2)"
)
def matmul_data(node: Node, affine: Affine, params: Parameters) -> Fold:
    """MatMul: (scale x + shift) W scales the rows of W and leaves shift W to be added.

    W (scale x + shift) scales the columns of W and leaves W shift.
    """
    weight, side = _matrix(node, params)
    array, data = weight.array, shape_of(node.inputs[1 - side].type)  # type: ignore[union-attr]
    assert data is not None
    channel = array.ndim - 2 if side else array.ndim - 1
    axis = len(data) - 1 if side else len(data) - 2
    check_channels(node, affine, axis, array.shape[channel])
    shift = np.broadcast_to(affine.shift, (array.shape[channel],))
    response: Array = np.zeros(1)
    if affine.has_shift:
        response = shift @ array if side else (array @ shift)[..., None]
        if side and array.ndim > 2:
            response = response[..., None, :]
    numbers = _product_numbers(weight, channel, params)
    fold = Fold(node, affine, side, _weight_axis(weight), _result_axis(node, side), weight.dtype)
    return of_data(fold, numbers, response)


@states("s * (x @ y) + t == (s * x) @ y if t == 0; s * (x @ y) + t == x @ (s * y) if t == 0")
def matmul_backward(
    node: Node, index: int, affine: Affine, params: Parameters
) -> Sequence[Transfer]:
    """MatMul of two computed operands: s (x y) = (s x) y = x (s y) for one number s."""
    _check_scalar(node, affine)
    return [Transfer(operands=((operand, affine),)) for operand in (0, 1)]


@states("(s * x + t) @ y == s * (x @ y) if t == 0; y @ (s * x + t) == s * (y @ x) if t == 0")
def matmul_forward(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """MatMul of two computed operands: (s x) y = s (x y) for one number s."""
    _, affine = sole_affine(node, given)
    _check_scalar(node, affine)
    return Transfer(results=((0, affine),))


def _check_scalar(node: Node, affine: Affine) -> None:
    if affine.axis is not None or affine.has_shift:
        detail = f"{node.description}: only one number passes a product of computed operands"
        raise Refused("dynamic_weight", detail)


def _weight_axis(weight: Weight) -> int:
    """Return the axis of the weight of a MatMul that has the channels of the result."""
    return weight.rank - 1 if weight.index == 1 else weight.rank - 2


def _result_axis(node: Node, side: int) -> int:
    """Return the channel axis of a MatMul whose operand `side` is constant."""
    shape = shape_of(node.output.type)
    assert shape is not None
    return len(shape) - 1 if side else len(shape) - 2


RULES = {
    "nn.dense": layer(dense_result, dense_data),
    "matmul": AffineRule(matmul_backward, matmul_forward, matmul_result, matmul_data),
}
"""The rules by operator."""
