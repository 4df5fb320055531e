"""Layers that absorb an affine into their weights and bias.

A fold in numpy: a Conv with one spatial position, without groups, is the product of its weight [M,
C] and its data [C].

    conv = lambda x, w, b: w @ x + b
    w, b, x = rng.normal(size=(4, 3)), rng.normal(size=4), rng.normal(size=3)

    # After the layer: s * (w x + b) + t. Output channel m is row m of the weight.
    s, t = rng.normal(size=4), rng.normal(size=4)
    assert close(s * conv(x, w, b) + t, conv(x, s[:, None] * w, s * b + t))

    # Before the layer: w (s x + t) + b. Input channel c is column c.
    # The shift goes through the weight into the bias.
    s, t = rng.normal(size=3), rng.normal(size=3)
    assert close(conv(s * x + t, w, b), conv(x, w * s, b + w @ t))

    # Zero padding stands between a shift and the layer: the shift would be in the padding, too.
    # A scale may pass.
    pad = lambda x: np.pad(x, 1)
    assert close(pad(2 * x), 2 * pad(x)) and not close(pad(x + 3), pad(x) + 3)

    # BatchNormalization is the affine s = gamma / sqrt(var + epsilon), t = beta - s * mean.

The rest is rounding, and cases that must not happen: a weight that overflows, vanishes or is
shared, a channel count that does not fit. Each function checks everything that can fail, on the
actual numbers, and returns the `Fold` to write. It raises Refused if the layer cannot absorb the
affine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from ....ir.graph import Node, Value
from ....ir.ops import has_trait
from ....ir.ops.inference import integer_of
from ....ir.ops.row import Trait
from ....ir.provenance import Refused
from ....ir.record import Record
from ....ir.tensor import (
    Array,
    ScaledTensor,
    Tensor,
    all_finite,
    fits,
    half_ulp,
    largest_finite,
    smallest_normal,
    to_float64,
)
from ....ir.types import DType, dtype_of, element_count, shape_of
from .affine import Affine
from .operands import Parameters
from .quantized_constant import read_quantized
from .recognise import not_constant
from .stored import dequantize_of

if TYPE_CHECKING:
    from .quantized_constant import QuantizedConstant


class Fold(Record):
    """The numbers that a fold of `affine` writes to the layer `node`.

    - The weight, input `index`, is multiplied by `factor`, float64 and broadcast against it; None
      leaves it alone.
    - The bias, input `bias_index`, becomes `bias` in float64; None leaves it alone. Gemm multiplies
      it by `beta`.
    - A layer without a slot for a bias leaves `shift` to be added to its result, along `axis` if it
      is a vector.
    - `axis` is the channel axis of the result, `weight_axis` the axis of output channels in the
      weight.
    - `padding` are pads that an explicit Pad takes over from a convolution, and their value.
    - `ones` are weights [M, 1, k...] of one more channel of the data of a convolution: a Pad adds
      it, and all of it is one.
    - `epsilon` is that of a normalization whose data lose a scale; None leaves it alone.
    - `quantized_weight` and `quantized_bias` take the place of weight and bias that a
      DequantizeLinear makes; `bias_error` is the largest error of a bias that is rounded.
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
    beta: float = 1.0
    bias_index: int = 2
    padding: tuple[tuple[int, ...], float] | None = None
    ones: Array | None = None
    quantized_weight: QuantizedConstant | None = None
    quantized_bias: QuantizedConstant | None = None
    bias_error: float = 0.0
    epsilon: float | None = None

    def writing(self, factor: Array | None, bias: Array | None) -> Fold:
        """Return the fold of the same affine into the same layer that writes other numbers."""
        return Fold(
            self.node, self.affine, self.index, self.weight_axis, self.axis, self.dtype, factor,
            bias, beta=self.beta, bias_index=self.bias_index, padding=self.padding, ones=self.ones,
        )  # fmt: skip

    @property
    def changes_layer(self) -> bool:
        """Whether anything of the layer changes."""
        numbers = self.factor is not None or self.bias is not None or self.shift is not None
        others = self.padding is not None or self.ones is not None or self.epsilon is not None
        return numbers or others or self.is_quantized

    @property
    def border(self) -> str:
        """The word of FoldScaleAxis by which a shift passes zero padding, empty if none does."""
        if self.ones is not None:
            return "ones"
        if self.padding is not None:
            return "pad"
        return "map" if self.shift is not None and self.shift.ndim > 1 else ""

    @property
    def is_quantized(self) -> bool:
        """Whether a weight or bias that a DequantizeLinear makes takes the fold."""
        return self.quantized_weight is not None or self.quantized_bias is not None

    @property
    def weight(self) -> Value:
        """The weight before the fold."""
        return self.node.operand(self.index)

    @property
    def channels(self) -> int:
        """The number of channels of the result of a layer with a quantized weight."""
        assert self.quantized_weight is not None
        count = self.quantized_weight.shape[self.weight_axis]
        if self.node.op == "nn.conv_transpose":
            return count * integer_of(self.node, "group", 1)
        return count

    @property
    def weight_bytes(self) -> int:
        """Size of the weight in its dtype."""
        shape = shape_of(self.weight.type) or ()
        return element_count(dim for dim in shape if isinstance(dim, int)) * self.dtype.bits // 8


