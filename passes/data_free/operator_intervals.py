"""Intervals of the results of any operator, for the ranges of its operands."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from ...ir.graph import Node, Value
from ...ir.ops import has_trait, op_info
from ...ir.ops.bounds import dtype_bounds
from ...ir.ops.interval import UNBOUNDED, Interval
from ...ir.ops.row import Trait
from ...ir.types import dtype_of, shape_of
from .intervals import interval_of
from .likely import LikelyMoments
from .moments import Moments

ASTRONOMICAL = 2.0**10
"""How many times wider than its likely range an interval is of use."""

SMALLEST_DIVISOR = 2.0**-4
"""The least divisor that is likely, in usual magnitudes."""

Found = Mapping[Value, Moments]
"""The moments of the results of a node, if they follow from its operands."""


class OperatorIntervals:
    """The intervals of results for the ranges in `likely`, by traits, rows and weights."""

    def __init__(self, likely: LikelyMoments) -> None:
        self.likely = likely
        self.evaluator = likely.params.evaluator

    def of_results(self, node: Node, found: Found) -> tuple[list[Interval], bool]:
        """Return the intervals of the first results of a node, and whether they are likely only.

        They are taken from the likely part of the operands' ranges if the others are astronomically
        wide.
        """
        intervals = self.intervals(node, found, [self.of(value) for value in node.inputs])
        info = op_info(node.op)
        is_layer = has_trait(node, Trait.LINEAR)
        if is_layer or info is None or info.bounds is None or not intervals:
            return intervals, False
        if _width(intervals[0]) < ASTRONOMICAL:
            return intervals, False
        signs = [
            self.intervals(
                node, found, [self.likely_part(node, i, sign) for i in range(len(node.inputs))]
            )
            for sign in (1, -1)
        ]
        narrow = [positive.hull(negative) for positive, negative in zip(*signs, strict=True)]
        is_likely = not _width(intervals[0]) <= ASTRONOMICAL * _width(narrow[0])
        return narrow if is_likely else intervals, is_likely

    def of(self, value: Value | None) -> Interval:
        """Return the range of an operand; if it has none, the bounds of its element type."""
        if value is None:
            return UNBOUNDED
        found = self.likely.of(value)
        return dtype_bounds(value) if found is None else interval_of(found, shape_of(value.type))

    def likely_part(self, node: Node, index: int, sign: int) -> Interval:
        """Return the part of an operand's range that is at most `sigmas` deviations from its mean.

        A divisor is at least a part of its usual magnitude, and has the `sign` if it may have both.
        """
        info = op_info(node.op)
        data, value = self.likely.get(node, index), node.input(index)
        if data is None or value is None:
            return UNBOUNDED
        reach = self.likely.sigmas * data.std
        low, high = (
            np.maximum(data.low, data.mean - reach),
            np.minimum(data.high, data.mean + reach),
        )
        pole = None if info is None or info.pole is None else info.operands[info.pole]
        if index == pole and ((low <= 0) & (high >= 0)).any():
            least = np.sqrt(data.mean**2 + data.std**2).min() * SMALLEST_DIVISOR
            positive = (np.full_like(low, least), np.maximum(high, least))
            negative = (np.minimum(low, -least), np.full_like(low, -least))
            low, high = positive if sign > 0 or not (low < 0).any() else negative
        return interval_of(replace(data, low=low, high=high), shape_of(value.type))

    def intervals(self, node: Node, found: Found, x: list[Interval]) -> list[Interval]:
        """Return the intervals of the results of a node by the intervals of its operands."""
        # The limited broadcast of old opsets.
        if "axis" in node.attrs and has_trait(node, Trait.BROADCASTS):
            x = [each.whole for each in x]
        if any(has_trait(node, trait) for trait in (Trait.MOVES, Trait.AVERAGES, Trait.EXTREMUM)):
            return self.moved(node, found)
        by_weight = self.by_weight(node) if has_trait(node, Trait.LINEAR) else None
        if by_weight is not None:
            return [by_weight]
        info = op_info(node.op)
        if info is None or info.bounds is None:
            return []
        return list(info.bounds(node, x, self.evaluator))

    def by_weight(self, node: Node) -> Interval | None:
        """Return the interval of the result of a layer, if its weight and its bias are constant."""
        linear = self.likely.linear(node)
        bias = None if linear is None else linear.bias(self.likely.params)
        if linear is None or bias is None:
            return None
        data = self.likely.along(linear.data, linear.data_axis, linear.channels)
        if data is None:
            return None
        low, high = linear.bounds(data.low, data.high)
        ends = Moments(linear.axis, low, low, low + bias, high + bias)
        return interval_of(ends, shape_of(node.output.type))

    def moved(self, node: Node, found: Found) -> list[Interval]:
        """Return the intervals of results that are elements of the data, or averages of them."""
        data = self.likely.get(node)
        if data is None:
            return []
        info, whole = op_info(node.op), interval_of(data.whole, None)
        results = []
        for value in node.outputs:
            moments = found.get(value)
            # The indices of a MaxPool.
            if dtype_of(value.type) is not dtype_of(node.operand().type):
                results.append(UNBOUNDED)
            elif moments is not None:
                results.append(interval_of(moments, shape_of(value.type)))
            elif info is not None and info.bounds is not None:
                results.extend(
                    info.bounds(node, [self.of(each) for each in node.inputs], self.evaluator)
                )
            else:
                results.append(whole)
        return results


def _width(x: Interval) -> float:
    return float(x.high.max(initial=-math.inf) - x.low.min(initial=math.inf))
