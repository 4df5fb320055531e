"""Normalizations as layers: gamma and beta absorb an affine; the mean removes a shift."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....ir.graph import Node
from ....ir.ops.inference import input_dtype, input_shape, integer_of
from ....ir.ops.normalization import DEFAULT_EPSILON
from ....ir.provenance import Refused
from ....ir.tensor import Array, largest_finite, smallest_normal, to_float64
from ....ir.types import F16, F32, shape_of
from ....support.statement import states
from ..algebra.affine import Affine, Stage
from ..algebra.layers import (
    Fold,
    LayerNumbers,
    Weight,
    check_channels,
    checked,
    of_result,
    operands,
    read_bias,
    read_weight,
)
from ..algebra.operands import Parameters, fits_attribute
from ..algebra.transfer import Transfer, check_no_shift, only_data
from .affine_rule import AffineRule, layer


@states("affine(batch_norm(x, g, b, m, v), s, t, 1, 3) == batch_norm(x, s * g, s * b + t, m, v)")
def batch_norm_result(node: Node, affine: Affine, params: Parameters) -> Fold:
    """BatchNormalization that stays: gamma' = scale * gamma, beta' = scale * beta + shift."""
    weight = read_weight(node, 0, params)
    numbers = _vectors(node, weight, read_bias(node, params, 1))
    return of_result(Fold(node, affine, 0, 0, 1, weight.dtype, bias_index=1), numbers)


def _vectors(node: Node, weight: Weight, bias: Array | None) -> LayerNumbers:
    """Return gamma and beta, which must be vectors of one length."""
    if weight.rank != 1 or bias is None or bias.shape != weight.shape:
        detail = f"{node.description}: its parameters are not vectors of one length"
        raise Refused("channel_mismatch", detail)
    return LayerNumbers(weight, np.abs(to_float64(weight.array)), lambda scale: scale, bias)


@states("affine(instance_norm(x, g, b), s, t, 1, 3) == instance_norm(x, s * g, s * b + t)")
def instance_norm_result(node: Node, affine: Affine, params: Parameters) -> Fold:
    """InstanceNormalization: gamma' = scale * gamma, beta' = scale * beta + shift."""
    weight, bias = operands(node, params)
    return of_result(Fold(node, affine, 1, 0, 1, weight.dtype), _vectors(node, weight, bias))


@states(
    "affine(group_norm(x, g, b, n), s, t, 1, 3) == group_norm(x, s * g, s * b + t, n);"
    " affine(group_norm_by_group(x, h, b, n), s, t, 1, 3) == group_norm_by_group(x, s[::c] * h,"
    " s[::c] * b + t[::c], n) if s == repeat(s[::c], c) and t == repeat(t[::c], c)"
)
def group_norm_result(node: Node, affine: Affine, params: Parameters) -> Fold:
    """GroupNormalization: gamma' = scale * gamma and beta' = the affine of beta, along axis 1.

    If the parameters are per group (GroupNormalization before opset 21), the affine must be
    constant inside every group. If they are per channel, there are as many as channels.
    """
    weight = read_weight(node, 1, params)
    groups, channels = integer_of(node, "num_groups", 0), affine.channels
    if affine.axis is None or groups == channels or weight.shape != (groups,):
        return instance_norm_result(node, affine, params)
    if affine.axis != 1:
        detail = f"axis {affine.axis} is not the channel axis 1 of {node.description}"
        raise Refused("axis_mismatch", detail)
    assert channels is not None
    data = input_shape(node)
    # The groups are equal parts of the channels, axis 1 of the data.
    if groups < 1 or channels % groups or data is None or len(data) < 2 or data[1] != channels:
        raise Refused(
            "channel_mismatch", f"{node.description}: {channels} channels in {groups} groups"
        )
    view = (groups, channels // groups)
    if any((array.reshape(view) != array.reshape(view)[:, :1]).any() for array in affine.vectors()):
        detail = f"{node.description}: its parameters are per group, and the affine is not"
        raise Refused("channel_mismatch", detail)
    per_group = affine.map(1, lambda array: np.ascontiguousarray(array.reshape(view)[:, 0]))
    return instance_norm_result(node, per_group, params)


@states(
    "affine(layer_norm(x, g, b, a), s, t, k, 3) == layer_norm(x, along(s, k - a, rank(g)) * g,"
    " along(s, k - a, rank(g)) * b + along(t, k - a, rank(g)), a)"
)
def layer_norm_result(node: Node, affine: Affine, params: Parameters) -> Fold:
    """LayerNormalization: gamma and beta have the shape of the data from `axis` on."""
    weight = read_weight(node, 1, params)
    bias = read_bias(node, params)
    shape = shape_of(node.output.type)
    if shape is None:
        raise Refused("unknown_rank", f"{node.description}: the rank of the result is unknown")
    array = to_float64(weight.array)
    first = len(shape) - array.ndim
    axis = len(shape) - 1 if affine.axis is None else affine.axis
    start = integer_of(node, "axis", -1) % len(shape)
    # Weight and bias have an element for each position from `start` on, the channels among them.
    if first != start or axis < first or (bias is not None and bias.shape != array.shape):
        detail = f"the affine acts on axis {axis}, its parameters from {start} on"
        raise Refused("axis_mismatch", f"{node.description}: {detail}")
    inner = axis - first
    channels = array.shape[inner]
    check_channels(node, affine, axis, channels)
    moved = np.moveaxis(np.zeros_like(array) if bias is None else bias, inner, -1)
    total = np.broadcast_to(affine.apply(moved), moved.shape)
    least = np.abs(total).reshape(-1, channels).min(axis=0)
    scale = np.broadcast_to(affine.scale, (channels,))
    largest = np.abs(array).max(axis=tuple(i for i in range(array.ndim) if i != inner))
    tail = (1,) * (array.ndim - 1 - inner)
    numbers = LayerNumbers(weight, largest, lambda s: s.reshape(-1, *tail), bias)
    fold = Fold(node, affine, 1, inner, axis, weight.dtype)
    new = np.ascontiguousarray(np.moveaxis(total, -1, inner))
    return checked(fold, numbers, scale, new, least)


@states(
    "affine(rms_norm(x, g, a), s, t, k, 3) == rms_norm(x, along(s, k - a, rank(g)) * g, a) if t"
    " == 0"
)
def rms_norm_result(node: Node, affine: Affine, params: Parameters) -> Fold:
    """RMSNormalization: as LayerNormalization, without a slot for a shift."""
    if affine.has_shift:
        raise Refused("bias_slot", f"{node.description} has no bias")
    return layer_norm_result(node, affine, params)


@states(
    "instance_norm(x + along(t, k, 3), g, b) == instance_norm(x, g, b) if k <= 1;"
    " layer_norm(x + along(t, k, 3), g, b, a) == layer_norm(x, g, b, a) if k < a;"
    " group_norm(x + along(t, 1, 3), g, b, n) == group_norm(x, g, b, n) if t == repeat(t[::c], c);"
    " instance_norm(x * u, g, b, e) == instance_norm(x, g, b, e / (u * u));"
    " instance_norm(x * m, g, b, e) == instance_norm(x, -g, b, e / (m * m));"
    " layer_norm(x * u, g, b, a, e) == layer_norm(x, g, b, a, e / (u * u));"
    " layer_norm(x * m, g, b, a, e) == layer_norm(x, -g, b, a, e / (m * m))"
)
def norm_data(node: Node, affine: Affine, params: Parameters) -> Fold:
    """Remove a shift that the normalization subtracts again with the mean, which it is part of.

    InstanceNormalization has a mean for each channel, GroupNormalization for each group,
    LayerNormalization over all axes from `axis` on. A scale passes as `scaled_norm_data` says.
    """
    if any(value.users for value in node.outputs[1:]):
        raise Refused("unsupported_op", f"{node.description}: its mean is read, too")
    if affine.has_shift and affine.axis is not None:
        _check_is_removed(node, affine)
    if affine.has_scale:
        return scaled_norm_data(node, affine, params)
    dtype = input_dtype(node, "scale")
    if dtype is None or not dtype.is_float:
        detail = f"{node.description}: the type of its parameters is unknown"
        raise Refused("dtype_mismatch", detail)
    return Fold(node, affine, 1, 0, 1, dtype)


@states(
    "rms_norm(x * u, g, a, e) == rms_norm(x, g, a, e / (u * u));"
    " rms_norm(x * m, g, a, e) == rms_norm(x, -g, a, e / (m * m))"
)
def rms_norm_data(node: Node, affine: Affine, params: Parameters) -> Fold:
    """RMSNormalization: as the others, but it subtracts no mean, and removes no shift."""
    if affine.has_shift:
        raise Refused("bias_slot", f"{node.description} subtracts no mean")
    return norm_data(node, affine, params)


GROWTH = 2.0**16
"""The greatest scale, or reciprocal of one, that passes: squares of the data grow by its square."""


def scaled_norm_data(node: Node, affine: Affine, params: Parameters) -> Fold:
    """Remove one number s from the data: norm(s x; epsilon) = sign(s) norm(x; epsilon / s^2).

    The roots of s^2 v + epsilon and of v + epsilon / s^2 differ by the factor |s| of the data. A
    negative number negates gamma.
    """
    number = one_number(node, affine)
    _check_squares(node, number)
    weight = read_weight(node, 1, params)
    factor = None if number > 0 else np.full((1,) * weight.rank, -1.0)
    epsilon = node.attrs.get("epsilon", DEFAULT_EPSILON)
    assert isinstance(epsilon, float)
    exact = epsilon / number**2
    if exact and not smallest_normal(F32) <= exact <= largest_finite(F32):
        raise Refused("underflow", f"{node.description}: epsilon would be {exact:.3g}")
    if not fits_attribute(node, exact):
        detail = (
            f"{node.description}: epsilon is a float32 attribute, which cannot hold {exact:.17g}"
        )
        raise Refused("unsupported_attr", detail)
    return Fold(node, affine, 1, 0, 1, weight.dtype, factor, epsilon=exact)


@states(
    "lp_normalize(x * u, a, p) == lp_normalize(x, a, p);"
    " lp_normalize(x * m, a, p) == -lp_normalize(x, a, p)"
)
def lp_normalize_data(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """LpNormalization: one number cancels, as there is no epsilon; its sign stays."""
    affine = only_data(node, given)
    check_no_shift(node, affine)
    if input_dtype(node) is F16:
        detail = f"{node.description}: squares of its data may leave float16"
        raise Refused("overflow", detail)
    if one_number(node, affine) > 0:
        return Transfer()
    sign = Stage(np.array(-1.0), np.zeros(()), origins=affine.origins)
    return Transfer(results=((0, Affine(None, (sign,))),))


def one_number(node: Node, affine: Affine) -> float:
    """Return the number that scales all data of a normalization, which may pass it."""
    scale = affine.scale.reshape(-1)
    number = float(scale[0])
    if (scale != number).any():
        detail = f"{node.description}: epsilon does not scale with the channels of the data"
        raise Refused("activation_between", detail)
    if not number:
        raise Refused("zero_scale", f"{node.description}: its data are scaled by zero")
    if not 1 / GROWTH <= abs(number) <= GROWTH:
        detail = f"{node.description}: squares of its data would be {number**2:.3g} times as far"
        raise Refused("overflow", f"{detail} from the source's")
    return number


def _check_squares(node: Node, number: float) -> None:
    """Refuse data whose squares are computed in float16 and would be larger."""
    dtype = input_dtype(node)
    is_wide = node.op != "nn.instance_norm" and integer_of(node, "stash_type", 1) == 1
    if dtype is F16 and not is_wide and abs(number) < 1:
        detail = f"{node.description}: squares of its data may exceed float16"
        raise Refused("overflow", detail)


def _check_is_removed(node: Node, affine: Affine) -> None:
    """Refuse a shift along `affine.axis` that subtracting the mean does not remove."""
    detail = f"{node.description}: the mean is taken over axis {affine.axis}"
    shape = input_shape(node)
    if node.op == "nn.layer_norm":
        start = integer_of(node, "axis", -1)
        start += len(shape) if shape is not None and start < 0 else 0
        if start >= 0 and affine.axis is not None and affine.axis < start:
            return
        raise Refused("axis_mismatch", detail)
    if affine.axis == 0:
        return
    if affine.axis != 1:
        raise Refused("axis_mismatch", detail)
    if node.op == "nn.instance_norm":
        return
    groups, channels = integer_of(node, "num_groups", 0), affine.channels
    if groups < 1 or channels is None or channels % groups:
        raise Refused(
            "channel_mismatch", f"{node.description}: {channels} channels in {groups} groups"
        )
    view = affine.shift.reshape(groups, -1)
    if (view != view[:, :1]).any():
        detail = f"{node.description}: the shift is not constant in every group"
        raise Refused("channel_mismatch", detail)


RULES = {
    "nn.batch_norm_to_affine": layer(batch_norm_result),
    "nn.instance_norm": layer(instance_norm_result, norm_data),
    "nn.group_norm": layer(group_norm_result, norm_data),
    "nn.layer_norm": layer(layer_norm_result, norm_data),
    "nn.rms_norm": layer(rms_norm_result, rms_norm_data),
    "nn.lp_normalize": AffineRule(forward=lp_normalize_data),
}
"""The rules by operator."""
