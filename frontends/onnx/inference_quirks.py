"""Nodes for which onnx's shape inference computes other extents than onnxruntime.

They are hidden from inference.

| operator | onnx | onnxruntime |
| --- | --- | --- |
| Range of floats | may count another number of elements | |
| Resize, Upsample | floor(extent * scale), exact | the product in float32: 3 * (nearly 5/3) is 5 |
| Slice backward to the greatest integer | no element, as specified | elements up to the end |
| Squeeze of an empty list of axes | takes no axis away | takes all of extent 1 away |
| pools that round up | a last window may start in the padding | such a window does not count |
| `auto_pad` SAME | no dilations in pools; output padding is used | no dilations; stride * extent |
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from ...ir.ops.indexing import GREATEST
from ...ir.ops.sources import range_length
from .codec.protos import NodeProto
from .hiding import Scope, Test

MAX_FACTOR = 16
"""Smaller odd numbers, times a power of two and an extent of up to 2**20, are exact in float32."""

MAX_RANK = 64
"""Most numbers that are taken for scales: there is one for each axis."""


def may_count_otherwise(node: NodeProto, scope: Scope) -> bool:
    """Return whether the elements of a Range may be counted differently."""
    if any(map(scope.is_given, node.input)):
        return True
    bounds = [scope.array(name) for name in node.input]
    numbers = [array.ravel()[0] for array in bounds if array is not None and array.size == 1]
    if len(numbers) != 3 or any(number.dtype.kind != "f" for number in numbers):
        return False
    return range_length(*numbers) is None


def may_round(node: NodeProto, scope: Scope) -> bool:
    """Return whether the scales of a Resize or Upsample may be rounded differently."""
    if any(_has_rounded(name, scope) for name in node.input[1:3]):
        return True
    given = [item for item in node.attribute if "scale" in str(item.name)]
    return any(_is_rounded(scale) for item in given for scale in (*item.floats, item.f))


def _has_rounded(name: str, scope: Scope) -> bool:
    """Return whether `name` may be scales of which one is rounded.

    It may also be regions of interest, which are tested alike.
    """
    if scope.is_given(name):
        return True
    # Scales are one float for each axis.
    scales = scope.array(name)
    if scales is None or scales.dtype.kind != "f" or scales.ndim != 1 or scales.size > MAX_RANK:
        return False
    return any(map(_is_rounded, scales.tolist()))


def _is_rounded(scale: float) -> bool:
    """Return whether the product of an extent and `scale` may be inexact in float32."""
    if scale != scale or scale in (float("inf"), float("-inf")):
        return True
    numerator = abs(scale.as_integer_ratio()[0])
    return numerator // (numerator & -numerator or 1) >= MAX_FACTOR


def may_go_backward(node: NodeProto, scope: Scope) -> bool:
    """Return whether a Slice may go backward to the greatest integer."""
    if len(node.input) < 5:
        return False
    ends, steps = node.input[2], node.input[4]
    backward = scope.is_given(steps) or min(_integers(steps, scope), default=1) < 0
    return backward and (scope.is_given(ends) or not _integers(ends, scope).isdisjoint(GREATEST))


def _integers(name: str, scope: Scope) -> Set[int]:
    """Return the integers of a constant; empty if they cannot be read."""
    try:
        array = scope.array(name)
    except ValueError:  # they do not fit the shape
        return frozenset()
    return (
        frozenset()
        if array is None or array.dtype.kind not in "iu"
        else set(array.ravel().tolist())
    )


def may_list_no_axis(node: NodeProto, scope: Scope) -> bool:
    """Return whether the axes of a Squeeze may be given as an empty list."""
    if len(node.input) < 2 or not node.input[1]:
        return any(attribute.name == "axes" and not attribute.ints for attribute in node.attribute)
    if scope.is_given(node.input[1]):
        return True
    axes = scope.array(node.input[1])
    return axes is not None and not axes.size


def may_start_in_padding(pool: NodeProto) -> bool:
    """Return whether `ceil_mode` may count a last window that starts in the padding after the data.

    Runtimes do not count such a window, but onnx's shape inference does. A window of `extent`
    elements that the data begin starts inside them if extent >= stride + padding after the data.
    """
    attrs = {attribute.name: attribute for attribute in pool.attribute}
    if "ceil_mode" not in attrs or not attrs["ceil_mode"].i:
        return False
    kernel, strides, dilations, pads = (
        list(attrs[name].ints) if name in attrs else []
        for name in ("kernel_shape", "strides", "dilations", "pads")
    )
    rank = len(kernel)
    reach = [
        1 + (extent - 1) * step
        for extent, step in zip(kernel, dilations or [1] * rank, strict=False)
    ]
    after = pads[rank:] or [0] * rank
    if "auto_pad" in attrs and attrs["auto_pad"].s not in (b"", b"NOTSET"):
        return True
    return any(
        extent < stride + pad
        for extent, stride, pad in zip(reach, strides or [1] * rank, after, strict=False)
    )


def pads_unlike(node: NodeProto, scope: Scope) -> bool:
    """Return whether onnx and onnxruntime may pad differently for `auto_pad` SAME.

    onnx's inference gives a pool with dilations as many windows as one without, and a ConvTranspose
    its output padding beside those. onnxruntime pads for a window without dilations, and a
    ConvTranspose to stride * extent.
    """
    attrs = {attribute.name: attribute for attribute in node.attribute}
    if "auto_pad" not in attrs or not attrs["auto_pad"].s.startswith(b"SAME"):
        return False
    steps, extra = (
        attrs[name].ints if name in attrs else () for name in ("dilations", "output_padding")
    )
    return any(extra) if node.op_type == "ConvTranspose" else any(step != 1 for step in steps)


QUIRKS: Mapping[str, Test] = {
    "ConvTranspose": pads_unlike,
    "Range": may_count_otherwise,
    "Resize": may_round,
    "Slice": may_go_backward,
    "Squeeze": may_list_no_axis,
    "Upsample": may_round,
}
"""The test of each operator but pools, whose data may be known later."""
