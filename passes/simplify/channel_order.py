"""Rules for channels in another order, which the weights of the next layer take."""

from __future__ import annotations

from ...ir.graph import Node
from ...ir.matching import elements, known_shape, result_of
from ...ir.ops.inference import integer_of
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.types import shape_of
from .layout import inverse
from .rules import int_vector
from .shape_evaluator import ShapeEvaluator


@rule(
    affine="untouched",
    reads=("take",),
    identity=(
        "conv(take(x, i, 1), w, b, 1, d, p) == conv(x, take(w, inverse(i), 1), b, 1, d, p) if"
        " is_order(i, x.shape[1])"
    ),
)
def order_into_conv(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """conv(take(x, i, axis=1), w) -> conv(x, take(w, inverse of i, axis=1)), as for BGR and RGB"""
    take = result_of(node.operand(), "take", only_for=node)
    rank = len(known_shape(take.operand()))
    order, weight = elements(take["indices"], evaluator), node.operand(1)
    if integer_of(take, "axis", 0) not in (1, 1 - rank) or integer_of(node, "group", 1) != 1:
        return rewriter.decline("it takes no channels, or the channels are in groups")
    shape = shape_of(weight.type)
    if shape is None or order.ndim != 1 or shape[1:2] != (order.size,):
        return rewriter.decline("it takes another number of channels than the layer reads")
    channels = known_shape(take.operand())[1]
    if channels != order.size or sorted((order % order.size).tolist()) != list(range(order.size)):
        return rewriter.decline("it takes no channel once and each of them")
    if not evaluator.is_constant(weight) or weight.sole_user() is not node:
        return rewriter.decline("the weight is not constant, or has other readers")
    places = int_vector(inverse(tuple((order % order.size).tolist())), node, rewriter, "order")
    made = rewriter.make(
        "take", [weight, places], {"axis": 1}, before=node, hint=weight.name, type_=weight.type
    )
    rewriter.set_inputs(node, [take.operand(), made.output, *node.inputs[2:]])
    return True


RULES: Rules[ShapeEvaluator] = {"nn.conv": (order_into_conv,)}
"""The rule for Conv."""