class Weight(Record):
    """The weight of a layer, input `index`, and its elements or the tensor to read them from.

    If a DequantizeLinear makes it, `quantized` has its integers and scales, and the elements are
    its exact result. `bias` is the bias of the layer if a DequantizeLinear makes it. With
    `per_channel` a weight with one scale may get one for each channel.
    """

    index: int
    value: Value
    dtype: DType
    elements: Array | Tensor
    quantized: QuantizedConstant | None = None
    bias: QuantizedConstant | None = None
    per_channel: bool = False

    @property
    def array(self) -> Array:
        """The elements, before an earlier fold rounded them.

        A tensor that is not in memory is read each time.
        """
        if isinstance(self.elements, ScaledTensor):
            return self.elements.exact()
        return self.elements.numpy() if isinstance(self.elements, Tensor) else self.elements

    @property
    def rank(self) -> int:
        """The number of axes. Nothing is read for it."""
        return len(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape. Nothing is read for it."""
        return self.elements.shape


Spread = Callable[[Array], Array]
"""Makes a factor of a weight from a vector with one number a channel."""


class LayerNumbers(Record):
    """The numbers of a layer that a fold starts from.

    - `largest` is the greatest magnitude in the weight for each channel that the affine scales.
    - The layer adds `bias` now, its channels on the last axis.
    - Without a `slot` for a bias, a shift is left to be added to the result.
    """

    weight: Weight
    largest: Array
    spread: Spread
    bias: Array | None = None
    slot: bool = True


def read_weight(node: Node, index: int, params: Parameters) -> Weight:
    """Return the constant floating weight of a layer. Raises Refused if it has none."""
    value = node.operand(index)
    tensor = params.evaluator.tensor(value)
    elements: Array | Tensor | None = tensor
    if tensor is not None and tensor.in_memory:
        elements = params.evaluator.exact(value)
    if tensor is None or elements is None:
        quantized = _quantized(value, node, params)
        if quantized is not None:
            weight = Weight(index, value, quantized.scale_dtype, quantized.elements, quantized)
            return replace(weight, per_channel=params.per_channel)
        reason = not_constant(value).refusal
        code = "dynamic_weight" if reason.code == "non_constant_params" else reason.code
        raise Refused(code, f"{node.description}: the weight {reason.detail}")
    if not tensor.dtype.is_float:
        raise Refused("dtype_mismatch", f"{node.description}: the weight is {tensor.dtype}")
    if not tensor.size:
        raise Refused("channel_mismatch", f"{node.description}: the weight is empty")
    return Weight(index, value, tensor.dtype, elements)


def _quantized(value: Value, node: Node, params: Parameters) -> QuantizedConstant | None:
    """Return the operand of the layer `node` that a DequantizeLinear makes, if one does.

    A normalization takes no such constant.
    """
    if not params.quantized or not has_trait(node, Trait.LINEAR) or dequantize_of(value)[0] is None:
        return None
    return read_quantized(value, node, params)


def read_bias(node: Node, params: Parameters, index: int = 2) -> Array | None:
    """Return the bias of a layer in float64, None if it has none.

    Raises Refused unless it is constant and floating.
    """
    value = node.input(index)
    if value is None:
        return None
    dtype = dtype_of(value.type)
    if dtype is not None and not dtype.is_float:
        raise Refused("dtype_mismatch", f"{node.description}: the bias is {dtype}")
    array = params.evaluator.exact(value)
    if array is None:
        quantized = _quantized(value, node, params)
        array = None if quantized is None else quantized.elements
    if array is None:
        reason = not_constant(value).refusal
        code = "dynamic_bias" if reason.code == "non_constant_params" else reason.code
        raise Refused(code, f"{node.description}: the bias {reason.detail}")
    return to_float64(array)


def operands(
    node: Node, params: Parameters, *, any_bias: bool = False
) -> tuple[Weight, Array | None]:
    """Return the weight, and the bias in float64.

    With `any_bias` the bias stays as it is, and is not read.
    """
    weight = read_weight(node, 1, params)
    bias = None if any_bias else read_bias(node, params)
    value = node["bias"]
    # A bias that a DequantizeLinear makes is rounded to its grid, unless it may become float.
    if bias is None or value is None or params.float_bias or params.evaluator.is_constant(value):
        return weight, bias
    return replace(weight, bias=_quantized(value, node, params)), bias


def check_channels(node: Node, affine: Affine, axis: int, channels: int) -> None:
    """Refuse an `affine` that does not act on `axis`, which has `channels`."""
    if affine.axis is None:
        return
    if affine.axis != axis:
        detail = f"axis {affine.axis} is not the channel axis {axis} of {node.description}"
        raise Refused("axis_mismatch", detail)
    if affine.channels != channels:
        detail = f"{node.description} has {channels} channels, not {affine.channels}"
        raise Refused("channel_mismatch", detail)


LARGEST_DATA = 2.0**64
"""The greatest magnitude of data for which a lost weight is compared with a result."""


def check_numbers(
    node: Node,
    scale: Array,
    largest: Array,
    bias: Array | None,
    dtype: DType,
    beside: Array | float = 0.0,
    weights: float = 1.0,
) -> None:
    """Refuse a fold of numbers that are not finite, or one after which the results lose a channel.

    `largest` is the greatest magnitude in the weight of each channel that `scale` multiplies. A
    channel of normal numbers that is left with none is lost. That is no loss if all of its
    `weights` make less than half an ulp of `beside`, the least magnitude that the layer adds to the
    same results.
    """
    top = largest * np.abs(scale)
    # Finite factors only, and none exceeds the dtype: numbers just above the greatest round to it.
    fine = np.count_nonzero(top <= largest_finite(dtype)) == top.size or fits(top, dtype)
    if not (fine or (all_finite(scale) and all_finite(largest))):
        detail = f"{node.description}: a scale or weight is infinite or not a number"
        raise Refused("nonfinite", detail)
    if not fine:
        raise Refused("overflow", f"{node.description}: a folded weight exceeds {dtype}")
    if bias is not None and not fits(bias, dtype):
        raise Refused("overflow", f"{node.description}: the folded bias exceeds {dtype}")
    tiny = smallest_normal(dtype)
    if not np.count_nonzero(top < tiny):
        return
    lost = (top < tiny) & (largest >= tiny) & (scale != 0)
    most = top * weights * min(LARGEST_DATA, largest_finite(dtype))
    seen = lost & (most >= half_ulp(beside, dtype))
    if seen.any():
        channel = int(np.argmax(seen))
        weight = f"{largest[channel]:.3g} * {abs(scale[channel]):.3g}"
        detail = f"the weights of channel {channel}, {weight}, vanish in {dtype}"
        raise Refused("underflow", f"{node.description}: {detail}")


def of_result(fold: Fold, layer: LayerNumbers) -> Fold:
    """Return the fold of an affine of the result: weight times scale, and the affine of the bias.

    `layer.largest` is by channel of the result.
    """
    affine, channels = fold.affine, len(layer.largest)
    check_channels(fold.node, affine, fold.axis, channels)
    if layer.bias is None:
        bias = _per_channel(affine.shift, channels)
    else:
        bias = affine.apply(layer.bias)
    least = np.abs(bias).reshape(-1, channels).min(axis=0)
    scale = _per_channel(affine.scale, channels)
    return checked(fold, layer, scale, bias, least, scales_bias=True)


def of_data(fold: Fold, layer: LayerNumbers, response: Array) -> Fold:
    """Return the fold of an affine of the data: weight times scale, and bias plus response.

    `layer.largest` is by channel of the data. `response` is the result of the layer, without its
    bias, for data that is the shift everywhere.
    """
    bias = response if layer.bias is None else np.asarray(layer.bias + response)
    scale = _per_channel(fold.affine.scale, len(layer.largest))
    # Other channels of the data reach the same results, and may cancel the bias.
    least = np.zeros(())
    return checked(fold, layer, scale, bias, least)


def _per_channel(array: Array, channels: int) -> Array:
    """Broadcast [C] or [] to [C]."""
    return array if array.shape == (channels,) else np.broadcast_to(array, (channels,))


def checked(
    fold: Fold,
    layer: LayerNumbers,
    scale: Array,
    bias: Array,
    least: Array,
    *,
    scales_bias: bool = False,
) -> Fold:
    """Return the fold that multiplies the weight by `scale` and writes `bias`, if all numbers fit.

    `least` is the least magnitude of the new bias, for each channel or for all. With `scales_bias`
    the factor of the bias is `scale`, too.
    """
    weight, written = layer.weight, bias
    if fold.beta != 1.0:
        with np.errstate(all="ignore"):
            written = bias / fold.beta
    weights = element_count(weight.shape) / len(layer.largest)
    check_numbers(fold.node, scale, layer.largest, written, fold.dtype, least, weights)
    factor = layer.spread(scale) if fold.affine.has_scale else None
    if factor is not None and weight.quantized is not None:
        channels = fold.weight_axis if scales_bias else None
        quantized = weight.quantized.scaled(factor, channels, per_channel=weight.per_channel)
        fold = replace(fold, quantized_weight=quantized)
        factor = None
    if not layer.slot:
        shift = np.ascontiguousarray(bias) if bias.any() else None
        return replace(fold, factor=factor, shift=shift)
    if layer.bias is None:
        changed = bool(np.count_nonzero(bias))
    else:
        changed = not np.array_equal(bias, layer.bias)
    if changed and weight.bias is not None:
        fold = _requantized(fold, weight, weight.bias, written, scale if scales_bias else None)
        changed = False
    new = written if changed else None
    if fold.is_quantized:
        return replace(fold, factor=factor, bias=new)
    return fold.writing(factor, new)


def _requantized(
    fold: Fold, weight: Weight, bias: QuantizedConstant, new: Array, scale: Array | None
) -> Fold:
    """Return the fold with a bias of the integers nearest to `new`, its scales times `scale`.

    The scale of the bias of an integer convolution is the product of the scales of data and weight,
    so it follows the weight.
    """
    holds_integers = bias.dtype.kind in ("int", "uint") and not bias.block and not bias.perm
    if not holds_integers or new.shape != bias.integers.shape:
        type_ = f"{bias.dtype}{list(bias.integers.shape)}"
        detail = f"{bias.node.description}: {type_} cannot hold the folded bias"
        hint = "FoldScaleAxis{quantized_bias=float} keeps it float"
        raise Refused("quantized_weight", f"{detail}: {hint}")
    if scale is not None and fold.affine.has_scale:
        factor = scale.reshape((1,) * (new.ndim - 1) + (-1,))
        bias = bias.rescaled(factor, new.ndim - 1, per_channel=weight.per_channel)
    written, error = bias.holding(new)
    return replace(fold, quantized_bias=written, bias_error=error)
