"""Layers that absorb an affine of their output: y = op(x, w, b) with scale * y + shift = op(x, w', b').

The table at the foot has a row for each operator. A row answers every question that can fail: it returns an `Absorber`
that can fold any chain of steps whose numbers pass `Absorber.plans`, or a `Refusal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Node, Value
from ..ir.ledger import Refusal
from ..ir.tensor import Array, float64, numpy_dtype, round_to
from ..ir.types import DType, shape_of
from .affine import Step, not_constant


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fold writes: the weight is multiplied by `factor` (float64, broadcast against it; None leaves it alone)
    and the bias becomes `bias` (float64; None where the layer has no slot for it, or needs none).
    """

    factor: Array | None
    bias: Array | None
    shift: Array | None


@dataclass(frozen=True, slots=True)
class Absorber:
    """A layer that can absorb affines along `axis` of its output, of `channels` channels.

    The weight is input `index`, and `weight_axis` its axis of output channels (of a transposed convolution, within a
    group). `spread` turns a vector [channels] into a factor that broadcasts against the weight; `channel_max` has the
    greatest magnitude in the weight of each output channel; `bias` is what the layer adds now, in float64, its
    channels on the last axis; `slot` tells whether the layer can add a bias at all, and `divisor` what the bias is
    multiplied by there.
    """

    node: Node
    index: int
    weight_axis: int
    dtype: DType
    axis: int
    channels: int
    spread: Callable[[Array], Array]
    channel_max: Array
    bias: Array | None
    slot: bool = True
    divisor: float = 1.0

    @property
    def weight(self) -> Value:
        """The weight as it is now."""
        value = self.node.inputs[self.index]
        assert value is not None
        return value

    def misfit(self, step: Step) -> Refusal | None:
        """Why `step` does not act on the channels of this layer, None where it does."""
        label = self.node.label
        if step.axis is not None and step.axis != self.axis:
            return Refusal("axis_mismatch", f"axis {step.axis} is not the channel axis {self.axis} of {label}")
        if step.axis is not None and step.scale.shape[0] != self.channels:
            return Refusal("channel_mismatch", f"{label} has {self.channels} channels, not {step.scale.shape[0]}")
        return None

    def plans(self, steps: Iterable[Step]) -> Iterator[Plan | Refusal]:
        """The fold of the first step, of the first two, and so on, each with every number checked. O(steps)."""
        scale = np.ones(self.channels)
        bias = np.zeros(self.channels) if self.bias is None else self.bias
        for step in steps:
            with np.errstate(all="ignore"):
                scale = scale * step.scale
                bias = step.apply(bias)
                if bias.ndim == 1:
                    bias = np.broadcast_to(bias, (self.channels,))
                refusal = self._check(scale, bias / self.divisor)
            yield refusal or self._plan(scale, bias)

    def _plan(self, scale: Array, bias: Array) -> Plan:
        factor = None if (scale == 1).all() else self.spread(scale)
        if not self.slot:
            return Plan(factor, None, bias if bias.any() else None)
        unchanged = self.bias is None and not bias.any()
        return Plan(factor, None if unchanged else bias / self.divisor, None)

    def _check(self, scale: Array, bias: Array) -> Refusal | None:
        """Every folded number is finite, and no channel that had normal numbers is left with none."""
        label = self.node.label
        if not (np.isfinite(scale).all() and np.isfinite(self.channel_max).all()):
            return Refusal("nonfinite", f"{label}: a scale or weight is infinite or not a number")
        top = self.channel_max * np.abs(scale)
        if not np.isfinite(to_float64(round_to(top, self.dtype))).all():
            return Refusal("overflow", f"{label}: a folded weight exceeds {self.dtype}")
        if not np.isfinite(to_float64(round_to(bias, self.dtype))).all():
            return Refusal("overflow", f"{label}: the folded bias exceeds {self.dtype}")
        tiny = smallest_normal(self.dtype)
        if ((top < tiny) & (self.channel_max >= tiny) & (scale != 0)).any():
            return Refusal("underflow", f"{label}: a channel of folded weights vanishes in {self.dtype}")
        return None


