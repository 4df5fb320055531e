"""Conv and ConvTranspose as layers that absorb affines."""

from __future__ import annotations

from math import prod

import numpy as np
from msgspec.structs import replace

from ....ir.graph import Node
from ....ir.ops.inference import integer_of
from ....ir.ops.views import auto_pad_of, explicit_pads, may_read_padding
from ....ir.provenance import Refused
from ....ir.tensor import Array, all_finite, fits, round_to, to_float64
from ....support.statement import states
from ..algebra.affine import Affine
from ..algebra.layers import (
    Fold,
    LayerNumbers,
    Spread,
    Weight,
    check_channels,
    of_data,
    of_result,
    operands,
)
from ..algebra.operands import Parameters, fits_operand
from .affine_rule import layer
from .zero_padding import bias_map, constant_padding


def _check_shapes(node: Node, shape: tuple[int, ...], bias: Array | None, channels: int) -> None:
    if len(shape) < 3 or (bias is not None and bias.shape != (channels,)):
        detail = f"weight {list(shape)} and its bias do not fit"
        raise Refused("channel_mismatch", f"{node.description}: {detail}")


@states(
    "affine(conv(x, w, b, g, d, p), s, t, 1, 3) == conv(x, along(s, 0, 3) * w, s * b + t, g, d, p)"
)
def conv_result(node: Node, affine: Affine, params: Parameters) -> Fold:
    """Conv: weight [M, C/group, k...]; output channel m is row m."""
    weight, bias = operands(node, params)
    shape = weight.shape
    _check_shapes(node, shape, bias, shape[0] if shape else 0)
    largest = params.largest_of_rows(weight.value, weight.elements)
    fold = Fold(node, affine, 1, 0, 1, weight.dtype)
    return of_result(fold, LayerNumbers(weight, largest, _by_row(weight), bias))


def _by_row(weight: Weight) -> Spread:
    """Spread a vector along the first axis of the weight."""
    tail = (1,) * (weight.rank - 1)
    return lambda scale: scale.reshape(-1, *tail)


def _by_column(weight: Weight, group: int) -> Spread:
    """Spread a vector [groups * columns] along the second axis; each group has its own rows."""
    rows, columns = weight.shape[0] // group, weight.shape[1]
    tail = (1,) * (weight.rank - 2)

    def spread(scale: Array) -> Array:
        if group == 1:
            return scale.reshape(1, columns, *tail)
        return np.repeat(scale.reshape(group, columns), rows, axis=0).reshape(-1, columns, *tail)

    return spread


def _check_groups(node: Node, shape: tuple[int, ...], group: int) -> None:
    if len(shape) < 3 or group < 1 or shape[0] % group:
        detail = f"weight {list(shape)} does not fit its groups"
        raise Refused("channel_mismatch", f"{node.description}: {detail}")


