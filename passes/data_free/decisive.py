"""Values that decide: clipping one changes an ArgMax, a Softmax or a comparison."""

from __future__ import annotations

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Graph, Node, Value
from ...ir.module import Module
from ...ir.ops import has_trait, op_info
from ...ir.ops.row import Trait


def decisive_values(module: Module, evaluator: ConstantEvaluator) -> set[Value]:
    """Return the values that decide. O(nodes).

    They are the results of the main graph, the data of operators with the trait DECIDES and of
    operators without a row, and the values from which these are computed, up to layers with
    constant weights, normalizations and recurrent layers: these average their data. Sums,
    concatenations, poolings, gates and attention are passed.
    """
    found: set[Value] = set()
    for graph in module.graphs():
        _collect(graph, found, evaluator)
    return found


def _collect(graph: Graph, found: set[Value], evaluator: ConstantEvaluator) -> None:
    found.update(graph.outputs)
    for node in reversed(graph.nodes()):
        if node.op == "constant" or not _passes(node, found, evaluator):
            continue
        found.update(value for value in node.inputs if value is not None)


def _passes(node: Node, found: set[Value], evaluator: ConstantEvaluator) -> bool:
    if op_info(node.op) is None or has_trait(node, Trait.DECIDES):
        return True
    if not any(value in found for value in node.outputs):
        return False
    if has_trait(node, Trait.LINEAR):
        return not any(evaluator.is_constant(value) for value in node.inputs[:2])
    return not has_trait(node, Trait.HEAVY) and not has_trait(node, Trait.ABSORBS)
