"""Relus and Clips that onnxruntime's quantizer removes for the ends of their result's grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..verify.onnx_graph import constant_tensors, makers_of, reads
from .grid import grid_of
from .quantized_layers import FUSED

SLACK = 0.501
"""Steps by which the ends of a grid may miss a bound, as 0 is one of its numbers."""


def limits_of(node: NodeProto, tensors: Mapping[str, TensorProto]) -> tuple[float, float] | None:
    """Return the bounds of a Relu or Clip, None if they are computed."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    found = {"min": -math.inf, "max": math.inf}
    found |= {
        each.name: helper.get_attribute_value(each) for each in node.attribute if each.name in found
    }
    for key, name in zip(found, node.input[1:], strict=False):
        if name and name not in tensors:
            return None
        if name:
            found[key] = float(numpy_helper.to_array(tensors[name]).reshape(()))
    return found["min"], found["max"]


def activations_undone(quantized: ModelProto, model: ModelProto) -> Iterator[NodeProto]:
    """Yield the removed Relus and Clips whose work the grid of their result does not do. O(nodes).

    `model` is the float model, with the names of the nodes. A grid that ends within the bounds of
    an activation, or of several in a row, cuts as they do. It always has 0, so that it cannot do
    the work of a Clip from 1 to 2, and a range that the user gives may reach below 0 behind a Relu.
    """
    kept = {node.name for node in quantized.graph.node}
    removed = {
        node.output[0]: node
        for node in model.graph.node
        if node.op_type in FUSED and node.name not in kept
    }
    makers = makers_of(quantized.graph)
    readers: dict[str, list[NodeProto]] = {}
    for node in quantized.graph.node:
        for name in reads(node):
            readers.setdefault(name, []).append(node)
    tensors, constants = constant_tensors(quantized.graph), constant_tensors(model.graph)
    rows: dict[str, list[NodeProto]] = {}
    for result, node in removed.items():
        rows[result] = row = [*rows.get(node.input[0], []), node]
        if result not in makers:  # the next activation is removed, too
            continue
        low, high = -math.inf, math.inf
        for each in row:
            least, most = limits_of(each, constants) or (-math.inf, math.inf)
            low, high = (min(max(end, least), most) for end in (low, high))
        back = makers[result]
        rounding = makers.get(back.input[0]) if back.op_type == "DequantizeLinear" else None
        exact = result if rounding is None else rounding.input[0]
        if not all(_cuts(reader, tensors, low, high) for reader in readers.get(exact, [])):
            yield from row


def _cuts(node: NodeProto, tensors: Mapping[str, TensorProto], low: float, high: float) -> bool:
    """Return whether a node rounds its data to a grid between two numbers."""
    grid = grid_of(node, tensors) if node.op_type == "QuantizeLinear" else None
    if grid is None:
        return False
    (least, most), slack = grid.ends, SLACK * float(grid.scale)
    return least >= low - slack and most <= high + slack
