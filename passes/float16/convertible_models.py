"""The models that are not to be converted."""

from __future__ import annotations

from ...ir.graph import Node
from ...ir.module import Module
from ...ir.types import BF16, F16, dtype_of
from ...support.errors import ModelError

QUANTIZED = ("QLinear", "DynamicQuantize", "MatMulInteger", "ConvInteger", "MatMulNBits")
"""Beginnings of the names of operators of quantized models."""

TRAINING = "ai.onnx.preview.training"


def check_model(module: Module) -> None:
    """Raise ModelError if a model is float16, quantized or a training graph already."""
    for node in module.walked():
        if node.op in ("quantize", "dequantize") or _name(node).startswith(QUANTIZED):
            raise ModelError(
                f"{node.description} is of a quantized model, which float16 would not make smaller:"
                " convert the float model"
            )
        trains = node.attrs.get("training_mode") == 1 or node.op == "::Dropout"
        if trains or node.op.startswith(TRAINING):
            raise ModelError(
                f"{node.description} is of a training graph: export the model for inference"
            )
        for value in node.outputs:
            if dtype_of(value.type) in (F16, BF16) and node.op != "cast":
                raise ModelError(
                    f"{value.source_name!r} is {dtype_of(value.type)}: the model has 16-bit floats"
                    " already, and only ScaleByPowersOfTwo may help it"
                )


def _name(node: Node) -> str:
    return node.op.rpartition("::")[2]
