"""Squeezes of an empty list of axes: onnx's shape inference takes none away, onnxruntime all of extent 1."""

from __future__ import annotations

from .codec.protos import NodeProto
from .hiding import Scope


def may_list_no_axis(node: NodeProto, scope: Scope) -> bool:
    """Return whether the axes of a Squeeze are given, and may be none."""
    if len(node.input) < 2 or not node.input[1]:
        return any(attribute.name == "axes" and not attribute.ints for attribute in node.attribute)
    if scope.is_given(node.input[1]):
        return True
    try:
        axes = scope.array(node.input[1])
    except ValueError:  # the elements do not fit the shape
        return True
    return axes is not None and not axes.size
