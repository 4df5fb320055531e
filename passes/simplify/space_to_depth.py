"""Rule for the Focus layer of YOLO: concatenated slices of every second row and column."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

import numpy as np

from ...ir.graph import Node, Value
from ...ir.matching import is_only_reader, known_dtype, known_shape
from ...ir.ops import is_legal
from ...ir.ops.inference import integer_of
from ...ir.ops.views import slices_of
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.types import Dim
from .rules import int_vector, substitute
from .shape_arithmetic import open_end

DTYPES = ("f16", "f32", "f64")
"""The element types for which runtimes have SpaceToDepth."""


@rule(
    affine="untouched",
    identity=(
        "concat([stepped(x, i, j, b) for i in range(b) for j in range(b)], 1) == space_to_depth(x,"
        " b); concat([stepped(x, *o[k], b) for k in range(b * b)], 1) == take(space_to_depth(x, b),"
        " order(o, b, x.shape[1]), 1)"
    ),
)
def focus(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """concat(x[:,:,i::b,j::b] for all i, j) -> space_to_depth(x, b), and a Gather for the order"""
    # Parts with all offsets have equal extents, which Concat requires, only if b divides the
    # extents of x.
    size = isqrt(len(node.inputs))
    if size < 2 or size * size != len(node.inputs) or integer_of(node, "axis", 1) not in (1, -3):
        return rewriter.decline("it does not join the channels of 4, 9, ... parts")
    first = _slice_of(node.inputs[0], node)
    data = first.operand()
    shape, dtype = known_shape(data), str(known_dtype(data))
    if len(shape) != 4 or dtype not in DTYPES or not is_legal("nn.space_to_depth", dtype, node):
        return rewriter.decline(
            "its data have no batch, channels, rows and columns, or no float type of this opset"
        )
    blocks: list[int] = []
    for value in node.inputs:
        part = _slice_of(value, node)
        if part.operand() is not data:
            return rewriter.decline("its operands are parts of different tensors")
        offsets = _offsets(slices_of(part, evaluator), shape, size, open_end(part))
        blocks.append(offsets[0] * size + offsets[1])
    if sorted(blocks) != list(range(size * size)):
        return rewriter.decline("its operands are not all parts, each once")
    if blocks == sorted(blocks):
        return substitute(node, rewriter, "nn.space_to_depth", [data], {"blocksize": size})
    channels = shape[1]
    if not isinstance(channels, int):
        return rewriter.decline(
            "the parts come in another order, and the number of channels is unknown"
        )
    depth = rewriter.make(
        "nn.space_to_depth",
        [data],
        {"blocksize": size},
        before=node,
        hint=f"{node.output.name}.depth",
        name=first.name,
        type_=node.output.type,
    )
    order = (np.array(blocks)[:, np.newaxis] * channels + np.arange(channels)).ravel()
    return substitute(
        node,
        rewriter,
        "take",
        [depth.output, int_vector(order.tolist(), node, rewriter, "order")],
        {"axis": 1},
    )


def _slice_of(value: Value | None, node: Node) -> Node:
    part = None if value is None or not is_only_reader(value, node) else value.node
    if part is None or part.op != "strided_slice":
        raise Declined("an operand is not the result of a Slice without other readers")
    return part


def _offsets(
    slices: Mapping[int, slice] | None, shape: tuple[Dim, ...], size: int, limit: int
) -> tuple[int, int]:
    """Return the first row and column of a part that steps by `size` in both."""
    if slices is None or set(slices) != {2, 3}:
        raise Declined("a part is not sliced along rows and columns")
    for axis, part in slices.items():
        extent = shape[axis]
        if part.step != size or not 0 <= part.start < size:
            raise Declined("a part starts after the first rows or columns, or has another step")
        end = extent if isinstance(extent, int) else limit
        is_divided = not isinstance(extent, int) or not extent % size
        if part.stop < end or not is_divided:
            raise Declined("a part may end before the last row or column")
    return slices[2].start, slices[3].start


RULES: Rules[ShapeEvaluator] = {"concatenate": (focus,)}
"""The rule for Concat."""
