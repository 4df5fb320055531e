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

What is left is rounding, and what must not happen: a weight that overflows, vanishes or is shared,
a channel count that does not fit. Each function checks everything that can fail, on the actual
numbers, and returns the `Fold` to write. It raises Refused where the layer cannot absorb the
affine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ....ir.graph import Node, Value
from ....ir.ops import has_trait
from ....ir.ops.inference import integer_of
from ....ir.ops.row import Trait
from ....ir.provenance import Refused
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
from ....support.record import record, replaced
from .affine import Affine
from .operands import Parameters
from .recognise import not_constant
from .stored import dequantize_of

if TYPE_CHECKING:
    from .quantized_constant import QuantizedConstant


@record
class Fold:
    """The numbers that a fold of `affine` writes to the layer `node`.

    - The weight, input `index`, is multiplied by `factor`, float64 and broadcast against it; None
      leaves it alone.
    - The bias, input `bias_index`, becomes `bias` in float64; None leaves it alone. Gemm multiplies
      it by `beta`.
    - A layer without a slot for a bias leaves `shift` to be added to its result, along `axis` where
      it is a vector.
    - `axis` is the channel axis of the result, `weight_axis` the axis of output channels in the
      weight.
    - `padding` are pads that an explicit Pad takes over from a convolution, and their value.
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
    quantized_weight: QuantizedConstant | None = None
    quantized_bias: QuantizedConstant | None = None
    bias_error: float = 0.0

    def writing(self, factor: Array | None, bias: Array | None) -> Fold:
        """Return the fold of the same affine into the same layer that writes other numbers."""
        return Fold(
            self.node, self.affine, self.index, self.weight_axis, self.axis, self.dtype, factor,
            bias, beta=self.beta, bias_index=self.bias_index, padding=self.padding,
        )  # fmt: skip

    @property
    def changes_layer(self) -> bool:
        """Whether anything of the layer changes."""
        numbers = self.factor is not None or self.bias is not None or self.shift is not None
        return numbers or self.padding is not None or self.is_quantized

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
        return (
            count * integer_of(self.node, "group", 1)
            if self.node.op == "nn.conv_transpose"
            else count
        )

    @property
    def weight_bytes(self) -> int:
        """Size of the weight in its dtype."""
        shape = shape_of(self.weight.type) or ()
        return element_count(dim for dim in shape if isinstance(dim, int)) * self.dtype.bits // 8


@record
class Weight:
    """The weight of a layer, input `index`, and its elements or the tensor to read them from.

    Where a DequantizeLinear makes it, `quantized` has its integers and scales, and the elements are
    its exact result. `bias` is the bias of the layer where a DequantizeLinear makes that. With
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
            return replaced(weight, per_channel=params.per_channel)
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
    from .quantized_constant import read_quantized

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
    value = node.input(2)
    if (
        bias is not None
        and value is not None
        and not params.float_bias
        and not params.evaluator.is_constant(value)
    ):
        weight = replaced(weight, bias=_quantized(value, node, params))
    return (weight, bias)


def check_channels(node: Node, affine: Affine, axis: int, channels: int) -> None:
    """Refuse an `affine` that does not act on `axis`, which has `channels`."""
    if affine.axis is None:
        return
    if affine.axis != axis:
        raise Refused(
            "axis_mismatch",
            f"axis {affine.axis} is not the channel axis {axis} of {node.description}",
        )
    if affine.channels != channels:
        raise Refused(
            "channel_mismatch", f"{node.description} has {channels} channels, not {affine.channels}"
        )


LARGEST_DATA = 2.0**64
"""The magnitude up to which data are taken to go where the loss of a weight is compared with a
result.
"""


def check_numbers(
    node: Node,
    scale: Array,
    largest: Array,
    bias: Array | None,
    dtype: DType,
    beside: Array | float = 0.0,
    weights: float = 1.0,
) -> None:
    """Refuse a fold of numbers that are not finite, or one that loses what the results could show.

    `largest` is the greatest magnitude in the weight of each channel that `scale` multiplies. A
    channel of normal numbers that is left with none is lost. That is no loss where all of its
    `weights` make less than half an ulp of `beside`, the least magnitude that the layer adds to the
    same results.
    """
    top = largest * np.abs(scale)
    # Nothing exceeds the dtype with finite factors only; numbers just above the greatest are
    # rounded down to it.
    fine = np.count_nonzero(top <= largest_finite(dtype)) == top.size or fits(top, dtype)
    if not (fine or (all_finite(scale) and all_finite(largest))):
        raise Refused(
            "nonfinite", f"{node.description}: a scale or weight is infinite or not a number"
        )
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
        raise Refused(
            "underflow",
            f"{node.description}: the weights of channel {channel}, {weight}, vanish in {dtype}",
        )


