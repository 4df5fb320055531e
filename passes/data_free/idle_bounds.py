"""Clips whose upper bound hardly any element reaches, by statistics and folded weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir.graph import Node, Value
from ...ir.module import Module
from ...ir.ops.views import clip_bounds
from ..affine.algebra.operands import Parameters
from ..affine.records.source_affines import known_statistics
from .linear import read_linear
from .moments import Moments
from .statistic_ranges import propagate


def idle_clips(module: Module, params: Parameters, sigmas: float) -> set[Node]:
    """Return the Clips to [0, b] that may be a Relu for values within `sigmas` deviations.

    Both have to say so, in every channel:

    - the statistic of the data x of the Clip: mean + sigmas * std <= b;
    - the weights of the layer with the result x: x <= b for all data within `sigmas` deviations of
      their mean.

    Neither is enough: x may have longer tails than a normal variable, and a deviation of 0 proves
    nothing.
    """
    statistics = known_statistics(module)
    ranges = propagate(module, statistics, sigmas=sigmas)
    found = set()
    for graph in module.graphs():
        for node in graph.nodes():
            if node.op == "clip" and node.operand() in statistics:
                known = statistics[node.operand()]
                bound = _upper_bound(node, params)
                with np.errstate(all="ignore"):
                    likely = known.mean + sigmas * known.std
                    if bound is None or not (likely <= bound).all():
                        continue
                    if _is_bounded(node, bound, params, ranges):
                        found.add(node)
    return found


def _upper_bound(node: Node, params: Parameters) -> float | None:
    """Return b of a Clip to [0, b] with 0 < b < infinity, None if its bounds are others."""
    bounds = clip_bounds(node, params.evaluator)
    low, high = (-1.0, 0.0) if bounds is None else bounds.ends
    return high if low == 0 and 0 < high < np.inf else None


def _is_bounded(
    node: Node, bound: float, params: Parameters, ranges: Mapping[Value, Moments]
) -> bool:
    """Return whether no result of the layer before exceeds `bound`, for data in range."""
    layer = node.operand().node
    linear = None if layer is None else read_linear(layer, params)
    data = None if linear is None else ranges.get(linear.data)
    if linear is None or data is None or not linear.accepts(data.axis, data.low):
        return False
    bias = linear.bias(params)
    return bias is not None and bool((linear.bounds(data.low, data.high)[1] + bias <= bound).all())
