"""What the graphs of a model hold and read."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from ..ir.ops import DEFAULT_DOMAINS

BRANCHES = ("then_branch", "else_branch")


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


def reads(node: NodeProto) -> list[str]:
    """Names that a node and the graphs in its attributes read."""
    return [*node.input, *captured(node)]


def is_branching(node: NodeProto) -> bool:
    """Whether it is an If that has results."""
    return node.op_type == "If" and node.domain in DEFAULT_DOMAINS and any(node.output)


def branching(model: ModelProto) -> dict[str, list[str]]:
    """The Ifs of the main graph, each called as its first result, by their conditions, constants left out."""
    constants = constants_of(model.graph)
    found: dict[str, list[str]] = {}
    for node in model.graph.node:
        if is_branching(node) and node.input[0] not in constants:
            found.setdefault(node.input[0], []).append(next(filter(None, node.output)))
    return found