def to_float64(array: Array) -> Array:
    """`array` in float64."""
    wide: Array = array.astype(np.float64)
    return wide


def smallest_normal(dtype: DType) -> float:
    """The smallest positive normal number of a floating type."""
    if dtype.name == "bf16":
        return float(np.finfo(np.float32).tiny)
    return float(np.finfo(numpy_dtype(dtype)).tiny)


def magnitude(array: Array, axes: tuple[int, ...]) -> Array:
    """The greatest absolute value over `axes`, NaN where there is one; in float64."""
    wide = array if array.dtype in (np.float32, np.float64, np.float16) else array.astype(np.float32)
    largest: Array = np.maximum(to_float64(wide.max(axis=axes)), -to_float64(wide.min(axis=axes)))
    return largest


def _weight(node: Node, index: int, evaluator: ConstantEvaluator) -> tuple[DType, Array] | Refusal:
    value = node.inputs[index]
    tensor = evaluator.tensor(value)
    array = evaluator.array(value) if tensor is not None else None
    if tensor is None or array is None:
        reason = not_constant(value)
        code = "dynamic_weight" if reason.code == "non_constant_params" else reason.code
        return Refusal(code, f"{node.label}: the weight {reason.detail}")
    if not tensor.dtype.is_float:
        return Refusal("dtype_mismatch", f"{node.label}: the weight is {tensor.dtype}")
    if not array.size:
        return Refusal("channel_mismatch", f"{node.label}: the weight is empty")
    return tensor.dtype, array


def _bias(node: Node, evaluator: ConstantEvaluator) -> Array | Refusal | None:
    value = node.input(2)
    if value is None:
        return None
    tensor = evaluator.tensor(value)
    array = None if tensor is None else evaluator.array(value)
    if tensor is None or array is None:
        reason = not_constant(value)
        code = "dynamic_bias" if reason.code == "non_constant_params" else reason.code
        return Refusal(code, f"{node.label}: the bias {reason.detail}")
    return float64(tensor)


def _operands(node: Node, evaluator: ConstantEvaluator) -> tuple[DType, Array, Array | None] | Refusal:
    """The weight's dtype and elements, and the bias in float64, of a layer with a slot for it."""
    weight = _weight(node, 1, evaluator)
    if isinstance(weight, Refusal):
        return weight
    bias = _bias(node, evaluator)
    return bias if isinstance(bias, Refusal) else (*weight, bias)


def conv(node: Node, evaluator: ConstantEvaluator) -> Absorber | Refusal:
    """Conv: weight [M, C/group, k...]; output channel m is row m, whatever the groups, pads and strides."""
    operands = _operands(node, evaluator)
    if isinstance(operands, Refusal):
        return operands
    dtype, array, bias = operands
    channels, tail = array.shape[0], (1,) * (array.ndim - 1)
    if array.ndim < 3 or (bias is not None and bias.shape != (channels,)):
        return Refusal("channel_mismatch", f"{node.label}: weight {list(array.shape)} and its bias do not fit")

    def spread(scale: Array) -> Array:
        return scale.reshape(-1, *tail)

    largest = magnitude(array, tuple(range(1, array.ndim)))
    return Absorber(node, 1, 0, dtype, 1, channels, spread, largest, bias)


