"""Ranges of all values of a module: from statistics, from guesses that cut intervals, and from intervals alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Graph, Node, Value
from ...ir.module import Module
from ...ir.ops import has_trait, op_info
from ...ir.ops.bounds import dtype_bounds
from ...ir.ops.interval import UNBOUNDED, Interval
from ...ir.ops.row import Trait, text_of
from ...ir.tensor import Array
from ...ir.types import Shape, shape_of
from ..affine.statistics import Statistic
from .bodies import ranges_of_bodies
from .decisive import decisive_values
from .intervals import Ends, contracted, ends_of, interval_of, product_bounds
from .likely import LikelyMoments, evenly
from .linear import read_linear
from .moments import Moments, normal

ASTRONOMICAL = 2.0**10
"""How many times wider than its likely range an interval may be: an interval beyond is of no use."""


GROWTH = 1.08
"""Factor of the deviation of a layer's result where that of its data is itself a guess.

Activations depend on each other, so that guesses for independent ones fall behind with each layer. With 1.08, two nets
of 52 and 49 layers have the accuracy without a single statistic that they have with those of all layers; with 1.03 and
1.2 one of them has not.
"""

SMALLEST_DIVISOR = 2.0**-4
"""The least divisor that is likely, in usual magnitudes."""

DIVISORS = {"divide": 1, "reciprocal": 0, "power": 0, "log": 0}
"""The operand of an operator that makes the result infinite where it is zero."""


class Origin(Enum):
    """Where a range comes from."""

    GIVEN = "given"
    """The user gave it."""
    STATISTIC = "statistic"
    """A BatchNormalization keeps mean and deviation: mean +- k deviations."""
    PROPAGATED = "propagated"
    """A guess: mean and deviation follow from those of the operands if these are normal and independent."""
    BOUND = "bound"
    """It holds if the ranges of the operands hold."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueRange:
    """The likely moments of a value, with its range as `low` and `high`, and the origin of the range."""

    moments: Moments
    origin: Origin


def value_ranges(
    module: Module,
    known: Mapping[Value, Statistic],
    given: Mapping[Value, tuple[float, float]],
    *,
    sigmas: float,
) -> dict[Value, ValueRange]:
    """Return a range for every value for which one follows from statistics and `given` ranges.

    - A given range holds as it is.
    - A value with a statistic has the range mean +- `sigmas` deviations.
    - The interval of any other value follows from the ranges of its operands. It is cut to `sigmas` likely deviations
      around the likely mean, unless the value decides (`decisive`) or nothing but an interval is known of its data. A
      sum of n products is then cut to sqrt(n) deviations: by Cauchy-Schwarz, operands with the usual norm do not pass
      them. If it decides and nothing but an interval is known of its data, it is not cut.
    """
    walk = RangeWalk(module, known, given, sigmas)
    with np.errstate(all="ignore"):
        walk.visit_graph(module.graph)
    return {value: ValueRange(walk.likely.found[value], origin) for value, origin in walk.origins.items()}


