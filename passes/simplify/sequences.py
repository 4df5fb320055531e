"""Rules for sequences of tensors, which the operator table does not list."""

from __future__ import annotations

from ...ir.attributes import Attribute
from ...ir.graph import Node
from ...ir.matching import elements, result_of
from ...ir.ops.inference import integer_of
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.tensor import Array
from ...ir.types import I64, dtype_of, shape_of
from .rules import int_vector, substitute

MAX_PARTS = 1024
"""Parts of the longest sequence that is rewritten."""


@rule(
    affine="untouched",
    identity="part_of_sequence(x, n, a, k) == split(x, sizes(n, x.shape[a]), a)[k]",
)
def sequence_to_split(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """split_to_sequence(x)[i], ... -> split(x), if all readers take a part by constant"""
    sizes, count = _part_sizes(node, evaluator)
    parts = [(reader, _index_of(reader, node, count, evaluator)) for reader in node.output.users]
    twice = len({i for _, i in parts}) < len(parts)
    if not parts or (twice and any(reader.output.is_returned for reader, _ in parts)):
        return rewriter.decline("nobody reads it, or one part is more than one result of the graph")
    data, axis = node.operand(), integer_of(node, "axis", 0)
    attrs: dict[str, Attribute] = {"axis": axis} if axis else {}
    listed = int_vector(sizes, node, rewriter, "split") if sizes else node.operand(1)
    split = rewriter.make(
        "split",
        [data, listed],
        attrs,
        before=node,
        hint=node.output.name,
        name=node.name,
        results=count,
    )
    for reader, i in parts:
        rewriter.replace(reader.output, split.outputs[i], take_name=True, heir=split)
    rewriter.erase(node, heir=split)
    return True


def _index_of(reader: Node, node: Node, count: int, evaluator: ShapeEvaluator) -> int:
    """Return the constant index of a SequenceAt in a sequence of `count` parts."""
    index = evaluator.array(reader.input(1)) if reader.op == "::SequenceAt" else None
    if index is None or index.size != 1 or not -count <= int(index.ravel()[0]) < count:
        raise Declined("a reader is no SequenceAt with a constant index in range")
    if reader.graph is not node.graph:
        raise Declined("a reader is in the body of another operator")
    return int(index.ravel()[0]) % count


def _part_sizes(node: Node, evaluator: ShapeEvaluator) -> tuple[list[int], int]:
    """Return the extents of the parts of a SplitToSequence that keeps the axis, and their number.

    There are none of parts whose sizes a vector lists at run time. They must add up to the extent,
    as those of a Split.
    """
    pieces = evaluator.pieces(node.input(1))
    if pieces is not None and pieces.ndim == 1 and evaluator.array(node.input(1)) is None:
        if not 0 < len(pieces) <= MAX_PARTS or dtype_of(node.operand(1).type) is not I64:
            raise Declined(_UNKNOWN_SIZES)
        return [], len(pieces)
    shape, axis = shape_of(node.operand().type), integer_of(node, "axis", 0)
    extent = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if not isinstance(extent, int):
        raise Declined(_UNKNOWN_SIZES)
    if node.input(1) is not None:
        sizes = _sizes_of(elements(node.input(1), evaluator), extent)
    else:  # parts of one element each; without `keepdims` they lose the axis
        sizes = [1] * extent if integer_of(node, "keepdims", 1) and extent <= MAX_PARTS else []
    if not sizes or min(sizes) < 0 or sum(sizes) != extent:
        raise Declined(_UNKNOWN_SIZES)
    return sizes, len(sizes)


_UNKNOWN_SIZES = "the sizes of its parts are unknown"


def _sizes_of(split: Array, extent: int) -> list[int]:
    """Return the sizes in the operand `split`: each, or one for all but a shorter last part."""
    if split.ndim > 1 or split.dtype.kind not in "iu" or split.size > MAX_PARTS:
        raise Declined(_UNKNOWN_SIZES)
    if split.ndim == 1:
        return [int(size) for size in split]
    part = int(split)
    if part <= 0 or extent > part * MAX_PARTS:
        raise Declined(_UNKNOWN_SIZES)
    return [min(part, extent - start) for start in range(0, extent, part)]


@rule(affine="untouched")
def concat_of_sequence(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """concat_from_sequence(sequence(x, y)) -> concat(x, y)"""
    sequence = result_of(node.operand(), "::SequenceConstruct")
    if integer_of(node, "new_axis", 0) or "axis" not in node.attrs:
        return rewriter.decline("it adds an axis")
    axis: dict[str, Attribute] = {"axis": node.attrs["axis"]}
    return substitute(node, rewriter, "concatenate", sequence.inputs, axis)


RULES: Rules[ShapeEvaluator] = {
    "::ConcatFromSequence": (concat_of_sequence,),
    "::SplitToSequence": (sequence_to_split,),
}
"""The rules for each operator."""
