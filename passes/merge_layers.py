"""MergeLayers: two layers in a row become one if that is less work."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from ..ir.graph import Node
from ..ir.matching import is_only_reader
from ..ir.module import Module
from ..ir.provenance import Refused
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import RuleDriver, Rules, rule
from .affine.algebra.operands import Parameters
from .branches.layer_writing import write_layer
from .branches.linear_kernels import LinearKernel, composed, kernel_of
from .branches.records import record_sum
from .branches.sums import Term
from .infra import Pass, PassContext

OPS = ("nn.conv", "nn.dense", "matmul")
"""The layers that may stand in a row."""


@dataclass(frozen=True)
class MergeLayers(Pass):
    """Compute two layers in a row by one, if that takes fewer multiplications.

    1. Conv, then Conv, or Gemm and MatMul in a row, with constant weights and nothing between them.
       Only the second reads the first.
    2. One of two convolutions has kernel 1, stride 1 and no padding, and both have one group. If
       the second pads, the first has no bias: the padding would be the bias.
    3. The layer takes fewer multiplications than both, strides counted, and has not more weights.
       So a bottleneck stays.
    4. The weights are multiplied in float64 and rounded once.
    """

    name: ClassVar[str] = "MergeLayers"
    after: ClassVar[tuple[str, ...]] = ("FoldScaleAxis",)

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        driver = RuleDriver(rewriter, RULES, Parameters(module.constants))
        for graph in module.graphs():
            driver.to_fixpoint(graph)
        return rewriter.changed


@rule(affine="untouched", reads=OPS)
def merge_layers(node: Node, rewriter: Rewriter, params: Parameters) -> bool:
    """layer(layer(x, v, b), w, c) -> layer(x, w v, w b + c)"""
    middle = node.operand()
    before = middle.node
    if before is None or before.op not in OPS or not is_only_reader(middle, node):
        return rewriter.decline("its data is not a layer that it reads alone")
    first, last = kernel_of(before, params), kernel_of(node, params)
    kernel = composed(last, first)
    _check_work(kernel, first, last)
    if first.dtype is not last.dtype:
        raise Refused("dtype_mismatch", "the weights of the layers have different types")
    kernel.check_fits("product")
    ops = {before.op, node.op}
    op = "nn.dense" if "nn.dense" in ops else node.op
    if op == "matmul" and kernel.bias.any():
        return rewriter.decline("a bias would need an operator")
    layer, result = write_layer(
        rewriter, kernel, op, before.operand(), node, node, node.output.name
    )
    term = Term(node, before.operand(), np.ones(()), np.zeros(()), 0)
    record_sum(rewriter.module, layer, result, [(term, (node, before))], None)
    rewriter.replace(node.output, result, take_name=True, heir=layer)
    layer.name = rewriter.module.unique_node_name(layer, layer.output.name)
    return True


def _check_work(kernel: LinearKernel, first: LinearKernel, last: LinearKernel) -> None:
    """Refuse more weights, or as many multiplications for each position of the result."""
    positions = prod(axis.stride for axis in last.axes)
    work = positions * first.weight.size + last.weight.size
    if kernel.weight.size >= work or kernel.weight.size > first.weight.size + last.weight.size:
        raise Refused("constant_growth", "one layer would take as many multiplications")


RULES: Rules[Parameters] = dict.fromkeys(OPS, (merge_layers,))
"""The rules by operator."""
