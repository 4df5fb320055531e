"""DeadCodeElimination: what nobody reads goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import FunctionKey, Node
from ..ir.module import Module
from ..ir.ops import DEFAULT_DOMAINS
from ..ir.rewriter import Rewriter
from .foreign import is_erasable
from .infra import Pass, PassContext


@dataclass(frozen=True)
class DeadCodeElimination(Pass):
    """Remove what has no effect on the results.

    1. An operator whose results nobody reads goes, be it in-house or one that ONNX specifies, unless it draws random
       numbers; control flow goes where that holds of everything in its bodies. Operators of other domains stay.
    2. Constants and initializers that nobody reads go, but those that training may change.
    3. Functions that no call leads to go.
    """

    name: ClassVar[str] = "DeadCodeElimination"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        for graph in module.top_graphs():
            for node in reversed(list(graph.walk())):
                erase_unread(node, rewriter)
        return drop_unused_functions(module) or rewriter.changed


def erase_unread(node: Node, rewriter: Rewriter) -> None:
    """op(x) -> nothing, where nobody reads a result"""
    if node.graph is None or node.op == "return" or any(value.users for value in node.outputs):
        return
    if is_erasable(node, rewriter.module):
        rewriter.erase(node)


def drop_unused_functions(module: Module) -> bool:
    """Remove the functions that no call in the main graph leads to; whether there were any. O(nodes).

    A function in the default domain may stand for an operator that is in-house here, and stays.
    """
    reached: set[FunctionKey] = set()
    waiting = [module.graph]
    while waiting:
        for node in waiting.pop().walk():
            domain, _, name = node.op.partition("::")
            key = (domain, name, node.overload)
            if key in module.functions and key not in reached:
                reached.add(key)
                waiting.append(module.functions[key].graph)
    unused = [key for key in module.functions if key not in reached and key[0] not in DEFAULT_DOMAINS]
    for key in unused:
        module.provenance.dropped.extend(node.origins for node in module.functions[key].graph.walk() if node.origins)
        del module.functions[key]
    return bool(unused)
