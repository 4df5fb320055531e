"""Ranges of floats of which onnx's shape inference and onnxruntime may count different numbers of elements."""

from __future__ import annotations

from ...ir.ops.sources import range_length
from .codec.protos import NodeProto
from .hiding import Scope


def may_count_otherwise(node: NodeProto, scope: Scope) -> bool:
    """Return whether the elements of a Range may be counted differently."""
    if any(map(scope.is_given, node.input)):
        return True
    try:
        bounds = [scope.array(name) for name in node.input]
    except ValueError:  # the elements do not fit the shape
        return True
    numbers = [array.ravel()[0] for array in bounds if array is not None and array.size == 1]
    if len(numbers) != 3 or any(number.dtype.kind != "f" for number in numbers):
        return False
    return range_length(*numbers) is None
