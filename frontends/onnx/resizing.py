"""Resize and Upsample whose extents runtimes and onnx's shape inference may round differently.

An extent is floor(extent of the data * scale). Runtimes multiply in float32, onnx without rounding: three times the
float32 next to 5/3 is 5 for the one, and 4 for the other.
"""

from __future__ import annotations

from .codec.protos import NodeProto
from .hiding import Scope

RESIZERS = ("Resize", "Upsample")
MAX_FACTOR = 16
"""A product of a smaller odd number, a power of two and an extent of up to 2**20 is exact in float32."""

MAX_RANK = 64
"""Most numbers that are taken for scales: there is one for each axis."""


def may_round(node: NodeProto, scope: Scope) -> bool:
    """Return whether the scales of a Resize or Upsample may be rounded differently."""
    given = (number for item in node.attribute if "scale" in str(item.name) for number in (*item.floats, item.f))
    return any(_has_rounded(name, scope) for name in node.input[1:3]) or any(map(_is_rounded, given))


def _has_rounded(name: str, scope: Scope) -> bool:
    """Return whether `name` may be scales of which one is rounded; regions of interest have other numbers."""
    if scope.is_given(name):
        return True
    try:
        scales = scope.array(name)
    except ValueError:  # the elements do not fit the shape
        return True
    if scales is None or scales.dtype.kind != "f" or scales.ndim != 1 or scales.size > MAX_RANK:
        return False
    return any(map(_is_rounded, scales.tolist()))


def _is_rounded(scale: float) -> bool:
    """Return whether the product of an extent and `scale` may be inexact in float32."""
    if scale != scale or scale in (float("inf"), float("-inf")):
        return True
    numerator = abs(scale.as_integer_ratio()[0])
    return numerator // (numerator & -numerator or 1) >= MAX_FACTOR
