"""Rules for If nodes of which one branch is taken, and Loops that run once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.attributes import RegionRef
from ...ir.graph import Graph, Node, Value
from ...ir.loops import runs_of
from ...ir.matching import elements
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.tensor import ArrayTensor
from ...ir.type_inference import infer_types, merged
from ...ir.types import shape_of
from .impossible_ranks import must_fail
from .rules import int_vector


@rule(
    affine="untouched", identity="branch(c, x, y) == x if all(c); branch(c, x, y) == y if none(c)"
)
def inline_branch(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """if(c) {a} else {b} -> a, or b, if c is a constant"""
    condition = elements(node.input(0), evaluator)
    if condition.size != 1:
        return rewriter.decline("its condition is not one element")
    return _inline(
        node, _region(node, "then_branch" if condition.ravel()[0] else "else_branch"), rewriter
    )


@rule(affine="untouched")
def inline_possible_branch(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """if(c) {a} else {b} -> a, if every run that takes b fails, as of an LSTM by its rank"""
    if node.graph is None or rewriter.module.graph not in node.graph.ancestors():
        return rewriter.decline(
            "it is in a function, of which a caller may not need the result that fails"
        )
    branches = [_region(node, name) for name in ("then_branch", "else_branch")]
    for results in zip(node.outputs, *[branch.outputs for branch in branches], strict=False):
        ranks = [_rank(value, evaluator) for value in results[1:]]
        if None in ranks or ranks[0] == ranks[1]:
            continue
        fails = [rank is not None and must_fail(results[0], rank, evaluator) for rank in ranks]
        if fails[0] != fails[1]:
            return _inline(node, branches[fails[0]], rewriter)
    return rewriter.decline("both branches may be taken, as far as ranks tell")


def _rank(result: Value, evaluator: ShapeEvaluator) -> int | None:
    """Return the rank of a result of a branch, None if it is unknown.

    Types inside may be older than those outside.
    """
    if shape_of(result.type) is None and result.node is not None:
        for inner in result.graph:
            infer_types(inner, evaluator)
    shape = shape_of(result.type)
    return None if shape is None else len(shape)


def _inline(node: Node, taken: Graph, rewriter: Rewriter) -> bool:
    """Replace an If by the nodes of the branch that is `taken`."""
    if len(node.inputs) != 1:
        return rewriter.decline("it reads more than its condition")
    results = taken.outputs
    if len(results) != len(node.outputs):
        return rewriter.decline("its branch and the If node have different numbers of outputs")
    _splice(node, taken, rewriter)
    return _replace_results(node, results, rewriter)


def _splice(node: Node, body: Graph, rewriter: Rewriter) -> None:
    """Move the nodes of a body before `node`; decline if one of them is kept."""
    kept = next((inner for inner in body.walk() if inner.is_hidden), None)
    if kept is not None or node.graph is None:
        raise Declined("it is erased" if kept is None else f"{kept.description} in it is kept")
    # A name in a body may also name a value of the outer graph.
    for inner in body:
        for value in inner.outputs:
            if value.name:
                value.rename(rewriter.module.fresh_name(value.name))
    node.graph.splice(body, node)
    body.return_.set_inputs(())


def _replace_results(node: Node, results: Sequence[Value], rewriter: Rewriter) -> bool:
    for old, new in zip(node.outputs, results, strict=True):
        stand_in(old, new, rewriter, before=node)
    if node.graph is not None:
        rewriter.erase(node)
    rewriter.changed = True
    return True


@rule(affine="untouched")
def inline_iteration(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """loop(1, c, x) {body} -> body, if the body certainly runs once; x if it never runs"""
    body, carried = _region(node, "body"), node.inputs[2:]
    results = body.outputs[1:]
    if len(body.inputs) != len(node.inputs) or len(body.outputs) != 1 + len(node.outputs):
        return rewriter.decline("its body and the Loop node have different numbers of values")
    count = runs_of(node, evaluator)
    if count not in (0, 1):
        return rewriter.decline("it may run more than once, or never")
    starts = [value for value in carried if value is not None]
    scanned = [value for value in node.outputs[len(carried) :] if value.users]
    if len(starts) < len(carried) or len(scanned) > 1 - (count == 0):
        return rewriter.decline("a state is absent, or results of its iterations are concatenated")
    if count == 0:
        return _replace_results(node, [*starts, *node.outputs[len(carried) :]], rewriter)
    _splice(node, body, rewriter)
    given = dict(zip(body.inputs[2:], starts, strict=True))
    for item, value in zip((np.int64(0), np.bool_(True)), body.inputs, strict=False):
        if value.users or value in results:
            first = ArrayTensor(np.asarray(item))
            given[value] = rewriter.constant(first, before=node, hint=value.name)
    for old, new in given.items():
        rewriter.replace(old, new)
    ends = [given.get(value, value) for value in results]
    for i, value in enumerate(node.outputs[len(carried) :], len(carried)):
        if value.users:
            axis = int_vector([0], node, rewriter, "axes")
            ends[i] = rewriter.make("expand_dims", [ends[i], axis], before=node).output
    return _replace_results(node, ends, rewriter)


def _region(node: Node, name: str) -> Graph:
    reference = node.attrs.get(name)
    if not isinstance(reference, RegionRef):
        raise Declined(f"it has no {name}")
    return node.regions[reference.index]


def stand_in(old: Value, new: Value, rewriter: Rewriter, *, before: Node) -> None:
    """Replace every use of `old` by `new`, which takes over the known type.

    `new` takes the name of `old` if both are computed in the same graph. An output of a graph may
    not be an input, a constant or another output: then an `identity` before the node `before`
    computes it from `new`.
    """
    if not old.users:
        return
    new.type = merged(new.type, old.type)
    same_graph = new.node is not None and old.node is not None and new.node.graph is old.node.graph
    if not rewriter.forward(old, new):
        copy = rewriter.make("identity", [new], before=before, hint=old.name, type_=old.type)
        rewriter.replace(old, copy.output, take_name=True)
    elif same_graph and new.node is not None and _may_be_renamed(new, new.node):
        new.take_name(old)


def _may_be_renamed(value: Value, node: Node) -> bool:
    return node.op not in ("constant", "variable") and not value.is_returned and not node.is_hidden


RULES: Rules[ShapeEvaluator] = {
    "::If": (inline_branch, inline_possible_branch),
    "::Loop": (inline_iteration,),
}
"""The rules for each operator, in the order in which they are tried."""
