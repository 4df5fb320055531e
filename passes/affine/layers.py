"""Layers that absorb an affine into their weights and bias.

Of their result, op(x, w, b) being their data: scale * y + shift = op(x, w', b'); and of their data: op(scale * x +
shift, w, b) = op(x, w', b'). Each function answers every question that can fail, on the actual numbers, and returns
the `Fold` to write, or raises Refused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ir.graph import Node, Value
from ...ir.ops.inference import integer_of
from ...ir.provenance import Refused
from ...ir.tensor import Array, Tensor, all_finite, fits, float64, smallest_normal, to_float64
from ...ir.types import DType, element_count, shape_of
from ...support.record import record, replaced
from .algebra import Affine
from .operands import Parameters
from .recognise import not_constant


@record
class Rescale:
    """A dequantized weight: the DequantizeLinear `node` gets `scale` and `zero_point` along `axis` of its result."""

    node: Node
    scale: Array
    zero_point: Array | None
    axis: int


@record
class Fold:
    """What a fold of `affine` writes to the layer `node`.

    Its weight, input `index`, is multiplied by `factor` (float64, broadcast against it; None leaves it alone) and its
    bias, input `bias_index`, becomes `bias` (float64; None leaves it alone). A layer without a slot for a bias leaves
    `shift` behind, to be added to its result, along `axis` where it is a vector. `axis` is the channel axis of
    the result, `weight_axis` that of output channels in the weight. A dense layer multiplies its bias by `beta`.
    `padding` are pads that an explicit Pad takes over from a convolution, and its value.
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
    rescale: Rescale | None = None
    beta: float = 1.0
    bias_index: int = 2
    padding: tuple[tuple[int, ...], float] | None = None

    def writing(self, factor: Array | None, bias: Array | None) -> Fold:
        """The fold of the same affine into the same layer that writes these."""
        return Fold(
            self.node, self.affine, self.index, self.weight_axis, self.axis, self.dtype, factor, bias,
            beta=self.beta, bias_index=self.bias_index, padding=self.padding,
        )  # fmt: skip

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
        return element_count(dim for dim in shape if isinstance(dim, int)) * self.dtype.bits // 8


