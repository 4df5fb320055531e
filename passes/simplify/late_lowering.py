"""Rules for foreign operators that the operator table has, now that more is known of them."""

from __future__ import annotations

from ...ir.graph import Node, flatten_origins
from ...ir.ops.row import NodeView
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.types import dtype_of, shape_of


@rule(affine="untouched")
def lower_late(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """Op(x, c) -> op(x, c), if c has become a constant: whether a Dropout trains, for one"""
    domain, _, op_type = node.op.partition("::")
    if _is_call(node, rewriter) or node.regions:
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


def _is_call(node: Node, rewriter: Rewriter) -> bool:
    """Return whether a foreign operator is a call of a function of the model."""
    domain, _, op_type = node.op.partition("::")
    return bool(node.overload) or (domain, op_type, "") in rewriter.module.functions


@rule(affine="untouched")
def normalize_one_sample(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """BatchNormalization(x, gamma, beta){training_mode=1} -> instance_norm, if x is one sample"""
    if _is_call(node, rewriter):
        return rewriter.decline("it is a call")
    if node.attrs.get("training_mode") != 1 or any(value.users for value in node.outputs[1:]):
        return rewriter.decline("it does not train, or its statistics are read")
    data, gamma, beta = map(node.operand, range(3))
    shape = shape_of(data.type)
    if shape is None or len(shape) < 3 or shape[0] != 1:
        return rewriter.decline("its data are not one sample with extents behind the channels")
    if not dtype_of(data.type) is dtype_of(gamma.type) is dtype_of(beta.type):
        return rewriter.decline("its parameters have another type than the data")
    attrs = {name: value for name, value in node.attrs.items() if name == "epsilon"}
    made = rewriter.make("nn.instance_norm", node.inputs[:3], attrs, before=node, name=node.name)
    rewriter.replace(node.outputs[0], made.output, take_name=True)
    return True


RULES: Rules[ShapeEvaluator] = {
    "::BatchNormalization": (lower_late, normalize_one_sample),
    "::Dropout": (lower_late,),
}
"""The rules for each operator: those whose row asks for constants."""
