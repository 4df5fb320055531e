"""CanonicalizeOps: one operator for each computation that has several spellings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Node
from ..ir.module import Module
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import RuleDriver, Rules, rule
from ..ir.tensor import Tensor
from .infra import Pass, PassContext


@dataclass(frozen=True)
class CanonicalizeOps(Pass):
    """Rewrite operators to the one form that later passes match.

    1. `nn.bias_add(x, b)` with a constant b becomes `add(x, b)` along the same axis. With
       `bias_add=false` it stays, for tools that match `nn.bias_add`.
    2. A Constant operator in the main graph or a subgraph becomes an initializer, if the IR version
       has initializers that are no inputs (4 and newer). A constant that is a result of its graph
       stays.
    """

    name: ClassVar[str] = "CanonicalizeOps"
    bias_add: bool = True

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        driver = RuleDriver(rewriter, RULES, module.constants)
        for graph in module.graphs() if self.bias_add else ():
            driver.run(graph.operators_of(RULES))
        module.opened = rewriter.changed  # the form of a constant makes no difference to a rewrite
        if module.ir_version >= INITIALIZERS_ALONE:
            for graph in module.graph.graphs():
                RuleDriver(rewriter, CONSTANT_RULES, None).run(graph.constants_with("form"))
        return rewriter.changed


@rule(affine="untouched")
def canonicalize_bias_add(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator) -> bool:
    """bias_add(x, b) -> add(x, b)"""
    if evaluator.array(node["rhs"]) is None:
        return rewriter.decline("the bias is not constant")
    attrs = {"axis": 1, **node.attrs}  # 1 is the default of bias_add, which add does not have
    add = rewriter.make(
        "add", node.inputs, attrs, before=node, hint=node.output.name, name=node.name
    )
    add.output.type = node.output.type
    rewriter.replace(node.output, add.output, take_name=True)
    return True


@rule(affine="untouched")
def canonicalize_constant(node: Node, rewriter: Rewriter, context: None) -> bool:
    """Constant() -> an initializer"""
    is_dense_node = "form" in node.attrs and isinstance(node.attrs["value"], Tensor)
    if not is_dense_node or node.output.is_returned:
        return rewriter.decline("it is a result of its graph, or no dense tensor")
    rewriter.drop_attr(node, "form")
    return True


INITIALIZERS_ALONE = 4
"""The first version of ONNX's IR in which an initializer need not be an input."""

RULES: Rules[ConstantEvaluator] = {"nn.bias_add": (canonicalize_bias_add,)}
"""The rules for each operator."""

CONSTANT_RULES: Rules[None] = {"constant": (canonicalize_constant,)}
"""The rules for constants."""
