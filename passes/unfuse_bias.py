"""UnfuseBias: the bias of a layer as an operator of its own, for pattern matchers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Node
from ..ir.module import Module
from ..ir.ops import has_trait
from ..ir.ops.row import Trait
from ..ir.rewriter import Rewriter
from ..ir.types import shape_of
from .infra import Pass, PassContext


@dataclass(frozen=True)
class UnfuseBias(Pass):
    """Show biases as `nn.bias_add`, in the manner of Relay; the ONNX backend writes the pair as one node again.

    1. `nn.conv(x, w, b)` becomes `nn.bias_add(nn.conv(x, w), b)`, likewise `nn.conv_transpose` and `nn.dense` with
       beta 1, where b is constant, one value for each channel of a result whose number of channels is known.

    Run it last: CanonicalizeOps would turn the result into a bare `add`.
    """

    name: ClassVar[str] = "UnfuseBias"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        evaluator = ConstantEvaluator(module.limits.max_constant_bytes)
        for graph in module.graphs():
            for node in graph:
                if (
                    has_trait(node, Trait.BIASED)
                    and has_vector_bias(node)
                    and evaluator.array(node.input(2)) is not None
                ):
                    unfuse(node, rewriter)
        return rewriter.changed


def has_vector_bias(node: Node) -> bool:
    """Whether a layer adds one value per channel of its result, whose channels are known."""
    bias, result = node.input(2), shape_of(node.output.type)
    shape = None if bias is None else shape_of(bias.type)
    if shape is None or len(shape) != 1 or result is None or len(result) < 2 or node.attrs.get("beta", 1.0) != 1.0:
        return False
    return isinstance(shape[0], int) and shape[0] == result[1]


def unfuse(node: Node, rewriter: Rewriter) -> None:
    """layer(x, w, b) -> bias_add(layer(x, w), b)"""
    data, weight, bias = node.inputs
    assert bias is not None
    assert node.next is not None
    result, readers = node.output, list(node.output.users)
    with rewriter.rewriting(node):
        add = rewriter.make(
            "nn.bias_add", [result, bias], {"axis": 1}, before=node.next, hint=result.name, type_=result.type
        )
    for reader in readers:
        reader.replace_input(result, add.output)
    result.name, add.output.name = add.output.name, result.name
    node.set_inputs((data, weight))
