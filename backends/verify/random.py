"""What a model draws by chance: two runs of it agree in nothing that depends on that."""

from __future__ import annotations

from onnx import ModelProto, NodeProto, helper, numpy_helper

from ...frontends.onnx.external import all_graphs
from ...passes.foreign import RANDOM
from .noise import bodies, captured


def drawn(model: ModelProto) -> set[str]:
    """Names of what random operators give in the main graph, and of all that is computed from it. O(nodes).

    Calls of functions are to be inlined before. A Dropout draws only if its third input is not a constant False.
    """
    off = {
        tensor.name
        for graph in all_graphs(model)
        for tensor in graph.initializer
        if tensor.dims in ([], [1]) and tensor.data_type == tensor.BOOL and not numpy_helper.to_array(tensor).any()
    }
    found: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Constant" and _is_false(node):
            off.update(node.output)
        if _draws(node, off) or not found.isdisjoint((*node.input, *captured(node))):
            found.update(filter(None, node.output))
    return found


def _draws(node: NodeProto, off: set[str]) -> bool:
    if node.op_type == "Dropout":
        return len(node.input) > 2 and node.input[2] not in ("", *off)
    if node.op_type in RANDOM and node.domain in ("", "ai.onnx"):
        return True
    return any(_draws(inner, off) for graph in bodies(node) for inner in graph.node)


def _is_false(node: NodeProto) -> bool:
    value = next((helper.get_attribute_value(each) for each in node.attribute if each.name == "value"), None)
    return value is not None and value.data_type == value.BOOL and not numpy_helper.to_array(value).any()


__all__ = ["drawn"]
