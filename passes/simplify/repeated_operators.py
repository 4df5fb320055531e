"""Rules for operators without effect on another's result, and for repeated operands."""

from __future__ import annotations

from ...ir.graph import Node, Value
from ...ir.matching import result_of
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.types import dtype_of, shape_of
from .rules import MAX_CHAIN, broadcasts_into

WHOLE, SIGN, POSITIVE = "whole", "sign", "positive"
"""Facts on all elements but NaN: whole or infinite; -1, 0 or 1; not below 0, nor -0."""

_SETTLED = {"floor": WHOLE, "ceil": WHOLE, "round": WHOLE, "abs": POSITIVE, "sign": SIGN}
"""The operators that leave the numbers of a kind as they are."""

_MADE = {
    "floor": {WHOLE},
    "ceil": {WHOLE},
    "round": {WHOLE},
    "abs": {POSITIVE},
    "sign": {WHOLE, SIGN},
}
"""Facts about the results of operators, whatever the data."""

_KEPT = {
    **{op: {WHOLE, SIGN, POSITIVE} for op in ("floor", "ceil", "round", "nn.relu", "identity")},
    **{op: {WHOLE, SIGN} for op in ("abs", "negative", "sign")},
}
"""Facts that hold for a result if they hold for the data.

Abs keeps the least integer, of which Sign makes -1.
"""


@rule(
    affine="untouched",
    identity=(
        "op(settled(x)) == settled(x); floor(-ceil(x)) == -ceil(x); sign(absolute(sign(x))) =="
        " absolute(sign(x))"
    ),
)
def drop_settled(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """floor(ceil(x)) -> ceil(x), abs(abs(x)) -> abs(x), sign(sign(x)) -> sign(x) and the like"""
    # Floor, Ceil and Round keep whole numbers, infinities and NaN, and the sign of zero. Sign makes
    # 0 of -0.
    if _SETTLED[node.op] not in _known_of(node.operand()):
        return rewriter.decline("it may change its data")
    return rewriter.forward(node.output, node.operand())


def _known_of(value: Value) -> set[str]:
    """Return the facts that hold for all elements of a value."""
    chain: list[Node] = []
    while value.node is not None and value.node.op in _KEPT and len(chain) < MAX_CHAIN:
        chain.append(value.node)
        value = value.node.operand()
    found = _of_type(value) | (
        set() if value.node is None else _MADE.get(value.node.op, set()) | _of_cast(value.node)
    )
    for node in reversed(chain):
        found = (found & _KEPT[node.op]) | _MADE.get(node.op, set())
    return found


def _of_type(value: Value) -> set[str]:
    dtype = dtype_of(value.type)
    return {POSITIVE} if dtype is not None and dtype.kind == "uint" else set()


def _of_cast(node: Node) -> set[str]:
    """Return the facts on numbers that were integers: the nearest float is whole."""
    if node.op not in ("cast", "cast_like"):
        return set()
    source, target = (dtype_of(each.type) for each in (node.operand(), node.output))
    if source is None or target is None or target.kind == "string":
        return set()
    if source.kind == "bool":
        return {WHOLE, SIGN, POSITIVE}
    return {WHOLE} if source.kind in ("int", "uint") else set()


@rule(
    affine="merges",
    reads=("logical_not", "negative"),
    identity="op(op(x)) == x",
)
def drop_involution(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """not(not(x)) -> x, negative(negative(x)) -> x"""
    # The negative of the least integer is this integer, in runtimes that wrap.
    return rewriter.forward(node.output, result_of(node.operand(), node.op).operand())


@rule(affine="untouched", identity="op(x, x) == x; op(x, y, x) == op(x, y)")
def drop_repeated_operand(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """max(x, x) -> x, min(x, y, x) -> min(x, y), and(x, x) -> x, or(x, x) -> x"""
    found = list(dict.fromkeys(node.inputs))
    if len(found) == len(node.inputs):
        return rewriter.decline("no operand is given twice")
    if len(found) == 1:
        return rewriter.forward(node.output, node.operand())
    rewriter.set_inputs(node, found)
    return True


@rule(affine="untouched", identity="where(c, x, x) == x if keeps_shape(x, c)")
def drop_choice(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """where(c, x, x) -> x, of unchanged shape"""
    data = node["x"]
    if node["y"] is not data:
        return rewriter.decline("it chooses between two values")
    if not broadcasts_into(shape_of(node.operand().type), shape_of(data.type)):
        return rewriter.decline("broadcasting its condition may change the shape")
    return rewriter.forward(node.output, data)


RULES: Rules[ShapeEvaluator] = {
    **dict.fromkeys(_SETTLED, (drop_settled,)),
    **dict.fromkeys(("logical_not", "negative"), (drop_involution,)),
    **dict.fromkeys(("logical_and", "logical_or", "maximum", "minimum"), (drop_repeated_operand,)),
    "where": (drop_choice,),
}
"""The rules for each operator, in the order in which they are tried."""
