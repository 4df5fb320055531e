"""Rules for Concat, Split and Slice in a row."""

from __future__ import annotations

from ...ir.graph import Node, Value, producer_of
from ...ir.matching import is_only_reader, result_of
from ...ir.ops.inference import integer_of
from ...ir.ops.views import slices_of
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.types import shape_of
from .rules import int_vector, substitute


@rule(
    affine="untouched",
    identity=(
        "concat([concat([x, y], a), z], b) == concat([x, y, z], a) if a % rank(x) == b % rank(x)"
    ),
)
def merge_concatenations(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """concat(concat(x, y), z) -> concat(x, y, z), along one axis"""
    found: list[Value | None] = []
    for value in node.inputs:
        inner = producer_of(value, "concatenate")
        is_inner = inner is not None and is_only_reader(value, node)
        if inner is None or not is_inner or not _same_axis(node, _concat_axis(inner)):
            found.append(value)
        else:
            found.extend(inner.inputs)
    if len(found) == len(node.inputs):
        return rewriter.decline(
            "no operand is the result of a Concat along the same axis without other readers"
        )
    rewriter.set_inputs(node, found)
    return True


@rule(
    affine="untouched",
    identity="concat(split(x, n, a), b) == x if a % rank(x) == b % rank(x); "
    "concat([*split(x, n, a), y], b) == concat([x, y], b) if a % rank(x) == b % rank(x)",
)
def concat_of_split(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """concat(split(x)) -> x, if the parts are all of x, in order, along one axis"""
    inputs = list(node.inputs)
    for start, value in enumerate(inputs):
        split = producer_of(value, "split")
        if split is None or tuple(inputs[start : start + len(split.outputs)]) != split.outputs:
            continue
        if _same_axis(node, integer_of(split, "axis", 0)):
            inputs[start : start + len(split.outputs)] = [split["data"]]
            break
    else:
        return rewriter.decline("its operands are not all parts of a Split along the same axis")
    if len(inputs) == 1:
        return rewriter.forward(node.output, split.operand())
    rewriter.set_inputs(node, inputs)
    return True


def _concat_axis(node: Node) -> int:
    return integer_of(node, "axis", 1)  # the default of opset 1; later opsets require the attribute


def _same_axis(node: Node, axis: int) -> bool:
    """Return whether `node` is a Concat along `axis` of data of the rank of its result."""
    own, shape = _concat_axis(node), shape_of(node.output.type)
    return own == axis or bool(shape and own % len(shape) == axis % len(shape))


@rule(
    affine="untouched",
    reads=("strided_slice",),
    identity=(
        "slice(slice(x, b, e, a, d), f, g, a, h) == slice(x, *composed(b, e, d, f, g, h,"
        " extent, a))"
    ),
)
def merge_slices(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """x[a:b][c:d] -> x[a+c : min(b, a+d)]; slices of different axes become one, too"""
    producer = result_of(node.operand(), "strided_slice", only_for=node)
    first, second = slices_of(producer, evaluator), slices_of(node, evaluator)
    if not first or not second:
        return rewriter.decline("starts, ends, axes or steps are not constant")
    data = producer.operand()
    shape = shape_of(data.type)
    if shape is None and min(*first, *second) < 0:
        return rewriter.decline("an axis counts from the end of an unknown rank")
    merged = {**first, **second}
    for axis in first.keys() & second.keys():
        extent = None if shape is None else shape[axis]
        merged[axis] = _composed(
            first[axis], second[axis], extent if isinstance(extent, int) else None
        )
    axes = sorted(merged)
    parts = [merged[axis] for axis in axes]
    lists = {
        "starts": [part.start for part in parts],
        "ends": [part.stop for part in parts],
        "axes": axes,
        "steps": [part.step for part in parts],
    }
    if set(lists["steps"]) == {1}:
        del lists["steps"]
    operands = [int_vector(items, node, rewriter, name) for name, items in lists.items()]
    return substitute(node, rewriter, "strided_slice", [data, *operands])


def _composed(first: slice, second: slice, extent: int | None) -> slice:
    """Compose two slices: `second` of the result of `first`."""
    (a, b, step), (c, d, pace) = ((each.start, each.stop, each.step) for each in (first, second))
    if step > 0 and pace > 0 and extent is not None:
        chosen = range(extent)[first][second]
        return slice(chosen.start, chosen.stop, chosen.step) if chosen else slice(0, 0, 1)
    # Every bound counts from the beginning, and is clamped to the extent: an element is in both, or
    # in neither.
    if step == 1 and pace > 0 and min(a, b, c, d) >= 0 and a + c < 1 << 63:
        return slice(a + c, min(b, a + d), pace)
    raise Declined("both slice one axis, and a bound counts from its end, which is unknown")


RULES: Rules[ShapeEvaluator] = {
    "concatenate": (merge_concatenations, concat_of_split),
    "strided_slice": (merge_slices,),
}
"""The rules for each operator, in the order in which they are tried."""