def of_result(
    fold: Fold,
    weight: Weight,
    largest: Array,
    bias: Array | None,
    spread: Callable[[Array], Array],
    *,
    slot: bool = True,
) -> Fold:
    """Return the fold of an affine of the result: weight times scale, and the affine of the bias.

    `largest` is the greatest magnitude in the weight of each channel of the result. `bias` is added
    by the layer now, its channels on the last axis. `spread` makes a factor of the weight from a
    vector [channels].
    """
    affine, channels = fold.affine, largest.shape[0]
    check_channels(fold.node, affine, fold.axis, channels)
    new = _per_channel(affine.shift, channels) if bias is None else np.asarray(affine.apply(bias))
    least = (
        np.abs(new) if new.shape == (channels,) else np.abs(new).reshape(-1, channels).min(axis=0)
    )
    scale = _per_channel(affine.scale, channels)
    return checked(
        fold, weight, scale, largest, spread, bias, new, least, slot=slot, bias_scale=scale
    )


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
    """Return the fold of an affine of the data: weight times scale, and the bias plus the response
    to the shift.

    `largest` is the greatest magnitude in the weight of each channel of the data. `response` is the
    result of the layer, without its bias, for data that is the shift everywhere.
    """
    affine, channels = fold.affine, largest.shape[0]
    new = response if bias is None else np.asarray(bias + response)
    least = np.zeros(
        ()
    )  # other channels of the data reach the same results, and may cancel the bias
    return checked(
        fold,
        weight,
        _per_channel(affine.scale, channels),
        largest,
        spread,
        bias,
        new,
        least,
        slot=slot,
    )


def _per_channel(array: Array, channels: int) -> Array:
    """Broadcast [C] or [] to [C]."""
    return array if array.shape == (channels,) else np.broadcast_to(array, (channels,))


def checked(
    fold: Fold,
    weight: Weight,
    scale: Array,
    largest: Array,
    spread: Callable[[Array], Array],
    old: Array | None,
    new: Array,
    least: Array,
    *,
    slot: bool,
    bias_scale: Array | None = None,
) -> Fold:
    """Return the fold that multiplies the weight by `scale` and replaces the bias `old` by `new`,
    with all numbers checked.

    `least` is the least magnitude of the new bias, for each channel or for all. `bias_scale` is the
    factor of the bias, where it has one.
    """
    written = new
    if fold.beta != 1.0:
        with np.errstate(all="ignore"):
            written = new / fold.beta
    weights = element_count(weight.shape) / len(largest)
    check_numbers(fold.node, scale, largest, written, fold.dtype, least, weights)
    factor = spread(scale) if fold.affine.has_scale else None
    if factor is not None and weight.quantized is not None:
        channels = fold.weight_axis if bias_scale is not None else None
        quantized = weight.quantized.scaled(factor, channels, per_channel=weight.per_channel)
        fold = replaced(fold, quantized_weight=quantized)
        factor = None
    if not slot:
        return replaced(fold, factor=factor, shift=np.ascontiguousarray(new) if new.any() else None)
    changed = np.count_nonzero(new) > 0 if old is None else not np.array_equal(new, old)
    if changed and weight.bias is not None:
        fold, changed = _requantized(fold, weight, weight.bias, written, bias_scale), False
    bias = written if changed else None
    return (
        replaced(fold, factor=factor, bias=bias)
        if fold.is_quantized
        else fold.writing(factor, bias)
    )


def _requantized(
    fold: Fold, weight: Weight, bias: QuantizedConstant, new: Array, scale: Array | None
) -> Fold:
    """Return the fold with the integers of a bias that are nearest to `new`, at `scale` times the
    scales before.

    The scale of the bias of an integer convolution is the product of the scales of data and weight,
    so it follows the weight.
    """
    if (
        bias.dtype.kind not in ("int", "uint")
        or bias.block
        or bias.perm
        or new.shape != bias.integers.shape
    ):
        detail = (
            f"{bias.node.description}: {bias.dtype}{list(bias.integers.shape)} cannot hold the"
            " folded bias"
        )
        raise Refused(
            "quantized_weight", f"{detail}: FoldScaleAxis{{quantized_bias=float}} keeps it float"
        )
    if scale is not None and fold.affine.has_scale:
        factor = scale.reshape((1,) * (new.ndim - 1) + (-1,))
        bias = bias.rescaled(factor, new.ndim - 1, per_channel=weight.per_channel)
    written, error = bias.holding(new)
    return replaced(fold, quantized_bias=written, bias_error=error)
