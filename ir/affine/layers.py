"""Layers that absorb an affine into their weights and bias.

Of their result, op(x, w, b) being their data: scale * y + shift = op(x, w', b'); and of their data: op(scale * x +
shift, w, b) = op(x, w', b'). Each function answers every question that can fail, on the actual numbers, and returns
the `Fold` to write, or a `Refusal`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..graph import Node, Value
from ..ledger import Refusal
from ..tensor import Array, float64, numpy_dtype, round_to
from ..types import DType, dtype_of, shape_of
from .algebra import Affine
from .operands import Parameters, implicit_padding, integer, opset, text
from .recognise import not_constant


@dataclass(frozen=True, slots=True, eq=False)
class Rescale:
    """A dequantized weight: the DequantizeLinear `node` gets `scale` and `zero_point` along `axis` of its result."""

    node: Node
    scale: Array
    zero_point: Array | None
    axis: int


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """What a fold of `affine` writes to the layer `node`.

    Its weight, input `index`, is multiplied by `factor` (float64, broadcast against it; None leaves it alone) and its
    bias, input `bias_index`, becomes `bias` (float64; None leaves it alone). A layer without a slot for a bias leaves
    `shift` behind, to be added to its result, along `shift_axis` where it is a vector. `axis` is the channel axis of
    the result, `weight_axis` that of output channels in the weight. A dense layer multiplies its bias by `beta`.
    """

    node: Node
    affine: Affine
    index: int
    weight_axis: int
    axis: int
    dtype: DType
    factor: Array | None = None
    bias: Array | None = None
    shift: Array | None = None
    shift_axis: int | None = None
    rescale: Rescale | None = None
    beta: float = 1.0
    bias_index: int = 2

    @property
    def weight(self) -> Value:
        """The weight as it is now."""
        value = self.node.inputs[self.index]
        assert value is not None
        return value

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight in its dtype."""
        shape = shape_of(self.weight.type) or ()
        return prod(dim for dim in shape if isinstance(dim, int)) * self.dtype.bits // 8


@dataclass(frozen=True, slots=True, eq=False)
class _Weight:
    """The weight of a layer, input `index`: exact elements, dtype, and the DequantizeLinear that makes it, if any."""

    index: int
    value: Value
    dtype: DType
    array: Array
    dequantize: Node | None = None
    scale: Array | None = None
    zero_point: Array | None = None


def to_float64(array: Array) -> Array:
    """`array` in float64."""
    wide: Array = array.astype(np.float64, copy=False)
    return wide


def smallest_normal(dtype: DType) -> float:
    """The smallest positive normal number of a floating type."""
    if dtype.name == "bf16":
        return float(np.finfo(np.float32).tiny)
    return float(np.finfo(numpy_dtype(dtype)).tiny)


def _weight(node: Node, index: int, params: Parameters) -> _Weight | Refusal:
    value = node.inputs[index]
    assert value is not None
    tensor = params.evaluator.tensor(value)
    array = params.evaluator.exact(value) if tensor is not None else None
    if tensor is None or array is None:
        producer = value.node
        if producer is not None and producer.op == "::DequantizeLinear" and params.quantized:
            return _dequantized(node, index, producer, params)
        reason = not_constant(value)
        code = "dynamic_weight" if reason.code == "non_constant_params" else reason.code
        return Refusal(code, f"{node.label}: the weight {reason.detail}")
    if not tensor.dtype.is_float:
        return Refusal("dtype_mismatch", f"{node.label}: the weight is {tensor.dtype}")
    if not array.size:
        return Refusal("channel_mismatch", f"{node.label}: the weight is empty")
    return _Weight(index, value, tensor.dtype, array)


def _dequantized(node: Node, index: int, producer: Node, params: Parameters) -> _Weight | Refusal:
    """(q - zero_point) * scale with constant integers, per tensor or along one axis."""
    values = [params.evaluator.tensor(value) for value in producer.inputs]
    label = producer.label
    if len(values) < 2 or any(tensor is None for tensor in values) or producer.output.sole_user() is not node:
        return Refusal("quantized_weight", f"{label}: its operands are not constant, or others read it")
    arrays = [float64(tensor) for tensor in values if tensor is not None]
    scale = arrays[1]
    if scale.ndim > 1 or producer.attrs.get("block_size", 0) or not values[1].dtype.is_float:  # type: ignore[union-attr]
        return Refusal("quantized_weight", f"{label}: the scale is neither per tensor nor per channel")
    axis = integer(producer, "axis", 1)
    view = [1] * arrays[0].ndim
    if scale.size != 1:
        view[axis] = -1
    exact = (arrays[0] - (arrays[2].reshape(view) if len(arrays) > 2 else 0.0)) * scale.reshape(view)
    zero_point = values[2].numpy() if len(values) > 2 and values[2] is not None else None
    dtype = values[1].dtype  # type: ignore[union-attr]
    return _Weight(index, producer.output, dtype, exact, producer, scale, zero_point)


