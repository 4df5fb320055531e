"""A rule for foreign operators that the operator table has, now that constants are known."""

from __future__ import annotations

from ...ir.graph import Node, flatten_origins
from ...ir.ops.row import NodeView
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator


@rule(affine="untouched")
def lower_late(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """Op(x, c) -> op(x, c), if c has become a constant: whether a Dropout trains, for one"""
    domain, _, op_type = node.op.partition("::")
    if node.overload or node.regions or (domain, op_type, "") in rewriter.module.functions:
        return rewriter.decline("it is a call, or has bodies")
    view = NodeView(
        node.opset, node.attrs, node.inputs, tuple([value.name for value in node.outputs])
    )
    op, refusal = rewriter.module.foreign.lower(domain, op_type, view)
    if op is None:
        return rewriter.decline(
            "its constants do not say that" if refusal is None else refusal.detail
        )
    for origin in flatten_origins(node.origins):
        rewriter.module.provenance.refusals.pop(origin, None)
    node.op = op
    rewriter.changed = True
    return True


RULES: Rules[ShapeEvaluator] = dict.fromkeys(("::BatchNormalization", "::Dropout"), (lower_late,))
"""The rules for each operator: those whose row asks for constants."""
