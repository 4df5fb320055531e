"""A shift of the data of a convolution that pads with zeros.

The shift t is the same at every position of the data but zero in the padding. So the response of
the layer depends on how many taps of a window lie in the padding.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ....ir.graph import Node
from ....ir.ops.views import explicit_pads, spatial_extents, window_of
from ....ir.provenance import Refused
from ....ir.tensor import Array
from ..algebra.affine import Affine
from ..algebra.operands import common_value
from ..algebra.transfer import check_no_zero_scale


def constant_padding(node: Node, affine: Affine) -> float:
    """Return the padding -shift / scale that becomes zero, one for all channels."""
    check_no_zero_scale(node, affine)
    value = common_value(-affine.shift / affine.scale)
    if value is None:
        detail = f"{node.description}: the padding would differ between channels"
        raise Refused("nonzero_padding", detail)
    return value


def shares(node: Node, kernel: tuple[int, ...]) -> Array | None:
    """Return the share of windows whose tap lies in the data, float64 [k...], if known."""
    sizes, pads = spatial_extents(node, len(kernel)), explicit_pads(node, kernel)
    if sizes is None or pads is None:
        return None
    found, windows = np.ones(kernel), _inside(node, kernel, sizes, pads)
    if windows is None or not all(inside.size for inside in windows):
        return None
    for axis, inside in enumerate(windows):
        found *= inside.mean(axis=1).reshape([-1 if i == axis else 1 for i in range(len(kernel))])
    return found


MAX_POSITIONS = 1 << 24
"""Positions of which each may have a bias of its own."""


def _inside(
    node: Node, kernel: tuple[int, ...], sizes: tuple[int, ...], pads: tuple[int, ...]
) -> list[Array] | None:
    """Return for each spatial axis [k, windows]: 1.0 for a tap inside the data, else 0.0.

    Returns None if there are too many windows.
    """
    window = window_of(node, len(kernel))
    assert window is not None, "it has pads"
    found = []
    for axis, extent in enumerate(kernel):
        begin, end = pads[axis], pads[len(kernel) + axis]
        stride, dilation = window.strides[axis], window.dilations[axis]
        count = max((sizes[axis] + begin + end - window.reach(axis, 1, extent)) // stride + 1, 0)
        if count * extent > MAX_POSITIONS:
            return None
        position = np.arange(count) * stride - begin + np.arange(extent)[:, None] * dilation
        found.append(((position >= 0) & (position < sizes[axis])).astype(np.float64))
    return found


def bias_map(node: Node, taps: Array) -> Array:
    """Return the response to the shift at every position: float64 [1, M, spatial...].

    `taps` [M, k...] is, for each tap of the window, the sum over the input channels of weight times
    shift.
    """
    kernel = taps.shape[1:]
    sizes, pads = spatial_extents(node, len(kernel)), explicit_pads(node, kernel)
    if sizes is None or pads is None:
        detail = f"{node.description} pads with zeros, and the extents of its data are unknown"
        raise Refused("nonzero_padding", detail)
    windows = _inside(node, kernel, sizes, pads)
    if windows is None or len(taps) * prod(inside.shape[1] for inside in windows) > MAX_POSITIONS:
        detail = f"{node.description} pads with zeros, and a bias for each position is too large"
        raise Refused("nonzero_padding", detail)
    result = taps
    for axis, inside in enumerate(windows):
        result = np.moveaxis(np.tensordot(result, inside, axes=([axis + 1], [0])), -1, axis + 1)
    return np.ascontiguousarray(result)[None]
