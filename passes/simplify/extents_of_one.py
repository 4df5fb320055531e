"""Rules for axes of extent 1: moving, adding or dropping them keeps elements in order."""

from __future__ import annotations

from ...ir.extents import Extent
from ...ir.graph import Node
from ...ir.matching import result_of
from ...ir.ops import ops_with
from ...ir.ops.inference import are_distinct, integer_of, listed, normal_axes
from ...ir.ops.reshaping import permutation
from ...ir.ops.row import Trait
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator, piece_of
from ...ir.types import shape_of
from ..affine.units.attention import is_of_mask
from .rules import int_vector, substitute
from .shape_arithmetic import MASK, become_reshape, wanted_extents


def keeps_order(node: Node) -> bool:
    """Return whether a `transpose` moves axes of extent 1 only, and so no element."""
    perm, shape = permutation(node), shape_of(node.operand().type)
    if perm is None or shape is None or len(perm) != len(shape):
        return False
    longer = [axis for axis in perm if shape[axis] != 1]
    return longer == sorted(longer)


@rule(
    affine="untouched",
    reads=("transpose",),
    identity="reshape(transpose(x, p), n) == reshape(x, n) if keeps_order(p, x.shape)",
)
def reshape_of_transpose(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(transpose(x, p), s) -> reshape(x, s), if p moves axes of extent 1 only"""
    middle = node.operand()
    transpose = result_of(middle, "transpose")
    perm = permutation(transpose)
    if perm is None or not keeps_order(transpose):
        return rewriter.decline(
            "its data is not the result of a Transpose that moves axes of extent 1 only"
        )
    wanted, data = wanted_extents(node, evaluator), transpose.operand()
    sources = {piece_of(middle, i): piece_of(data, axis) for i, axis in enumerate(perm)}
    pieces = [sources.get(piece, piece) if isinstance(piece, Extent) else piece for piece in wanted]
    return become_reshape(node, rewriter, transpose, pieces)


@rule(
    affine="untouched",
    reads=ops_with(Trait.RESHAPES),
    identity="transpose(reshape(x, n), p) == reshape(x, permuted(n, p)) if keeps_order(p, n)",
)
def transpose_of_reshape(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """transpose(reshape(x, s), p) -> reshape(x, s[p]), if p moves axes of extent 1 only"""
    perm = permutation(node)
    reshape = result_of(node.operand(), *ops_with(Trait.RESHAPES), only_for=node)
    if perm is None or not keeps_order(node):
        return rewriter.decline("it moves axes of more than one element")
    wanted = wanted_extents(reshape, evaluator)
    if len(perm) != len(wanted):
        return rewriter.decline("the Reshape before it has another rank than its declared shape")
    return become_reshape(node, rewriter, reshape, [wanted[axis] for axis in perm])


@rule(
    affine="untouched",
    identity=(
        "take(x, [i], a) == x if x.shape[a] == 1; take(x, i, a) == squeeze(x, [a]) if x.shape[a]"
        " == 1"
    ),
)
def take_all(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """take(x, [0]) -> x, take(x, 0) -> squeeze(x), along an axis of extent 1"""
    data, indices = node.operand(), evaluator.array(node["indices"])
    shape, axis = shape_of(data.type), integer_of(node, "axis", 0)
    if shape is None or not -len(shape) <= axis < len(shape) or shape[axis] != 1:
        return rewriter.decline("its axis has an extent other than 1, or an unknown one")
    is_one = indices is not None and indices.size == 1 and indices.ndim <= 1
    if indices is None or not is_one or int(indices.ravel()[0]) not in (0, -1):
        return rewriter.decline("its index is not a constant, or not one index")
    if indices.ndim == 1:
        return rewriter.forward(node.output, data)
    axis %= len(shape)
    return substitute(node, rewriter, "squeeze", [data, int_vector([axis], node, rewriter, "axes")])


@rule(
    affine="untouched",
    reads=("squeeze", "expand_dims"),
    identity=(
        "unsqueeze(squeeze(x, a), b) == x if axes(a, rank(x)) == axes(b, rank(x)) and are_normal(b,"
        " rank(x)); squeeze(unsqueeze(x, a), b) == x if axes(a, rank(x) + len(a)) == axes(b,"
        " rank(x) + len(a))"
    ),
)
def drop_inverse(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """unsqueeze(squeeze(x, a), a) -> x, squeeze(unsqueeze(x, a), a) -> x, of any shape"""
    producer = node.operand().node
    if producer is None or {node.op, producer.op} != {"squeeze", "expand_dims"}:
        return rewriter.decline("it is no Squeeze after an Unsqueeze, nor the reverse")
    # Both lists count axes of the longer shape: of the data of the Squeeze, of the result of the
    # Unsqueeze.
    longer = producer.operand() if producer.op == "squeeze" else producer.output
    inner, outer = (listed(each, "axes", evaluator) for each in (producer, node))
    if not inner or not outer:
        return rewriter.decline("their axes are not given, or not constant")
    shape = shape_of(longer.type)
    if shape is not None:
        # The axes that the Unsqueeze adds have to be axes of that shape too, and different there: 1
        # and -2 are one axis of rank 3, and two that it adds to rank 2.
        gone, added = (inner, outer) if node.op == "expand_dims" else (outer, inner)
        equal = set(normal_axes(added, len(shape)) or ()) == {axis % len(shape) for axis in gone}
    # a Squeeze may list an axis twice, once from either end: it removes one then, where Unsqueeze
    # adds two
    else:
        have_same = sorted(inner) == sorted(outer)
        equal = have_same and (producer.op == "expand_dims" or are_distinct(inner))
    if equal:
        return rewriter.forward(node.output, producer.operand())
    return rewriter.decline("their axes differ")


@rule(
    affine="untouched",
    reads=("squeeze", "expand_dims"),
    identity=(
        "unsqueeze(unsqueeze(x, a), b) == unsqueeze(x, both_axes(b, a, rank(x) + len(a) + len(b)));"
        " squeeze(squeeze(x, a), b) == squeeze(x, both_axes(a, b, rank(x)))"
    ),
)
def merge_axes(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """unsqueeze(unsqueeze(x, a), b) -> unsqueeze(x, a and b); squeeze likewise"""
    producer = result_of(node.operand(), node.op, only_for=node)
    if node.op == "expand_dims" and is_of_mask(node, evaluator):
        return rewriter.decline(MASK)
    inner, outer = (listed(each, "axes", evaluator) for each in (producer, node))
    shape = shape_of(producer.operand().type)
    if not inner or not outer or shape is None:
        return rewriter.decline("their axes are not given, or the rank is unknown")
    # Axes count in the longest shape: the last one of two Unsqueezes, the first one of two
    # Squeezes.
    longest, near, far = len(shape), inner, outer
    if node.op == "expand_dims":
        longest, near, far = len(shape) + len(inner) + len(outer), outer, inner
    taken = normal_axes(near, longest)
    free = [axis for axis in range(longest) if axis not in (taken or ())]
    others = normal_axes(far, len(free))
    if taken is None or others is None:
        return rewriter.decline("an axis is out of range, or given twice")
    axes = sorted([*taken, *(free[axis] for axis in others)])
    return substitute(
        node, rewriter, node.op, [producer.operand(), int_vector(axes, node, rewriter, "axes")]
    )


_OF_AXES = ("expand_dims", "squeeze")
_OTHERS = [op for op in ops_with(Trait.RESHAPES) if op not in _OF_AXES]

RULES: Rules[ShapeEvaluator] = {
    **dict.fromkeys(_OTHERS, (reshape_of_transpose,)),
    **dict.fromkeys(_OF_AXES, (drop_inverse, merge_axes, reshape_of_transpose)),
    "take": (take_all,),
    "transpose": (transpose_of_reshape,),
}
"""The rules for each operator, in the order in which they are tried."""
