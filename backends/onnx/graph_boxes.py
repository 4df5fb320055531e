"""The main graph of an ONNX model as boxes of a drawing."""

from __future__ import annotations

from collections.abc import Callable

from ...codec.protos import GraphProto, NodeProto
from ...frontends.onnx.toposort import reads
from ...ir.ops import DEFAULT_DOMAINS
from ...support.drawing import Box

Mark = Callable[[NodeProto], tuple[str, str]]
"""Returns the kind of the box of an operator, and a note on it or an empty text."""


def plain(node: NodeProto) -> tuple[str, str]:
    """Mark nothing."""
    return "same", ""


def graph_boxes(graph: GraphProto, mark: Mark = plain) -> list[Box]:
    """Return the inputs, the operators without constants, and the results of a graph. O(nodes)."""
    constants = {tensor.name for tensor in graph.initializer}
    constants.update(tensor.values.name for tensor in graph.sparse_initializer)
    boxes = [Box(info.name, kind="end") for info in graph.input if info.name not in constants]
    made = {box.operator: i for i, box in enumerate(boxes)}
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS:
            continue
        kind, note = mark(node)
        operator = node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}::{node.op_type}"
        made_before = dict.fromkeys(made[name] for name in reads(node) if name in made)
        made.update((name, len(boxes)) for name in node.output if name)
        boxes.append(Box(operator, node.name, note, tuple(made_before), kind))
    boxes.extend(Box(info.name, reads=(made[info.name],), kind="end") for info in graph.output if info.name in made)
    return boxes
