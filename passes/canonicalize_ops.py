"""CanonicalizeOps: operators that are another operator in disguise become that one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Node
from ..ir.module import Module
from ..ir.rewriter import Rewriter
from .infra import Pass, PassContext


@dataclass(frozen=True)
class CanonicalizeOps(Pass):
    """Write operators in the one form that later passes look for.

    1. `nn.bias_add(x, b)` with a constant b becomes `add(x, b)` along the same axis. With `bias_add=false` it stays,
       for those who match on it.
    """

    name: ClassVar[str] = "CanonicalizeOps"
    bias_add: bool = True

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        evaluator = ConstantEvaluator(module.limits.max_constant_bytes)
        if self.bias_add:
            for graph in module.graphs():
                for node in graph:
                    if node.op != "nn.bias_add":
                        continue
                    if rewriter.debug_counter.exhausted:
                        break
                    if evaluator.array(node.inputs[1]) is not None:
                        canonicalize_bias_add(node, rewriter)
                        rewriter.debug_counter.note("canonicalize_bias_add", node.label)
        return rewriter.changed


def canonicalize_bias_add(node: Node, rewriter: Rewriter) -> None:
    """bias_add(x, b) -> add(x, b)"""
    attrs = {"axis": 1, **node.attrs}
    with rewriter.rewriting(node):
        add = rewriter.make("add", node.inputs, attrs, before=node, hint=node.output.name, name=node.name)
    add.output.type = node.output.type
    rewriter.replace(node.output, add.output, take_name=True)
