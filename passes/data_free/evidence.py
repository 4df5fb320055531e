"""How many layers lie between a value and the facts that its range follows from.

A fact is a statistic, a given range, a constant, or the bounds of an operator such as a
Sigmoid, whatever its data. One layer behind a statistic, mean and deviation follow from known ones.
Behind a second layer, or a layer that reads values of which only the range is known, they follow
from guesses: an image fills its range, a one-hot vector is nearly always 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value
from ...ir.module import Module
from ...ir.ops import has_trait
from ...ir.ops.row import Trait
from ...ir.types import dtype_of
from .moments import Moments
from .statistic_ranges import certain_ranges

FAR = 2
"""The number of layers from which a range is a guess."""

WIDE = 64.0
"""The magnitude from which bounds are those of a number format, not of likely results."""


class Evidence:
    """The bounds of operators, and the number of layers behind the facts of each value."""

    def __init__(self, module: Module) -> None:
        self.evaluator: ConstantEvaluator = module.constants
        nodes = (node for graph in module.graphs() for node in graph)
        saturating = [node for node in nodes if has_trait(node, Trait.SATURATES)]
        results = [value for node in saturating for value in node.outputs]
        with np.errstate(all="ignore"):
            found = certain_ranges(module, results)
        self.bounds: dict[Value, Moments] = {
            value: bounds
            for value in results
            if (bounds := found.get(value)) is not None and max(map(abs, bounds.range)) <= WIDE
        }
        """The ranges of results that saturate, whatever their data."""

    def layers(
        self, node: Node, value: Value, known: Mapping[Value, int], rough: Set[Value]
    ) -> int:
        """Return the number of layers between a result and the facts behind it, at most FAR.

        `known` has the numbers of the operands, `rough` those of which only the range is known.
        """
        if value in self.bounds:
            return 0
        if node.regions:
            return FAR
        data = self.data(node)
        before = max((known.get(each, FAR) for each in data), default=0)
        return min(before + self._step(node, data, rough), FAR)

    def data(self, node: Node) -> list[Value]:
        """Return the operands that are the numbers of a result: not constants, extents, indices."""
        found = []
        for value in node.inputs:
            if value is not None and not self.evaluator.is_constant(value):
                dtype = dtype_of(value.type)
                if dtype is None or dtype.is_float or node.op == "cast":
                    found.append(value)
        return found

    def _step(self, node: Node, data: list[Value], rough: Set[Value]) -> int:
        """Return the number of layers that an operator counts for."""
        if has_trait(node, Trait.LINEAR):
            return 1 if len(data) == 1 and rough.isdisjoint(data) else FAR
        if (has_trait(node, Trait.STEEP) or has_trait(node, Trait.DECIDES)) and data:
            constant = node.op == "divide" and data == [node["lhs"]]
            return 0 if constant else FAR
        if node.op == "multiply" and len(data) > 1:
            return int(not any(self._is_gate(each) for each in data))
        return 0

    def _is_gate(self, value: Value) -> bool:
        """Return whether an operator keeps a value within [-1, 1]."""
        bounds = self.bounds.get(value)
        return bounds is not None and max(map(abs, bounds.range)) <= 1