def _bias(node: Node, params: Parameters, index: int = 2) -> Array | Refusal | None:
    value = node.input(index)
    if value is None:
        return None
    array = params.evaluator.exact(value)
    if array is None:
        reason = not_constant(value)
        code = "dynamic_bias" if reason.code == "non_constant_params" else reason.code
        return Refusal(code, f"{node.label}: the bias {reason.detail}")
    return to_float64(array)


def _operands(node: Node, params: Parameters) -> tuple[_Weight, Array | None] | Refusal:
    """The weight, and the bias in float64, of a layer with a slot for it."""
    weight = _weight(node, 1, params)
    if isinstance(weight, Refusal):
        return weight
    bias = _bias(node, params)
    return bias if isinstance(bias, Refusal) else (weight, bias)


def _misfit(node: Node, affine: Affine, axis: int, channels: int) -> Refusal | None:
    """Why `affine` does not act on `axis`, which has `channels`; None where it does."""
    if affine.axis is None:
        return None
    if affine.axis != axis:
        return Refusal("axis_mismatch", f"axis {affine.axis} is not the channel axis {axis} of {node.label}")
    if affine.channels != channels:
        return Refusal("channel_mismatch", f"{node.label} has {channels} channels, not {affine.channels}")
    return None


def _check(node: Node, scale: Array, largest: Array, bias: Array | None, dtype: DType) -> Refusal | None:
    """Every folded number is finite, and no channel that had normal numbers is left with none.

    `largest` is the greatest magnitude in the weight of each channel that `scale` multiplies.
    """
    label = node.label
    if not (np.isfinite(scale).all() and np.isfinite(largest).all()):
        return Refusal("nonfinite", f"{label}: a scale or weight is infinite or not a number")
    with np.errstate(all="ignore"):
        top = largest * np.abs(scale)
    if not np.isfinite(to_float64(round_to(top, dtype))).all():
        return Refusal("overflow", f"{label}: a folded weight exceeds {dtype}")
    if bias is not None and not np.isfinite(to_float64(round_to(bias, dtype))).all():
        return Refusal("overflow", f"{label}: the folded bias exceeds {dtype}")
    tiny = smallest_normal(dtype)
    if ((top < tiny) & (largest >= tiny) & (scale != 0)).any():
        return Refusal("underflow", f"{label}: a channel of folded weights vanishes in {dtype}")
    return None


def _of_result(
    fold: Fold,
    weight: _Weight,
    largest: Array,
    bias: Array | None,
    spread: Callable[[Array], Array],
    *,
    slot: bool = True,
) -> Fold | Refusal:
    """The fold of an affine of the result: weight times scale, and the affine of the bias.

    `largest` is the greatest magnitude in the weight of each channel of the result, `bias` what the layer adds now,
    its channels on the last axis, and `spread` makes of a vector [channels] a factor of the weight.
    """
    affine, channels = fold.affine, largest.shape[0]
    misfit = _misfit(fold.node, affine, fold.axis, channels)
    if misfit is not None:
        return misfit
    scale = np.broadcast_to(affine.scale, (channels,))
    old = np.zeros(channels) if bias is None else bias
    new = np.asarray(affine.apply(old))
    return _checked(fold, weight, scale, largest, spread, old if bias is not None else None, new, slot=slot)


def _of_data(
    fold: Fold,
    weight: _Weight,
    largest: Array,
    bias: Array | None,
    spread: Callable[[Array], Array],
    response: Array | Refusal,
    *,
    slot: bool = True,
) -> Fold | Refusal:
    """The fold of an affine of the data: weight times scale, and the bias plus what the weight makes of the shift.

    `largest` is the greatest magnitude in the weight of each channel of the data; `response` is the result of the
    layer, without its bias, for data that is the shift, or why it is not the same everywhere.
    """
    affine, channels = fold.affine, largest.shape[0]
    if isinstance(response, Refusal):
        return response
    scale = np.broadcast_to(affine.scale, (channels,))
    new = response if bias is None else np.asarray(bias + response)
    return _checked(fold, weight, scale, largest, spread, bias, new, slot=slot)