def conv_transpose(node: Node, evaluator: ConstantEvaluator) -> Absorber | Refusal:
    """ConvTranspose: weight [C, M/group, k...]; input channel c and column j make output channel
    (c // (C/group)) * (M/group) + j.
    """
    operands = _operands(node, evaluator)
    if isinstance(operands, Refusal):
        return operands
    dtype, array, bias = operands
    group = node.attrs.get("group", 1)
    if array.ndim < 3 or not isinstance(group, int) or group < 1 or array.shape[0] % group:
        return Refusal("channel_mismatch", f"{node.label}: weight {list(array.shape)} does not fit its groups")
    rows, columns = array.shape[0] // group, array.shape[1]
    channels = columns * group
    if bias is not None and bias.shape != (channels,):
        return Refusal("channel_mismatch", f"{node.label}: the bias has shape {list(bias.shape)}")
    tail = (1,) * (array.ndim - 2)

    def spread(scale: Array) -> Array:
        if group == 1:
            return scale.reshape(1, columns, *tail)
        by_group = np.broadcast_to(scale.reshape(group, 1, columns), (group, rows, columns))
        return np.ascontiguousarray(by_group).reshape(group * rows, columns, *tail)

    grouped = array.reshape(group, rows, columns, prod(array.shape[2:]))
    largest = magnitude(grouped, (1, 3)).reshape(channels)
    return Absorber(node, 1, 1, dtype, 1, channels, spread, largest, bias)


def dense(node: Node, evaluator: ConstantEvaluator) -> Absorber | Refusal:
    """Gemm: alpha * A B + beta * C; columns are channels, alpha stays, and C' = (scale * beta * C + shift) / beta."""
    operands = _operands(node, evaluator)
    if isinstance(operands, Refusal):
        return operands
    dtype, array, bias = operands
    if array.ndim != 2:
        return Refusal("channel_mismatch", f"{node.label}: the weight has rank {array.ndim}")
    transposed = bool(node.attrs.get("transB", 0))
    channels = array.shape[0 if transposed else 1]
    beta = node.attrs.get("beta", 1.0)
    assert isinstance(beta, float | int)
    if bias is not None:
        if bias.ndim > 2 or (bias.ndim and bias.shape[-1] not in (1, channels)):
            return Refusal("channel_mismatch", f"{node.label}: C has shape {list(bias.shape)}")
        bias = bias * float(beta) if beta else np.zeros(channels)
        bias = np.broadcast_to(bias, (*bias.shape[:-1], channels)) if bias.ndim else np.full(channels, float(bias))

    def spread(scale: Array) -> Array:
        return scale.reshape(-1, 1) if transposed else scale.reshape(1, -1)

    largest = magnitude(array, (1,) if transposed else (0,))
    divisor = float(beta) if bias is not None and beta else 1.0
    return Absorber(node, 1, 0 if transposed else 1, dtype, 1, channels, spread, largest, bias, divisor=divisor)


def matmul(node: Node, evaluator: ConstantEvaluator) -> Absorber | Refusal:
    """MatMul: x W has its channels on the last axis, the columns of W; W x on the one before, the rows of W.

    There is no slot for a bias: a shift stays behind as an `add`.
    """
    shape = shape_of(node.output.type)
    if shape is None or len(shape) < 2:
        return Refusal("unknown_rank", f"{node.label}: the rank of the result is unknown")
    side = 1 if evaluator.tensor(node.inputs[1]) is not None else 0
    weight = _weight(node, side, evaluator)
    if isinstance(weight, Refusal):
        return weight
    dtype, array = weight
    if array.ndim < 2 or array.ndim > len(shape):
        return Refusal("channel_mismatch", f"{node.label}: the weight has rank {array.ndim}")
    channel = array.ndim - 1 if side else array.ndim - 2
    others = tuple(axis for axis in range(array.ndim) if axis != channel)

    def spread(scale: Array) -> Array:
        return scale.reshape(scale.shape + (1,) * (array.ndim - 1 - channel))

    axis = len(shape) - 1 if side else len(shape) - 2
    largest = magnitude(array, others)
    return Absorber(node, side, channel, dtype, axis, array.shape[channel], spread, largest, None, slot=False)


Absorb = Callable[[Node, ConstantEvaluator], Absorber | Refusal]

ABSORBERS: dict[str, Absorb] = {
    "nn.conv": conv,
    "nn.conv_transpose": conv_transpose,
    "nn.dense": dense,
    "matmul": matmul,
}
"""The layers by operator."""
