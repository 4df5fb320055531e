"""Types by onnx's own shape inference, run on a copy of the model without its payloads."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...codec.protos import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto
from ...codec.streaming import materialize_tensor, payload_of, placeholders_exist
from .expansion import expands_little

PAYLOAD_LIMIT = 1024
"""Tensors up to this many bytes keep their elements: shape inference reads targets of Reshape and the like."""


def infer_shapes(model: ModelProto, order: Sequence[int] | None = None, *, isolate: bool = False) -> ModelProto | None:
    """A model of the same graphs as `model` in which value_info is complete as far as onnx can tell.

    The nodes of the main graph come in `order`, if given: onnx wants them sorted. None where inference fails, which an
    invalid model or an unknown operator version may cause. With `isolate` a process of its own does it.
    """
    light = ModelProto(ir_version=max(model.ir_version, 4))  # before 4, initializers that are no inputs are passed over
    light.opset_import.extend(model.opset_import)
    if expands_little(model):
        light.functions.extend(model.functions)
    _strip_graph(model.graph, light.graph, order)
    if model.ir_version < 4:
        constants = {tensor.name for tensor in model.graph.initializer}
        inputs = [info for info in light.graph.input if info.name not in constants]
        del light.graph.input[:]
        light.graph.input.extend(inputs)
    try:
        if isolate and os.name == "posix":
            from .sandbox import isolated

            return isolated(light)
        from onnx import shape_inference

        return shape_inference.infer_shapes(light)
    except Exception:  # whatever onnx raises, the model is imported without these types
        return None


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
