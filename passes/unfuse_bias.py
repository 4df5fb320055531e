"""UnfuseBias: the bias of a layer becomes an operator of its own, for pattern matchers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Node
from ..ir.module import Module
from ..ir.ops import OPS
from ..ir.ops.inference import input_shape
from ..ir.ops.row import Trait
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import RuleDriver, Rules, rule
from ..ir.types import shape_of
from .infra import Pass, PassContext


@dataclass(frozen=True)
class UnfuseBias(Pass):
    """Split the bias of a layer off as `nn.bias_add`, as Relay; the ONNX backend joins them again.

    1. `nn.conv(x, w, b)` becomes `nn.bias_add(nn.conv(x, w), b)`, and so do `nn.conv_transpose` and
       `nn.dense` with beta 1. b has to be constant, with one value for each channel of the result,
       whose number is known.

    Run it last: CanonicalizeOps would turn the result into a bare `add`.
    """

    name: ClassVar[str] = "UnfuseBias"
    after: ClassVar[tuple[str, ...]] = ("CanonicalizeOps",)

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        driver = RuleDriver(rewriter, RULES, module.constants)
        for graph in module.graphs():
            driver.run(graph.operators())
        return rewriter.changed


def has_vector_bias(node: Node) -> bool:
    """Return whether a layer has a bias with one value for each of its known channels."""
    shape, result = input_shape(node, "bias"), shape_of(node.output.type)
    # The channels of the result are its second axis.
    if shape is None or len(shape) != 1 or result is None or len(result) < 2:
        return False
    # alpha * (a @ b) + beta * bias
    if node.attrs.get("beta", 1.0) != 1.0:
        return False
    return isinstance(shape[0], int) and shape[0] == result[1]


@rule(affine="untouched")
def unfuse(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator) -> bool:
    """layer(x, w, b) -> bias_add(layer(x, w), b)"""
    if not has_vector_bias(node):
        return rewriter.decline(
            "there is no bias with one value per channel, or the number of channels is not known"
        )
    if evaluator.array(node["bias"]) is None:
        return rewriter.decline("the bias is not constant")
    data, weight, bias = node.inputs
    assert node.next is not None
    result = node.output
    add = rewriter.make(
        "nn.bias_add",
        [result, bias],
        {"axis": 1},
        before=node.next,
        hint=result.name,
        type_=result.type,
    )
    rewriter.interpose(add)
    rewriter.set_inputs(node, (data, weight))
    return True


RULES: Rules[ConstantEvaluator] = {
    op: (unfuse,) for op, row in OPS.items() if Trait.BIASED in row.traits
}
"""The rules for each operator."""
