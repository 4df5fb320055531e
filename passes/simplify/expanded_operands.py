"""Rules for operands that are expanded to a shape to which the operator broadcasts them anyway."""

from __future__ import annotations

import numpy as np

from ...ir.extents import is_same
from ...ir.graph import Node, Value, payload_of, producer_of
from ...ir.ops import is_legal, ops_with, parameter_axis
from ...ir.ops.row import NUMPY_BROADCAST, Trait
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator, piece_of
from ...ir.tensor import ArrayTensor, Tensor
from ...ir.types import dtype_of, shape_of, static_shape_of


@rule(
    affine="untouched",
    reads=("broadcast_to", "full"),
    identity="x + expand(y, n) == x + y if repeats_nothing(n, x)",
)
def drop_expansion(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """op(x, expand(y, shape(x))) -> op(x, y), if op broadcasts; ConstantOfShape likewise"""
    # Broadcasting is associative: the shape of y, the target and the shape of x together give the
    # shape of the result, and a target that broadcasts into the shape of x adds nothing to it.
    if not is_legal(node.op, NUMPY_BROADCAST, node):
        return rewriter.decline("it does not broadcast as numpy does")
    if all(evaluator.is_constant(value) for value in node.inputs) or "folded" in node.attrs:
        return rewriter.decline("it is a constant expression, which FoldConstant computes")
    if (axis := parameter_axis(node)) is not None:
        source = _expanded_along(node, axis, evaluator)
        if source is None:
            return rewriter.decline("its data is not expanded along the axis of its parameter")
        _align(node, source, axis, rewriter)
        return True
    first = (
        1 if node.op == "nn.prelu" else 0
    )  # a slope broadcasts to the data, not the data to the slope
    for i in range(first, len(node.inputs)):
        source = _unexpanded(node, i, rewriter, evaluator)
        if source is not None:
            rewriter.set_inputs(node, [*node.inputs[:i], source, *node.inputs[i + 1 :]])
            return True
    return rewriter.decline("no operand is expanded to the shape of another")


def _expanded_along(node: Node, axis: int, evaluator: ShapeEvaluator) -> Value | None:
    """Return the value that the data is expanded from along a parameter's axis, if it is."""
    data, parameter = node["lhs"], node["rhs"]
    producer, channels = producer_of(data, "broadcast_to"), static_shape_of(parameter.type)
    if producer is None or not isinstance(payload_of(parameter), Tensor):
        return None
    if channels is None or len(channels) != 1:
        return None
    source, pieces = producer["data"], evaluator.pieces(producer["shape"])
    shape, result = shape_of(source.type), shape_of(data.type)
    if shape is None or result is None or not 0 <= axis < len(result):
        return None
    if pieces is None or pieces.ndim != 1:
        return None
    first = len(result) - len(pieces)
    needed = (
        piece == 1 or (first + i == axis and piece == channels[0]) for i, piece in enumerate(pieces)
    )
    return source if all(needed) else None


def _align(node: Node, data: Value, axis: int, rewriter: Rewriter) -> None:
    """Give `node` other data.

    If that has another rank, the parameter becomes one that numpy broadcasts alike.
    """
    parameter = node["rhs"]
    payload = payload_of(parameter)
    before, after = shape_of(node["lhs"].type), shape_of(data.type)
    assert before is not None and after is not None and isinstance(payload, Tensor)
    if len(before) != len(after):
        shape = [-1 if i == axis else 1 for i in range(len(before))]
        aligned = ArrayTensor(payload.numpy().reshape(shape), payload.dtype)
        parameter = rewriter.constant(aligned, before=node, hint=parameter.name)
        rewriter.drop_attr(node, "axis")
    rewriter.set_inputs(node, [data, parameter])


def _unexpanded(
    node: Node, index: int, rewriter: Rewriter, evaluator: ShapeEvaluator
) -> Value | None:
    """Return the value that an operand is expanded from, to the shape of another."""
    producer = producer_of(node.inputs[index], "broadcast_to", "full")
    if producer is None:
        return None
    is_full = producer.op == "full"
    others = [other for i, other in enumerate(node.inputs) if i != index and other is not None]
    if not any(_broadcasts_into(producer["shape"], other, evaluator) for other in others):
        return None
    return _element(producer, node, rewriter) if is_full else producer["data"]


def _broadcasts_into(target: Value | None, other: Value, evaluator: ShapeEvaluator) -> bool:
    """Return whether every extent of `target` is 1, or the extent that `other` has there."""
    shape, pieces = shape_of(other.type), evaluator.pieces(target)
    # A target of higher rank would add axes to the result.
    if shape is None or pieces is None or pieces.ndim != 1 or len(pieces) > len(shape):
        return False
    first = len(shape) - len(pieces)
    return all(
        piece == 1 or is_same(piece, piece_of(other, first + i)) for i, piece in enumerate(pieces)
    )


def _element(full: Node, node: Node, rewriter: Rewriter) -> Value | None:
    """Return the element of a ConstantOfShape as a new constant of rank 0."""
    payload, dtype = full.attrs.get("value"), dtype_of(full.output.type)
    if payload is None:
        return rewriter.constant(
            ArrayTensor(np.zeros((), np.float32)), before=node, hint=full.output.name
        )
    if not isinstance(payload, Tensor) or payload.shape not in ((), (1,)) or dtype is None:
        return None
    return rewriter.constant(
        ArrayTensor(payload.numpy().reshape(()), dtype), before=node, hint=full.output.name
    )


RULES: Rules[ShapeEvaluator] = dict.fromkeys(ops_with(Trait.BROADCASTS), (drop_expansion,))
"""The rule for every operator that broadcasts."""
