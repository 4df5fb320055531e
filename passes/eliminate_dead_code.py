"""DeadCodeElimination: operators, constants and functions that no result needs are removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import FunctionKey, Node
from ..ir.module import Module
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import ANY, RuleDriver, Rules, rule
from .foreign import is_erasable
from .infra import Pass, PassContext
from .keeping import kept_nodes


@dataclass(frozen=True)
class DeadCodeElimination(Pass):
    """Remove operators, constants and functions that no result needs.

    1. An operator that ONNX specifies is removed if nothing reads its results, unless it draws
       random numbers. Control flow is removed if that holds for every operator in its bodies.
       Operators of other domains stay.
    2. Constants and initializers that nothing reads are removed, except those that training may
       change and those that a quantization_annotation refers to.
    3. Functions that no call in the main graph reaches are removed.
    """

    name: ClassVar[str] = "DeadCodeElimination"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        driver = RuleDriver(rewriter, RULES, module)
        for graph in module.top_graphs():
            # Readers before producers: a whole chain of dead operators is gone after one round.
            nodes = list(graph.walk()) if graph.has_regions else graph.nodes()
            if any([not (node.outputs and node.outputs[0].users) for node in nodes]):
                driver.run(
                    node for node in reversed(nodes) if not (node.is_read or node.op == "return")
                )
        return drop_unused_functions(rewriter) or rewriter.changed


@rule(affine="merges")
def erase_without_effect(node: Node, rewriter: Rewriter, module: Module) -> bool:
    """op(x) -> nothing, if nothing reads a result"""
    if node.op == "return" or node.is_read:
        return rewriter.decline("a result of it is read")
    if node.op == "constant" and node.output.name in module.notes.annotating:
        return rewriter.decline("a quantization_annotation refers to it")
    if not is_erasable(node, module):
        return rewriter.decline("it may have an effect beyond its results")
    rewriter.erase(node)
    return True


def drop_unused_functions(rewriter: Rewriter) -> bool:
    """Remove functions that no call reaches; return whether there were any. O(nodes).

    A function in the default domain stays: it may define an operator that the reader imported from
    the op table, so that no call is visible here. A function with a node that is kept stays as
    well.
    """
    module = rewriter.module
    if not module.functions:
        return False
    reached: set[FunctionKey] = set()
    waiting = [module.graph]
    while waiting:
        for node in waiting.pop().walk():
            domain, _, name = node.op.partition("::")
            key = (domain, name, node.overload)
            if key in module.functions and key not in reached:
                reached.add(key)
                waiting.append(module.functions[key].graph)
    unused = [key for key in module.functions if key not in reached and key[0]]
    if kept := kept_nodes(module).operators:
        unused = [
            key for key in unused if kept.keys().isdisjoint(module.functions[key].graph.walk())
        ]
    for key in unused:
        if not rewriter.debug_counter.exhausted:
            with rewriter.step("drop_unused_functions", f"function {'::'.join(key[:2])}"):
                rewriter.erase_function(key)
    return bool(unused)


RULES: Rules[Module] = {"constant": (erase_without_effect,), ANY: (erase_without_effect,)}
"""The rules for each operator."""
