"""The main graph of an ONNX model as boxes of a drawing, and as a drawing of its own."""

from __future__ import annotations

from collections.abc import Callable

from ...frontends.onnx.codec.protos import GraphProto, ModelProto, NodeProto
from ...frontends.onnx.codec.toposort import reads
from ...ir.ops import DEFAULT_DOMAINS
from .drawing import Box, Boxes, draw

Mark = Callable[[NodeProto], tuple[str, str]]
"""Returns the kind of the box of an operator, and a note on it or an empty text."""


def plain(node: NodeProto) -> tuple[str, str]:
    """Mark nothing."""
    return "same", ""


def graph_boxes(graph: GraphProto, mark: Mark = plain) -> Boxes:
    """Return the inputs, the operators without constants, and the results of a graph. O(nodes)."""
    constants = {tensor.name for tensor in graph.initializer}
    constants.update(tensor.values.name for tensor in graph.sparse_initializer)
    boxes = Boxes()
    for info in graph.input:
        if info.name not in constants:
            boxes.link(Box(info.name, kind="end"), makes=(info.name,))
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS:
            continue
        kind, note = mark(node)
        operator = node.op_type
        if node.domain not in DEFAULT_DOMAINS:
            operator = f"{node.domain}::{operator}"
        box = Box(operator, node.name, note, kind=kind)
        boxes.link(box, reads(node), filter(None, node.output))
    for info in graph.output:
        boxes.link_result(info.name, info.name)
    return boxes


def model_drawing(model: ModelProto, mark: Mark = plain) -> str:
    """Return the main graph of a model as SVG."""
    return draw(("", graph_boxes(model.graph, mark)))
