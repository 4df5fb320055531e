"""Rules for reductions in a row, and for those that reduce nothing."""

from __future__ import annotations

from ...ir.graph import Node
from ...ir.matching import known_dtype, result_of
from ...ir.ops.inference import are_distinct, integer_of, listed, normal_axes
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.types import shape_of
from .rules import int_vector, substitute

_REDUCTIONS = ("sum", "mean", "max", "min", "prod")
"""Reductions of which two in a row are one over the axes of both, up to the rounding of floats."""


@rule(
    affine="untouched",
    reads=_REDUCTIONS,
    identity=(
        "keeping(keeping(x, a), b) == keeping(x, sorted(axes(a, rank(x)) | axes(b, rank(x)))); "
        "dropping(dropping(x, a), b) == dropping(x, both_axes(a, b, rank(x))); "
        "dropping(keeping(x, a), b) == dropping(x, b) if axes(a, rank(x)) <= axes(b, rank(x))"
    ),
)
def merge_reductions(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reduce(reduce(x, a), b) -> reduce(x, a and b), of one kind"""
    producer = result_of(node.operand(), node.op, only_for=node)
    dtype = known_dtype(node.output)
    # Sums and products of integers wrap, in any order.
    if node.op == "mean" and (not dtype.is_float or dtype.name == "f16"):
        return rewriter.decline(
            "it rounds integers, or the sum of more elements may be too large for f16"
        )
    # 2 * 2 * ... by 0.5 * 0.5 * ... is 1 if each pair is multiplied first, and infinite if all twos
    # are.
    if node.op == "prod" and dtype.kind not in ("int", "uint"):
        return rewriter.decline("products of floats in another order may overflow")
    shape = shape_of(producer.operand().type)
    lists = [listed(each, "axes", evaluator) for each in (producer, node)]
    is_turned = shape is None and all(axes and max(axes) < 0 for axes in lists)
    # Of data of unknown rank, axes from one end are the same for all ranks that have them.
    rank = (
        len(shape) if shape is not None else sum(max(map(abs, axes)) + 1 for axes in lists if axes)
    )
    from_one_end = [axes and (max(axes) < 0) == is_turned for axes in lists]
    are_sure = all(from_one_end) and all(axes and are_distinct(axes) for axes in lists)
    if shape is None and not are_sure:
        return rewriter.decline("the rank of its data is unknown")
    is_kept = bool(integer_of(producer, "keepdims", 1))
    first = _reduced(producer, lists[0], rank)
    left = [axis for axis in range(rank) if first is not None and (is_kept or axis not in first)]
    second = _reduced(node, lists[1], len(left))
    if first is None or second is None:
        return rewriter.decline("its axes, or those before, are not constant")
    axes = {left[axis] for axis in second}
    if is_kept != bool(integer_of(node, "keepdims", 1)) and not (is_kept and first <= axes):
        return rewriter.decline("one of the two keeps its axes, which the other would not")
    both = [axis - rank if is_turned else axis for axis in sorted(first | axes)]
    rewriter.set_inputs(node, [producer.operand(), int_vector(both, node, rewriter, "axes")])
    return True


def _reduced(node: Node, axes: tuple[int, ...] | None, rank: int) -> set[int] | None:
    """Return the axes that a reduction reduces, counted from the left; None if unknown or none."""
    if axes is None and node["axes"] is not None:
        return None
    if not axes:
        return None if integer_of(node, "noop_with_empty_axes", 0) else set(range(rank))
    found = normal_axes(axes, rank)
    return None if found is None else set(found)


@rule(
    affine="untouched",
    identity=(
        "keeping(x) == x if are_ones(x, axes); dropping(x) == squeeze(x, axes) if are_ones(x, axes)"
    ),
)
def drop_reduction(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """sum(x, axes) -> squeeze(x, axes) or x, if the axes have extent 1; likewise mean, max"""
    axes, shape = listed(node, "axes", evaluator), shape_of(node.operand().type)
    has_no_axes = not axes and (axes is not None or node["axes"] is None)
    if has_no_axes and integer_of(node, "noop_with_empty_axes", 0):
        return rewriter.forward(node.output, node.operand())
    found = None if not axes or shape is None else normal_axes(axes, len(shape))
    if not found or shape is None or any(shape[axis] != 1 for axis in found):
        return rewriter.decline("an axis has an extent other than 1, or an unknown one")
    if integer_of(node, "keepdims", 1):
        return rewriter.forward(node.output, node.operand())
    return substitute(
        node,
        rewriter,
        "squeeze",
        [node.operand(), int_vector(sorted(found), node, rewriter, "axes")],
    )


RULES: Rules[ShapeEvaluator] = dict.fromkeys(_REDUCTIONS, (drop_reduction, merge_reductions))
"""The rules for each operator, in the order in which they are tried."""