@states(
    "conv(affine(x, s, t, 1, 3), w, b, g, d, p) == conv(x, along_of(s, w, g) * w, b + response(t,"
    " w, g), g, d, p) if (t == 0) | unpadded(p); conv(affine(x, s, t, 1, 3), w, b, g, d, q) =="
    " conv(pad(x, spatial(q), (-t / s)[0]), along_of(s, w, g) * w, b + response(t, w, g), g, d) if"
    " s != 0 and one_ratio(t, s); conv(affine(x, s, t, 1, 3), w, b, g, d, q) == conv(x, along_of(s,"
    " w, g) * w, b, g, d, q) + conv(filled(x, t, 1), w, None, g, d, q); conv(affine(x, s, t, 1,"
    " 3), w, b, 1, d, q) == conv(with_ones(x), with_response(along_of(s, w, 1) * w, t, w), b, 1, d,"
    " q)"
)
def conv_data(node: Node, affine: Affine, params: Parameters) -> Fold:
    """Conv: output channel m reads the C/group input channels of its group.

    The shift of the data is the same at every position only if no window reads padding.
    """
    weight, bias = operands(node, params, any_bias=not affine.has_shift)
    shape, group = weight.shape, integer_of(node, "group", 1)
    _check_shapes(node, shape, bias, shape[0] if shape else 0)
    _check_groups(node, shape, group)
    rows, columns = shape[0] // group, shape[1]
    check_channels(node, affine, 1, columns * group)
    array = weight.array
    grouped = array.reshape(group, rows, columns, prod(array.shape[2:]))
    largest = params.largest(weight.value, grouped, (1, 3)).reshape(-1)
    fold = Fold(node, affine, 1, 0, 1, weight.dtype)
    numbers = LayerNumbers(weight, largest, _by_column(weight, group), bias)
    if not affine.has_shift:
        return of_data(fold, numbers, np.zeros(array.shape[0]))
    shift = np.broadcast_to(affine.shift, (columns * group,)).reshape(group, columns)
    taps = np.einsum("grck,gc->grk", grouped, shift).reshape(array.shape[0], -1)
    response = taps.sum(axis=1)
    kernel = array.shape[2:]
    if params.border == "ignore" or not may_read_padding(node, kernel):
        return of_data(fold, numbers, response)
    is_free = params.border == "keep" and params.has_inserted(affine)
    border = "cheapest" if is_free else params.border
    return _at_border(border, fold, numbers, taps.reshape(-1, *kernel))


def _at_border(border: str, fold: Fold, numbers: LayerNumbers, taps: Array) -> Fold:
    """Return the fold before a layer that pads with zeros, by a word of FoldScaleAxis.

    `taps` [M, k...] is, for each tap of the window, the sum over the input channels of weight times
    shift. The cheapest way is a Pad, then the one that adds the fewest constants.
    """
    if border == "cheapest":
        found = []
        for way in ("pad", "ones", "map"):
            try:
                found.append(_at_border(way, fold, numbers, taps))
            except Refused as refused:
                last = refused
        if not found:
            raise last
        return min(found, key=_constants)
    if border in _WAYS:
        return _WAYS[border](fold, numbers, taps)
    detail = f"{fold.node.description} pads with zeros: at the border the shift would be missing"
    raise Refused("nonzero_padding", detail)


def _constants(fold: Fold) -> int:
    """Return how many numbers a shift needs beside the weights and the bias."""
    return sum(array.size for array in (fold.shift, fold.ones) if array is not None)


def _with_padding(fold: Fold, numbers: LayerNumbers, taps: Array) -> Fold:
    """Return the fold with a Pad by the number that becomes zero, the same in all channels."""
    node, kernel = fold.node, taps.shape[1:]
    padding, pads = constant_padding(node, fold.affine), explicit_pads(node, kernel)
    if pads is None or not fits_operand("nn.pad", "constant_value", node, padding):
        detail = f"{node.description} pads with zeros: at the border the shift would be missing"
        raise Refused("nonzero_padding", detail)
    response = taps.sum(axis=tuple(range(1, taps.ndim)))
    return of_data(replace(fold, padding=(pads, padding)), numbers, response)


def _with_ones(fold: Fold, numbers: LayerNumbers, taps: Array) -> Fold:
    """Return the fold of the scale, with the shift as weights of a channel of ones.

    The layer pads this channel with zeros, as it did the others.
    """
    node = fold.node
    if integer_of(node, "group", 1) != 1 or numbers.weight.quantized is not None:
        detail = f"{node.description} pads with zeros, and no channel of ones fits its weight"
        raise Refused("nonzero_padding", detail)
    if not all_finite(taps) or not fits(taps, fold.dtype):
        raise Refused("overflow", f"{node.description}: a weight of ones exceeds {fold.dtype}")
    scaled = of_data(fold, numbers, np.zeros(taps.shape[0]))
    return replace(scaled, ones=taps[:, None])


def _with_map(fold: Fold, numbers: LayerNumbers, taps: Array) -> Fold:
    """Return the fold of the scale, with the shift's response to be added after the layer."""
    shift = bias_map(fold.node, taps)
    scaled = of_data(fold, numbers, np.zeros(taps.shape[0]))
    if not np.isfinite(to_float64(round_to(shift, fold.dtype))).all():
        raise Refused("overflow", f"{fold.node.description}: the bias map exceeds {fold.dtype}")
    return replace(scaled, shift=shift)


