"""Layers whose data get a scale at run time: DynamicQuantizeLinear, and products of integers.

The scale follows from the least and the greatest element of each tensor, so that no range has to
be known. onnxruntime fuses the operators that a layer becomes; a Conv of this kind is slower than
a float one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ...frontends.onnx.opsets import opset_versions
from ...ir.tensor import Array
from .free_names import numbered
from .integer_limits import remove_unread

SINCE = 11
"""The first opset with DynamicQuantizeLinear."""
PRODUCTS = ("Gemm", "MatMul")
RECURRENT = "LSTM"
CONTRIB = "com.microsoft"
LEVELS = 64
"""Steps between 0 and the greatest magnitude of a weight.

On processors without VNNI, onnxruntime adds two products of a byte and a weight in 16 bits, which
127 steps would overflow: 2 * 255 * 64 < 2 ** 15. The rounding of the data weighs as much.
"""
STATE_OPERANDS = 8
"""Operands of an LSTM: data, two weights, bias, lengths, two states, peepholes."""


def can_be_dynamic(node: NodeProto, tensors: dict[str, TensorProto]) -> bool:
    """Return whether a layer has constant float32 weights, and attributes that are products'."""
    weights = [tensors.get(name) for name in _weights(node)]
    is_float = all(w is not None and w.data_type == TensorProto.FLOAT for w in weights)
    if not weights or not is_float:
        return False
    attributes = _attributes(node)
    if node.op_type == RECURRENT:
        return not attributes.get("layout") and "clip" not in attributes
    # A Gemm becomes a product and an Add: its data are not transposed, and beta goes into the bias.
    bias = node.input[2] if len(node.input) > 2 else ""
    has_factor = attributes.get("beta", 1.0) != 1
    if attributes.get("transA") or (has_factor and bias and bias not in tensors):
        return False
    dims = [tensors[name].dims for name in _weights(node)]
    return all(len(each) == 2 and all(each) for each in dims)


def make_dynamic(model: ModelProto, names: Collection[str], *, per_channel: bool) -> None:
    """Let the layers of these names of the main graph compute with integers, in place. O(weights).

    All of them satisfy `can_be_dynamic`.
    """
    rewriting = _DynamicLayers(model, per_channel)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.name not in names:
            rewriting.nodes.append(node)
        elif node.op_type == RECURRENT:
            rewriting.add_recurrent(node)
        else:
            rewriting.add_product(node)
    model.graph.node.extend(rewriting.nodes)
    remove_unread(model, rewriting.replaced)


