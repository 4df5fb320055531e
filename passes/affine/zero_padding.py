"""A shift in front of a convolution that pads its data with zeros: what the padding makes of it.

The shift t is the same at every position of the data but zero in the padding, so that what the weight makes of it
depends on how many taps of a window lie in the padding.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...ir.graph import Node
from ...ir.provenance import Refused
from ...ir.tensor import Array
from ...ir.types import Dim
from .algebra import Affine
from .operands import common_value, shapes, text


def explicit_pads(node: Node, kernel: tuple[int, ...]) -> tuple[int, ...] | None:
    """The pads of a convolution, begins and then ends; None where they depend on unknown extents."""
    mode = text(node, "auto_pad", "NOTSET") or "NOTSET"
    rank = len(kernel)
    if mode in ("NOTSET", "VALID"):
        pads = node.attrs.get("pads", (0,) * (2 * rank)) if mode == "NOTSET" else (0,) * (2 * rank)
        return pads if isinstance(pads, tuple) and len(pads) == 2 * rank else None  # type: ignore[return-value]
    sizes = spatial_extents(node, rank)
    if sizes is None:
        return None
    strides, dilations = steps(node, "strides", rank), steps(node, "dilations", rank)
    begins, ends = [], []
    for size, extent, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size)
        small, large = total // 2, total - total // 2
        begins.append(small if mode == "SAME_UPPER" else large)
        ends.append(large if mode == "SAME_UPPER" else small)
    return (*begins, *ends)


def steps(node: Node, name: str, rank: int) -> tuple[int, ...]:
    """Strides or dilations, by default ones."""
    found = node.attrs.get(name, (1,) * rank)
    return found if isinstance(found, tuple) else (1,) * rank  # type: ignore[return-value]


def spatial_extents(node: Node, rank: int) -> tuple[int, ...] | None:
    """The extents of the data behind batch and channels, None where one is unknown."""
    before, _ = shapes(node)
    dims: tuple[Dim, ...] = () if before is None else before[2:]
    numbers = tuple(dim for dim in dims if isinstance(dim, int))
    return numbers if len(numbers) == rank == len(dims) else None


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
    strides, dilations = steps(node, "strides", len(kernel)), steps(node, "dilations", len(kernel))
    found = []
    for axis, extent in enumerate(kernel):
        begin, end = pads[axis], pads[len(kernel) + axis]
        window = dilations[axis] * (extent - 1) + 1
        count = max((sizes[axis] + begin + end - window) // strides[axis] + 1, 0) if strides[axis] > 0 else 0
        if count * extent > MAX_POSITIONS:
            return None
        place = np.arange(count) * strides[axis] - begin + np.arange(extent)[:, None] * dilations[axis]
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
