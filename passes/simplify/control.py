"""Branches that are decided at compile time."""

from __future__ import annotations

from ...ir.attributes import RegionRef
from ...ir.graph import Graph, Node, Value
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from .extents import ShapeEvaluator


@rule(affine="untouched")
def inline_branch(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """if(c) {a} else {b} -> a, or b, where c is a constant"""
    condition = evaluator.array(node.input(0))
    branches = [_region(node, name) for name in ("then_branch", "else_branch")]
    if condition is None or condition.size != 1 or None in branches or len(node.inputs) != 1 or node.graph is None:
        return rewriter.decline("its condition is no constant")
    taken = branches[0] if condition.ravel()[0] else branches[1]
    assert taken is not None
    results = taken.outputs
    if len(results) != len(node.outputs):
        return rewriter.decline("its branch has another number of results")
    for inner in taken:
        for value in inner.outputs:
            value.name = rewriter.module.fresh_name(value.name) if value.name else ""
    node.graph.splice(taken, node)
    taken.return_.set_inputs(())
    for old, new in zip(node.outputs, results, strict=True):
        stand_in(old, new, rewriter, before=node)
    if node.graph is not None:
        rewriter.erase(node)
    rewriter.changed = True
    return True


def _region(node: Node, name: str) -> Graph | None:
    reference = node.attrs.get(name)
    return node.regions[reference.index] if isinstance(reference, RegionRef) else None


def stand_in(old: Value, new: Value, rewriter: Rewriter, *, before: Node) -> None:
    """Let every reader of `old` read `new`, which takes over its name where it is computed in the same graph; where
    the interface wants a value of its own there, an `identity` in front of `before` makes one.
    """
    if not old.users:
        return
    own = new.node is not None and old.node is not None and new.node.graph is old.node.graph
    if not rewriter.forward(old, new):
        copy = rewriter.make("identity", [new], before=before, hint=old.name, type_=old.type)
        rewriter.replace(old, copy.output, take_name=True)
    elif own and new.node is not None and new.node.op not in ("constant", "variable") and not new.is_returned:
        new.name = old.name


RULES: Rules[ShapeEvaluator] = {"::If": (inline_branch,), "ai.onnx::If": (inline_branch,)}
"""The rules for each operator."""
