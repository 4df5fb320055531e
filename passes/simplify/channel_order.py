"""Rules for channels in another order, which the weights of the next layer take."""

from __future__ import annotations

from ...ir.graph import Node, producer_of
from ...ir.matching import check_only_reader, elements, known_shape, result_of
from ...ir.ops.inference import integer_of
from ...ir.ops.reshaping import permutation
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.tensor import Array
from ...ir.types import Dim, shape_of
from .layout import inverse
from .rules import int_vector, substitute


@rule(
    affine="untouched",
    reads=("take", "transpose"),
    identity=(
        "conv(take(x, i, 1), w, b, 1, d, p) == conv(x, take(w, inverse(i), 1), b, 1, d, p) if"
        " is_order(i, x.shape[1]);"
        " conv(transpose(take(x, i, q[1]), q), w, b, 1, d, p) =="
        " conv(transpose(x, q), take(w, inverse(i), 1), b, 1, d, p) if is_order(i, x.shape[q[1]])"
    ),
)
def order_into_conv(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """conv(take(x, i, axis=1), w) -> conv(x, take(w, inverse of i, axis=1)), as for BGR and RGB"""
    data, reader, axis = node.operand(), node, 1
    moved = producer_of(data, "transpose")
    if moved is not None:
        check_only_reader(data, node)
        perm = permutation(moved) or ()
        if len(perm) < 2:
            return rewriter.decline("the rank of the data of the Transpose is unknown")
        data, reader, axis = moved.operand(), moved, perm[1]
    take = result_of(data, "take", only_for=reader)
    shape = known_shape(take.operand())
    places, weight = elements(take["indices"], evaluator), node["weight"]
    if integer_of(take, "axis", 0) not in (axis, axis - len(shape)):
        return rewriter.decline("it takes no channels")
    order = _order(places, shape[axis])
    extents = shape_of(weight.type)
    if integer_of(node, "group", 1) != 1 or extents is None or extents[1:2] != (len(order),):
        return rewriter.decline("the channels are in groups, or as many as the layer does not read")
    if not evaluator.is_constant(weight) or weight.sole_user() is not node:
        return rewriter.decline("the weight is not constant, or has other readers")
    indices = int_vector(inverse(order), node, rewriter, "order")
    made = rewriter.make(
        "take", [weight, indices], {"axis": 1}, before=node, hint=weight.name, type_=weight.type
    )
    source = take.operand()
    if reader is not node:  # its result has the channels in another order, and another name
        attrs, hint = {"perm": permutation(reader) or ()}, reader.output.name
        source = rewriter.make("transpose", [source], attrs, before=node, hint=hint).output
    rewriter.set_inputs(node, [source, made.output, *node.inputs[2:]])
    return True


@rule(affine="untouched", identity="gather_nd(x, i) == take(x, i, 0)")
def gather_rows(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """gather_nd(x, [[2], [0]]) -> take(x, [2, 0], axis=0), as dynamo writes x[:, [2, 0]]"""
    places, extents = elements(node["indices"], evaluator), known_shape(node.operand())
    if places.ndim != 2 or places.shape[1] != 1 or node.attrs.get("batch_dims", 0):
        return rewriter.decline("its indices are no list of single rows")
    count = extents[0] if extents and isinstance(extents[0], int) else 0
    if not ((-count <= places) & (places < count)).all():  # GatherND of empty rows takes any
        return rewriter.decline("a row may be out of range")
    rows = int_vector(places.ravel().tolist(), node, rewriter, "rows")
    return substitute(node, rewriter, "take", [node.operand(), rows], {"axis": 0})


def _order(places: Array, extent: Dim) -> tuple[int, ...]:
    """Return the order in which all channels are taken. Declines if one is not, or is twice."""
    order = tuple((places % max(places.size, 1)).tolist()) if places.ndim == 1 else ()
    if not order or extent != len(order) or sorted(order) != list(range(len(order))):
        raise Declined("it takes no channel once and each of them")
    return order


RULES: Rules[ShapeEvaluator] = {"gather_nd": (gather_rows,), "nn.conv": (order_into_conv,)}
"""The rule for each operator."""
