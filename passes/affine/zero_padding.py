"""A shift in front of a convolution that pads its data with zeros: what the padding makes of it.

The shift t is the same at every position of the data but zero in the padding, so that what the weight makes of it
depends on how many taps of a window lie in the padding.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...ir.graph import Node
from ...ir.ops.views import spatial_extents, window_of
from ...ir.provenance import Refused
from ...ir.tensor import Array
from .algebra import Affine
from .operands import common_value


def explicit_pads(node: Node, kernel: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the pads of a convolution, begins and then ends; None where they depend on unknown extents."""
    window = window_of(node, len(kernel))
    return None if window is None else window.padding(spatial_extents(node, len(kernel)), kernel)


def constant_padding(node: Node, affine: Affine) -> float:
    """The number that becomes zero in every channel, with which the data may be padded instead: -shift / scale."""
    if not affine.scale.all():
        raise Refused("zero_scale", f"{node.label}: a scale is zero")
    value = common_value(-affine.shift / affine.scale)
    if value is None:
        raise Refused("nonzero_padding", f"{node.label}: the padding would differ between channels")
    return value


def shares(node: Node, kernel: tuple[int, ...]) -> Array | None:
    """The share of a convolution's windows in which each tap lies inside the data: float64 [k...], None if unknown."""
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


def _inside(node: Node, kernel: tuple[int, ...], sizes: tuple[int, ...], pads: tuple[int, ...]) -> list[Array] | None:
    """For each spatial axis, whether each tap [k] of each window lies inside the data: 0.0 or 1.0, [k, windows]; None
    where they are too many.
    """
    window = window_of(node, len(kernel))
    if window is None:
        return None
    found = []
    for axis, extent in enumerate(kernel):
        begin, end = pads[axis], pads[len(kernel) + axis]
        stride, dilation = window.strides[axis], window.dilations[axis]
        count = max((sizes[axis] + begin + end - window.reach(axis, 1, extent)) // stride + 1, 0)
        if count * extent > MAX_POSITIONS:
            return None
        place = np.arange(count) * stride - begin + np.arange(extent)[:, None] * dilation
        found.append(((place >= 0) & (place < sizes[axis])).astype(np.float64))
    return found


def bias_map(node: Node, taps: Array) -> Array:
    """What a convolution makes of the shift at every position: float64 [1, M, spatial...].

    `taps` [M, k...] is, for each tap of the window, the sum over the input channels of weight times shift.
    """
    kernel = taps.shape[1:]
    sizes, pads = spatial_extents(node, len(kernel)), explicit_pads(node, kernel)
    if sizes is None or pads is None:
        raise Refused("nonzero_padding", f"{node.label} pads with zeros, and the extents of its data are unknown")
    windows = _inside(node, kernel, sizes, pads)
    if windows is None or len(taps) * prod(inside.shape[1] for inside in windows) > MAX_POSITIONS:
        raise Refused("nonzero_padding", f"{node.label} pads with zeros, and a bias for each position is too large")
    result = taps
    for axis, inside in enumerate(windows):
        result = np.moveaxis(np.tensordot(result, inside, axes=([axis + 1], [0])), -1, axis + 1)
    return np.ascontiguousarray(result)[None]
