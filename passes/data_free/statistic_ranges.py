"""The possible part of a statistic's range, and moments that follow from statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec.structs import replace

from ...ir.graph import Node, Value
from ...ir.module import Module
from ...ir.ops import has_trait
from ...ir.ops.bounds import representable
from ...ir.ops.row import Trait
from ...ir.types import shape_of
from ..affine.records.source_affines import known_bounds, known_statistics
from ..affine.records.statistics import Statistic
from .intervals import ends_of
from .likely import LikelyMoments
from .moments import KEEPS_CHANNELS, Moments, Propagator, normal
from .operator_intervals import OperatorIntervals


def propagate(
    module: Module, known: Mapping[Value, Statistic] | None = None, *, sigmas: float = 6.0
) -> dict[Value, Moments]:
    """Return the moments that follow from `known`, by default all that the module knows.

    These are statistics, and the bounds of sums. A known statistic takes precedence over a derived
    one. Values without moments are graph inputs, values computed from them alone up to the first
    known statistic, and results of operators without a rule here. O(size of the weights of the
    layers whose results are not known).
    """
    if known is None:
        known = {**known_bounds(module), **known_statistics(module)}
    propagator = Propagator(module.constants, sigmas)
    propagator.found.update(statistic_moments(module, known, sigmas))
    for graph in module.graphs():
        for node in graph:
            propagator.visit(node)
    return propagator.found


def statistic_moments(
    module: Module, known: Mapping[Value, Statistic], sigmas: float
) -> dict[Value, Moments]:
    """Return the moments of the values with a statistic.

    Their range is the part of mean +- `sigmas` deviations that the operator can make, whatever a
    layer before it makes: a Relu nothing below 0. A statistic of which no channel has such a part
    is left out.
    """
    found = {}
    with np.errstate(all="ignore"):
        certain = certain_ranges(module, known)
        for value, statistic in known.items():
            moments = normal(statistic.axis, statistic.mean, statistic.std, sigmas)
            limits = certain.get(value)
            if limits is not None:
                limits = limits.along(moments.axis, len(moments.mean))
                if ((moments.low > limits.high) | (moments.high < limits.low)).all():
                    continue
                low, high = (
                    np.clip(end, limits.low, limits.high) for end in (moments.low, moments.high)
                )
                moments = replace(moments, low=low, high=high)
            found[value] = moments
    return found


def certain_ranges(module: Module, values: Iterable[Value]) -> dict[Value, Moments]:
    """Return the ranges, infinite perhaps, which hold for any inputs and any layers."""
    makers = _makers(values)
    certain = LikelyMoments(module.constants, math.inf)
    operators = OperatorIntervals(certain)
    for node in (node for graph in module.graphs() for node in graph if node in makers):
        moved = any(has_trait(node, trait) for trait in KEEPS_CHANNELS)
        found = dict(certain.channelwise(node)) if moved else {}
        intervals = operators.intervals(node, found, [operators.of(value) for value in node.inputs])
        for value, interval in zip(node.outputs, intervals, strict=False):
            axis, low, high = ends_of(representable(value, interval), shape_of(value.type), 1)
            unknown = np.full_like(low, np.nan)
            if (low <= high).all() and not (np.isinf(low) & np.isinf(high)).all():
                certain.found[value] = Moments(axis, unknown, unknown, low, high)
    return certain.found


def _makers(values: Iterable[Value]) -> set[Node]:
    """Return the nodes that values are made by, up to layers, bodies and constants."""
    found: set[Node] = set()
    stack = [value.node for value in values]
    while stack:
        node = stack.pop()
        if node is None or node in found or node.op == "constant":
            continue
        if node.regions or has_trait(node, Trait.LINEAR):
            continue
        found.add(node)
        stack.extend(value.node for value in node.inputs if value is not None)
    return found
