"""Pooling over windows and over all spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

import numpy as np

from ...support.statement import states
from ..graph import Node
from ..provenance import Refusal, Refused
from ..types import Dim, TensorType
from .bounds import extents_product
from .channel_map import NO_NEGATIVE_SCALE, NO_SHIFT, ChannelAxis, ChannelMap, Limit
from .inference import Types, input_dtype, input_shape, list_attribute
from .interval import ZERO, Interval
from .row import Constants, OpInfo, Trait, complete_by_types, integer, integers, positive_integers
from .views import may_read_padding, window_of

_WINDOW = {
    "ceil_mode": integer,
    "dilations": positive_integers,
    "kernel_shape": positive_integers,
    "pads": integers,
    "strides": positive_integers,
}


@complete_by_types
def infer_pool(node: Node, constants: Constants) -> Types:
    """Infer [N, C, spatial...]; an extent is known if `Window.extent` is."""
    dtype, shape = input_dtype(node), input_shape(node)
    kernel = list_attribute(node, "kernel_shape")
    if shape is None or kernel is None or len(shape) != len(kernel) + 2:
        return (TensorType(dtype, None),)
    window = window_of(node, len(kernel))
    ceil = bool(node.attrs.get("ceil_mode"))
    dims: list[Dim] = []
    for i, dim in enumerate(shape[2:]):
        dims.append(None if window is None else window.extent(i, dim, kernel[i], ceil=ceil))
    return (TensorType(dtype, (*shape[:2], *dims)),)


@complete_by_types
def infer_global_pool(node: Node, constants: Constants) -> Types:
    """Infer [N, C, 1, ...]."""
    dtype, shape = input_dtype(node), input_shape(node)
    return (TensorType(dtype, None if shape is None else (*shape[:2], *(1,) * (len(shape) - 2))),)


def _pooled(node: Node, at: ChannelAxis, *limits: tuple[Limit, Refusal | None]) -> ChannelMap:
    if at.axis is not None and at.axis > 1:
        raise Refused("axis_mismatch", f"{node.description} pools along axis {at.axis}")
    return ChannelMap(at.axis, limits=limits)


@states(
    "s * op(x) + t == op(s * x + t) if s >= 0; max_pool_indices(s * x, kernel, strides, pads) =="
    " max_pool_indices(x, kernel, strides, pads) if s >= 0 and s != 0"
)
def max_pool_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """MaxPool: max(s x + t) = s max(x) + t for s >= 0, and s > 0 keeps the indices, too.

    The padding never wins, so a shift passes.
    """
    found = _pooled(node, at, NO_NEGATIVE_SCALE)
    if at.result != 0:
        name = node.outputs[at.result].source_name
        raise Refused(
            "unsupported_op",
            f"{node.description}: {name!r} has the indices of its maxima, not data",
        )
    if any(value.users for value in node.outputs[1:]):
        reason = Refusal(
            "negative_scale", f"{node.description}: its indices are read, and a scale is zero"
        )
        return found.limited(NO_NEGATIVE_SCALE, (Limit.NO_ZERO_SCALE, reason))
    return found


@states("s * op(x) + t == op(s * x + t) if (t == 0) | averages_data_only(op)")
def average_pool_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """AveragePool: any scale passes; a shift if the weights of every window add up to one."""
    if averages_data_only(node):
        return _pooled(node, at)
    reason = Refusal(
        "nonzero_padding", f"{node.description}: zeros in the padding count, which a shift is not"
    )
    return _pooled(node, at, (Limit.NO_SHIFT, reason))


@states("s * op(x) + t == op(s * x + t) if t == 0 and s >= 0")
def norm_pool_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """LpPool: the norm of s x is s times the norm of x for s >= 0."""
    return _pooled(node, at, NO_SHIFT, NO_NEGATIVE_SCALE)


def averages_data_only(node: Node) -> bool:
    """Return whether an average pool divides each window by the number of elements that it has.

    If padding counts, so does the padding that `ceil_mode` adds at the end; runtimes disagree on
    the divisor there.
    """
    if node.op == "nn.global_avg_pool" or not node.attrs.get("count_include_pad", 0):
        return True
    kernel = node.attrs.get("kernel_shape")
    window = kernel if isinstance(kernel, tuple) else None
    return not may_read_padding(node, window) and not node.attrs.get("ceil_mode", 0)  # type: ignore[arg-type]


def _of_channels(x: Interval) -> Interval:
    """Return the interval of an operand, with one number for each channel at most."""
    return x if all(extent == 1 for extent in x.low.shape[2:]) else x.whole


def _average_bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound AveragePool: zeros in the padding may count."""
    return [_of_channels(x[0]).hull(ZERO)]


def _norm_bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound LpPool and GlobalLpPool: a norm of n numbers is up to n^(1 / p) times the greatest."""
    kernel, p = list_attribute(node, "kernel_shape"), node.attrs.get("p", 2)
    shape = input_shape(node)
    axes = range(2, len(shape)) if shape is not None else None
    count = float(prod(kernel)) if kernel else extents_product(node, axes)
    magnitude = _of_channels(x[0]).magnitude
    most = magnitude * (count ** (1.0 / p) if isinstance(p, int) and p > 0 else inf)
    return [Interval(np.zeros_like(most), np.where(magnitude == 0, 0.0, most))]


_AVERAGE = frozenset({Trait.AVERAGES})
_EXTREMUM = frozenset({Trait.EXTREMUM})

ROWS = (
    OpInfo(
        "nn.max_pool",
        ("data",),
        infer_pool,
        onnx="MaxPool",
        attrs=_WINDOW,
        traits=_EXTREMUM,
        channels=max_pool_channels,
    ),
    OpInfo(
        "nn.avg_pool",
        ("data",),
        infer_pool,
        onnx="AveragePool",
        forms={"count_include_pad": 7},
        attrs={**_WINDOW, "count_include_pad": integer},
        bounds=_average_bounds,
        traits=_AVERAGE,
        channels=average_pool_channels,
    ),
    OpInfo(
        "nn.lp_pool",
        ("data",),
        infer_pool,
        onnx="LpPool",
        attrs={**_WINDOW, "p": integer},
        channels=norm_pool_channels,
        bounds=_norm_bounds,
    ),
    OpInfo(
        "nn.global_max_pool",
        ("data",),
        infer_global_pool,
        onnx="GlobalMaxPool",
        traits=_EXTREMUM,
        channels=max_pool_channels,
    ),
    OpInfo(
        "nn.global_avg_pool",
        ("data",),
        infer_global_pool,
        onnx="GlobalAveragePool",
        traits=_AVERAGE,
        channels=average_pool_channels,
    ),
    OpInfo(
        "nn.global_lp_pool",
        ("data",),
        infer_global_pool,
        onnx="GlobalLpPool",
        attrs={"p": integer},
        channels=norm_pool_channels,
        bounds=_norm_bounds,
    ),
)
