"""How an affine passes an operator, derived from how channels move (`ir.ops.channel_map`).

Backward: scale * op(x) + shift = op(scale' * x + shift'). Forward: op(scale * x + shift) = scale' *
op(x) + shift'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ....ir.graph import Node
from ....ir.ops import OPS
from ....ir.ops.channel_map import ChannelAxis, ChannelMap, Limit, unknown_shape
from ....ir.ops.row import Constants, Trait
from ....ir.provenance import Refused
from ....ir.tensor import Array
from ..algebra.affine import Affine, Stage
from ..algebra.operands import Parameters, common_value, fits_operand
from ..algebra.transfer import (
    Transfer,
    check_no_shift,
    check_no_zero_scale,
    check_scale_sign,
    only_data,
)
from .reshape import through_reshape


def derived_backward(
    node: Node, index: int, affine: Affine, params: Parameters
) -> Sequence[Transfer]:
    """Return the one way in which an affine of result `index` passes the node."""
    channels = _channel_map(
        node, ChannelAxis(affine.axis, affine.channels, index), params.evaluator
    )
    _check_limits(node, channels, affine)
    moved = _to_data(node, channels, affine)
    if channels.factor is not None:
        moved = moved.rescaled_data(channels.factor)
    transfer = Transfer(operands=((0, moved),))
    if channels.fill is None:
        return [transfer]
    return [_filled(node, transfer, channels.fill, affine.apply(np.array(channels.fill)))]


def derived_forward(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """Return how an affine of the data, the first operand, passes the node."""
    affine = only_data(node, given)
    results: list[tuple[int, Affine]] = []
    count = 1
    while len(results) < count:
        at = ChannelAxis(affine.axis, affine.channels, len(results), of_data=True)
        channels = _channel_map(node, at, params.evaluator)
        _check_limits(node, channels, affine)
        moved = _to_result(node, channels, affine)
        if channels.factor is not None:
            moved = moved.rescaled_data(1.0 / channels.factor)
        results.append((at.result, moved))
        count = channels.results
    transfer = Transfer(results=tuple(results))
    if channels.fill is None or (channels.fill == 0 and not affine.has_shift):
        return transfer
    check_no_zero_scale(node, affine)
    with np.errstate(all="ignore"):
        return _filled(node, transfer, channels.fill, (channels.fill - affine.shift) / affine.scale)


def channel_sources(
    node: Node, axis: int, count: int, params: Parameters
) -> dict[int, tuple[int | None, Array]]:
    """Return for each result its channel axis, and the channel of the data for each.

    The channels are named by the shifts of an affine that is sent through the node: 1, 2, and so
    on. An axis is None if every channel is the same one. Raises Refused if channels mix or no
    shift passes.
    """
    names = np.arange(1.0, count + 1)
    transfer = derived_forward(
        node, {0: Affine(axis, (Stage(np.ones_like(names), names),))}, params
    )
    if transfer.constants:
        raise Refused("nonzero_padding", f"{node.description} adds elements of its own")
    return {
        index: (named.axis, np.rint(named.shift).astype(np.int64) - 1)
        for index, named in transfer.results
        if not named.extents
    }


def _channel_map(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    channels = OPS[node.op].channels
    assert channels is not None
    return channels(node, at, constants)


def _check_limits(node: Node, channels: ChannelMap, affine: Affine) -> None:
    """Refuse an affine that the operator stops, with the reason of the operator."""
    for limit, reason in channels.limits:
        try:
            _CHECKS[limit](node, affine)
        except Refused:
            if reason is None:
                raise
            raise Refused.of(reason) from None


_CHECKS = {
    Limit.NO_NEGATIVE_SCALE: check_scale_sign,
    Limit.NO_ZERO_SCALE: check_no_zero_scale,
    Limit.NO_SHIFT: check_no_shift,
}


def _to_data(node: Node, channels: ChannelMap, affine: Affine) -> Affine:
    """Return the affine of the data for one of the result."""
    if affine.axis is not None and channels.permutation is not None:
        return _permuted(node, affine, channels.permutation)
    if affine.axis is not None and channels.shapes is not None:
        before, after = channels.shapes
        moved = through_reshape(affine, after, before)
        if moved is None:
            detail = f"{node.description}: its result has other channels than its data"
            raise Refused("axis_mismatch", detail)
        return moved
    if channels.data_of_result is not None:
        if affine.axis is not None and len(channels.data_of_result) != affine.channels:
            raise unknown_shape(node)
        return _scattered(node, affine, channels, channels.data_of_result)
    axis = channels.axis
    if axis is None or affine.axis is None:
        return affine
    if channels.result_of_data is not None:
        return _gathered(affine, axis, channels.result_of_data)
    return affine.at(axis)


def _to_result(node: Node, channels: ChannelMap, affine: Affine) -> Affine:
    """Return the affine of the result for one of the data."""
    if affine.axis is not None and channels.permutation is not None:
        perm = channels.permutation
        return _permuted(node, affine, [perm.index(axis) for axis in range(len(perm))])
    if affine.axis is not None and channels.shapes is not None:
        moved = through_reshape(affine, *channels.shapes)
        if moved is None:
            detail = f"{node.description}: its data have other channels than its result"
            raise Refused("axis_mismatch", detail)
        return moved
    axis = channels.axis
    if axis is None or affine.axis is None:
        return affine
    if channels.data_of_result is not None:
        if channels.data_extent not in (None, affine.channels):
            raise unknown_shape(node)
        return _gathered(affine, axis, channels.data_of_result)
    if channels.result_of_data is not None:
        return _agreed(node, affine, axis, channels.result_of_data)
    return affine.at(axis)


def _permuted(node: Node, affine: Affine, perm: Sequence[int]) -> Affine:
    moved = affine.permuted(perm)
    if moved is None:
        detail = f"{node.description} parts the axes that the channels lie on"
        raise Refused("axis_mismatch", detail)
    return moved


def _gathered(affine: Affine, axis: int, positions: Array) -> Affine:
    """Return the affine along `axis` whose channel i is channel positions[i] of this one."""
    return affine.map(axis, lambda array: array[positions])


def _scattered(node: Node, affine: Affine, channels: ChannelMap, positions: Array) -> Affine:
    """Return the affine with these channels at `positions`, and the identity elsewhere."""
    axis = channels.axis
    assert axis is not None
    if channels.data_extent is None:
        return _agreed(node, affine, axis, positions)
    _check_agreement(node, affine, channels.data_extent, positions)
    return affine.scattered(axis, channels.data_extent, positions)


def _agreed(node: Node, affine: Affine, axis: int, positions: Array) -> Affine:
    """Return the affine of which this one has the channels at `positions`, if all have one."""
    extent = int(positions.max(initial=-1)) + 1
    _check_agreement(node, affine, extent, positions)
    first = np.zeros(extent, np.int64)
    first[positions[::-1]] = np.arange(len(positions))[::-1]
    return _gathered(affine, axis, first)


def _check_agreement(node: Node, affine: Affine, extent: int, positions: Array) -> None:
    """Refuse different numbers for one channel."""
    for array in affine.vectors():
        full = np.zeros(extent)
        full[positions] = array
        if (full[positions] != array).any():
            raise Refused(
                "channel_mismatch",
                f"{node.description} repeats or joins channels that have different scales or"
                " shifts",
            )


def _filled(node: Node, transfer: Transfer, old: float, values: Array) -> Transfer:
    """Return the transfer that replaces the fill `old` by the one number in `values`, too."""
    new = common_value(values)
    if new is None:
        detail = f"{node.description}: the padding {old:.6g} would differ between channels"
        raise Refused("nonzero_padding", detail)
    if new == old:
        return transfer
    if not fits_operand(node.op, "constant_value", node, new):
        detail = f"{node.description}: its value is an attribute, which is a float32"
        raise Refused("dtype_mismatch", detail)
    return Transfer(transfer.operands, transfer.results, constants=((2, np.array(new)),))


def takes_several_axes(op: str) -> bool:
    """Return whether the channels of the data of an operator may lie on several axes."""
    info = OPS.get(op)
    return info is not None and Trait.SEVERAL_AXES in info.traits
