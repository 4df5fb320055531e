"""Rules for sequences of tensors, which the operator table does not list."""

from __future__ import annotations

from ...ir.attributes import Attribute
from ...ir.graph import Node
from ...ir.ops.inference import integer_of
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.types import shape_of
from .extents import ShapeEvaluator
from .rules import int_vector

MAX_PARTS = 1024
"""Parts of the longest sequence that is rewritten."""


@rule(affine="untouched")
def sequence_to_split(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """split_to_sequence(x)[i], ... -> split(x), where all readers take one part by a constant index"""
    sizes = _part_sizes(node, evaluator)
    if sizes is None:
        return rewriter.decline("the sizes of its parts are unknown")
    parts: list[tuple[Node, int]] = []
    for reader in node.output.users:
        index = evaluator.array(reader.input(1)) if reader.op in _SEQUENCE_AT else None
        if index is None or index.size != 1 or not -len(sizes) <= int(index.ravel()[0]) < len(sizes):
            return rewriter.decline("a reader is no SequenceAt with a constant index in range")
        if reader.graph is not node.graph:
            return rewriter.decline("a reader is in the body of another operator")
        parts.append((reader, int(index.ravel()[0]) % len(sizes)))
    twice = len({i for _, i in parts}) < len(parts)
    if not parts or (twice and any(reader.output.is_returned for reader, _ in parts)):
        return rewriter.decline("nobody reads it, or one part is more than one result of the graph")
    data, axis = node.operand(), integer_of(node, "axis", 0)
    attrs: dict[str, Attribute] = {"axis": axis} if axis else {}
    inputs = [data, int_vector(sizes, node, rewriter, "split")]
    split = rewriter.make(
        "split", inputs, attrs, before=node, hint=node.output.name, name=node.name, results=len(sizes)
    )
    for reader, i in parts:
        rewriter.replace(reader.output, split.outputs[i], take_name=True, heir=split)
    rewriter.erase(node, heir=split)
    return True


def _part_sizes(node: Node, evaluator: ShapeEvaluator) -> list[int] | None:
    """Return the extents of the parts of a SplitToSequence, None where they are unknown or lose the axis."""
    data, split = node.operand(), node.input(1)
    shape, axis = shape_of(data.type), integer_of(node, "axis", 0)
    if shape is None or not -len(shape) <= axis < len(shape) or not isinstance(extent := shape[axis], int):
        return None
    if split is None:
        # Parts of one element each; without `keepdims` they lose the axis.
        return [1] * extent if integer_of(node, "keepdims", 1) and 0 < extent <= MAX_PARTS else None
    array = evaluator.array(split)
    if array is None or array.ndim > 1 or array.dtype.kind not in "iu" or array.size > MAX_PARTS:
        return None
    if array.ndim == 1:
        sizes = [int(size) for size in array]
        return sizes if sizes and min(sizes) >= 0 and sum(sizes) == extent else None
    part = int(array)
    if part <= 0 or not 0 < extent <= part * MAX_PARTS:
        return None
    return [min(part, extent - start) for start in range(0, extent, part)]


_SEQUENCE_AT = ("::SequenceAt", "ai.onnx::SequenceAt")

RULES: Rules[ShapeEvaluator] = dict.fromkeys(("::SplitToSequence", "ai.onnx::SplitToSequence"), (sequence_to_split,))
"""The rules for each operator."""
