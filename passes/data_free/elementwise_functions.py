"""Values as functions of one other value, element by element."""

from __future__ import annotations

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value
from ...ir.ops import function_of
from ...ir.ops.nonlinear import slope_below_zero
from ...ir.ops.row import Function
from ...ir.ops.views import clip_bounds
from ...ir.tensor import Array
from ...ir.types import shape_of
from ..affine.algebra.recognise import find_affine

MAX_CHAIN = 16
"""Most elementwise operators in a row that are composed to one function."""


class ElementwiseFunctions:
    """The functions that elementwise operators with constant parameters compute."""

    def __init__(self, evaluator: ConstantEvaluator) -> None:
        self.evaluator = evaluator

    def sources(self, value: Value) -> list[Value]:
        """Return the value and the values that it is an elementwise function of, nearest first."""
        found = [value]
        while len(found) < MAX_CHAIN:
            source = self.element(found[-1])
            if source is None:
                break
            found.append(source[0])
        return found

    def between(self, value: Value, root: Value) -> Function | None:
        """Return the function from elements of `root` to `value`, on arrays [C, n], if any."""
        functions: list[Function] = []
        while value is not root:
            source = self.element(value)
            if source is None or len(functions) == MAX_CHAIN:
                return None
            value = source[0]
            functions.append(source[1])

        def composed(v: Array) -> Array:
            for function in reversed(functions):
                v = function(v)
            return v

        return composed

    def element(self, value: Value) -> tuple[Value, Function] | None:
        """Return the only operand of which a value is an elementwise function, and the function."""
        node = value.node
        if node is None or value.index:
            return None
        op = find_affine(node, self.evaluator)
        if op is not None:
            scale, shift = (
                array if array.ndim == 0 else array[:, None] for array in (op.scale, op.shift)
            )
            return op.data, lambda v: v * scale + shift
        data = node.input(0)
        if data is None:
            return None
        if node.op in ("nn.relu", "clip"):
            bounds = self.bounds(node)
            return None if bounds is None else (data, lambda v: np.clip(v, *bounds))
        function = function_of(node)
        return None if function is None else (data, function)

    def bounds(self, node: Node) -> tuple[float, float] | None:
        """Return the bounds of a Relu or Clip, None if they are unknown."""
        bounds = clip_bounds(node, self.evaluator)
        return None if bounds is None or not bounds.is_ordered else bounds.ends

    def slope(self, node: Node, axis: int | None, channels: int) -> Array | None:
        """Return the slope below zero, [] or [C], of a function that is the identity above."""
        number = slope_below_zero(node)
        if number is not None:
            return np.array(number)
        array = self.evaluator.exact(node["slope"]) if node.op == "nn.prelu" else None
        shape = shape_of(node.output.type)
        if array is None or shape is None or array.ndim > len(shape):
            return None
        if array.size == 1:
            return array.astype(np.float64).reshape(())
        padded = (1,) * (len(shape) - array.ndim) + array.shape
        single = axis is not None and array.size == padded[axis] == channels
        return array.astype(np.float64).reshape(-1) if single else None
