"""Marks of tools that folded BatchNormalizations of a model, and so lost their statistics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .codec.module_paths import BATCH_NORM_INTO_LAYER, RULES
from .codec.protos import ModelProto, NodeProto, is_compiled
from .codec.traversal import all_nodes

LAYERS = ("Conv", "ConvTranspose", "Gemm")

_TORCHSCRIPT = r"onnx::(Conv|ConvTranspose)_\d+"
_ONNXRUNTIME = "ConvBnFusion_W_"

REMEDIES = {
    "torch's exporter": "export with optimize=False",
    "torch's exporter by TorchScript": (
        "export with do_constant_folding=False and training=TrainingMode.PRESERVE"
    ),
    "onnxruntime": "compile the model from before",
}
"""The remedy, by the tool that folded."""

RECOVER = "or regain them from a checkpoint: irc foldmap recover"

SEEMS_FOLDED = (
    "the model has no BatchNormalization: if another tool folded it, export without that,"
    f" {RECOVER}"
)


def folded_before(model: ModelProto, *, guess: bool = False) -> str | None:
    """Return one line on BatchNormalizations that another tool folded, None if nothing shows any.

    The line has the remedy. A result of irc does not count: its source tells which were folded.
    With `guess`, a model without BatchNormalization all of whose Convs have a bias counts as
    folded.
    """
    if is_compiled(model):
        return None
    nodes = list(all_nodes(model))
    found = [tool for node in nodes if node.op_type in LAYERS for tool in _tools(node)]
    if not found:
        return SEEMS_FOLDED if guess and _seems_folded(nodes) else None
    tool = found[0]
    remedy = f"{REMEDIES[tool]}, {RECOVER}"
    if len(found) == 1:
        return (
            f"1 BatchNormalization was folded before, by {tool}, without its statistics: {remedy}"
        )
    return (
        f"{len(found)} BatchNormalizations were folded before, by {tool}, without their statistics:"
        f" {remedy}"
    )


def _seems_folded(nodes: Iterable[NodeProto]) -> bool:
    """Return whether a model has Convs, each with a bias, and no BatchNormalization."""
    nodes = list(nodes)
    if any(node.op_type == "BatchNormalization" for node in nodes):
        return False
    convs = [node for node in nodes if node.op_type == "Conv"]
    return bool(convs) and all(any(node.input[2:]) for node in convs)


def _tools(node: NodeProto) -> Iterator[str]:
    """Yield the tool that folded a BatchNormalization into a layer."""
    rules = [entry.value for entry in node.metadata_props if entry.key == RULES]
    names = node.input[1:3]
    if rules and BATCH_NORM_INTO_LAYER in str(rules[0]):
        yield "torch's exporter"
    elif len(names) == 2 and all(re.fullmatch(_TORCHSCRIPT, str(name)) for name in names):
        yield "torch's exporter by TorchScript"
    elif names and str(names[0]).startswith(_ONNXRUNTIME):
        yield "onnxruntime"
