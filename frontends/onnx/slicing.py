"""Slices that go backward to the greatest integer: onnx's shape inference and onnxruntime select different elements.

The specification asks for the least integer there. onnxruntime reads the greatest as the end of the axis in either
direction, so that it selects elements where onnx counts none.
"""

from __future__ import annotations

from collections.abc import Set

from ...ir.ops.indexing import GREATEST
from .codec.protos import NodeProto
from .hiding import Scope


def may_go_backward(node: NodeProto, scope: Scope) -> bool:
    """Return whether a Slice may go backward to the greatest integer."""
    if len(node.input) < 5:
        return False
    ends, steps = node.input[2], node.input[4]
    backward = scope.is_given(steps) or min(_integers(steps, scope), default=1) < 0
    return backward and (scope.is_given(ends) or not _integers(ends, scope).isdisjoint(GREATEST))


def _integers(name: str, scope: Scope) -> Set[int]:
    """Return the integers of a constant, none where they cannot be read."""
    try:
        array = scope.array(name)
    except ValueError:  # they do not fit the shape
        return frozenset()
    return frozenset() if array is None or array.dtype.kind not in "iu" else set(array.ravel().tolist())
