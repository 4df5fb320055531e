"""What a model draws by chance: two runs of it agree in nothing that depends on that."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from ..codec.traversal import all_graphs
from ..ir.ops import DEFAULT_DOMAINS
from ..passes.foreign import RANDOM
from .graph_reads import bodies, constants_of, reads


def drawn(model: ModelProto, base_dir: Path) -> set[str]:
    """Names of what random operators give in the main graph, and of all that is computed from it. O(nodes).

    Calls of functions are to be inlined before. A Dropout draws only if its third input is not a constant False.
    """
    constants = [item for graph in all_graphs(model) for item in constants_of(graph).items()]
    off = {"", *(name for name, tensor in constants if _is_false(tensor, base_dir))}
    found: set[str] = set()
    for node in model.graph.node:
        if _draws(node, off) or not found.isdisjoint(reads(node)):
            found.update(filter(None, node.output))
    return found


def _draws(node: NodeProto, off: Collection[str]) -> bool:
    if node.op_type in RANDOM and node.domain in DEFAULT_DOMAINS:
        return node.op_type != "Dropout" or (len(node.input) > 2 and node.input[2] not in off)
    return any(_draws(inner, off) for graph in bodies(node) for inner in graph.node)


def _is_false(tensor: TensorProto, base_dir: Path) -> bool:
    single = tensor.data_type == tensor.BOOL and tensor.dims in ([], [1])
    return single and not numpy_helper.to_array(tensor, str(base_dir)).any()
