"""Rules for Shapes of values whose shape alone is read, and for Gathers of extents."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.extents import Piece, is_same
from ...ir.graph import Node, Value
from ...ir.matching import elements, known_shape, result_of
from ...ir.ops import has_trait, is_legal
from ...ir.ops.inference import integer_of, listed, normal_axes
from ...ir.ops.reshaping import permutation
from ...ir.ops.row import Trait
from ...ir.ops.views import slices_of
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import (
    ShapeEvaluator,
    data_of_shape,
    extents_of,
    piece_of,
    read_axes,
)
from ...ir.tensor import ArrayTensor
from ...ir.types import shape_of
from .rules import MAX_BYTES, int_vector, substitute


@rule(
    affine="merges",
    identity="shape(relu(x)) == shape(x); shape(x + y) == shape(x) if repeats_nothing(y.shape, x)",
)
def shape_of_same(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """shape(op(x)) -> shape(x), if op keeps the shape and only shapes of its result are read"""
    data = node.operand()
    if data.node is None or not _only_shape_is_read(data):
        return rewriter.decline("its data is an input, or has other readers")
    is_elementwise = has_trait(data.node, Trait.ELEMENTWISE) and len(data.node.outputs) == 1
    source = data.node.operand() if is_elementwise else data_of_shape(data)
    if source is None:
        return rewriter.decline("no operand certainly has the shape of its data")
    return _read_instead(node, source, rewriter)


def _read_instead(node: Node, source: Value, rewriter: Rewriter) -> bool:
    """Let a Shape read `source`.

    The operators that computed its data go without an heir: nothing of it is in the result.
    """
    old = node.operand().node
    node.set_inputs([source])
    rewriter.changed = True
    if old is not None and not old.is_read:
        rewriter.erase(old)
    return True


def _only_shape_is_read(value: Value) -> bool:
    return all(user.op == "shape_of" for user in value.users)


@rule(
    affine="untouched",
    reads=("transpose",),
    identity="shape(transpose(x, p)) == take(shape(x), p, 0)",
)
def shape_of_transpose(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """shape(transpose(x, p)) -> take(shape(x), p), or a part, if only shapes are read"""
    transpose = result_of(node.operand(), "transpose")
    perm, data = permutation(transpose), transpose.operand()
    is_permuted = perm is not None and len(perm) == len(known_shape(data))
    if perm is None or not is_permuted or not _only_shape_is_read(transpose.output):
        return rewriter.decline(
            "the permutation is unknown, or the result of the Transpose is read"
        )
    part = perm[read_axes(node)]
    if not part:
        return rewriter.decline("it reads no extent")
    is_run = list(part) == list(range(part[0], part[0] + len(part)))
    if is_run and (len(part) == len(perm) or is_legal("shape_of", "part", node)):
        if len(part) < len(perm):
            rewriter.set_attr(node, "start", part[0])
            rewriter.set_attr(node, "end", part[0] + len(part))
        return _read_instead(node, data, rewriter)
    if transpose.output.sole_user() is not node:
        return rewriter.decline("another Shape reads the result of the Transpose")
    shape = rewriter.make("shape_of", [data], before=node, hint=f"{node.output.name}.shape")
    order = int_vector(part, node, rewriter, "order")
    return substitute(node, rewriter, "take", [shape.output, order], {"axis": 0})


@rule(
    affine="untouched",
    reads=("take",),
    identity="take(take(x, i, a), j, a) == take(x, picked(i, j), a)",
)
def merge_takes(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """take(take(x, i), j) -> take(x, i[j]), of constant indices along one axis"""
    data = node.operand()
    inner = result_of(data, "take")
    rank = len(known_shape(inner.operand()))
    axes = [integer_of(each, "axis", 0) for each in (inner, node)]
    first, second = (elements(each["indices"], evaluator) for each in (inner, node))
    are_axes = all(-rank <= axis < rank for axis in axes)
    if first.ndim != 1 or not are_axes or (axes[0] - axes[1]) % rank:
        return rewriter.decline("they take along different axes, or the first takes one index")
    if second.size and not (-len(first) <= second.min() and second.max() < len(first)):
        return rewriter.decline("an index is out of range")
    if 8 * second.size > MAX_BYTES or (rank > 1 and data.sole_user() is not node):
        return rewriter.decline("there are many indices, or the first has other readers")
    picked = ArrayTensor(np.asarray(first.astype(np.int64)[second]))
    indices = rewriter.constant(picked, before=node, hint=f"{node.output.name}.indices")
    rewriter.set_inputs(node, [inner.operand(), indices])
    return True


@rule(
    affine="untouched",
    reads=("take",),
    identity="unsqueeze(take(x, i, a), [a]) == take(x, [i], a) if is_scalar(i)",
)
def unsqueeze_of_take(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """unsqueeze(take(x, i), 0) -> take(x, [i]), if nothing reads the element without the axis"""
    take = result_of(node.operand(), "take")
    if evaluator.is_constant(node.output):
        return rewriter.decline("its result is a constant expression, which FoldConstant computes")
    index, rank = elements(take["indices"], evaluator), len(known_shape(take.operand()))
    axes, axis = listed(node, "axes", evaluator), integer_of(take, "axis", 0)
    added = None if axes is None else normal_axes(axes, rank)
    if index.ndim or added is None or added != normal_axes((axis,), rank):
        return rewriter.decline("it adds another axis, or there is more than one index")
    if any(user.op != "expand_dims" for user in take.output.users) or take.output.is_returned:
        return rewriter.decline("the Gather has other readers")
    indices = int_vector([int(index)], node, rewriter, "indices")
    return substitute(node, rewriter, "take", [take.operand(), indices], {"axis": axis})


@rule(
    affine="untouched",
    reads=("take",),
    identity="slice(take(x, i, 0), b, e, 0, d) == take(x, picked(i, selected(b, e, d, len(i))), 0)",
)
def slice_of_take(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """take(x, i)[a:b] -> take(x, i[a:b]), of constant indices of a vector"""
    inner, slices = result_of(node.operand(), "take"), slices_of(node, evaluator)
    indices = elements(inner["indices"], evaluator)
    is_list = indices.ndim == 1 and len(indices) <= MAX_BYTES // 8
    if slices is None or not is_list or len(known_shape(inner.operand())) != 1:
        return rewriter.decline(
            "it slices no few elements of a vector, or its bounds are not constant"
        )
    (part,) = slices.values()
    return substitute(
        node,
        rewriter,
        "take",
        [inner.operand(), int_vector(indices[part].tolist(), node, rewriter, "indices")],
        {"axis": 0},
    )


@rule(affine="untouched", reads=("shape_of",))
def part_of_shape(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """shape(x)[1:3] -> shape(x) {start=1, end=3}, if only parts of the shape are read"""
    shape = result_of(node.operand(), "shape_of")
    if not evaluator.may_read_parts(node) or shape.output.is_returned:
        return rewriter.decline("a Shape has no start and end, or is a result of the graph")
    parts = {user: _part_read(user, shape, evaluator) for user in shape.output.users}
    part = {"end": parts[node].stop, "start": parts[node].start}
    return substitute(node, rewriter, "shape_of", [shape.operand()], part)


def _part_read(node: Node, shape: Node, evaluator: ShapeEvaluator) -> range:
    """Return the axes in a row whose extents `node` takes of a Shape; decline others."""
    axes = range(len(known_shape(shape.operand())))[read_axes(shape)]
    is_read = node.op in ("strided_slice", "take") and node.operand() is shape.output
    slices = slices_of(node, evaluator) if is_read and node.op == "strided_slice" else None
    if slices is not None:
        found = list(axes[slices.get(0, slice(None))])
    elif is_read and node.op == "take":
        indices = elements(node["indices"], evaluator)
        if indices.ndim != 1 or any(not -len(axes) <= index < len(axes) for index in indices):
            raise Declined("a scalar is read, or an index is out of range")
        found = [axes[index] for index in indices]
    else:
        raise Declined("the whole shape is read, or a part that is not constant")
    if not found or found != list(range(found[0], found[0] + len(found))):
        raise Declined("the extents that are read are not in a row")
    return range(found[0], found[0] + len(found))


@rule(affine="untouched", reads=("shape_of", "strided_slice", "take"))
def merge_runs(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """concat(shape(x)[0:1], shape(x)[1:2], 8) -> concat(shape(x)[0:2], 8), if that is shorter"""
    pieces = [evaluator.pieces(value) for value in node.inputs]
    if any(part is None or part.ndim != 1 for part in pieces):
        return rewriter.decline("it is no list of numbers that are computed from extents")
    items: list[list[Piece]] = [part.tolist() for part in pieces if part is not None]
    for data in dict.fromkeys(map(_data_of_extents, node.inputs)):
        if data is None or shape_of(data.type) is None:
            continue
        shape = extents_of(data)
        for first, end, start, stop in _runs(items, shape):
            is_whole = stop - start == len(shape)
            if not (is_whole or evaluator.may_read_parts(node)):
                continue
            inputs = list(node.inputs)
            if _operators_saved(node, inputs[first:end]) < 1:
                continue
            part = {} if is_whole else {"end": stop, "start": start}
            made = rewriter.make(
                "shape_of", [data], part, before=node, hint=f"{node.output.name}.extents"
            ).output
            if end - first == len(inputs):
                rewriter.replace(node.output, made, take_name=True)
            else:
                rewriter.set_inputs(node, [*inputs[:first], made, *inputs[end:]])
            return True
    return rewriter.decline("its operands are not extents in a row, or are read elsewhere")


def _data_of_extents(value: Value | None) -> Value | None:
    """Return the value of which `value` is a part of the shape, None if it is something else."""
    node = None if value is None else value.node
    for _ in range(2):
        if node is not None and node.op in ("take", "strided_slice"):
            node = node.operand().node
    return node.operand() if node is not None and node.op == "shape_of" else None


def _runs(items: list[list[Piece]], shape: list[Piece]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the longest lists in a row that are consecutive extents: operands, then axes."""
    for first in range(len(items) - 1):
        for start in range(len(shape)):
            end, stop = first, start
            while end < len(items) and items[end] == shape[stop : stop + len(items[end])]:
                stop += len(items[end])
                end += 1
            if end - first > 1:
                yield first, end, start, stop