@record
class Weight:
    """The weight of a layer, input `index`: its value, dtype and exact elements, or where those are to be read.

    Where a DequantizeLinear makes it, that node with its scale and zero point; the elements are then what it makes.
    """

    index: int
    value: Value
    dtype: DType
    elements: Array | Tensor
    dequantize: Node | None = None
    scale: Array | None = None
    zero_point: Array | None = None

    @property
    def array(self) -> Array:
        """The elements; what is not in memory is read again each time."""
        return self.elements.numpy() if isinstance(self.elements, Tensor) else self.elements

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, for which nothing is read."""
        return self.elements.shape


def read_weight(node: Node, index: int, params: Parameters) -> Weight:
    """The constant floating weight of a layer, or why there is none."""
    value = node.inputs[index]
    assert value is not None
    tensor = params.evaluator.tensor(value)
    elements: Array | Tensor | None = tensor
    if tensor is not None and tensor.in_memory:
        elements = params.evaluator.exact(value)
    if tensor is None or elements is None:
        producer = value.node
        if producer is not None and producer.op == "dequantize" and params.quantized:
            return _dequantized(node, index, producer, params)
        reason = not_constant(value).refusal
        code = "dynamic_weight" if reason.code == "non_constant_params" else reason.code
        raise Refused(code, f"{node.label}: the weight {reason.detail}")
    if not tensor.dtype.is_float:
        raise Refused("dtype_mismatch", f"{node.label}: the weight is {tensor.dtype}")
    if not tensor.size:
        raise Refused("channel_mismatch", f"{node.label}: the weight is empty")
    return Weight(index, value, tensor.dtype, elements)


def _dequantized(node: Node, index: int, producer: Node, params: Parameters) -> Weight:
    """(q - zero_point) * scale with constant integers, per tensor or along one axis."""
    values = [params.evaluator.tensor(value) for value in producer.inputs]
    label = producer.label
    if len(values) < 2 or any(tensor is None for tensor in values) or producer.output.sole_user() is not node:
        raise Refused("quantized_weight", f"{label}: its operands are not constant, or others read it")
    arrays = [float64(tensor) for tensor in values if tensor is not None]
    scale = arrays[1]
    if scale.ndim > 1 or producer.attrs.get("block_size", 0) or not values[1].dtype.is_float:  # type: ignore[union-attr]
        raise Refused("quantized_weight", f"{label}: the scale is neither per tensor nor per channel")
    axis = integer_of(producer, "axis", 1)
    view = [1] * arrays[0].ndim
    if scale.size != 1:
        view[axis] = -1
    exact = (arrays[0] - (arrays[2].reshape(view) if len(arrays) > 2 else 0.0)) * scale.reshape(view)
    zero_point = values[2].numpy() if len(values) > 2 and values[2] is not None else None
    dtype = values[1].dtype  # type: ignore[union-attr]
    return Weight(index, producer.output, dtype, exact, producer, scale, zero_point)


def read_bias(node: Node, params: Parameters, index: int = 2) -> Array | None:
    """The constant bias of a layer in float64, None where it has none, or why it is not constant."""
    value = node.input(index)
    if value is None:
        return None
    array = params.evaluator.exact(value)
    if array is None:
        reason = not_constant(value).refusal
        code = "dynamic_bias" if reason.code == "non_constant_params" else reason.code
        raise Refused(code, f"{node.label}: the bias {reason.detail}")
    return to_float64(array)


def operands(node: Node, params: Parameters, *, any_bias: bool = False) -> tuple[Weight, Array | None]:
    """The weight, and the bias in float64, of a layer with a slot for it; with `any_bias` the bias stays, and need not
    be known.
    """
    weight = read_weight(node, 1, params)
    bias = None if any_bias else read_bias(node, params)
    return (weight, bias)


def check_channels(node: Node, affine: Affine, axis: int, channels: int) -> None:
    """Refuse an `affine` that does not act on `axis`, which has `channels`."""
    if affine.axis is None:
        return
    if affine.axis != axis:
        raise Refused("axis_mismatch", f"axis {affine.axis} is not the channel axis {axis} of {node.label}")
    if affine.channels != channels:
        raise Refused("channel_mismatch", f"{node.label} has {channels} channels, not {affine.channels}")


def check_numbers(node: Node, scale: Array, largest: Array, bias: Array | None, dtype: DType) -> None:
    """Refuse folded numbers that are not finite, and to leave a channel that had normal numbers with none.

    `largest` is the greatest magnitude in the weight of each channel that `scale` multiplies.
    """
    top = largest * np.abs(scale)
    fine = fits(top, dtype)  # which it is with finite factors only
    if not (fine or (all_finite(scale) and all_finite(largest))):
        raise Refused("nonfinite", f"{node.label}: a scale or weight is infinite or not a number")
    if not fine:
        raise Refused("overflow", f"{node.label}: a folded weight exceeds {dtype}")
    if bias is not None and not fits(bias, dtype):
        raise Refused("overflow", f"{node.label}: the folded bias exceeds {dtype}")
    tiny = smallest_normal(dtype)
    if np.count_nonzero(top < tiny) and ((top < tiny) & (largest >= tiny) & (scale != 0)).any():
        raise Refused("underflow", f"{node.label}: a channel of folded weights vanishes in {dtype}")


def of_result(
    fold: Fold,
    weight: Weight,
    largest: Array,
    bias: Array | None,
    spread: Callable[[Array], Array],
    *,
    slot: bool = True,
) -> Fold:
    """The fold of an affine of the result: weight times scale, and the affine of the bias.

    `largest` is the greatest magnitude in the weight of each channel of the result, `bias` what the layer adds now,
    its channels on the last axis, and `spread` makes of a vector [channels] a factor of the weight.
    """
    affine, channels = fold.affine, largest.shape[0]
    check_channels(fold.node, affine, fold.axis, channels)
    new = _per_channel(affine.shift, channels) if bias is None else np.asarray(affine.apply(bias))
    return checked(fold, weight, _per_channel(affine.scale, channels), largest, spread, bias, new, slot=slot)


def of_data(
    fold: Fold,
    weight: Weight,
    largest: Array,
    bias: Array | None,
    spread: Callable[[Array], Array],
    response: Array,
    *,
    slot: bool = True,
) -> Fold:
    """The fold of an affine of the data: weight times scale, and the bias plus what the weight makes of the shift.

    `largest` is the greatest magnitude in the weight of each channel of the data; `response` is the result of the
    layer, without its bias, for data that is the shift, or why it is not the same everywhere.
    """
    affine, channels = fold.affine, largest.shape[0]
    new = response if bias is None else np.asarray(bias + response)
    return checked(fold, weight, _per_channel(affine.scale, channels), largest, spread, bias, new, slot=slot)


def _per_channel(array: Array, channels: int) -> Array:
    """[C] of [C] or []."""
    return array if array.shape == (channels,) else np.broadcast_to(array, (channels,))


def checked(
    fold: Fold,
    weight: Weight,
    scale: Array,
    largest: Array,
    spread: Callable[[Array], Array],
    old: Array | None,
    new: Array,
    *,
    slot: bool,
) -> Fold:
    """The fold that multiplies the weight by `scale` and replaces the bias `old` by `new`, every number checked."""
    written = new
    if fold.beta != 1.0:
        with np.errstate(all="ignore"):
            written = new / fold.beta
    check_numbers(fold.node, scale, largest, written, fold.dtype)
    factor = spread(scale) if fold.affine.has_scale else None
    if not slot:
        return replaced(fold, factor=factor, shift=np.ascontiguousarray(new) if new.any() else None)
    changed = np.count_nonzero(new) > 0 if old is None else not np.array_equal(new, old)
    bias = written if changed else None
    if weight.dequantize is None or factor is None:
        return fold.writing(factor, bias)
    rescale = _rescale(fold, weight, weight.dequantize, scale)
    return replaced(fold, bias=bias, rescale=rescale)


def _rescale(fold: Fold, weight: Weight, dequantize: Node, scale: Array) -> Rescale:
    """The integers stay, and their scale per output channel is multiplied by positive numbers; from opset 13 on."""
    label = dequantize.label
    old, zero_point = weight.scale, weight.zero_point
    assert old is not None
    if not (scale > 0).all():
        raise Refused("negative_scale", f"{label}: a scale that is not positive would change the integers")
    if old.size != 1 and integer_of(dequantize, "axis", 1) % len(weight.shape) != fold.weight_axis:
        raise Refused("axis_mismatch", f"{label} is not per output channel")
    if dequantize.opset < 13:
        raise Refused("unsupported_op", f"{label}: scales per channel need opset 13")
    new = np.broadcast_to(old.ravel(), scale.shape) * scale
    check_numbers(dequantize, scale, np.broadcast_to(old.ravel(), scale.shape), None, fold.dtype)
    if zero_point is not None:
        zero_point = np.ascontiguousarray(np.broadcast_to(zero_point.ravel(), scale.shape))
    return Rescale(dequantize, new, zero_point, fold.weight_axis)
