"""Mean, deviation and range of values per channel, derived from known ones.

The assumptions are taken from Nagel et al. (2019): the data of an activation are normal in each
channel; the channels, positions and operands that a layer or sum combines are independent.

- Deviations are rough: neighbouring pixels are alike, so an average leaves them as they are.
- Means are good: linear operators keep them, dependent or not. Zero padding counts if extents
  are known.
- The product of two functions of one value is taken as one function: x * sigmoid(x), x * clip(x +
  3, 0, 6).
- If the operands of another product depend on a common value, only the range of the product is
  known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
from msgspec.structs import replace

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value, is_constant
from ...ir.ops import function_of, has_trait, op_info
from ...ir.ops.indexing import overshoots
from ...ir.ops.inference import integer_of
from ...ir.ops.interval import Interval, multiplied
from ...ir.ops.row import Function, Trait
from ...ir.provenance import Refused
from ...ir.record import Record
from ...ir.tensor import Array
from ...ir.types import shape_of
from ..affine.algebra.operands import Parameters
from ..affine.algebra.recognise import AffineOp, find_affine
from ..affine.rules.clipping import LIMITS, limit_of
from ..affine.rules.derived_rules import channel_sources
from .elementwise_functions import MAX_CHAIN, ElementwiseFunctions
from .gaussian import MeanAndStd, clipped, leaky, transformed
from .linear import Linear, read_linear

GRID = 257
"""Points of a range, besides 0, at which a function is sampled for its extrema."""

MAX_CONTRIBUTORS = 256
"""Most values that are searched for one on which both operands of a product depend."""

KEEPS_CHANNELS = (Trait.MOVES, Trait.AVERAGES, Trait.EXTREMUM)
"""Traits of operators whose results have elements from one channel of the data each."""


class Moments(Record):
    """Mean and deviation of a value per channel along `axis`, and a range of nearly all of it.

    Without an axis there is one channel, the whole value.

    All are float64 vectors [C]. `mean` and `std` are NaN if only the range is known, as after a
    MaxPool.
    """

    axis: int | None
    mean: Array
    std: Array
    low: Array
    high: Array

    @property
    def has_mean(self) -> bool:
        """Whether the mean is known."""
        return bool(np.isfinite(self.mean).all())

    @property
    def range(self) -> tuple[float, float]:
        """The range of all channels together."""
        return float(self.low.min()), float(self.high.max())

    def map(self, axis: int | None, function: Callable[[Array], Array]) -> Moments:
        """Return the moments along `axis`, with `function` applied to every vector."""
        return Moments(
            axis, *(function(array) for array in (self.mean, self.std, self.low, self.high))
        )

    def along(self, axis: int | None, count: int) -> Moments:
        """Return the moments of `count` channels along `axis`, or of the whole value."""
        if self.axis == axis and len(self.mean) == count:
            return self
        mean = self.mean.mean()
        spread = np.sqrt(np.mean(self.std**2 + (self.mean - mean) ** 2))
        pooled = (mean, spread, self.low.min(), self.high.max())
        return Moments(axis, *(np.full(count, number) for number in pooled))

    @property
    def whole(self) -> Moments:
        """The moments of all channels together."""
        return self.along(None, 1)

    def affine(self, scale: Array, shift: Array) -> Moments:
        """Return the moments of scale * x + shift."""
        ends = (self.low * scale + shift, self.high * scale + shift)
        return Moments(
            self.axis,
            self.mean * scale + shift,
            self.std * np.abs(scale),
            np.minimum(*ends),
            np.maximum(*ends),
        )

    def sampled(self, function: Callable[[Array], Array], pair: MeanAndStd) -> Moments:
        """Return the moments of function(x), whose mean and deviation are `pair`.

        The range is sampled on a grid.
        """
        grid = [np.linspace(self.low, self.high, GRID), np.clip(0.0, self.low, self.high)[None]]
        values = function(np.concatenate(grid).T)
        return Moments(self.axis, *pair, values.min(axis=-1), values.max(axis=-1))


def normal(axis: int, mean: Array, std: Array, sigmas: float) -> Moments:
    """Return the moments of a normal variable, with the range mean +- sigmas * std."""
    return Moments(axis, mean, std, mean - sigmas * std, mean + sigmas * std)


class Propagator:
    """The walk that finds the moments of each value from the operands of its node."""

    def __init__(self, evaluator: ConstantEvaluator, sigmas: float) -> None:
        self.sigmas = sigmas
        self.params = Parameters(evaluator)
        self.functions = ElementwiseFunctions(evaluator)
        self.found: dict[Value, Moments] = {}
        self.last_linear: tuple[Node, Linear | None] | None = None

    def visit(self, node: Node) -> None:
        """Record the moments that follow for the results of `node`."""
        with np.errstate(all="ignore"):
            for value, moments in self.results(node):
                self.found.setdefault(value, moments)

    def results(self, node: Node) -> Iterable[tuple[Value, Moments]]:
        if all(value in self.found for value in node.outputs):
            return ()
        if any(has_trait(node, trait) for trait in KEEPS_CHANNELS):
            return self.channelwise(node)
        op = find_affine(node, self.params.evaluator)
        if op is not None:
            found = self.affine(op)
            return () if found is None else [(op.result, found)]
        found = self.single(node) if len(node.outputs) == 1 else None
        return () if found is None else [(node.output, found)]

    def single(self, node: Node) -> Moments | None:
        if has_trait(node, Trait.SUM):
            return self.sum(node)
        if node.op == "multiply":
            return self.product(node)
        if node.op == "concatenate":
            return self.concatenated(node)
        if node.op in LIMITS:
            return self.limited(node)
        return self.activation(node) or self.layer(node)

    def get(self, node: Node, index: int = 0) -> Moments | None:
        value = node.input(index)
        return None if value is None else self.found.get(value)

    def along(self, value: Value, axis: int | None, count: int) -> Moments | None:
        """Return the moments of a value if they have `count` channels along `axis`."""
        found = self.found.get(value)
        return (
            found if found is not None and found.axis == axis and len(found.mean) == count else None
        )

    def affine(self, op: AffineOp) -> Moments | None:
        """Return the moments of an affine per channel, such as a BatchNormalization."""
        if op.axis is None:
            data = self.found.get(op.data)
        else:
            data = self.along(op.data, op.axis, len(op.scale))
        return None if data is None else data.affine(op.scale, op.shift)

    def channelwise(self, node: Node) -> list[tuple[Value, Moments]]:
        """Return the moments of results whose elements come from one channel of the data each."""
        data = self.get(node)
        if data is None or data.axis is None or overshoots(node):
            return []
        try:
            found = channel_sources(node, data.axis, len(data.mean), self.params)
        except Refused:
            return []
        if has_trait(node, Trait.EXTREMUM):
            data = self.extremum(data)
        assert data.axis is not None
        results = []
        for index, (axis, channels) in found.items():
            value = node.outputs[index]
            if axis is None:
                axis = data.axis
                shape = shape_of(value.type)
                extent = shape[axis] if shape is not None and axis < len(shape) else None
                if not isinstance(extent, int):
                    continue
                channels = np.broadcast_to(channels, (extent,))
            results.append((value, data.map(axis, partial(np.take, indices=channels, axis=0))))
        return results

    def extremum(self, data: Moments) -> Moments:
        """Return the moments of the greatest or least of some elements: only their range."""
        unknown = np.full_like(data.mean, np.nan)
        return replace(data, mean=unknown, std=unknown)

    def concatenated(self, node: Node) -> Moments | None:
        """Return the moments of a Concat along the channels."""
        parts = [self.get(node, i) for i in range(len(node.inputs))]
        shape = shape_of(node.output.type)
        axis = integer_of(node, "axis", 1)
        axis += len(shape) if axis < 0 and shape is not None else 0
        known = [part for part in parts if part is not None and part.axis == axis]
        if len(known) < len(parts):
            return None
        return Moments(
            axis,
            np.concatenate([part.mean for part in known]),
            np.concatenate([part.std for part in known]),
            np.concatenate([part.low for part in known]),
            np.concatenate([part.high for part in known]),
        )

    def aligned(self, node: Node) -> list[Moments] | None:
        """Return the operands of an elementwise operator, if all have channels on one axis."""
        parts = [self.get(node, i) for i in range(len(node.inputs))]
        ranks = {len(shape_of(value.type) or ()) for value in node.inputs if value is not None}
        known = [part for part in parts if part is not None]
        same = {(part.axis, len(part.mean)) for part in known}
        if len(known) == len(parts) and len(ranks) == len(same) == 1 and "axis" not in node.attrs:
            return known
        return None

    def sum(self, node: Node) -> Moments | None:
        """Return the moments of x + y: means add up and, for independent operands, variances."""
        parts = self.aligned(node)
        if parts is None:
            return None
        if node.op == "subtract":
            parts[1] = parts[1].affine(np.array(-1.0), np.zeros(()))
        mean, low, high = (
            np.sum([getattr(part, name) for part in parts], axis=0)
            for name in ("mean", "low", "high")
        )
        std = np.sqrt(np.sum([part.std**2 for part in parts], axis=0))
        return self.bounded(Moments(parts[0].axis, mean, std, low, high))

    def product(self, node: Node) -> Moments | None:
        """Return the moments of f(x) g(x) for one normal x, or of independent operands.

        For other products only the range is known.
        """
        if len(node.inputs) != 2:
            return None
        first, second = node.operand(0), node.operand(1)
        for root in self.functions.sources(first):
            x = self.found.get(root)
            f, g = (
                None if x is None else self.functions.between(value, root)
                for value in (first, second)
            )
            if x is not None and x.has_mean and f is not None and g is not None:
                both = _product(f, g)
                return x.sampled(both, transformed(x.mean, x.std, both))
        parts = self.aligned(node)
        if parts is None or len(parts) != 2:
            return None
        x, y = parts
        product = multiplied(Interval(x.low, x.high), Interval(y.low, y.high))
        low, high = product.corners
        if _contributors(first) & _contributors(second):
            unknown = np.full_like(low, np.nan)
            return Moments(x.axis, unknown, unknown, low, high)
        # For independent x and y: E[x^2 y^2] - E[x]^2 E[y]^2, with E[x^2] = std^2 + mean^2.
        std = np.sqrt(x.std**2 * y.std**2 + x.std**2 * y.mean**2 + y.std**2 * x.mean**2)
        return self.bounded(Moments(x.axis, x.mean * y.mean, std, low, high))

    def bounded(self, found: Moments) -> Moments:
        """Limit the range to `sigmas` deviations, if these are known."""
        reach = self.sigmas * found.std
        return replace(
            found,
            low=np.fmax(found.low, found.mean - reach),
            high=np.fmin(found.high, found.mean + reach),
        )

    def activation(self, node: Node) -> Moments | None:
        """Return the moments of a function of one normal variable."""
        x = self.get(node)
        if x is None:
            return None
        if node.op in ("nn.relu", "clip"):
            bounds = self.functions.bounds(node)
            if bounds is None:
                return None
            return self.through(node, x, clipped(x.mean, x.std, *bounds), *bounds)
        slope = self.functions.slope(node, x.axis, len(x.mean))
        if slope is not None:
            return self.through(node, x, leaky(x.mean, x.std, slope), slope)
        function = function_of(node)
        if function is None:
            return None
        return self.through(node, x, transformed(x.mean, x.std, function))

    def through(
        self, node: Node, x: Moments, pair: MeanAndStd, *parameters: Array | float
    ) -> Moments:
        """Return the moments of an elementwise operator, whose mean and deviation are `pair`.

        Its row bounds the result. The operands behind the data are constant, [] or [C].
        """
        info = op_info(node.op)
        assert info is not None and info.bounds is not None
        known = [Interval(np.asarray(each), np.asarray(each)) for each in parameters]
        operands = [Interval(x.low, x.high), *known]
        image = info.bounds(node, operands, self.params.evaluator)[0]
        return Moments(x.axis, *pair, image.low, image.high)

    def limited(self, node: Node) -> Moments | None:
        """Return the moments of a Relu, Clip, or Max or Min with a constant.

        A Clip and the Max and Min after it are one function of its data.
        """
        low, high, x = np.array(-np.inf), np.array(np.inf), None
        value: Value | None = node.output
        for _ in range(MAX_CHAIN):
            inner = None if value is None else value.node
            operands = [] if inner is None else list(inner.inputs)
            known = [one for one in operands if one in self.found and not is_constant(one)]
            bounds = (
                self.limits(inner, self.found[known[0]]) if inner is not None and known else None
            )
            if bounds is None:
                break
            value, x = known[0], self.found[known[0]]
            low, high = np.clip(bounds[0], low, high), np.clip(bounds[1], low, high)
        if x is None:
            return None
        ends = [np.clip(end, low, high) for end in (x.low, x.high)]
        return Moments(x.axis, *clipped(x.mean, x.std, low, high), *ends)

    def limits(self, node: Node, x: Moments) -> tuple[Array, Array] | None:
        """Return the bounds, [] or [C], that a Relu, Clip, Max or Min gives the value `x`."""
        limit = None if x.axis is None else limit_of(node, x.axis, self.params)
        if limit is not None:
            free = np.array(np.inf)
            return (limit, free) if node.op == "maximum" else (-free, limit)
        bounds = self.functions.bounds(node) if node.op in ("nn.relu", "clip") else None
        return None if bounds is None else (np.array(bounds[0]), np.array(bounds[1]))

    def linear(self, node: Node) -> Linear | None:
        """Return a layer as a linear map, None if it is not linear; the last one is kept."""
        if self.last_linear is None or self.last_linear[0] is not node:
            self.last_linear = (node, read_linear(node, self.params))
        return self.last_linear[1]

    def layer(self, node: Node) -> Moments | None:
        """Return the moments of W x + b for independent x, over all kinds of positions together."""
        linear = self.linear(node)
        data = (
            None if linear is None else self.along(linear.data, linear.data_axis, linear.channels)
        )
        bias = None if linear is None else linear.bias(self.params)
        if linear is None or data is None or bias is None:
            return None
        if not data.has_mean:
            return None
        phases = linear.phases(data.mean, data.std**2)
        parts = [
            normal(linear.axis, mean + bias, np.sqrt(variance), self.sigmas)
            for mean, variance in phases
        ]
        # Over all positions: the variance is the mean of the variances plus the variance of the
        # means.
        mean = np.mean([part.mean for part in parts], axis=0)
        spread = np.mean([part.std**2 + (part.mean - mean) ** 2 for part in parts], axis=0)
        low, high = (
            np.min([part.low for part in parts], axis=0),
            np.max([part.high for part in parts], axis=0),
        )
        return Moments(linear.axis, mean, np.sqrt(spread), low, high)


def _product(f: Function, g: Function) -> Function:
    return lambda v: f(v) * g(v)


def _contributors(value: Value) -> set[Value]:
    """Return the value and the values it is computed from, up to layers and averages.

    A layer or average combines so many elements that the influence of a single one is negligible.
    """
    found, stack = {value}, [value]
    while stack and len(found) < MAX_CONTRIBUTORS:
        node = stack.pop().node
        if node is None or node.op == "constant":
            continue
        if has_trait(node, Trait.LINEAR) or has_trait(node, Trait.AVERAGES):
            continue
        operands = {operand for operand in node.inputs if operand is not None} - found
        found |= operands
        stack.extend(operands)
    return {one for one in found if one.node is None or one.node.op != "constant"}