def _operators_saved(node: Node, run: list[Value | None]) -> int:
    """Return how many operators fewer there are if a Shape computes the operands `run` of Concats.

    Every Concat with this run becomes the same, so that their Shapes become one.
    """
    computed = [value for value in run if value is not None and value.node is not None]
    gone = {value for value in computed if value.node is not None and value.node.op != "constant"}
    gone = {value for value in gone if all(_has_run(user, run) for user in value.users)}
    return len(gone) + (len(run) == len(node.inputs)) - 1


def _has_run(user: Node, run: list[Value | None]) -> bool:
    """Return whether a reader of a part of `run` is a Concat that has all of it in a row, once."""
    inputs = list(user.inputs)
    if user.op != "concatenate" or any(inputs.count(value) > run.count(value) for value in run):
        return False
    return any(inputs[i : i + len(run)] == run for i in range(len(inputs)))


@rule(affine="untouched", reads=("arange",))
def take_of_range(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """take(x, range(n)) -> x, if n is the extent of x along the axis"""
    data, numbers = node.operand(), result_of(node["indices"], "arange")
    rank, axis = len(known_shape(data)), integer_of(node, "axis", 0)
    if not -rank <= axis < rank or not _lists_all(numbers, piece_of(data, axis % rank), evaluator):
        return rewriter.decline("it may take other elements than all in order")
    return rewriter.forward(node.output, data)


@rule(affine="untouched")
def scatter_of_range(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """scatter_nd(x, unsqueeze(range(n), 1), y) -> y, if n is the first extent of x"""
    data, indices, updates = (node.operand(i) for i in range(3))
    if node.attrs.get("reduction", "none") != "none":
        return rewriter.decline("it adds or compares elements")
    shape, places, rank = known_shape(data), known_shape(indices), len(known_shape(updates))
    if len(places) != 2 or places[1] != 1 or not shape or len(shape) != rank:
        return rewriter.decline("its indices are no list of single indices")
    listed_rows, extent = evaluator.array(indices), piece_of(data, 0)
    if listed_rows is not None:
        is_whole = listed_rows.ravel().tolist() == list(range(len(listed_rows)))
        is_whole = is_whole and is_same(len(listed_rows), extent)
    else:
        numbers = result_of(result_of(indices, "expand_dims").operand(), "arange")
        is_whole = _lists_all(numbers, extent, evaluator)
    if not is_whole:
        return rewriter.decline("it may write only some rows, or some twice")
    return rewriter.forward(node.output, updates)


def _lists_all(numbers: Node, extent: Piece, evaluator: ShapeEvaluator) -> bool:
    """Return whether a Range lists the places along an axis of `extent`, in order."""
    bounds = [evaluator.pieces(value) for value in numbers.inputs]
    found = [part.item() for part in bounds if part is not None and part.size == 1]
    return len(found) == 3 and all(map(is_same, found, (0, extent, 1)))


RULES: Rules[ShapeEvaluator] = {
    "concatenate": (merge_runs,),
    "expand_dims": (unsqueeze_of_take,),
    "scatter_nd": (scatter_of_range,),
    "shape_of": (shape_of_same, shape_of_transpose),
    "take": (merge_takes, take_of_range, part_of_shape),
    "strided_slice": (slice_of_take, part_of_shape),
}
"""The rules for each operator, in the order in which they are tried."""
