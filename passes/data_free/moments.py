"""Mean, deviation and range of values per channel, from those that are known.

The assumptions, which are those of Nagel et al. (2019): what enters an activation is normal in each channel, and the
channels, positions and operands that a layer or sum combines are independent of each other. They are rough for
deviations (neighbouring pixels are alike, so that of an average is left as it was) and good for means, which linear
operators keep whatever depends on what. The product of two functions of one value is taken as the function that it is
(x * sigmoid(x), x * clip(x + 3, 0, 6)); of other products whose operands have something in common only the range is
known. What is padded with zeros counts in means where extents are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value
from ...ir.module import Module
from ...ir.ops import function_of, has_trait
from ...ir.ops.inference import integer_of
from ...ir.ops.row import Function, Trait
from ...ir.ops.views import clip_bounds
from ...ir.provenance import Refused
from ...ir.tensor import Array
from ...ir.types import shape_of
from ..affine.algebra import Affine, Stage
from ..affine.operands import Parameters, text
from ..affine.recognise import AffineOp, find_affine
from ..affine.source_affines import known_statistics
from ..affine.statistics import Statistic
from ..affine.table import affine_rule
from .gaussian import Pair, clipped, leaky, transformed
from .linear import read_linear

GRID = 257
"""Points of a range at which an activation is looked at for its least and greatest value, beside 0."""

MAX_CHAIN = 16
"""Elementwise operators in a row that are looked at as one function."""
MAX_REACHED = 256
"""Values that are looked at to tell whether two operands have something in common."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Mean and standard deviation of a value per channel along `axis`, and the range that is expected to hold nearly
    all of it: float64 vectors [C]. `mean` and `std` are NaN where only the range is known (behind a MaxPool).
    """

    axis: int
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

    def map(self, axis: int, function: Callable[[Array], Array]) -> Moments:
        """Along `axis`, every vector being `function` of what it was."""
        return Moments(axis, *(function(array) for array in (self.mean, self.std, self.low, self.high)))

    def affine(self, scale: Array, shift: Array) -> Moments:
        """Of scale * x + shift."""
        ends = (self.low * scale + shift, self.high * scale + shift)
        return Moments(
            self.axis, self.mean * scale + shift, self.std * np.abs(scale), np.minimum(*ends), np.maximum(*ends)
        )

    def through(self, function: Callable[[Array], Array], pair: Pair) -> Moments:
        """Of function(x), whose mean and deviation are `pair`; the range is what the function makes of this one."""
        grid = [np.linspace(self.low, self.high, GRID), np.clip(0.0, self.low, self.high)[None]]
        values = function(np.concatenate(grid).T)
        return Moments(self.axis, *pair, values.min(axis=-1), values.max(axis=-1))


def normal(axis: int, mean: Array, std: Array, sigmas: float) -> Moments:
    """Of a normal variable, with the range mean - sigmas * std to mean + sigmas * std."""
    return Moments(axis, mean, std, mean - sigmas * std, mean + sigmas * std)


def propagate(
    module: Module, known: Mapping[Value, Statistic] | None = None, *, sigmas: float = 6.0
) -> dict[Value, Moments]:
    """Moments of every value for which they follow from the `known` ones, by default `known_statistics(module)`.

    What is known counts more than what follows. Values that are not in the result are those of which nothing is known:
    graph inputs, and what is made of them up to the first known statistic; the results of operators without a rule
    here. O(size of the weights of layers whose result is not known).
    """
    known = known_statistics(module) if known is None else known
    propagator = _Propagator(sigmas)
    for value, statistic in known.items():
        propagator.found[value] = normal(statistic.axis, statistic.mean, statistic.std, sigmas)
    for graph in module.graphs():
        for node in graph:
            propagator.visit(node)
    return propagator.found


class _Propagator:
    def __init__(self, sigmas: float) -> None:
        self.sigmas = sigmas
        self.params = Parameters(ConstantEvaluator())
        self.found: dict[Value, Moments] = {}

    def visit(self, node: Node) -> None:
        """Note what follows for the results of `node`."""
        with np.errstate(all="ignore"):
            for value, moments in self.results(node):
                self.found.setdefault(value, moments)

    def results(self, node: Node) -> Iterable[tuple[Value, Moments]]:
        if all(value in self.found for value in node.outputs):
            return ()
        if has_trait(node, Trait.MOVES) or has_trait(node, Trait.AVERAGES) or has_trait(node, Trait.EXTREMUM):
            return self.moved(node)
        step = find_affine(node, self.params.evaluator)
        if step is not None:
            found = self.affine(step)
            return () if found is None else [(step.result, found)]
        found = self.single(node) if len(node.outputs) == 1 else None
        return () if found is None else [(node.output, found)]

    def single(self, node: Node) -> Moments | None:
        if has_trait(node, Trait.SUM):
            return self.sum(node)
        if node.op == "multiply":
            return self.product(node)
        if node.op == "concatenate":
            return self.concatenated(node)
        return self.activation(node) or self.layer(node)

    def get(self, node: Node, index: int = 0) -> Moments | None:
        value = node.input(index)
        return None if value is None else self.found.get(value)

    def affine(self, step: AffineOp) -> Moments | None:
        """Scale and shift per channel, BatchNormalization among them."""
        data = self.found.get(step.data)
        if data is None or step.axis not in (None, data.axis):
            return None
        return data.affine(step.scale, step.shift)

    def moved(self, node: Node) -> list[tuple[Value, Moments]]:
        """What takes elements, means or extrema of one channel at a time: where each comes from is asked by an affine
        that names the channels by its shift.
        """
        data, transfer = self.get(node), affine_rule(node.op).forward
        cubic = text(node, "mode", "nearest") == "cubic"  # overshoots
        if data is None or transfer is None or (cubic and has_trait(node, Trait.AVERAGES)):
            return []
        names = np.arange(1.0, len(data.mean) + 1)
        try:
            carry = transfer(node, {0: Affine(data.axis, (Stage(np.ones_like(names), names),))}, self.params)
        except Refused:
            return []
        if carry.constants:
            return []
        if has_trait(node, Trait.EXTREMUM):
            unknown = np.full_like(data.mean, np.nan)
            data = replace(data, mean=unknown, std=unknown)
        results = []
        for index, named in carry.results:
            value = node.outputs[index]
            shape = shape_of(value.type)
            axis = data.axis if named.axis is None else named.axis
            extent = shape[axis] if shape is not None and axis < len(shape) else None
            if named.extents or (named.axis is None and not isinstance(extent, int)):
                continue
            places = np.rint(named.shift).astype(np.int64) - 1
            if named.axis is None:
                places = np.broadcast_to(places, (extent,))  # type: ignore[arg-type]
            results.append((value, data.map(axis, lambda array, places=places: array[places])))  # type: ignore[misc]
        return results

    def concatenated(self, node: Node) -> Moments | None:
        """Concat along the channels."""
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
        """The operands of an elementwise operator, if all are known and have the channels on one axis."""
        parts = [self.get(node, i) for i in range(len(node.inputs))]
        ranks = {len(shape_of(value.type) or ()) for value in node.inputs if value is not None}
        known = [part for part in parts if part is not None]
        same = {(part.axis, len(part.mean)) for part in known}
        return known if len(known) == len(parts) and len(ranks) == len(same) == 1 and "axis" not in node.attrs else None

    def sum(self, node: Node) -> Moments | None:
        """X + y: means and, of independent operands, variances add up; no element exceeds the sum of the ranges."""
        parts = self.aligned(node)
        if parts is None:
            return None
        if node.op == "subtract":
            parts[1] = parts[1].affine(np.array(-1.0), np.zeros(()))
        mean, low, high = (np.sum([getattr(part, name) for part in parts], axis=0) for name in ("mean", "low", "high"))
        std = np.sqrt(np.sum([part.std**2 for part in parts], axis=0))
        return self.bounded(Moments(parts[0].axis, mean, std, low, high))

    def product(self, node: Node) -> Moments | None:
        """F(x) g(x) of one normal variable, or the product of operands that have nothing in common; of others, only the
        range.
        """
        first, second = node.input(0), node.input(1)
        if first is None or second is None or len(node.inputs) != 2:
            return None
        for root in self.behind(first):
            x = self.found.get(root)
            f, g = (None if x is None else self.function_of(value, root) for value in (first, second))
            if x is not None and x.has_mean and f is not None and g is not None:
                both = _product(f, g)
                return x.through(both, transformed(x.mean, x.std, both))
        parts = self.aligned(node)
        if parts is None or len(parts) != 2:
            return None
        x, y = parts
        corners = np.stack([a * b for a in (x.low, x.high) for b in (y.low, y.high)])
        low, high = corners.min(axis=0), corners.max(axis=0)
        if _reached(first) & _reached(second):
            unknown = np.full_like(low, np.nan)
            return Moments(x.axis, unknown, unknown, low, high)
        std = np.sqrt(x.std**2 * y.std**2 + x.std**2 * y.mean**2 + y.std**2 * x.mean**2)
        return self.bounded(Moments(x.axis, x.mean * y.mean, std, low, high))

    def behind(self, value: Value) -> list[Value]:
        """The value, and those that it is an elementwise function of, nearest first."""
        found = [value]
        while len(found) < MAX_CHAIN:
            step = self.element(found[-1])
            if step is None:
                break
            found.append(step[0])
        return found

    def function_of(self, value: Value, root: Value) -> Function | None:
        """What each element of `value` is of that of `root`, for arrays [C, n]; None where others have a part in it."""
        steps: list[Function] = []
        while value is not root:
            step = self.element(value)
            if step is None or len(steps) == MAX_CHAIN:
                return None
            value = step[0]
            steps.append(step[1])

        def composed(v: Array) -> Array:
            for function in reversed(steps):
                v = function(v)
            return v

        return composed

    def element(self, value: Value) -> tuple[Value, Function] | None:
        """The one operand of which a value is an elementwise function, and the function."""
        node = value.node
        if node is None or value.index:
            return None
        step = find_affine(node, self.params.evaluator)
        if step is not None:
            scale, shift = (array if array.ndim == 0 else array[:, None] for array in (step.scale, step.shift))
            return step.data, lambda v: v * scale + shift
        data = node.input(0)
        if data is None:
            return None
        if node.op in ("nn.relu", "clip"):
            bounds = self.bounds(node)
            return None if bounds is None else (data, lambda v: np.clip(v, *bounds))
        function = function_of(node)
        return None if function is None else (data, function)

    def bounds(self, node: Node) -> tuple[float, float] | None:
        """Of a Relu or Clip, None where they are not known."""
        bounds = clip_bounds(node, self.params.evaluator)
        return None if bounds is None or not bounds.is_ordered else bounds.ends

    def bounded(self, found: Moments) -> Moments:
        """With a range of no more than `sigmas` deviations, where these are known."""
        reach = self.sigmas * found.std
        return replace(found, low=np.fmax(found.low, found.mean - reach), high=np.fmin(found.high, found.mean + reach))

    def activation(self, node: Node) -> Moments | None:
        """Of a function of one normal variable."""
        x = self.get(node)
        if x is None:
            return None
        if node.op in ("nn.relu", "clip"):
            bounds = self.bounds(node)
            return None if bounds is None else x.through(lambda v: np.clip(v, *bounds), clipped(x.mean, x.std, *bounds))
        slope = self.slope(node, x)
        if slope is not None:
            column = slope if slope.ndim == 0 else slope[:, None]
            return x.through(lambda v: np.where(v < 0, column * v, v), leaky(x.mean, x.std, slope))
        function = function_of(node)
        return None if function is None else x.through(function, transformed(x.mean, x.std, function))

    def slope(self, node: Node, x: Moments) -> Array | None:
        """The slope below zero, [] or [C], of a function that is the identity above."""
        if node.op == "abs":
            return np.array(-1.0)
        if node.op == "nn.leaky_relu":
            alpha = node.attrs.get("alpha", float(np.float32(0.01)))
            return np.array(float(alpha)) if isinstance(alpha, float | int) else None
        array = self.params.evaluator.exact(node.inputs[1]) if node.op == "nn.prelu" else None
        shape = shape_of(node.output.type)
        if array is None or shape is None or array.ndim > len(shape):
            return None
        if array.size == 1:
            return array.astype(np.float64).reshape(())
        padded = (1,) * (len(shape) - array.ndim) + array.shape
        single = array.size == padded[x.axis] == len(x.mean)
        return array.astype(np.float64).reshape(-1) if single else None

    def layer(self, node: Node) -> Moments | None:
        """W x + b of independent x; where kinds of positions differ, all of them together."""
        linear = read_linear(node, self.params)
        data = None if linear is None else self.found.get(linear.data)
        bias = None if linear is None else linear.bias(self.params)
        if linear is None or data is None or bias is None:
            return None
        if not data.has_mean or not linear.takes(data.axis, data.mean):
            return None
        phases = linear.phases(data.mean, data.std**2)
        parts = [normal(linear.axis, mean + bias, np.sqrt(variance), self.sigmas) for mean, variance in phases]
        mean = np.mean([part.mean for part in parts], axis=0)
        spread = np.mean([part.std**2 + (part.mean - mean) ** 2 for part in parts], axis=0)
        low, high = np.min([part.low for part in parts], axis=0), np.max([part.high for part in parts], axis=0)
        return Moments(linear.axis, mean, np.sqrt(spread), low, high)


def _product(f: Function, g: Function) -> Function:
    return lambda v: f(v) * g(v)


def _reached(value: Value) -> set[Value]:
    """The value and what it is made of, up to layers and averages, which mix so much that they hide a single part."""
    found, stack = {value}, [value]
    while stack and len(found) < MAX_REACHED:
        node = stack.pop().node
        if node is None or node.op == "constant" or has_trait(node, Trait.LINEAR) or has_trait(node, Trait.AVERAGES):
            continue
        operands = {operand for operand in node.inputs if operand is not None} - found
        found |= operands
        stack.extend(operands)
    return {one for one in found if one.node is None or one.node.op != "constant"}
