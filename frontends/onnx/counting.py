"""Ranges of floats of which onnx's shape inference and onnxruntime may count different numbers of elements.

There are ceil((limit - start) / delta). onnx subtracts in the type of the elements, onnxruntime in float64: with the
float32 next to 0.1, 1.1 and 0.1 there are 10 for the one, and 11 for the other.
"""

from __future__ import annotations

import numpy as np

from ...codec.protos import NodeProto
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
    with np.errstate(all="ignore"):
        start, limit, delta = numbers
        wide = np.ceil((np.float64(limit) - np.float64(start)) / np.float64(delta))
        narrow = [(limit - start) / delta, np.float64(limit - start) / np.float64(delta)]
        return any(np.ceil(count) != wide for count in narrow)
