"""The main graph of a module as boxes of a drawing."""

from __future__ import annotations

from collections.abc import Iterator

from ..support.drawing import Box
from .graph import Graph, Node, Value


def node_boxes(graph: Graph) -> list[Box]:
    """Return the inputs, the operators without constants, and the results of a graph. O(nodes)."""
    boxes = [Box(value.name, kind="end") for value in graph.inputs]
    made = {id(value): i for i, value in enumerate(graph.inputs)}
    for node in graph.nodes():
        if node.op in ("constant", "variable", "return"):
            continue
        sources = dict.fromkeys(made[id(value)] for value in _reads(node) if id(value) in made)
        made.update((id(value), len(boxes)) for value in node.outputs)
        boxes.append(Box(node.op.removeprefix("::"), node.name, reads=tuple(sources)))
    ends = zip(graph.output_names, graph.outputs, strict=True)
    boxes.extend(Box(name, reads=(made[id(value)],), kind="end") for name, value in ends if id(value) in made)
    return boxes


def _reads(node: Node) -> Iterator[Value]:
    """Yield the operands of a node, and of all nodes in its regions."""
    for inner in (node, *(other for region in node.regions for other in region.walk())):
        yield from (value for value in inner.inputs if value is not None)
