"""Models that give the tensors inside the branches of an If."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from ..codec.onnx_types import export_dtype
from ..ir.types import TensorType
from ..support.errors import VerifyError
from .graph_reads import BRANCHES, is_branching
from .reference_model import NUMPY, ReferenceModel
from .runner import Runner


def exposed(model: ModelProto, base_dir: Path) -> ModelProto:
    """The model in which every If of the main graph has the tensors of its branches as results too, called as its first
    result, the branch and the tensor are; those of the branch that is not taken are empty. The model itself where
    onnxruntime does not take it so, or there are none of known element types.
    """
    if not any(is_branching(node) for node in model.graph.node):
        return model
    kinds = _kinds(model, base_dir)
    other = ModelProto()
    other.CopyFrom(model)
    taken = {name for node in model.graph.node for name in node.output}
    made = [name for node in other.graph.node if is_branching(node) for name in _expose(node, kinds)]
    if not made or not taken.isdisjoint(made):
        return model
    try:
        Runner(other, base_dir).check_loads()
    except VerifyError:
        return model
    return other


def _kinds(model: ModelProto, base_dir: Path) -> dict[str, int]:
    """By name the ONNX number of the element type of every tensor that onnxruntime gives to numpy."""
    return {
        name: export_dtype(type_.dtype)
        for name, type_ in ReferenceModel(model, base_dir).types.items()
        if isinstance(type_, TensorType) and type_.dtype is not None and str(type_.dtype) in NUMPY
    }


def _expose(node: NodeProto, kinds: Mapping[str, int]) -> list[str]:
    """Give an If the results, in front of those that it has, which are computed from them; their names."""
    graphs = {attribute.name: attribute.g for attribute in node.attribute if attribute.name in BRANCHES}
    prefix = next(filter(None, node.output))
    made: list[str] = []
    results: dict[str, list[str]] = {branch: [] for branch in BRANCHES}
    for branch, other in (BRANCHES, BRANCHES[::-1]):
        for name in _inside(graphs[branch], kinds):
            made.append(f"{prefix}/{branch}/{name}")
            nothing = f"irc.none/{made[-1]}"
            empty = helper.make_tensor("", kinds[name], [0], [])
            graphs[other].node.append(helper.make_node("Constant", [], [nothing], value=empty))
            results[branch].append(name)
            results[other].append(nothing)
    for branch, names in results.items():
        infos = [*map(_info, names), *graphs[branch].output]
        del graphs[branch].output[:]
        graphs[branch].output.extend(infos)
    node.output[:] = [*made, *node.output]
    return made


def _inside(graph: GraphProto, kinds: Mapping[str, int]) -> list[str]:
    """The tensors of a branch that are none of its results, constants left out."""
    results = {info.name for info in graph.output}
    names = [name for node in graph.node if node.op_type != "Constant" for name in node.output]
    return [name for name in names if name in kinds and name not in results]


def _info(name: str) -> ValueInfoProto:
    return ValueInfoProto(name=name)
