"""Numbers inside operators that no value of the graph holds: sums, and squares of norms.

GPUs and NPUs add up in float32 as a rule. Where a device adds up in float16, these numbers have to
fit into it, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, prod

import numpy as np

from ...ir.graph import Node, Value, is_constant
from ...ir.module import Module
from ...ir.ops import has_trait
from ...ir.ops.inference import input_shape, integer_of
from ...ir.ops.reduction import reduced_axes
from ...ir.ops.row import Trait
from ...ir.provenance import Refused
from ...ir.record import Record
from ...ir.types import Dim
from ...support.errors import UsageError
from .known_ranges import KnownRange

ACCUMULATORS = ("float32", "float16")
"""Types that a device adds up in."""

NORMS = ("nn.layer_norm", "nn.rms_norm", "nn.instance_norm", "nn.group_norm")


def check_accumulator(name: str, accumulate: str) -> None:
    """Raise UsageError unless the option `accumulate` of the pass `name` is one of ACCUMULATORS."""
    if accumulate not in ACCUMULATORS:
        known = ", ".join(ACCUMULATORS)
        raise UsageError(f"{name}: option accumulate has to be one of {known}")


class InnerValue(Record):
    """A bound on the numbers inside an operator, which scale with a product of values.

    `terms` has the values with their powers: squares inside a norm have those of its data, twice.
    """

    most: float
    terms: Mapping[Value, int]
    what: str


def inner_values(
    node: Node, module: Module, ranges: Mapping[Value, KnownRange]
) -> Iterator[InnerValue]:
    """Yield bounds on what an operator adds up, as far as the ranges of its operands are known."""
    if not node.inputs or node.inputs[0] is None:
        return
    data = node.inputs[0]
    most = ranges[data].most if data in ranges else inf
    if has_trait(node, Trait.LINEAR):
        yield from _products(node, module, ranges)
    elif most == inf:
        return
    elif node.op in NORMS:
        count = _normalized(node)
        yield InnerValue(count * most, {data: 1}, "a sum")
        yield InnerValue(count * (2 * most) ** 2, {data: 2}, "a sum of squares")
    elif has_trait(node, Trait.REDUCES) and node.op in ("mean", "sum", "reduce_l1"):
        yield InnerValue(_reduced(node, module) * most, {data: 1}, "a sum")
    elif node.op == "reduce_l2":
        yield InnerValue(_reduced(node, module) * most**2, {data: 2}, "a sum of squares")
    elif node.op == "nn.global_avg_pool":
        yield InnerValue(_count((input_shape(node) or (None,) * 3)[2:]) * most, {data: 1}, "a sum")


def _products(
    node: Node, module: Module, ranges: Mapping[Value, KnownRange]
) -> Iterator[InnerValue]:
    """Yield the bound on the sums of products of a layer."""
    if len(node.inputs) < 2 or not node.outputs:
        return
    lhs, rhs, sums = node.operand(0), node.operand(1), []
    for value, other in ((lhs, rhs), (rhs, lhs)):
        most = ranges[value].most if value in ranges else inf
        weight = module.constants.array(other) if is_constant(other) else None
        if weight is not None and weight.size and most < inf:
            sums.append(most * _weight_sum(node, np.abs(weight.astype(np.float64))))
        elif value in ranges and other in ranges:
            terms = (input_shape(node, "lhs") or (None,))[-1:] if node.op == "matmul" else (None,)
            sums.append(most * ranges[other].most * _count(terms))
    if sums:
        yield InnerValue(max(sums), {node.output: 1}, "a sum of products")


def _weight_sum(node: Node, magnitudes: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """Return the greatest sum of the magnitudes of the weights that make one element."""
    if node.op in ("nn.conv", "nn.conv_transpose"):
        axes = tuple(range(1, magnitudes.ndim)) if node.op == "nn.conv" else (0,)
        return float(magnitudes.sum(axis=axes).max())
    contracted = -1 if node.op == "nn.dense" and node.attrs.get("transB", 0) else -2
    axis = max(contracted, -magnitudes.ndim)
    return float(magnitudes.sum(axis=axis).max())


def _normalized(node: Node) -> float:
    """Return the number of elements that a norm adds up."""
    shape = input_shape(node)
    if shape is None:
        return inf
    if node.op == "nn.instance_norm":
        return _count(shape[2:])
    if node.op == "nn.group_norm":
        return _count(shape[1:]) / max(integer_of(node, "num_groups", 1), 1)
    return _count(shape[integer_of(node, "axis", -1) :])


def _reduced(node: Node, module: Module) -> float:
    """Return the number of elements that a reduction adds up."""
    try:
        axes, _ = reduced_axes(node, module.constants)
    except Refused:
        return inf
    shape = input_shape(node) or ()
    return _count(tuple(shape[axis] for axis in axes))


def _count(dims: tuple[Dim, ...]) -> float:
    return float(prod(dim if isinstance(dim, int) else inf for dim in dims))
