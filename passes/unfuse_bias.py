"""UnfuseBias: the bias of a layer as an operator of its own, for pattern matchers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Module, Node
from ..ir.rewrite import Rewriter
from ..ir.types import shape_of
from .infra import Pass, PassContext

LAYERS = ("nn.conv", "nn.conv_transpose", "nn.dense")


@dataclass(frozen=True)
class UnfuseBias(Pass):
    """Show biases as `nn.bias_add`, in the manner of Relay; the ONNX backend writes the pair as one node again.

    1. `nn.conv(x, w, b)` becomes `nn.bias_add(nn.conv(x, w), b)`, likewise `nn.conv_transpose`.
    2. `nn.dense(x, w, b)` becomes `nn.bias_add(nn.dense(x, w), b)`, where beta is 1 and b one value per column.

    Run it last: CanonicalizeOps would turn the result into a bare `add`.
    """

    name: ClassVar[str] = "UnfuseBias"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        for graph in module.graphs():
            for node in graph:
                if node.op in LAYERS and node.input(2) is not None:
                    unfuse(node, rewriter)
        return rewriter.changed


def unfuse(node: Node, rewriter: Rewriter) -> None:
    """layer(x, w, b) -> bias_add(layer(x, w), b)"""
    data, weight, bias = node.inputs
    assert bias is not None and node.next is not None
    if node.op == "nn.dense":
        shape = shape_of(bias.type)
        columns = shape_of(node.output.type)
        if node.attrs.get("beta", 1.0) != 1.0 or shape is None or columns is None:
            return
        if len(shape) != 1 or shape[0] != columns[1] or not isinstance(shape[0], int):
            return
    result, readers = node.output, list(node.output.users)
    with rewriter.rewriting(node):
        add = rewriter.make(
            "nn.bias_add", [result, bias], {"axis": 1}, before=node.next, hint=result.name, type_=result.type
        )
    for reader in readers:
        reader.replace_input(result, add.output)
    result.name, add.output.name = add.output.name, result.name
    node.set_inputs((data, weight))
