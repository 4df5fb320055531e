"""MarkRelu6: a Conv whose result only a ReLU6 reads is marked, by hand."""

from __future__ import annotations

from dataclasses import dataclass

from irc.ir import Module, Node, Rewriter
from irc.passes import Pass, PassContext


@dataclass(frozen=True)
class MarkRelu6(Pass):
    """Mark each Conv that an accelerator can compute together with the ReLU6 after it.

    1. The metadata of the Conv get `key` with the value `relu6`.
    2. The Clip is the only reader of the Conv, and its bounds are the constants 0 and 6.
    """

    key: str = "my_accelerator.activation"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        for graph in module.graphs():
            for node in graph.operators():
                if (
                    node.op == "nn.conv"
                    and self.is_followed_by_relu6(node, module)
                    and self.key not in node.metadata
                ):
                    rewriter.set_metadata(node, self.key, "relu6")
        return rewriter.changed

    def is_followed_by_relu6(self, conv: Node, module: Module) -> bool:
        reader = conv.output.sole_user()
        if reader is None or reader.op != "clip":
            return False
        bounds = [module.constants.array(reader.input(index)) for index in (1, 2)]
        return [None if bound is None else bound.tolist() for bound in bounds] == [0.0, 6.0]
