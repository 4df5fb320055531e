"""A float16 model in float32 arithmetic: each result is rounded to float16 by explicit Casts.

Kernels of a runtime may drop roundings, or compute in float32 and round once for several operators.
The emulated model gives the same results on every processor.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ...ir.types import F16, dtype_of
from ...result import Result, copied

EXACT, BITS = "/before_rounding", "/float16"
"""Ends of the names of a result before it is rounded, and in float16."""


def emulated(result: Result) -> ModelProto:
    """Return the model of `result` with float32 in place of float16, and with its roundings."""
    model = copied(result.model)
    graph = model.graph
    half = set(_half_names(result))
    for tensor in graph.initializer:
        _widen(tensor)
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT16:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    del graph.value_info[:]
    nodes: list[NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to":
                if attribute.i == TensorProto.FLOAT16:
                    attribute.i = TensorProto.FLOAT
        rounded = [name for name in node.output if name in half and node.op_type != "Constant"]
        for index, name in enumerate(node.output):
            if name in rounded:
                node.output[index] = name + EXACT
        nodes.append(node)
        for name in rounded:
            nodes += _rounding(name + EXACT, name)
    copies = [_copy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return model


def half_inputs(result: Result) -> set[str]:
    """Return the names of the inputs that are float16."""
    graph = result.module.graph
    return {value.name for value in graph.inputs if dtype_of(value.type) is F16}


def _half_names(result: Result) -> Iterator[str]:
    for node in result.module.graph.nodes():
        for value in node.outputs:
            if value.name and dtype_of(value.type) is F16:
                yield result.name_of(value)


def _rounding(source: str, target: str) -> list[NodeProto]:
    """Return the Casts that round a value to float16 and back."""
    bits = target + BITS
    return [
        helper.make_node("Cast", [source], [bits], to=TensorProto.FLOAT16),
        helper.make_node("Cast", [bits], [target], to=TensorProto.FLOAT),
    ]


def _widen(tensor: TensorProto) -> None:
    """Store the elements of a float16 tensor in float32, in place."""
    if tensor.data_type == TensorProto.FLOAT16:
        array = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _copy(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy
