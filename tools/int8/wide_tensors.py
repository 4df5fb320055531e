"""Activations of 16 bits in a quantized model, and the layers beside them."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import ModelProto, TensorProto

from ..verify.onnx_graph import constant_tensors, makers_of
from .coverage import LAYERS

WIDE = (TensorProto.UINT16, TensorProto.INT16)


@dataclass(frozen=True, slots=True)
class WideTensors:
    """How many of the rounded activations (`total`) have 16 bits, and the layers beside these."""

    tensors: int
    total: int
    layers: int

    def __str__(self) -> str:
        return (
            f"{self.tensors} of {self.total} roundings, and onnxruntime on a CPU computes the"
            f" {self.layers} {'layer' if self.layers == 1 else 'layers'} beside them in float"
        )


def wide_tensors(model: ModelProto) -> WideTensors | None:
    """Return the activations of 16 bits in a model in QDQ form, None without any. O(nodes)."""
    tensors, makers = constant_tensors(model.graph), makers_of(model.graph)
    roundings = [
        node
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] not in tensors
    ]
    wide = [node for node in roundings if tensors[node.input[2]].data_type in WIDE]
    if not wide:
        return None
    read = {node.output[0] for node in wide}
    back = {
        name
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in read
        for name in node.output
    }
    written = {id(makers[node.input[0]]) for node in wide if node.input[0] in makers}
    layers = [
        node
        for node in model.graph.node
        if node.op_type in LAYERS and (id(node) in written or not back.isdisjoint(node.input))
    ]
    return WideTensors(len(wide), len(roundings), len(layers))
