"""The types of values: those that the model declares, and those of onnx's own shape inference."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...codec.onnx_types import import_type
from ...codec.protos import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from ...codec.streaming import materialize_tensor, payload_of, placeholders_exist
from ...ir.types import TensorType, Type
from .expansion import is_expansion_bounded

PAYLOAD_LIMIT = 1024
"""Tensors up to this many bytes keep their elements: shape inference reads the shapes that Reshape and others take."""


def infer_shapes(model: ModelProto, order: Sequence[int] | None = None, *, isolate: bool = False) -> ModelProto | None:
    """Return a copy of `model` without large payloads, in which onnx's shape inference has filled in value_info.

    The nodes of the main graph come in `order`, if given: onnx wants them sorted. With `isolate` inference runs in a
    child process. The result is None if inference fails, as it may on an invalid model or an unknown operator version.
    """
    light = ModelProto(ir_version=max(model.ir_version, 4))  # before 4, onnx ignores initializers that are not inputs
    light.opset_import.extend(model.opset_import)
    if is_expansion_bounded(model):
        light.functions.extend(model.functions)
    _strip_graph(model.graph, light.graph, order)
    if model.ir_version < 4:
        constants = {tensor.name for tensor in model.graph.initializer}
        inputs = [info for info in light.graph.input if info.name not in constants]
        del light.graph.input[:]
        light.graph.input.extend(inputs)
    try:
        if isolate and os.name == "posix":
            from .sandbox import infer_shapes_in_child

            return infer_shapes_in_child(light)
        from onnx import shape_inference

        return shape_inference.infer_shapes(light)
    except Exception:  # whatever onnx raises, the model is imported without these types
        return None


def value_types(proto: GraphProto, inferred: GraphProto | None) -> dict[str, Type]:
    """Return types by value name. Inferred types replace declared ones, except those of the graph's inputs."""
    infos: list[ValueInfoProto] = []
    for graph in (proto, inferred):
        if graph is not None:
            infos.extend(graph.value_info)
            infos.extend(graph.output)
    infos.extend(proto.input)
    return {info.name: import_type(info.type) for info in infos if info.HasField("type")}


def refines(type_: Type, declared: Type) -> bool:
    """Return whether the tensor type `type_` agrees with `declared` and is at least as specific."""
    if not isinstance(type_, TensorType) or not isinstance(declared, TensorType):
        return False
    if declared.dtype not in (None, type_.dtype) or type_.shape is None:
        return False
    shape = type_.shape if declared.shape is None else declared.shape
    if len(shape) != len(type_.shape):
        return False
    return all([b in (None, a) for a, b in zip(type_.shape, shape, strict=True)])


def _strip_graph(source: GraphProto, target: GraphProto, order: Sequence[int] | None = None) -> None:
    target.name = source.name
    target.input.extend(source.input)
    target.output.extend(source.output)
    target.value_info.extend(source.value_info)
    for tensor in source.initializer:
        _strip_tensor(tensor, target.initializer.add())
    target.sparse_initializer.extend(source.sparse_initializer)
    for i in range(len(source.node)) if order is None else order:
        _strip_node(source.node[i], target.node.add())


def _strip_node(source: NodeProto, target: NodeProto) -> None:
    if not any(attribute.type in (AttributeProto.TENSOR, AttributeProto.GRAPH) for attribute in source.attribute):
        target.CopyFrom(source)
        return
    target.op_type, target.domain, target.overload = source.op_type, source.domain, source.overload
    target.input.extend(source.input)
    target.output.extend(source.output)
    for attribute in source.attribute:
        copy = target.attribute.add()
        if attribute.type == AttributeProto.TENSOR and not attribute.ref_attr_name:
            copy.name, copy.type = attribute.name, attribute.type
            _strip_tensor(attribute.t, copy.t)
        elif attribute.type == AttributeProto.GRAPH and not attribute.ref_attr_name:
            copy.name, copy.type = attribute.name, attribute.type
            _strip_graph(attribute.g, copy.g)
        else:
            copy.CopyFrom(attribute)


def _strip_tensor(source: TensorProto, target: TensorProto) -> None:
    payload = payload_of(source.raw_data) if placeholders_exist() else None
    size = source.ByteSize() + (0 if payload is None else payload.nbytes)
    if size <= PAYLOAD_LIMIT and source.data_location != TensorProto.EXTERNAL:
        target.CopyFrom(source)
        materialize_tensor(target)
        return
    target.name, target.data_type = source.name, source.data_type
    target.dims.extend(source.dims)
