"""Operators that onnxruntime fuses in exported networks, before and after irc.

`.venv-exporters/bin/python tests/exporters/fusions.py` prints the table of docs/testing.md.
"""

from __future__ import annotations

import functools
import io
import logging
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import irc
import onnx
import onnxruntime
import torch
from graphs import all_nodes
from onnx import ModelProto, NodeProto
from torch import nn

from exporters.architectures import settle
from exporters.fusible import FUSIBLE, Fusible

EXPORTERS = ("torchscript", "torchscript, older", "dynamo")
"""The exporters, each with its own opset.

The older one writes LayerNormalization out, and leaves extents open.
"""

LEVELS = {
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

STANDARD = {
    "LayerNormalization",
    "RMSNormalization",
    "Gelu",
    "HardSwish",
    "HardSigmoid",
    "Mish",
    "Swish",
    "Attention",
}
"""Operators of ONNX itself that are several in older opsets."""


def network(fusible: Fusible) -> nn.Module:
    """The network for inference, the same each time."""
    torch.manual_seed(0)
    model = fusible.build()
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        return settle(model, tuple(fusible.sample()[0].shape[1:]))
    return model.eval()


@functools.cache
def export(name: str, exporter: str) -> ModelProto:
    """The network as an exporter writes it by default."""
    fusible = FUSIBLE[name]
    model, sample, file = network(fusible), fusible.sample(), io.BytesIO()
    options: dict[str, object] = {}
    if exporter == "torchscript, older":
        names = [f"x{i}" for i in range(len(sample))]
        axes = dict(enumerate(fusible.open_axes))
        options = {
            "opset_version": fusible.opset,
            "input_names": names,
            "dynamic_axes": dict.fromkeys(names, axes),
        }
    with torch.no_grad():
        if exporter == "dynamo":
            return torch.onnx.export(model, sample, dynamo=True, verbose=False).model_proto
        torch.onnx.export(model, sample, file, dynamo=False, **options)
    return onnx.load_from_string(file.getvalue())


def optimized(model: ModelProto, level: str) -> ModelProto:
    """The model that onnxruntime makes of `model` for a processor."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "optimized.onnx")
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return onnx.load(path)


def operators(model: ModelProto) -> Counter[str]:
    """How often each operator occurs, without constants."""
    return Counter(node.op_type for node in all_nodes(model) if node.op_type != "Constant")


def fused(model: ModelProto) -> Counter[str]:
    """How often each fused operator occurs, and beside them MatMul by a constant."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return Counter(kind for node in all_nodes(model) if (kind := fused_kind(node, constants)))


def fused_kind(node: NodeProto, constants: set[str]) -> str | None:
    """The name of a fused operator, None for others and for what only changes a layout.

    A MatMul by a constant may have the scale of a FusedMatMul in it.
    """
    if node.op_type in ("ReorderInput", "ReorderOutput"):
        return None
    by_constant = node.op_type in ("FusedMatMul", "MatMul") and node.input[1] in constants
    if by_constant:
        return f"MatMul by a constant{', scaled' if node.op_type == 'FusedMatMul' else ''}"
    is_fused = node.domain not in ("", "ai.onnx") or node.op_type in STANDARD
    if node.domain == "com.microsoft.nchwc":
        return f"{node.op_type} in blocks"
    return node.op_type if is_fused else None


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(
        "| network | exporter | operators | after irc | left by the runtime | after irc | fused,"
        " after irc |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    for name in sys.argv[1:] or FUSIBLE:
        for exporter in EXPORTERS:
            source = export(name, exporter)
            models = (source, irc.compile(source).model)
            results = [optimized(model, "all") for model in models]
            numbers = [operators(model).total() for model in (*models, *results)]
            print(
                "|",
                " | ".join([name, exporter, *map(str, numbers), changes(*map(fused, results))]),
                "|",
                flush=True,
            )


def changes(before: Counter[str], after: Counter[str]) -> str:
    """The fused operators with their numbers, two where irc changes it."""
    kinds = sorted(kind for kind in {*before, *after} if not kind.startswith("MatMul by"))
    counts = {
        kind: f"{before[kind]}"
        if before[kind] == after[kind]
        else f"{before[kind]} -> {after[kind]}"
        for kind in kinds
    }
    return ", ".join(f"{kind} {count}" for kind, count in counts.items())


if __name__ == "__main__":
    main()