class RangeWalk:
    """The walk that finds the range of each value from those of the operands of its node."""

    def __init__(
        self,
        module: Module,
        known: Mapping[Value, Statistic],
        given: Mapping[Value, tuple[float, float]],
        sigmas: float,
    ) -> None:
        self.evaluator: ConstantEvaluator = module.constants
        self.sigmas = sigmas
        self.given = given
        self.likely = LikelyMoments(self.evaluator, sigmas)
        self.origins: dict[Value, Origin] = {}
        self.known = {
            value: normal(statistic.axis, statistic.mean, statistic.std, sigmas) for value, statistic in known.items()
        }
        self.decisive = decisive_values(module, self.evaluator)
        self.rough: set[Value] = set()
        """Values of which only the interval is known, and those that follow from them without a layer between."""
        self.guessed: set[Value] = set()
        """Values whose moments follow from those of the result of a layer, which are guesses."""
        self.later: dict[Value, Moments] = {}
        for value in module.graph.inputs:
            self.enter(value, None)

    def enter(self, value: Value, ends: Ends | None) -> None:
        """Record the range of an input of a graph: the given one, that of its statistic, or `ends`."""
        self.forget(value)
        if value in self.given or value in self.known:
            self.record(value, None, None)
        elif ends is not None and np.isfinite(ends[1]).all() and np.isfinite(ends[2]).all():
            self.record(value, evenly(*ends), Origin.BOUND, rough=True)

    def visit_graph(self, graph: Graph) -> None:
        """Record the ranges of all values of a graph."""
        for node in graph:
            if node.op not in ("constant", "return"):
                self.visit(node)

    def visit(self, node: Node) -> None:
        """Record the ranges of the results of a node."""
        for value in node.outputs:
            self.forget(value)
        if all(value in self.known and value not in self.given for value in node.outputs):
            for value in node.outputs:
                self.record(value, None, None)
            return
        bodies = ranges_of_bodies(self, node)
        found = self.later | dict(self.likely.results(node))
        intervals = self.intervals(node, found, [self.interval(value) for value in node.inputs])
        intervals = self.usable(node, found, intervals) if bodies is None else bodies
        for index, value in enumerate(node.outputs):
            if value in self.known or value in self.given:
                self.record(value, found.get(value), None)
            else:
                interval = intervals[index] if index < len(intervals) else UNBOUNDED
                self.settle(node, index, value, interval, found.get(value))
        self.later = {value: moments for value, moments in found.items() if value.node is not node}

    def forget(self, value: Value) -> None:
        """Drop the range of a value: a body is visited several times."""
        self.likely.found.pop(value, None)
        self.origins.pop(value, None)
        self.rough.discard(value)
        self.guessed.discard(value)

    def settle(self, node: Node, index: int, value: Value, interval: Interval, likely: Moments | None) -> None:
        """Record the range of a result: the part of its interval that is likely, or safe where the value decides."""
        narrow = dtype_bounds(node, index)
        interval = Interval(np.maximum(interval.low, narrow.low), np.minimum(interval.high, narrow.high))
        preferred = likely.axis if likely is not None else self.axis_of(node)
        axis, low, high = ends_of(interval, shape_of(value.type), preferred)
        if np.isnan(low).any() or np.isnan(high).any() or (low > high).any():
            return
        if likely is not None and (not likely.has_mean or not np.isfinite(likely.std).all()):
            likely = None
        if likely is not None and likely.axis != axis and axis is None:
            axis, low, high = likely.axis, *(np.full(len(likely.mean), end[0]) for end in (low, high))
        rough = False
        if likely is None:
            likely, rough = self.likely.guess(node, index, low, high, axis)
        else:
            likely = likely.along(axis, len(low))
        rough = rough or self.inherits(node, self.rough)
        if has_trait(node, Trait.LINEAR):
            if any(operand in self.guessed for operand in node.inputs):
                likely = replace(likely, std=likely.std * GROWTH)
            self.guessed.add(value)
        elif any(operand in self.guessed for operand in node.inputs) and not has_trait(node, Trait.ABSORBS):
            self.guessed.add(value)
        if not (np.isfinite(likely.mean).all() and np.isfinite(likely.std).all()):
            return
        reach = self.reach(node, value, likely, low, high) * likely.std
        cut_low, cut_high = np.fmax(low, likely.mean - reach), np.fmin(high, likely.mean + reach)
        is_cut = bool((cut_low > low).any() or (cut_high < high).any())
        empty = cut_low > cut_high
        cut_low, cut_high = np.where(empty, low, cut_low), np.where(empty, high, cut_high)
        if not (np.isfinite(cut_low).all() and np.isfinite(cut_high).all()):
            return
        final = Moments(axis, likely.mean, likely.std, cut_low, cut_high)
        self.record(value, final, Origin.PROPAGATED if is_cut else Origin.BOUND, rough=rough)

    def reach(self, node: Node, value: Value, likely: Moments, low: Array, high: Array) -> float:
        """Return how many likely deviations from its mean a value may be, infinity where its interval is the limit."""
        linear = has_trait(node, Trait.LINEAR) or node.op == "einsum"
        decisive, rough = value in self.decisive, any(operand in self.rough for operand in node.inputs)
        if linear and decisive and rough:
            return math.inf
        if linear:
            terms = self.terms(node) if decisive or rough else 0.0
            return max(self.sigmas, math.sqrt(terms) if math.isfinite(terms) else 0.0)
        usual = 2 * self.sigmas * likely.std.max() + abs(likely.mean).max()
        if (high.max() - low.min()) > ASTRONOMICAL * usual:
            return self.sigmas
        cuts = has_trait(node, Trait.SUM) or node.op == "multiply" or has_trait(node, Trait.ABSORBS)
        return math.inf if decisive or rough or not cuts else self.sigmas

    def terms(self, node: Node) -> float:
        linear = read_linear(node, self.likely.params)
        return contracted(node) if linear is None else linear.fan_in

    def inherits(self, node: Node, marked: set[Value]) -> bool:
        """Return whether all data of an operator other than a layer are marked."""
        if has_trait(node, Trait.LINEAR) or has_trait(node, Trait.ABSORBS):
            return False
        data = [value for value in node.inputs if value is not None and not self.evaluator.is_constant(value)]
        return bool(data) and all(value in marked for value in data)

    def axis_of(self, node: Node) -> int | None:
        """Return the axis of the channels of the first operand that has some."""
        for value in node.inputs:
            found = None if value is None else self.likely.found.get(value)
            if found is not None and found.axis is not None:
                return found.axis
        return None

    def record(self, value: Value, found: Moments | None, origin: Origin | None, *, rough: bool = False) -> None:
        """Record moments and range of a value: the given range, and those of its statistic, if it has any."""
        statistic = self.known.get(value)
        if statistic is not None:
            found, origin, rough = statistic, Origin.STATISTIC, False
        if value in self.given:
            low, high = map(float, self.given[value])
            if found is None or not found.has_mean:
                found, rough = evenly(None, np.array([low]), np.array([high])), True
            ends = (np.full(len(found.mean), end) for end in (low, high))
            found, origin = Moments(found.axis, found.mean, found.std, *ends), Origin.GIVEN
        assert found is not None and origin is not None
        self.likely.found[value] = found
        self.origins[value] = origin
        if rough:
            self.rough.add(value)

    def interval(self, value: Value | None) -> Interval:
        """Return the range of an operand, unbounded where it has none."""
        if value is None:
            return UNBOUNDED
        return interval_of(self.likely.of(value), shape_of(value.type))

    def usable(self, node: Node, found: Mapping[Value, Moments], intervals: list[Interval]) -> list[Interval]:
        """Return the intervals of the results, those for likely operands where the others are astronomically wide."""
        info = op_info(node.op)
        if info is None or info.bounds is None or not intervals:
            return intervals
        width = intervals[0].high.max(initial=-math.inf) - intervals[0].low.min(initial=math.inf)
        if width < ASTRONOMICAL:
            return intervals
        count = range(len(node.inputs))
        narrow = [
            each[0].hull(*each[1:])
            for each in zip(
                *[
                    self.intervals(node, found, [self.likely_interval(node, i, sign) for i in count])
                    for sign in (1, -1)
                ],
                strict=True,
            )
        ]
        other = narrow[0].high.max(initial=-math.inf) - narrow[0].low.min(initial=math.inf)
        return narrow if not width <= ASTRONOMICAL * other else intervals

    def likely_interval(self, node: Node, index: int, sign: int) -> Interval:
        """Return the part of an operand's range that is at most `sigmas` deviations from its mean.

        A divisor is at least a part of its usual magnitude, and has the `sign` if it may have both.
        """
        data, value = self.likely.get(node, index), node.input(index)
        if data is None or value is None:
            return UNBOUNDED
        reach = self.sigmas * data.std
        low, high = np.maximum(data.low, data.mean - reach), np.minimum(data.high, data.mean + reach)
        if index == DIVISORS.get(node.op) and ((low <= 0) & (high >= 0)).any():
            least = np.sqrt(data.mean**2 + data.std**2).min() * SMALLEST_DIVISOR
            positive = (np.full_like(low, least), np.maximum(high, least))
            negative = (np.minimum(low, -least), np.full_like(low, -least))
            low, high = positive if sign > 0 or not (low < 0).any() else negative
        return interval_of(replace(data, low=low, high=high), shape_of(value.type))

    def intervals(self, node: Node, found: Mapping[Value, Moments], x: list[Interval]) -> list[Interval]:
        """Return the intervals of the results of a node for those of its operands."""
        if any(has_trait(node, trait) for trait in (Trait.MOVES, Trait.AVERAGES, Trait.EXTREMUM)):
            return self.moved(node, found)
        info = op_info(node.op)
        if info is not None and info.bounds is not None:
            return list(info.bounds(node, x, self.evaluator))
        if not has_trait(node, Trait.LINEAR):
            return []
        linear = read_linear(node, self.likely.params)
        bias = None if linear is None else linear.bias(self.likely.params)
        data = None if linear is None else self.likely.along(linear.data, linear.data_axis, linear.channels)
        if linear is None or bias is None or data is None:
            return [product_bounds(node, x)] if linear is None or data is not None else []
        low, high = linear.bounds(data.low, data.high)
        moments = Moments(linear.axis, low, low, low + bias, high + bias)
        return [interval_of(moments, shape_of(node.output.type))]

    def moved(self, node: Node, found: Mapping[Value, Moments]) -> list[Interval]:
        """Return the intervals of results that are elements of the data, or averages of them."""
        data = self.likely.get(node)
        if data is None:
            return []
        info, whole = op_info(node.op), interval_of(data.whole, None)
        assert info is not None
        results = []
        for index, value in enumerate(node.outputs):
            moments = found.get(value)
            if moments is not None:
                results.append(interval_of(moments, shape_of(value.type)))
            elif info.bounds is not None:
                results.append(info.bounds(node, [self.interval(each) for each in node.inputs], self.evaluator)[index])
            elif text_of(node, "mode", "nearest") == "cubic":
                results.append(_overshooting(whole, shape_of(value.type)))
            else:
                results.append(whole)
        return results


def _overshooting(x: Interval, shape: Shape) -> Interval:
    """Return the interval of cubic interpolation: along each axis its weights add up to 1, their magnitudes to 1.375.

    That is for the coefficient -0.75, halfway between two elements.
    """
    middle = (x.low + x.high) / 2
    radius = (x.high - x.low) / 2 * 1.375 ** (2 if shape is None else len(shape) - 2)
    return Interval(middle - radius, middle + radius)
