"""A float16 model in float32 arithmetic: each result is rounded to float16 by explicit Casts.

Kernels of a runtime may drop roundings, or compute in float32 and round once for several operators.
The emulated model gives the same results on every processor. bfloat16 is emulated alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ...frontends.onnx.codec.onnx_types import FROM_ONNX, TO_ONNX
from ...ir.types import BF16, F16, DType, dtype_of
from ...result import Result, copied

NARROW: tuple[DType, ...] = (F16, BF16)
"""The element types that are emulated."""

CODES = tuple(TO_ONNX[dtype] for dtype in NARROW)
"""Their numbers in ONNX."""

EXACT, BITS, SCALED = "/before_rounding", "/narrow", "/scaled"
"""Ends of the names of a result before it is rounded, in the narrow type, and before its scale."""


def emulated(result: Result, exponents: Mapping[str, int] | None = None) -> ModelProto:
    """Return the model of `result` with float32 in place of float16, and with its roundings.

    Values that have one of the `exponents` by their names are those of the model times 2^-exponent,
    and their readers read them as they are.
    """
    model = copied(result.model)
    graph = model.graph
    types = narrow_values(result)
    for tensor in graph.initializer:
        _widen(tensor)
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type in CODES:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    del graph.value_info[:]
    nodes: list[NodeProto] = []
    renamed: dict[str, str] = {}
    for name in narrow_inputs(result):
        renamed[name] = name + EXACT
        nodes += rounding(name, renamed[name], types[name])
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in CODES:
                attribute.i = TensorProto.FLOAT
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        nodes.append(node)
        is_constant = node.op_type == "Constant"
        for index, name in enumerate(node.output):
            exponent = (exponents or {}).get(name, 0)
            end = name + SCALED if exponent else name
            if name in types and not is_constant:
                node.output[index] = name + EXACT
                nodes += rounding(name + EXACT, end, types[name])
            else:
                node.output[index] = end
            if exponent:
                renamed[name] = end
                factor = numpy_helper.from_array(np.array(2.0**-exponent, np.float32), f"{end}/by")
                graph.initializer.append(factor)
                nodes.append(helper.make_node("Mul", [end, factor.name], [name]))
    copies = [copied_node(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return model


def narrow_inputs(result: Result) -> list[str]:
    """Return the names of the inputs that are float16 or bfloat16."""
    graph = result.module.graph
    return [value.name for value in graph.inputs if dtype_of(value.type) in NARROW]


def narrow_values(result: Result) -> dict[str, DType]:
    """Return the types of the values that are float16 or bfloat16, by their names."""
    found = {}
    graph = result.module.graph
    made = (value for node in graph.nodes() for value in node.outputs if value.name)
    for value in (*graph.inputs, *made):
        dtype = dtype_of(value.type)
        if dtype in NARROW:
            found[result.name_of(value)] = dtype
    return found


def rounding(source: str, target: str, dtype: DType) -> list[NodeProto]:
    """Return the Casts that round a value to a narrow type and back."""
    bits = target + BITS
    return [
        helper.make_node("Cast", [source], [bits], to=TO_ONNX[dtype]),
        helper.make_node("Cast", [bits], [target], to=TensorProto.FLOAT),
    ]


def _widen(tensor: TensorProto) -> None:
    """Store the elements of a float16 tensor in float32, in place."""
    if tensor.data_type in CODES:
        array = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def copied_node(node: NodeProto) -> NodeProto:
    """Return a copy of a node."""
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def narrow_type(model: ModelProto) -> DType | None:
    """Return the narrow type that a model of the main graph computes in, None if it has none."""
    graph = model.graph
    codes = {tensor.data_type for tensor in graph.initializer}
    codes |= {info.type.tensor_type.elem_type for info in (*graph.input, *graph.output)}
    for node in graph.node:
        for attribute in node.attribute:
            codes.add(attribute.t.data_type)
            if node.op_type == "Cast" and attribute.name == "to":
                codes.add(attribute.i)
    return next((FROM_ONNX[code] for code in CODES if code in codes), None)
