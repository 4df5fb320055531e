"""Models that return the tensors inside the branches of their Ifs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from ...frontends.onnx.codec.onnx_types import export_dtype
from ...ir.types import TensorType
from ...support.errors import VerifyError
from .monte_carlo import inline_functions
from .onnx_graph import BRANCHES, is_conditional
from .reference_model import value_types
from .runner import NUMPY_TYPES, Runner


def expose_branch_tensors(model: ModelProto, base_dir: Path) -> ModelProto:
    """Return the model with the tensors in branches of the main graph's Ifs as results of the Ifs.

    They are named after the If's first result, the branch and the tensor, as in `y/then_branch/t`;
    those of the branch not taken are empty. Return `model` itself if there are none of known
    element types, or if onnxruntime does not load the changed model.
    """
    if not any(is_conditional(node) for node in model.graph.node):
        return model
    elem_types = _elem_types(model, base_dir)
    exposed = ModelProto()
    exposed.CopyFrom(model)
    existing = {name for node in model.graph.node for name in node.output}
    added = [
        name
        for node in exposed.graph.node
        if is_conditional(node)
        for name in _expose(node, elem_types)
    ]
    if not added or not existing.isdisjoint(added):
        return model
    try:
        Runner(exposed, base_dir).check_loads()
    except VerifyError:
        return model
    return exposed


def _elem_types(model: ModelProto, base_dir: Path) -> dict[str, int]:
    """Return the ONNX element types, by name, of tensors that onnxruntime returns as arrays."""
    types = value_types(inline_functions(model), base_dir)
    dtypes = {name: type_.dtype for name, type_ in types.items() if isinstance(type_, TensorType)}
    return {
        name: export_dtype(dtype)
        for name, dtype in dtypes.items()
        if dtype is not None and str(dtype) in NUMPY_TYPES
    }


def _expose(node: NodeProto, elem_types: Mapping[str, int]) -> list[str]:
    """Put the tensors of both branches before the results of an If, and return their names.

    The results are computed from them, and the first deviation in the order of results is the one
    to report.
    """
    graphs = {
        attribute.name: attribute.g for attribute in node.attribute if attribute.name in BRANCHES
    }
    prefix = next(filter(None, node.output))
    exposed: list[str] = []
    results: dict[str, list[str]] = {branch: [] for branch in BRANCHES}
    for branch, other in (BRANCHES, BRANCHES[::-1]):
        for name in _inner_tensors(graphs[branch], elem_types):
            exposed.append(f"{prefix}/{branch}/{name}")
            empty = f"irc.none/{exposed[-1]}"
            value = helper.make_tensor("", elem_types[name], [0], [])
            graphs[other].node.append(helper.make_node("Constant", [], [empty], value=value))
            results[branch].append(name)
            results[other].append(empty)
    for branch, names in results.items():
        infos = [*(ValueInfoProto(name=name) for name in names), *graphs[branch].output]
        del graphs[branch].output[:]
        graphs[branch].output.extend(infos)
    node.output[:] = [*exposed, *node.output]
    return exposed


def _inner_tensors(graph: GraphProto, elem_types: Mapping[str, int]) -> list[str]:
    """Return the tensors of a branch that are neither results nor constants."""
    results = {info.name for info in graph.output}
    names = [name for node in graph.node if node.op_type != "Constant" for name in node.output]
    return [name for name in names if name in elem_types and name not in results]
