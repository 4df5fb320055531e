"""What the graphs of a model hold and read."""

from __future__ import annotations

from onnx import GraphProto, NodeProto, TensorProto


def constants_of(graph: GraphProto) -> dict[str, TensorProto]:
    """The tensors of the initializers and the Constant nodes of a graph, by name."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            found[node.output[0]] = node.attribute[0].t
    return found


def bodies(node: NodeProto) -> list[GraphProto]:
    """The graphs in the attributes of a node."""
    graphs = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return [*graphs, *(graph for attribute in node.attribute for graph in attribute.graphs)]


def captured(node: NodeProto) -> list[str]:
    """Names that the graphs in the attributes of a node read."""
    graphs = bodies(node)
    names = [name for graph in graphs for inner in graph.node for name in (*inner.input, *captured(inner))]
    return [*names, *(info.name for graph in graphs for info in graph.output)]
