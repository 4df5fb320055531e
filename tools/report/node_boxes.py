"""The main graph of a module as boxes of a drawing."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node, Value
from .drawing import Box, Boxes


def node_boxes(graph: Graph) -> Boxes:
    """Return the inputs, the operators without constants, and the results of a graph. O(nodes)."""
    boxes = Boxes()
    for value in graph.inputs:
        boxes.link(Box(value.name, kind="end"), makes=(value,))
    for node in graph.nodes():
        if node.op in ("constant", "variable", "return"):
            continue
        boxes.link(Box(node.op.removeprefix("::"), node.name), _reads(node), node.outputs)
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        boxes.link_result(name, value)
    return boxes


def _reads(node: Node) -> Iterator[Value]:
    """Yield the operands of a node, and of all nodes in its regions."""
    for inner in (node, *(other for region in node.regions for other in region.walk())):
        yield from (value for value in inner.inputs if value is not None)
