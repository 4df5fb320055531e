"""The function bodies that the ONNX standard itself gives for some operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from .program import Function, Step, decode_function
from .values import Value


def standard_function(
    step: Step, inputs: Sequence[Value], attributes: Mapping[str, object], version: int
) -> Function | None:
    """The newest body of the operator for this opset version, None if there is none."""
    if not defs.has(step.op_type, version, step.domain):
        return None
    schema: Any = defs.get_schema(step.op_type, version, step.domain)
    if "seed" in schema.attributes:
        return None
    proto = onnx.FunctionProto()
    if bodies := [body for body in schema.function_opset_versions if body <= version]:
        proto.ParseFromString(schema.get_function_with_opset_version(max(bodies)))
    elif bodies := [
        body for body in schema.context_dependent_function_opset_versions if body <= version
    ]:
        types = [_type(value).SerializeToString() for value in inputs]
        body = schema.get_context_dependent_function_with_opset_version(
            max(bodies), _resolved(step, attributes).SerializeToString(), types
        )
        proto.ParseFromString(body)
    else:
        return None
    decoded = decode_function(proto)
    defaults = {
        name: helper.get_attribute_value(entry.default_value)
        for name, entry in schema.attributes.items()
        if entry.default_value.name
    }
    return Function(decoded.body, {**_text(defaults), **decoded.defaults}, decoded.opsets)


def _text(attributes: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in attributes.items()
    }


def _type(value: Value) -> onnx.TypeProto:
    if isinstance(value, list):
        return helper.make_sequence_type_proto(_type(value[0] if value else np.zeros(0)))
    if value is None:
        return onnx.TypeProto()
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _resolved(step: Step, attributes: Mapping[str, object]) -> onnx.NodeProto:
    """The node with references to attributes of the enclosing function replaced by their values."""
    node = onnx.NodeProto()
    node.CopyFrom(step.node)
    del node.attribute[:]
    node.attribute.extend(
        attribute for attribute in step.node.attribute if not attribute.ref_attr_name
    )
    for name in step.references:
        if name in attributes:
            node.attribute.append(helper.make_attribute(name, attributes[name]))
    return node