def _checked(
    fold: Fold,
    weight: _Weight,
    scale: Array,
    largest: Array,
    spread: Callable[[Array], Array],
    old: Array | None,
    new: Array,
    *,
    slot: bool,
) -> Fold | Refusal:
    """The fold that multiplies the weight by `scale` and replaces the bias `old` by `new`, every number checked."""
    with np.errstate(all="ignore"):
        written = new / fold.beta
    refusal = _check(fold.node, scale, largest, written, fold.dtype)
    if refusal is not None:
        return refusal
    factor = spread(scale) if (scale != 1).any() else None
    if not slot:
        return replace(fold, factor=factor, shift=np.ascontiguousarray(new) if new.any() else None)
    bias = None if np.array_equal(new, np.zeros_like(new) if old is None else old) else written
    if weight.dequantize is None or factor is None:
        return replace(fold, factor=factor, bias=bias)
    rescale = _rescale(fold, weight, weight.dequantize, scale)
    return rescale if isinstance(rescale, Refusal) else replace(fold, bias=bias, rescale=rescale)


def _rescale(fold: Fold, weight: _Weight, dequantize: Node, scale: Array) -> Rescale | Refusal:
    """The integers stay, and their scale per output channel is multiplied by positive numbers; from opset 13 on."""
    label = dequantize.label
    old, zero_point = weight.scale, weight.zero_point
    assert old is not None
    if not (scale > 0).all():
        return Refusal("negative_scale", f"{label}: a scale that is not positive would change the integers")
    if old.size != 1 and integer(dequantize, "axis", 1) % weight.array.ndim != fold.weight_axis:
        return Refusal("axis_mismatch", f"{label} is not per output channel")
    if opset(dequantize) < 13:
        return Refusal("unsupported_op", f"{label}: scales per channel need opset 13")
    new = np.broadcast_to(old.ravel(), scale.shape) * scale
    refusal = _check(dequantize, scale, np.broadcast_to(old.ravel(), scale.shape), None, fold.dtype)
    if refusal is not None:
        return refusal
    if zero_point is not None:
        zero_point = np.ascontiguousarray(np.broadcast_to(zero_point.ravel(), scale.shape))
    return Rescale(dequantize, new, zero_point, fold.weight_axis)


def _is_conv(node: Node, array: Array, bias: Array | None, channels: int) -> Refusal | None:
    if array.ndim < 3 or (bias is not None and bias.shape != (channels,)):
        return Refusal("channel_mismatch", f"{node.label}: weight {list(array.shape)} and its bias do not fit")
    return None


