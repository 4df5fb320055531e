"""Ranges of all values of a module, from statistics, guesses within intervals, or intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum

import numpy as np
from msgspec.structs import replace

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Graph, Node, Value
from ...ir.module import Module
from ...ir.ops import has_trait, terms_of
from ...ir.ops.bounds import representable
from ...ir.ops.interval import UNBOUNDED, Interval
from ...ir.ops.row import Trait
from ...ir.record import Record
from ...ir.types import shape_of
from ..affine.records.statistics import Statistic
from .bodies import ranges_of_bodies
from .decisive import decisive_values
from .evidence import FAR, Evidence
from .intervals import Ends, ends_of
from .likely import LikelyMoments, evenly
from .moments import Moments
from .operator_intervals import ASTRONOMICAL, OperatorIntervals
from .statistic_ranges import statistic_moments

GROWTH = 1.08
"""Factor of the deviation of a layer's result if the deviation of its data is a guess.

Activations depend on each other, so that guesses for independent ones fall behind with each layer.
With 1.08, two nets of 52 and 49 layers are as accurate without a single statistic as with the
statistics of all layers; with 1.03 and 1.2 one of them is not.
"""


class Origin(Enum):
    """The origin of a range."""

    GIVEN = "given"
    """The user gave it."""
    STATISTIC = "statistic"
    """A BatchNormalization keeps mean and deviation: mean +- k deviations."""
    PROPAGATED = "propagated"
    """Mean and deviation follow from known ones as for normal and independent operands."""
    GUESS = "guess"
    """They follow from such ones through another layer, or from nothing that is known."""
    BOUND = "bound"
    """It holds if the ranges of the operands hold."""


class ValueRange(Record):
    """The likely moments of a value, its range from `low` to `high`, and its origin."""

    moments: Moments
    origin: Origin


def value_ranges(
    module: Module,
    known: Mapping[Value, Statistic],
    given: Mapping[Value, tuple[float, float]],
    *,
    sigmas: float,
    bounds: Mapping[Value, Statistic] | None = None,
) -> dict[Value, ValueRange]:
    """Return a range for every value for which one follows from statistics and `given` ranges.

    - A given range holds as it is.
    - A value with a statistic has the range mean +- `sigmas` deviations, as far as its operator can
      make it.
    - The interval of any other value follows from the ranges of its operands. It is cut to `sigmas`
      likely deviations around the likely mean, unless the value decides (`decisive`) or nothing but
      an interval is known of its data. A sum of n products is then cut to sqrt(n) deviations: by
      Cauchy-Schwarz, operands with the usual norm do not pass them. If it decides and nothing but
      an interval is known of its data, it is not cut.
    - A value of which this would be a guess, or nothing, has the range of its `bounds`, if known.
    """
    walk = RangeWalk(module, known, given, sigmas)
    walk.bounds = statistic_moments(module, bounds or {}, sigmas)
    with np.errstate(all="ignore"):
        walk.visit_graph(module.graph)
    return {
        value: ValueRange(walk.likely.found[value], origin)
        for value, origin in walk.origins.items()
    }


class RangeWalk:
    """The walk that finds the range of each value from the operands of its node."""

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
        self.operators = OperatorIntervals(self.likely)
        self.origins: dict[Value, Origin] = {}
        self.known = statistic_moments(module, known, sigmas)
        self.bounds: dict[Value, Moments] = {}
        """Moments with bounds of deviations, for values of which nothing else is sure."""
        self.decisive = decisive_values(module, self.evaluator)
        self.evidence = Evidence(module)
        self.layers: dict[Value, int] = {}
        """The number of layers between each value and the facts behind it."""
        self.exact: set[Value] = set()
        """Values whose range holds for all data in the given ranges."""
        self.rough: set[Value] = set()
        """Values with nothing but an interval, and values that follow without a layer between."""
        self.guessed: set[Value] = set()
        """Values whose moments follow from guesses, the moments of a layer's result."""
        self.later: dict[Value, Moments] = {}
        for value in module.graph.inputs:
            self.enter(value, None)

    def enter(self, value: Value, ends: Ends | None) -> None:
        """Record the range of an input of a graph: given, by its statistic, or `ends`."""
        self.forget(value)
        if value in self.given or value in self.known:
            self.record(value, None, None)
        elif ends is not None and np.isfinite(ends[1]).all() and np.isfinite(ends[2]).all():
            self.layers[value] = FAR
            self.record(value, evenly(*ends), Origin.GUESS, rough=True)

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
        intervals, is_likely = (
            self.operators.of_results(node, found) if bodies is None else (bodies, False)
        )
        for index, value in enumerate(node.outputs):
            if value in self.known or value in self.given:
                self.record(value, found.get(value), None)
            else:
                interval = intervals[index] if index < len(intervals) else UNBOUNDED
                self.settle(node, index, value, interval, found.get(value), is_likely=is_likely)
                if self.origins.get(value, Origin.GUESS) is Origin.GUESS and value in self.bounds:
                    self.forget(value)
                    self.layers[value] = 0
                    self.record(value, self.bounds[value], Origin.BOUND)
        self.later = {value: moments for value, moments in found.items() if value.node is not node}

    def forget(self, value: Value) -> None:
        """Drop the range of a value: a body is visited several times."""
        for known in (self.likely.found, self.origins, self.layers):
            known.pop(value, None)
        for values in (self.rough, self.guessed, self.exact):
            values.discard(value)

    def interval(self, value: Value | None) -> Interval:
        """Return the range of a value, unbounded if it has none."""
        return self.operators.of(value)

    def settle(
        self,
        node: Node,
        index: int,
        value: Value,
        interval: Interval,
        found: Moments | None,
        *,
        is_likely: bool,
    ) -> None:
        """Record the likely part of a result's interval, or the whole if the value decides.

        With `is_likely` the interval holds for likely operands only.
        """
        self.layers[value] = self.evidence.layers(node, value, self.layers, self.rough)
        bounds = self.evidence.bounds.get(value)
        data = self.evidence.data(node)
        if bounds is not None and any(self.layers.get(each, FAR) >= FAR for each in data):
            likely = evenly(bounds.axis, bounds.low, bounds.high)
            self.record(value, likely, Origin.BOUND, rough=True)
            return
        interval = representable(value, interval)
        axis, low, high = ends_of(
            interval, shape_of(value.type), self.axis_of(node) if found is None else found.axis
        )
        if np.isnan(low).any() or np.isnan(high).any() or (low > high).any():
            return
        if found is not None and axis is None:
            axis, low, high = found.axis, *(np.full(len(found.mean), end[0]) for end in (low, high))
        likely, rough = self.moments(node, index, value, (axis, low, high), found)
        reach = self.reach(node, value, likely, float(high.max() - low.min())) * likely.std
        ends = np.fmax(low, likely.mean - reach), np.fmin(high, likely.mean + reach)
        apart = ends[0] > ends[1]
        cut = np.where(apart, low, ends[0]), np.where(apart, high, ends[1])
        if all(np.isfinite(array).all() for array in (*cut, likely.mean, likely.std)):
            is_cut = bool((cut[0] > low).any() or (cut[1] < high).any())
            origin = Origin.PROPAGATED if is_cut or is_likely else Origin.BOUND
            is_layer = has_trait(node, Trait.LINEAR)
            if origin is Origin.BOUND and self.exact.issuperset(data) and not is_layer:
                self.exact.add(value)
                self.layers[value] = 0
            origin = Origin.GUESS if self.layers[value] >= FAR else origin
            self.record(value, Moments(axis, likely.mean, likely.std, *cut), origin, rough=rough)

    def moments(
        self, node: Node, index: int, value: Value, ends: Ends, found: Moments | None
    ) -> tuple[Moments, bool]:
        """Return likely moments along the axis of `ends`, and whether they rest on these alone.

        `found` are those that follow from the operands.
        """
        axis, low, high = ends
        if found is not None and found.has_mean and np.isfinite(found.std).all():
            likely, rough = found.along(axis, len(low)), False
        else:
            likely, rough = self.likely.guess(node, index, low, high, axis)
        if has_trait(node, Trait.ABSORBS) and not has_trait(node, Trait.LINEAR):
            return likely, rough
        of_guesses = any(operand in self.guessed for operand in node.inputs)
        if of_guesses or has_trait(node, Trait.LINEAR):
            self.guessed.add(value)
        if not has_trait(node, Trait.LINEAR):
            data = [
                each
                for each in node.inputs
                if each is not None and not self.evaluator.is_constant(each)
            ]
            return likely, rough or (bool(data) and all(each in self.rough for each in data))
        return (replace(likely, std=likely.std * GROWTH) if of_guesses else likely), rough

    def reach(self, node: Node, value: Value, likely: Moments, width: float) -> float:
        """Return how many deviations from its mean a value may be; inf leaves the interval."""
        decisive, rough = (
            value in self.decisive,
            any(operand in self.rough for operand in node.inputs),
        )
        terms = terms_of(node)
        if terms is not None:
            if decisive and rough:
                return math.inf
            linear = self.likely.linear(node) if decisive or rough else None
            terms = terms if linear is None else linear.fan_in
            if (decisive or rough) and math.isfinite(terms):
                return max(self.sigmas, math.sqrt(max(terms, 0)))
            return self.sigmas
        if width > ASTRONOMICAL * (2 * self.sigmas * likely.std.max() + abs(likely.mean).max()):
            return self.sigmas
        is_cut = (
            has_trait(node, Trait.SUM) or has_trait(node, Trait.ABSORBS) or node.op == "multiply"
        )
        return self.sigmas if is_cut and not (decisive or rough) else math.inf

    def axis_of(self, node: Node) -> int | None:
        """Return the axis of the channels of the first operand that has some."""
        for value in node.inputs:
            found = None if value is None else self.likely.found.get(value)
            if found is not None and found.axis is not None:
                return found.axis
        return None

    def record(
        self, value: Value, found: Moments | None, origin: Origin | None, *, rough: bool = False
    ) -> None:
        """Record moments and range of a value: the given range, or its statistic's."""
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
        if origin in (Origin.GIVEN, Origin.STATISTIC):
            self.layers[value] = 0
        if origin is Origin.GIVEN:
            self.exact.add(value)
        if rough:
            self.rough.add(value)
