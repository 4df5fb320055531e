"""Layers of an ONNX model with constant weights, seen by output channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from ...frontends.onnx.codec.module_paths import SCOPES, module_path, parameter_path, scope_path
from ...frontends.onnx.codec.protos import ModelProto, NodeProto, TensorProto
from ...frontends.onnx.codec.tensors import OnnxTensor
from ...ir.ops import DEFAULT_DOMAINS
from ...ir.tensor import Array

LAYERS = ("Conv", "ConvTranspose", "Gemm")


class FoldedLayer:
    """A Conv, ConvTranspose or Gemm at `index` in the main graph: `node`, `weight` and `bias`."""

    def __init__(self, index: int, node: NodeProto, weight: Array, bias: Array | None) -> None:
        self.index, self.node, self.weight, self.bias = index, node, weight, bias
        integers = {attribute.name: attribute.i for attribute in node.attribute}
        self.group = integers.get("group", 1)
        is_gemm = node.op_type == "Gemm"
        self.is_transposed = is_gemm and not integers.get("transB")
        """Whether the weight is [in, out]; a torch Linear has [out, in]."""
        factors = [each.f for each in node.attribute if each.name in ("alpha", "beta")]
        # No layer of torch has other factors, or transposes its data.
        self.is_plain = not is_gemm or not (integers.get("transA") or any(f != 1 for f in factors))

    @property
    def label(self) -> str:
        """The layer in a message."""
        return f"{self.node.op_type} {self.node.name or self.node.output[0]!r}"

    @cached_property
    def rows(self) -> Array:
        """The weights of each output channel."""
        return self.rows_of(self.weight)

    @property
    def weight_axis(self) -> int:
        """The axis of output channels in the weight, of a ConvTranspose within a group."""
        return 1 if self.node.op_type == "ConvTranspose" or self.is_transposed else 0

    def rows_of(self, weight: Array) -> Array:
        """Return the weights, [out, ...], of a weight with the layout of this layer's."""
        if self.node.op_type == "ConvTranspose":
            into, out = weight.shape[0] // self.group, weight.shape[1]
            return (
                weight.reshape(self.group, into, out, -1)
                .swapaxes(1, 2)
                .reshape(self.group * out, -1)
            )
        return weight.T if self.is_transposed else weight.reshape(weight.shape[0], -1)

    def factor_of(self, scale: Array) -> Array:
        """Return a vector over output channels in a shape that broadcasts against the weight."""
        weight = self.weight
        ones = (1,) * (weight.ndim - 2)
        if self.node.op_type == "ConvTranspose":
            by_group = scale.reshape(self.group, 1, -1)
            return np.repeat(by_group, weight.shape[0] // self.group, axis=1).reshape(
                *weight.shape[:2], *ones
            )
        return scale[None, :] if self.is_transposed else scale.reshape(-1, 1, *ones)

    @cached_property
    def hints(self) -> set[str]:
        """Module paths in metadata and names: the layer's, or its folded norm's."""
        notes = {entry.key: entry.value for entry in self.node.metadata_props}
        names = [
            parameter_path(name, each)
            for name in self.node.input[1:3]
            for each in ("weight", "bias")
        ]
        found = [scope_path(str(notes.get(SCOPES, ""))), module_path(self.node), *names]
        return {path for path in found if path is not None}


def constants_of(model: ModelProto, base_dir: Path) -> dict[str, Array]:
    """Return the readable floating constants of the main graph that no input may override."""
    graph = model.graph
    inputs = {info.name for info in graph.input}
    tensors = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.name not in inputs or model.ir_version < 4
    }
    for node in graph.node:
        if node.op_type == "Constant" and [each.name for each in node.attribute] == ["value"]:
            tensors[node.output[0]] = node.attribute[0].t
    floats = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    found: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if tensor.data_type in floats:
            try:
                found[name] = OnnxTensor(tensor, base_dir).numpy()
            except ValueError:
                continue
    # Exporters give a tensor that two layers share to the second through an Identity.
    for node in graph.node:
        if node.op_type == "Identity" and node.input and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def layers_of(model: ModelProto, constants: Mapping[str, Array]) -> Iterator[FoldedLayer]:
    """Yield the layers of the main graph whose weight and bias are constants."""
    for index, node in enumerate(model.graph.node):
        is_onnx = node.domain in DEFAULT_DOMAINS and node.op_type in LAYERS
        if not is_onnx or len(node.input) < 2:
            continue
        weight = constants.get(node.input[1])
        # Without channels, or with weights that no file has, there is nothing to compare.
        if weight is None or weight.ndim < 2 or not weight.size:
            continue
        bias_name = node.input[2] if len(node.input) > 2 else ""
        bias = constants.get(bias_name)
        # A checkpoint has no computed bias.
        if bias_name and (bias is None or bias.ndim != 1):
            continue
        layer = FoldedLayer(index, node, weight, bias)
        has_bias_of_rows = bias is None or bias.size == len(layer.rows)
        if layer.is_plain and has_bias_of_rows:
            yield layer
