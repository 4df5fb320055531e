"""Comparisons, logic and selection element by element."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..graph import Node
from ..tensor import Array
from ..types import BOOL, TensorType
from .bounds import always, operand_bounds
from .evaluation import NotEvaluable, binary, check_size, operands, unary
from .inference import Types, broadcast_of_inputs, input_dtype, same
from .interval import Interval
from .numeric import LIMITED_BROADCAST, has_numpy_broadcast
from .row import Condition, Constants, Evaluate, Inputs, OpInfo, Trait, complete_by_types


@complete_by_types
def infer_comparison(node: Node, constants: Constants) -> Types:
    """Infer the broadcast of the operands, bool."""
    return (TensorType(BOOL, broadcast_of_inputs(node)),)


@complete_by_types
def infer_where(node: Node, constants: Constants) -> Types:
    """Infer the broadcast of condition and both branches, in the branches' dtype."""
    return (TensorType(input_dtype(node, "x"), broadcast_of_inputs(node)),)


def evaluate_where(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Where."""
    condition, x, y = operands(inputs)
    if x.dtype != y.dtype or condition.dtype != np.bool_:
        raise NotEvaluable(f"operands are {condition.dtype}, {x.dtype} and {y.dtype}")
    check_size(prod(np.broadcast_shapes(condition.shape, x.shape, y.shape)), x)
    return (np.where(condition, x, y),)


_BROADCASTS = frozenset({Trait.BROADCASTS})
_COMPARISON = _BROADCASTS | {Trait.DECIDES}
_WHERE = _BROADCASTS | {Trait.COMBINES, Trait.EXACT_AT_RUNTIME}


def _branches(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    return [operand_bounds(node, x, "x").hull(operand_bounds(node, x, "y"))]


def _row(
    name: str,
    onnx: str,
    evaluate: Evaluate,
    when: Condition | None = has_numpy_broadcast,
    since: int = 1,
    traits: frozenset[Trait] = _BROADCASTS,
) -> OpInfo:
    return OpInfo(
        name,
        ("lhs", "rhs"),
        infer_comparison,
        evaluate,
        onnx=onnx,
        since=since,
        when=when,
        attrs=LIMITED_BROADCAST if since == 1 else {},
        traits=traits,
        bounds=always(0, 1),
    )


ROWS = (
    OpInfo(
        "where",
        ("condition", "x", "y"),
        infer_where,
        evaluate_where,
        onnx="Where",
        since=9,
        traits=_WHERE,
        bounds=_branches,
    ),
    _row("equal", "Equal", binary(np.equal), traits=_COMPARISON),
    _row("less", "Less", binary(np.less), traits=_COMPARISON),
    _row("less_equal", "LessOrEqual", binary(np.less_equal), None, since=12, traits=_COMPARISON),
    _row("greater", "Greater", binary(np.greater), traits=_COMPARISON),
    _row(
        "greater_equal",
        "GreaterOrEqual",
        binary(np.greater_equal),
        None,
        since=12,
        traits=_COMPARISON,
    ),
    _row("logical_and", "And", binary(np.logical_and)),
    _row("logical_or", "Or", binary(np.logical_or)),
    _row("logical_xor", "Xor", binary(np.logical_xor)),
    OpInfo(
        "logical_not",
        ("data",),
        same,
        unary(np.logical_not),
        onnx="Not",
        traits=frozenset({Trait.ELEMENTWISE}),
        bounds=always(0, 1),
    ),
)