class _DynamicLayers:
    """The nodes of a graph in the making, in which some layers become dynamic."""

    def __init__(self, model: ModelProto, per_channel: bool) -> None:
        self.model = model
        self.per_channel = per_channel
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self.nodes: list[NodeProto] = []
        self.replaced: set[str] = set()
        self.taken = {name for node in model.graph.node for name in (*node.output, node.name)}
        self.taken |= {*self.tensors, *(info.name for info in model.graph.input)}
        self.rounded: dict[str, list[str]] = {}
        """Integers, scale and zero point of the data that are rounded, by name."""
        self.weights: dict[tuple[str, bool], list[str]] = {}
        """Integers and scale of the weights, by name and whether they are transposed."""

    def add_product(self, node: NodeProto) -> None:
        """Append the operators of a MatMul or Gemm."""
        attributes, name = _attributes(node), node.name
        data, scale, zero = self.round(node.input[0])
        integers, steps = self.weight(node.input[1], bool(attributes.get("transB")))
        self.replaced.add(node.input[1])
        bias = self.bias(node, attributes.get("beta", 1.0))
        if attributes.get("alpha", 1.0) != 1:
            self.replaced.add(steps)
            factor = np.float32(attributes["alpha"])
            steps = self.constant(factor * self.array(steps), f"{name}_scale")
        found = self.add("MatMulInteger", [data, integers, zero], f"{name}_integers", name)
        found = self.add("Cast", [found], f"{name}_float", to=TensorProto.FLOAT)
        both = self.add("Mul", [scale, steps], f"{name}_step")
        if not bias:
            last = self.name(f"{name}_product")
            self.nodes.append(helper.make_node("Mul", [found, both], [node.output[0]], last))
            return
        found = self.add("Mul", [found, both], f"{name}_product")
        last = self.name(f"{name}_sum")
        self.nodes.append(helper.make_node("Add", [found, bias], [node.output[0]], last))

    def add_recurrent(self, node: NodeProto) -> None:
        """Append the DynamicQuantizeLSTM of an LSTM, which is com.microsoft's."""
        operands = [*node.input, *[""] * (STATE_OPERANDS - len(node.input))]
        scales = []
        for index in (1, 2):
            name = operands[index]
            self.replaced.add(name)
            weight = numpy_helper.to_array(self.tensors[name]).transpose(0, 2, 1)
            integers, scale = _rounded(weight, (1,) if self.per_channel else (1, 2))
            scale = scale.squeeze(1) if self.per_channel else scale.reshape(-1)
            operands[index] = self.constant(integers, f"{name}_int8")
            zeros = np.zeros(scale.shape, np.int8)
            scales += [
                self.constant(scale, f"{name}_scale"),
                self.constant(zeros, f"{name}_zero"),
            ]
        found = helper.make_node(
            "DynamicQuantizeLSTM", [*operands, *scales], node.output, node.name, domain=CONTRIB
        )
        found.attribute.extend(each for each in node.attribute if each.name != "layout")
        self.nodes.append(found)
        if all(each.domain != CONTRIB for each in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(CONTRIB, 1))

    def round(self, name: str) -> list[str]:
        """Return integers, scale and zero point of data, which are rounded once."""
        if name not in self.rounded:
            ends = [self.name(f"{name}_{end}") for end in ("uint8", "scale", "zero")]
            self.nodes.append(helper.make_node("DynamicQuantizeLinear", [name], ends, ends[0]))
            self.rounded[name] = ends
        return self.rounded[name]

    def weight(self, name: str, is_transposed: bool) -> list[str]:
        """Return integers and scales of a matrix [K, N], by column or for all of it."""
        key = (name, is_transposed)
        if key not in self.weights:
            array = numpy_helper.to_array(self.tensors[name])
            array = array.T if is_transposed else array
            integers, scale = _rounded(array, (0,) if self.per_channel else (0, 1))
            scale = scale[0] if self.per_channel else scale.reshape(())
            self.weights[key] = [
                self.constant(integers, f"{name}_int8"),
                self.constant(scale, f"{name}_scale"),
            ]
        return self.weights[key]

    def bias(self, node: NodeProto, beta: float) -> str:
        """Return the bias of a Gemm times beta, empty if it has none."""
        name = node.input[2] if len(node.input) > 2 else ""
        if not name or beta == 0:
            return ""
        if beta == 1:
            return name
        self.replaced.add(name)
        return self.constant(np.float32(beta) * self.array(name), f"{name}_scaled")

    def array(self, name: str) -> Array:
        """Return the elements of an initializer."""
        return numpy_helper.to_array(self.tensors[name])

    def add(
        self, op: str, inputs: list[str], result: str, name: str = "", **attributes: Any
    ) -> str:
        """Append a node with one result, and return the name of this."""
        result = self.name(result)
        self.nodes.append(helper.make_node(op, inputs, [result], name or result, **attributes))
        return result

    def constant(self, array: Array, name: str) -> str:
        """Add an initializer, and return its name."""
        name = self.name(name)
        tensor = numpy_helper.from_array(np.asarray(array, order="C"), name)
        self.model.graph.initializer.append(tensor)
        self.tensors[name] = tensor
        return name

    def name(self, wanted: str) -> str:
        """Return a name that nothing has."""
        name = numbered(wanted, self.taken)
        self.taken.add(name)
        return name


def _rounded(weight: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Return integers of a weight, and the scales that the elements along `axes` share."""
    wide = weight.astype(np.float64)
    scale = (np.abs(wide).max(axis=axes, keepdims=True) / LEVELS).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1))
    integers = np.rint(wide / scale).clip(-LEVELS, LEVELS).astype(np.int8)
    return integers, scale


def _weights(node: NodeProto) -> list[str]:
    """Return the names of the weights of a layer that may become dynamic."""
    if node.op_type in PRODUCTS:
        return [node.input[1]]
    return list(node.input[1:3]) if node.op_type == RECURRENT else []


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def has_dynamic(model: ModelProto) -> bool:
    """Return whether the opset of a model has DynamicQuantizeLinear."""
    return opset_versions(model.opset_import)[""] >= SINCE
