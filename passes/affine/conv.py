"""Conv and ConvTranspose as layers that absorb affines."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ...ir.graph import Node
from ...ir.ops.inference import integer_of
from ...ir.provenance import Refusal
from ...ir.tensor import Array, round_to, to_float64
from ...support.record import replaced
from .algebra import Affine
from .layers import Fold, Weight, misfit, of_data, of_result, operands
from .operands import Parameters, fits_attribute, implicit_padding, text
from .zero_padding import bias_map, constant_padding, explicit_pads


def _shape_refusal(node: Node, shape: tuple[int, ...], bias: Array | None, channels: int) -> Refusal | None:
    if len(shape) < 3 or (bias is not None and bias.shape != (channels,)):
        return Refusal("channel_mismatch", f"{node.label}: weight {list(shape)} and its bias do not fit")
    return None


def conv_result(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """Conv: weight [M, C/group, k...]; output channel m is row m, whatever the groups, pads and strides."""
    found = operands(node, params)
    if isinstance(found, Refusal):
        return found
    weight, bias = found
    shape = weight.shape
    refusal = _shape_refusal(node, shape, bias, shape[0] if shape else 0)
    if refusal is not None:
        return refusal
    tail = (1,) * (len(shape) - 1)
    largest = params.largest_of_rows(weight.value, weight.elements)
    fold = Fold(node, affine, 1, 0, 1, weight.dtype)
    return of_result(fold, weight, largest, bias, lambda scale: scale.reshape(-1, *tail))


def conv_data(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """Conv: output channel m reads the C/group input channels of its group.

    The shift of the data is the same at every position only if no window reads padding.
    """
    found = operands(node, params, any_bias=not affine.has_shift)
    if isinstance(found, Refusal):
        return found
    weight, bias = found
    if weight.dequantize is not None:
        return Refusal("quantized_weight", f"{node.label}: the integers have no scale per input channel")
    shape, group = weight.shape, integer_of(node, "group", 1)
    refusal = _shape_refusal(node, shape, bias, shape[0] if shape else 0)
    if refusal is not None:
        return refusal
    if group < 1 or shape[0] % group:
        return Refusal("channel_mismatch", f"{node.label}: weight {list(shape)} does not fit its groups")
    rows, columns = shape[0] // group, shape[1]
    refusal = misfit(node, affine, 1, columns * group)
    if refusal is not None:
        return refusal
    array = weight.array
    grouped = array.reshape(group, rows, columns, prod(array.shape[2:]))
    largest = params.largest(weight.value, grouped, (1, 3)).reshape(-1)
    tail = (1,) * (array.ndim - 2)

    def spread(scale: Array) -> Array:
        if group == 1:
            return scale.reshape(1, columns, *tail)
        return np.repeat(scale.reshape(group, columns), rows, axis=0).reshape(-1, columns, *tail)

    fold = Fold(node, affine, 1, 0, 1, weight.dtype)
    if not affine.has_shift:
        return of_data(fold, weight, largest, bias, spread, np.zeros(array.shape[0]))
    shift = np.broadcast_to(affine.shift, (columns * group,)).reshape(group, columns)
    taps = np.einsum("grck,gc->grk", grouped, shift).reshape(array.shape[0], -1)
    response: Array | Refusal = taps.sum(axis=1)
    if params.border != "ignore" and implicit_padding(node, array.shape[2:]):
        if params.border == "map":
            return _with_map(fold, weight, largest, bias, spread, taps.reshape(-1, *array.shape[2:]))
        padding = constant_padding(node, affine) if params.border == "pad" else None
        pads = explicit_pads(node, array.shape[2:])
        exact = isinstance(padding, float) and (node.opset >= 11 or fits_attribute(node, padding))
        if exact and isinstance(padding, float) and pads is not None:
            fold = replaced(fold, padding=(pads, padding))
        else:
            response = padding if isinstance(padding, Refusal) else _zero_padded(node)
    return of_data(fold, weight, largest, bias, spread, response)


def _zero_padded(node: Node) -> Refusal:
    return Refusal("nonzero_padding", f"{node.label} pads its data with zeros, which the shift is not")


def _with_map(
    fold: Fold, weight: Weight, largest: Array, bias: Array | None, spread: Callable[[Array], Array], taps: Array
) -> Fold | Refusal:
    """The fold of the scale, and what becomes of the shift as a constant to be added behind the layer."""
    shift = bias_map(fold.node, taps)
    scaled = of_data(fold, weight, largest, bias, spread, np.zeros(taps.shape[0]))
    if isinstance(shift, Refusal) or isinstance(scaled, Refusal):
        return shift if isinstance(shift, Refusal) else scaled
    if not np.isfinite(to_float64(round_to(shift, fold.dtype))).all():
        return Refusal("overflow", f"{fold.node.label}: the bias map exceeds {fold.dtype}")
    return replaced(scaled, shift=shift)


def _transposed(
    node: Node, params: Parameters, *, any_bias: bool = False
) -> tuple[Weight, Array | None, int] | Refusal:
    """Weight, bias and group of a ConvTranspose that hold together."""
    found = operands(node, params, any_bias=any_bias)
    if isinstance(found, Refusal):
        return found
    weight, bias = found
    shape, group = weight.shape, integer_of(node, "group", 1)
    if len(shape) < 3 or group < 1 or shape[0] % group:
        return Refusal("channel_mismatch", f"{node.label}: weight {list(shape)} does not fit its groups")
    refusal = _shape_refusal(node, shape, bias, shape[1] * group)
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
    return of_result(Fold(node, affine, 1, 1, 1, weight.dtype), weight, largest, bias, spread)


def conv_transpose_data(node: Node, affine: Affine, params: Parameters) -> Fold | Refusal:
    """ConvTranspose: input channel c is row c, whatever the groups.

    The number of taps that reach a position varies, even where kernel and stride are equal and the data is padded, so
    a shift passes only a kernel of one element with stride 1 and neither pads nor an output larger than the data.
    """
    found = _transposed(node, params, any_bias=not affine.has_shift)
    if isinstance(found, Refusal):
        return found
    weight, bias, group = found
    if weight.dequantize is not None:
        return Refusal("quantized_weight", f"{node.label}: the integers have no scale per input channel")
    shape = weight.shape
    refusal = misfit(node, affine, 1, shape[0])
    if refusal is not None:
        return refusal
    largest = params.largest_of_rows(weight.value, weight.elements)
    response: Array | Refusal = np.zeros(shape[1] * group)
    if affine.has_shift:
        if _spreads(node, shape):
            response = Refusal("nonzero_padding", f"{node.label}: not every position is reached by every tap")
        else:
            shift = np.broadcast_to(affine.shift, (shape[0],)).reshape(group, -1, 1)
            grouped = weight.array.reshape(group, -1, shape[1])
            response = (to_float64(grouped) * shift).sum(axis=1).reshape(-1)
    tail = (1,) * (len(shape) - 1)
    fold = Fold(node, affine, 1, 1, 1, weight.dtype)
    return of_data(fold, weight, largest, bias, lambda scale: scale.reshape(-1, *tail), response)


def _spreads(node: Node, shape: tuple[int, ...]) -> bool:
    """Whether a ConvTranspose does anything but multiply each position by a matrix."""
    plain = (
        prod(shape[2:]) == 1
        and (text(node, "auto_pad", "NOTSET") or "NOTSET") == "NOTSET"
        and "output_shape" not in node.attrs
    )
    strides, pads, extra = (node.attrs.get(name, ()) for name in ("strides", "pads", "output_padding"))
    ones = isinstance(strides, tuple) and all(stride == 1 for stride in strides)
    zeros = all(isinstance(found, tuple) and not any(found) for found in (pads, extra))
    return not (plain and ones and zeros)