def conv_result(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """Conv: weight [M, C/group, k...]; output channel m is row m, whatever the groups, pads and strides."""
    operands = _operands(node, params)
    if isinstance(operands, Refusal):
        return operands
    weight, bias = operands
    array = weight.array
    refusal = _is_conv(node, array, bias, array.shape[0])
    if refusal is not None:
        return refusal
    tail = (1,) * (array.ndim - 1)
    largest = params.largest(weight.value, array, tuple(range(1, array.ndim)))
    fold = Fold(node, affine, 1, 0, 1, weight.dtype)
    return _of_result(fold, weight, largest, bias, lambda scale: scale.reshape(-1, *tail))


def conv_data(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """Conv: output channel m reads the C/group input channels of its group.

    The shift of the data is the same at every position only if no window reads padding.
    """
    operands = _operands(node, params)
    if isinstance(operands, Refusal):
        return operands
    weight, bias = operands
    if weight.dequantize is not None:
        return Refusal("quantized_weight", f"{node.label}: the integers have no scale per input channel")
    array, group = weight.array, integer(node, "group", 1)
    refusal = _is_conv(node, array, bias, array.shape[0])
    if refusal is not None:
        return refusal
    if group < 1 or array.shape[0] % group:
        return Refusal("channel_mismatch", f"{node.label}: weight {list(array.shape)} does not fit its groups")
    rows, columns = array.shape[0] // group, array.shape[1]
    misfit = _misfit(node, affine, 1, columns * group)
    if misfit is not None:
        return misfit
    grouped = array.reshape(group, rows, columns, prod(array.shape[2:]))
    largest = params.largest(weight.value, grouped, (1, 3)).reshape(-1)
    tail = (1,) * (array.ndim - 2)

    def spread(scale: Array) -> Array:
        if group == 1:
            return scale.reshape(1, columns, *tail)
        return np.repeat(scale.reshape(group, columns), rows, axis=0).reshape(-1, columns, *tail)

    response: Array | Refusal = np.zeros(array.shape[0])
    if affine.has_shift:
        if implicit_padding(node, array.shape[2:]):
            response = Refusal("nonzero_padding", f"{node.label} pads its data with zeros, which the shift is not")
        else:
            shift = np.broadcast_to(affine.shift, (columns * group,)).reshape(group, 1, columns)
            response = (grouped.sum(axis=3, dtype=np.float64) * shift).sum(axis=2).reshape(-1)
    return _of_data(Fold(node, affine, 1, 0, 1, weight.dtype), weight, largest, bias, spread, response)


def _transposed(node: Node, params: Parameters) -> tuple[_Weight, Array | None, int] | Refusal:
    """Weight, bias and group of a ConvTranspose that hold together."""
    operands = _operands(node, params)
    if isinstance(operands, Refusal):
        return operands
    weight, bias = operands
    array, group = weight.array, integer(node, "group", 1)
    if array.ndim < 3 or group < 1 or array.shape[0] % group:
        return Refusal("channel_mismatch", f"{node.label}: weight {list(array.shape)} does not fit its groups")
    refusal = _is_conv(node, array, bias, array.shape[1] * group)
    return (weight, bias, group) if refusal is None else refusal


def conv_transpose_result(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """ConvTranspose: weight [C, M/group, k...]; input channel c and column j make output channel
    (c // (C/group)) * (M/group) + j.
    """
    found = _transposed(node, params)
    if isinstance(found, Refusal):
        return found
    weight, bias, group = found
    array = weight.array
    rows, columns = array.shape[0] // group, array.shape[1]
    tail = (1,) * (array.ndim - 2)

    def spread(scale: Array) -> Array:
        if group == 1:
            return scale.reshape(1, columns, *tail)
        return np.repeat(scale.reshape(group, columns), rows, axis=0).reshape(-1, columns, *tail)

    if weight.dequantize is not None and group > 1:
        return Refusal("quantized_weight", f"{node.label}: the integers have no scale per group and column")
    grouped = array.reshape(group, rows, columns, prod(array.shape[2:]))
    largest = params.largest(weight.value, grouped, (1, 3)).reshape(-1)
    return _of_result(Fold(node, affine, 1, 1, 1, weight.dtype), weight, largest, bias, spread)


def conv_transpose_data(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """ConvTranspose: input channel c is row c, whatever the groups.

    The number of taps that reach a position varies, even where kernel and stride are equal and the data is padded, so
    a shift passes only a kernel of one element with stride 1 and neither pads nor an output larger than the data.
    """
    found = _transposed(node, params)
    if isinstance(found, Refusal):
        return found
    weight, bias, group = found
    if weight.dequantize is not None:
        return Refusal("quantized_weight", f"{node.label}: the integers have no scale per input channel")
    array = weight.array
    misfit = _misfit(node, affine, 1, array.shape[0])
    if misfit is not None:
        return misfit
    largest = params.largest(weight.value, array, tuple(range(1, array.ndim)))
    response: Array | Refusal = np.zeros(array.shape[1] * group)
    if affine.has_shift:
        if _spreads(node, array):
            response = Refusal("nonzero_padding", f"{node.label}: not every position is reached by every tap")
        else:
            shift = np.broadcast_to(affine.shift, (array.shape[0],)).reshape(group, -1, 1)
            grouped = array.reshape(group, -1, array.shape[1])
            response = (to_float64(grouped) * shift).sum(axis=1).reshape(-1)
    tail = (1,) * (array.ndim - 1)
    fold = Fold(node, affine, 1, 1, 1, weight.dtype)
    return _of_data(fold, weight, largest, bias, lambda scale: scale.reshape(-1, *tail), response)


def _spreads(node: Node, array: Array) -> bool:
    """Whether a ConvTranspose does anything but multiply each position by a matrix."""
    plain = (
        prod(array.shape[2:]) == 1
        and (text(node, "auto_pad", "NOTSET") or "NOTSET") == "NOTSET"
        and "output_shape" not in node.attrs
    )
    strides, pads, extra = (node.attrs.get(name, ()) for name in ("strides", "pads", "output_padding"))
    ones = isinstance(strides, tuple) and all(stride == 1 for stride in strides)
    zeros = all(isinstance(found, tuple) and not any(found) for found in (pads, extra))
    return not (plain and ones and zeros)


def _dense(node: Node, params: Parameters) -> tuple[_Weight, Array | None, bool, float] | Refusal:
    """Weight, what the layer adds (beta * C, its columns on the last axis), transB and the beta of the new bias."""
    operands = _operands(node, params)
    if isinstance(operands, Refusal):
        return operands
    weight, bias = operands
    if weight.array.ndim != 2:
        return Refusal("channel_mismatch", f"{node.label}: the weight has rank {weight.array.ndim}")
    transposed = bool(node.attrs.get("transB", 0))
    columns = weight.array.shape[0 if transposed else 1]
    beta = node.attrs.get("beta", 1.0)
    assert isinstance(beta, float | int)
    if bias is None:
        return weight, None, transposed, 1.0
    if bias.ndim > 2 or (bias.ndim and bias.shape[-1] not in (1, columns)):
        return Refusal("channel_mismatch", f"{node.label}: C has shape {list(bias.shape)}")
    bias = bias * float(beta) if beta else np.zeros(columns)
    bias = np.broadcast_to(bias, (*bias.shape[:-1], columns)) if bias.ndim else np.full(columns, float(bias))
    return weight, bias, transposed, float(beta) if beta else 1.0


def dense_result(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """Gemm: alpha * A B + beta * C; columns are channels, alpha stays, and C' = (scale * beta * C + shift) / beta."""
    found = _dense(node, params)
    if isinstance(found, Refusal):
        return found
    weight, bias, transposed, beta = found

    def spread(scale: Array) -> Array:
        return scale.reshape(-1, 1) if transposed else scale.reshape(1, -1)

    largest = params.largest(weight.value, weight.array, (1,) if transposed else (0,))
    fold = Fold(node, affine, 1, 0 if transposed else 1, 1, weight.dtype, beta=beta)
    return _of_result(fold, weight, largest, bias, spread)


def dense_data(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """Gemm: the rows of B take the scale of the columns of A, and C' = C + (alpha / beta) * shift B."""
    found = _dense(node, params)
    if isinstance(found, Refusal):
        return found
    weight, bias, transposed, beta = found
    if weight.dequantize is not None:
        return Refusal("quantized_weight", f"{node.label}: the integers have no scale per input channel")
    matrix = weight.array.T if transposed else weight.array
    axis = 0 if node.attrs.get("transA", 0) else 1
    misfit = _misfit(node, affine, axis, matrix.shape[0])
    if misfit is not None:
        return misfit
    alpha = node.attrs.get("alpha", 1.0)
    assert isinstance(alpha, float | int)
    shift = np.broadcast_to(affine.shift, (matrix.shape[0],))
    response = float(alpha) * (shift @ matrix) if affine.has_shift else np.zeros(matrix.shape[1])

    def spread(scale: Array) -> Array:
        return scale.reshape(1, -1) if transposed else scale.reshape(-1, 1)

    largest = params.largest(weight.value, matrix, (1,))
    fold = Fold(node, affine, 1, 0 if transposed else 1, 1, weight.dtype, beta=beta)
    return _of_data(fold, weight, largest, bias, spread, response)


def _matrix(node: Node, params: Parameters) -> tuple[_Weight, int] | Refusal:
    """The constant operand of a MatMul, and which one it is."""
    side = 1 if params.evaluator.tensor(node.inputs[1]) is not None else 0
    if side == 0 and params.evaluator.tensor(node.inputs[0]) is None:
        side = 1
    weight = _weight(node, side, params)
    if isinstance(weight, Refusal):
        return weight
    if weight.dequantize is not None:
        return Refusal("quantized_weight", f"{node.label}: the weight of a MatMul is not rescaled")
    shape, ranks = shape_of(node.output.type), [None if v is None else shape_of(v.type) for v in node.inputs]
    if shape is None or ranks[1 - side] is None:
        return Refusal("unknown_rank", f"{node.label}: the rank of its data or result is unknown")
    if weight.array.ndim < 2 or weight.array.ndim > len(shape) or len(ranks[1 - side]) < 2:  # type: ignore[arg-type]
        return Refusal("channel_mismatch", f"{node.label}: an operand is a vector or the weight has more axes")
    return weight, side


def matmul_result(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """MatMul: x W has its channels on the last axis, the columns of W; W x on the one before, the rows of W.

    There is no slot for a bias: a shift stays behind, to be added.
    """
    found = _matrix(node, params)
    if isinstance(found, Refusal):
        return found
    weight, side = found
    array, shape = weight.array, shape_of(node.output.type)
    assert shape is not None
    channel = array.ndim - 1 if side else array.ndim - 2
    largest = params.largest(weight.value, array, tuple(axis for axis in range(array.ndim) if axis != channel))
    axis = len(shape) - 1 if side else len(shape) - 2
    fold = Fold(node, affine, side, channel, axis, weight.dtype, shift_axis=axis)
    tail = (1,) * (array.ndim - 1 - channel)
    return _of_result(fold, weight, largest, None, lambda scale: scale.reshape(-1, *tail), slot=False)


def matmul_data(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """MatMul: (x scale + shift) W takes the scale on the rows of W and leaves shift W to be added; W (scale x + shift)
    on the columns, and W shift.
    """
    found = _matrix(node, params)
    if isinstance(found, Refusal):
        return found
    weight, side = found
    array, data = weight.array, shape_of(node.inputs[1 - side].type)  # type: ignore[union-attr]
    assert data is not None
    channel = array.ndim - 2 if side else array.ndim - 1
    axis = len(data) - 1 if side else len(data) - 2
    misfit = _misfit(node, affine, axis, array.shape[channel])
    if misfit is not None:
        return misfit
    shift = np.broadcast_to(affine.shift, (array.shape[channel],))
    response: Array = np.zeros(1)
    if affine.has_shift:
        response = shift @ array if side else (array @ shift)[..., None]
        if side and array.ndim > 2:
            response = response[..., None, :]
    largest = params.largest(weight.value, array, tuple(axis for axis in range(array.ndim) if axis != channel))
    fold = Fold(node, affine, side, array.ndim - 1 if side else array.ndim - 2, _result_axis(node, side), weight.dtype)
    tail = (1,) * (array.ndim - 1 - channel)
    return _of_data(fold, weight, largest, None, lambda scale: scale.reshape(-1, *tail), response, slot=False)


def _result_axis(node: Node, side: int) -> int:
    shape = shape_of(node.output.type)
    assert shape is not None
    return len(shape) - 1 if side else len(shape) - 2


def batch_norm_result(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """A BatchNormalization that stays: gamma' = scale * gamma and beta' = the affine of beta, along axis 1."""
    weight, bias = _weight(node, 0, params), _bias(node, params, 1)
    if isinstance(weight, Refusal):
        return weight
    if isinstance(bias, Refusal):
        return bias
    fold = Fold(node, affine, 0, 0, 1, weight.dtype, bias_index=1)
    return _of_result(fold, weight, np.abs(to_float64(weight.array)), bias, lambda scale: scale)


def instance_norm_result(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """InstanceNormalization: scale' = scale * gamma and shift' = the affine of beta, along axis 1."""
    operands = _operands(node, params)
    if isinstance(operands, Refusal):
        return operands
    weight, bias = operands
    if weight.array.ndim != 1 or bias is None or bias.shape != weight.array.shape:
        return Refusal("channel_mismatch", f"{node.label}: its parameters are no vectors of one length")
    fold = Fold(node, affine, 1, 0, 1, weight.dtype)
    return _of_result(fold, weight, np.abs(to_float64(weight.array)), bias, lambda scale: scale)


def group_norm_result(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """GroupNormalization: as InstanceNormalization; before opset 21 the parameters are per group, so the affine must
    be constant inside every group.
    """
    if opset(node) >= 21 or affine.axis is None:
        return instance_norm_result(node, affine, params)
    if affine.axis != 1:
        return Refusal("axis_mismatch", f"axis {affine.axis} is not the channel axis 1 of {node.label}")
    groups, channels = integer(node, "num_groups", 0), affine.channels
    assert channels is not None
    data = shape_of(node.inputs[0].type) if node.inputs[0] is not None else None
    if groups < 1 or channels % groups or data is None or len(data) < 2 or data[1] != channels:
        return Refusal("channel_mismatch", f"{node.label}: {channels} channels in {groups} groups")
    view = (groups, channels // groups)
    for array in (array for stage in affine.stages for array in stage.arrays() if array.ndim):
        if (array.reshape(view) != array.reshape(view)[:, :1]).any():
            return Refusal("channel_mismatch", f"{node.label}: its parameters are per group, and the affine is not")
    per_group = affine.map(1, lambda array: np.ascontiguousarray(array.reshape(view)[:, 0]))
    return instance_norm_result(node, per_group, params)


def layer_norm_result(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """LayerNormalization: scale and bias have the shape of the data from `axis` on; the affine acts on one of these."""
    weight = _weight(node, 1, params)
    bias = _bias(node, params)
    shape = shape_of(node.output.type)
    if isinstance(weight, Refusal):
        return weight
    if isinstance(bias, Refusal):
        return bias
    if shape is None:
        return Refusal("unknown_rank", f"{node.label}: the rank of the result is unknown")
    array = to_float64(weight.array)
    first = len(shape) - array.ndim
    axis = len(shape) - 1 if affine.axis is None else affine.axis
    start = integer(node, "axis", -1) % len(shape)
    if first != start or axis < first or (bias is not None and bias.shape != array.shape):
        return Refusal("axis_mismatch", f"{node.label}: the affine acts on axis {axis}, its parameters from {start} on")
    inner = axis - first
    if affine.axis is not None and array.shape[inner] != affine.channels:
        return Refusal("channel_mismatch", f"{node.label} has {array.shape[inner]} channels, not {affine.channels}")
    moved = np.moveaxis(array if bias is None else bias, inner, -1)
    new = np.moveaxis(
        np.broadcast_to(affine.apply(np.zeros_like(moved) if bias is None else moved), moved.shape), -1, inner
    )
    tail = (1,) * (array.ndim - 1 - inner)
    scale = np.broadcast_to(affine.scale, (array.shape[inner],))
    largest = np.abs(array).max(axis=tuple(i for i in range(array.ndim) if i != inner))
    fold = Fold(node, affine, 1, inner, axis, weight.dtype)
    return _checked(
        fold, weight, scale, largest, lambda s: s.reshape(-1, *tail), bias, np.ascontiguousarray(new), slot=True
    )


def rms_norm_result(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """RMSNormalization: as LayerNormalization without a bias, so that no shift can be taken."""
    if affine.has_shift:
        return Refusal("bias_slot", f"{node.label} has no bias")
    return layer_norm_result(node, affine, params)


def norm_data(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """A normalization subtracts the mean over what it normalizes: a shift that is constant there is dead.

    A scale is not, because of epsilon. InstanceNormalization has statistics per channel, GroupNormalization per group,
    LayerNormalization over all axes from `axis` on.
    """
    if affine.has_scale:
        return Refusal("activation_between", f"{node.label}: epsilon does not scale with the data")
    if affine.axis is not None:
        refusal = _survives(node, affine)
        if refusal is not None:
            return refusal
    weight = node.inputs[1]
    dtype = None if weight is None else dtype_of(weight.type)
    if dtype is None or not dtype.is_float:
        return Refusal("dtype_mismatch", f"{node.label}: the type of its parameters is unknown")
    return Fold(node, affine, 1, 0, 1, dtype)


def _survives(node: Node, affine: Affine) -> Refusal | None:
    """Why subtracting the mean does not remove a shift along `affine.axis`, None where it does."""
    shape = shape_of(node.inputs[0].type) if node.inputs[0] is not None else None
    if node.op == "nn.layer_norm":
        start = integer(node, "axis", -1)
        start += len(shape) if shape is not None and start < 0 else 0
        if start >= 0 and affine.axis is not None and affine.axis < start:
            return None
        return Refusal("axis_mismatch", f"{node.label}: the mean is taken over axis {affine.axis}")
    if affine.axis == 0:
        return None
    if affine.axis != 1:
        return Refusal("axis_mismatch", f"{node.label}: the mean is taken over axis {affine.axis}")
    groups, channels = integer(node, "num_groups", 0), affine.channels
    if node.op == "nn.instance_norm":
        return None
    if groups < 1 or channels is None or channels % groups:
        return Refusal("channel_mismatch", f"{node.label}: {channels} channels in {groups} groups")
    view = affine.shift.reshape(groups, -1)
    if (view != view[:, :1]).any():
        return Refusal("channel_mismatch", f"{node.label}: the shift is not constant in every group")
    return None
