"""Marks that tools leave in a model whose BatchNormalizations they folded, so that their statistics are lost."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...codec.module_paths import BATCH_NORM_INTO_LAYER, RULES
from ...codec.protos import ModelProto, NodeProto

LAYERS = ("Conv", "ConvTranspose", "Gemm")

_TORCHSCRIPT = r"onnx::(Conv|ConvTranspose)_\d+"
_ONNXRUNTIME = "ConvBnFusion_W_"

REMEDIES = {
    "torch's exporter": "export with optimize=False",
    "torch's exporter by TorchScript": "export with do_constant_folding=False and training=TrainingMode.PRESERVE",
    "onnxruntime": "compile the model from before",
}
"""What to do instead, by the tool that folded."""

RECOVER = "or regain them from a checkpoint: irc foldmap recover"


def folded_before(model: ModelProto) -> str | None:
    """Return one line on the BatchNormalizations that a tool folded, with the remedy; None if nothing shows any."""
    found = [tool for node in model.graph.node if node.op_type in LAYERS for tool in _tools(node)]
    if not found:
        return None
    tool = found[0]
    count = "1 BatchNormalization was" if len(found) == 1 else f"{len(found)} BatchNormalizations were"
    return f"{count} folded before, by {tool}, without their statistics: {REMEDIES[tool]}, {RECOVER}"


def seems_folded(model: ModelProto) -> bool:
    """Return whether every Conv of a model without BatchNormalization has a bias, as folding leaves it."""
    has_conv = False
    for node in model.graph.node:
        if node.op_type == "BatchNormalization" or (node.op_type == "Conv" and not any(node.input[2:])):
            return False
        has_conv = has_conv or node.op_type == "Conv"
    return has_conv


SEEMS_FOLDED = f"the model has no BatchNormalization: if another tool folded it, export without that, {RECOVER}"


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