_WAYS = {"pad": _with_padding, "ones": _with_ones, "map": _with_map}
"""The ways of a shift by the word of FoldScaleAxis."""


def _transposed(
    node: Node, params: Parameters, *, any_bias: bool = False
) -> tuple[Weight, Array | None, int]:
    """Return the weight, bias and group of a ConvTranspose whose shapes fit each other."""
    weight, bias = operands(node, params, any_bias=any_bias)
    shape, group = weight.shape, integer_of(node, "group", 1)
    _check_groups(node, shape, group)
    _check_shapes(node, shape, bias, shape[1] * group)
    return weight, bias, group


@states(
    "affine(conv_transpose(x, w, b, g, d, p), s, t, 1, 3) == conv_transpose(x, along_of(s, w, g) *"
    " w, s * b + t, g, d, p)"
)
def conv_transpose_result(node: Node, affine: Affine, params: Parameters) -> Fold:
    """ConvTranspose: input c and column j make the channel (c // (C/group)) * (M/group) + j.

    The weight is [C, M/group, k...].
    """
    weight, bias, group = _transposed(node, params)
    array = weight.array
    rows, columns = array.shape[0] // group, array.shape[1]
    grouped = array.reshape(group, rows, columns, prod(array.shape[2:]))
    largest = params.largest(weight.value, grouped, (1, 3)).reshape(-1)
    fold = Fold(node, affine, 1, 1, 1, weight.dtype)
    return of_result(fold, LayerNumbers(weight, largest, _by_column(weight, group), bias))


@states(
    "conv_transpose(affine(x, s, t, 1, 3), w, b, g, d, p) == conv_transpose(x, along(s, 0, 3) * w,"
    " b + response_transposed(t, w, g), g, d, p) if (t == 0) | plain(w, d, p)"
)
def conv_transpose_data(node: Node, affine: Affine, params: Parameters) -> Fold:
    """ConvTranspose: input channel c is row c, whatever the groups.

    The number of taps that reach a position varies, even if kernel and stride are equal and the
    data is padded, so a shift passes only a kernel of one element with stride 1 and neither pads
    nor an output larger than the data.
    """
    weight, bias, group = _transposed(node, params, any_bias=not affine.has_shift)
    shape = weight.shape
    check_channels(node, affine, 1, shape[0])
    largest = params.largest_of_rows(weight.value, weight.elements)
    response = np.zeros(shape[1] * group)
    if affine.has_shift:
        if _spreads(node, shape):
            detail = f"{node.description}: not every position is reached by every tap"
            raise Refused("nonzero_padding", detail)
        shift = np.broadcast_to(affine.shift, (shape[0],)).reshape(group, -1, 1)
        grouped = weight.array.reshape(group, -1, shape[1])
        response = (to_float64(grouped) * shift).sum(axis=1).reshape(-1)
    fold = Fold(node, affine, 1, 1, 1, weight.dtype)
    return of_data(fold, LayerNumbers(weight, largest, _by_row(weight), bias), response)


def _spreads(node: Node, shape: tuple[int, ...]) -> bool:
    """Return whether a ConvTranspose does anything but multiply each position by a matrix."""
    if prod(shape[2:]) != 1 or auto_pad_of(node) != "NOTSET" or "output_shape" in node.attrs:
        return True
    strides = node.attrs.get("strides", ())
    ones = isinstance(strides, tuple) and all(stride == 1 for stride in strides)
    added = [node.attrs.get(name, ()) for name in ("pads", "output_padding")]
    zeros = all(isinstance(found, tuple) and not any(found) for found in added)
    return not (ones and zeros)


RULES = {
    "nn.conv": layer(conv_result, conv_data),
    "nn.conv_transpose": layer(conv_transpose_result, conv_transpose_data),
}
"""The rules by operator."""
