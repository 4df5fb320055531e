"""Rules for Gathers of single indices after a Transpose: they index the data before it."""

from __future__ import annotations

from math import prod

from ...ir.graph import Node
from ...ir.matching import result_of
from ...ir.ops import ops_with
from ...ir.ops.inference import integer_of
from ...ir.ops.reshaping import permutation
from ...ir.ops.row import Trait
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.types import shape_of
from .rules import int_vector


@rule(
    affine="untouched",
    reads=("transpose",),
    identity=(
        "take(transpose(x, p), i, a) == take(x, i, p[a]) if is_scalar(i) and in_order(without(p,"
        " p[a]))"
    ),
)
def take_of_transpose(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """take(transpose(x, p), i, axis) -> take(x, i, p[axis]), if i keeps the axes in order"""
    transpose = result_of(node.operand(), "transpose")
    perm = permutation(transpose)
    if not perm or not _is_scalar(node):
        return rewriter.decline("its data is of unknown rank, or its index is not a scalar")
    axis = integer_of(node, "axis", 0)
    if not -len(perm) <= axis < len(perm):
        return rewriter.decline("its axis is out of range")
    chosen = perm[axis % len(perm)]
    others = [a for a in perm if a != chosen]
    if others != sorted(others):
        return rewriter.decline("the Transpose changes the order of the other axes")
    rewriter.set_inputs(node, [transpose.operand(), node["indices"]])
    rewriter.set_attr(node, "axis", chosen)
    return True


@rule(
    affine="untouched",
    reads=("transpose",),
    identity=(
        "take(reshape(transpose(reshape(x, m), p), [m[p[0]], *w]), i, 0) == "
        "take(reshape(x, placed(m[p[0]], w, prod(m[:p[0]]))), i, cut(w, prod(m[:p[0]]))) "
        "if in_order(p[1:]) and has_cut(w, prod(m[:p[0]]))"
    ),
)
def take_of_shuffle(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(transpose(reshape(x)))[i] -> reshape(x)[..., i, ...], as in ShuffleNet"""
    transpose = result_of(node.operand(), "transpose", only_for=node)
    first = result_of(transpose.operand(), *_RESHAPES, only_for=transpose)
    takes = list(node.output.users)
    if not takes or not all(_is_first_axis(take, node) for take in takes):
        return rewriter.decline(
            "it is read by an operator that is no Gather of one index along axis 0"
        )
    inner, result = _static(first), _static(node)
    perm = permutation(transpose) or ()
    if not perm or sorted(perm) != list(range(len(inner))) or list(perm[1:]) != sorted(perm[1:]):
        return rewriter.decline("the Transpose does not move one axis to the front")
    axis, count = perm[0], inner[perm[0]]
    if result[:1] != (count,):
        return rewriter.decline("the Reshape divides the axis that the Transpose moves")
    # x is seen as [before, count, after]. Index i of the middle is [before, after], whose extents
    # `result` lists.
    before, rest = prod(inner[:axis]), result[1:]
    cut = next((i for i in range(len(rest) + 1) if prod(rest[:i]) == before), None)
    if cut is None:
        return rewriter.decline("the result joins elements before and after the axis")
    target = (*rest[:cut], count, *rest[cut:])
    source = first.operand()
    shape = int_vector(target, first, rewriter, "shape")
    made = rewriter.make("reshape", [source, shape], before=first, hint=first.output.name)
    for take in takes:
        rewriter.set_attr(take, "axis", cut)
        rewriter.set_inputs(take, [made.output, take["indices"]])
    return True


def _is_scalar(take: Node) -> bool:
    index = take["indices"]
    return index is not None and shape_of(index.type) == ()


def _is_first_axis(take: Node, node: Node) -> bool:
    """Return whether `take` is a Gather of one index along axis 0 of the result of `node`."""
    if take.op != "take" or take.graph is not node.graph:
        return False
    if take["data"] is not node.output or not _is_scalar(take):
        return False
    shape = shape_of(node.output.type)
    if take["indices"] is node.output:
        return False
    return integer_of(take, "axis", 0) in (0, -len(shape or ()))


def _static(node: Node) -> tuple[int, ...]:
    """Return the shape of the result of `node`, whose extents must be numbers above 0."""
    shape = shape_of(node.output.type)
    dims = tuple(dim for dim in shape or () if isinstance(dim, int) and dim > 0)
    if shape is None or len(dims) != len(shape):
        raise Declined("a shape is not static, or an extent is 0")
    return dims


_RESHAPES = ops_with(Trait.RESHAPES)

RULES: Rules[ShapeEvaluator] = {"reshape": (take_of_shuffle,), "take": (take_of_transpose,)}
"""The rules for each operator, in the order in which they are tried."""
