"""The types of values, by onnx's own shape inference from the inputs of the model.

The shapes that a model declares for other values are hints, which may be stale. Inference does not get them, so no
shape in the IR comes from them. It gets the element types: a runtime refuses a model that lies about one.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Sequence

from ...codec.onnx_types import import_type
from ...codec.protos import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    copy_fields,
)
from ...codec.streaming import materialize_tensor, payload_of, placeholders_exist
from ...ir.types import TensorType, Type, without_shapes
from .expansion import is_expansion_bounded

PAYLOAD_LIMIT = 1024
"""Tensors up to this many bytes keep their elements: shape inference reads the shapes that Reshape and others take."""

POOLS = ("AveragePool", "LpPool", "MaxPool")
HIDDEN = "irc.hidden"
"""The domain of operators whose types onnx's shape inference must not infer."""


def infer_shapes(model: ModelProto, order: Sequence[int] | None = None, *, isolate: bool = False) -> ModelProto | None:
    """Return a copy of `model` without large payloads and declared shapes, in which inference has filled in value_info.

    The nodes of the main graph come in `order`, if given: onnx wants them sorted. With `isolate` inference runs in a
    child process. The result is None if inference fails, as it may on an invalid model or an unknown operator version.
    """
    light = ModelProto(ir_version=max(model.ir_version, 4))  # before 4, onnx ignores initializers that are not inputs
    light.opset_import.extend(model.opset_import)
    light.opset_import.add(domain=HIDDEN, version=1)
    if is_expansion_bounded(model):
        for function in model.functions:
            copy_fields(function, light.functions.add(), ("value_info",))
    _strip_graph(model.graph, light.graph, order, is_main=True)
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


def value_types(proto: GraphProto, inferred: GraphProto | None, *, is_main: bool) -> dict[str, Type]:
    """Return types by value name: inferred ones, and of the others the element types that are declared.

    The declarations of the inputs of the main graph hold as they are.
    """
    facts: list[ValueInfoProto] = []
    if inferred is not None:
        facts += (*inferred.value_info, *inferred.output, *inferred.input)
    if is_main:
        facts += proto.input
    types = {info.name: import_type(info.type) for info in facts if info.HasField("type")}
    for info in (*proto.value_info, *proto.output, *proto.input):
        if info.name not in types and info.HasField("type"):
            types[info.name] = without_shapes(import_type(info.type))
    return types


def contradicts(declared: Type, found: Type, symbols: Container[str]) -> bool:
    """Return whether a declared tensor type excludes an inferred one.

    An extent of a model's input that is one of `symbols` may be any number, so that no number is right for it.
    """
    if not isinstance(declared, TensorType) or not isinstance(found, TensorType):
        return False
    if declared.dtype is not None is not found.dtype and declared.dtype != found.dtype:
        return True
    if declared.shape is None or found.shape is None:
        return False
    if len(declared.shape) != len(found.shape):
        return True
    return any(
        isinstance(said, int) and said >= 0 and (said != is_ if isinstance(is_, int) else is_ in symbols)
        for said, is_ in zip(declared.shape, found.shape, strict=True)
    )


def _strip_graph(
    source: GraphProto, target: GraphProto, order: Sequence[int] | None = None, *, is_main: bool = False
) -> None:
    target.name = source.name
    target.input.extend(source.input)
    target.output.extend(source.output)
    target.value_info.extend(source.value_info)
    _strip_shapes((*(() if is_main else target.input), *target.output, *target.value_info))
    for tensor in source.initializer:
        _strip_tensor(tensor, target.initializer.add())
    for sparse in source.sparse_initializer:  # onnx would give them types of sparse tensors, which no operator takes
        target.initializer.add(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
    for i in range(len(source.node)) if order is None else order:
        _strip_node(source.node[i], target.node.add())


def _strip_node(source: NodeProto, target: NodeProto) -> None:
    if source.op_type in POOLS and not source.domain and _may_start_in_padding(source):
        target.op_type, target.domain = source.op_type, HIDDEN
        target.input.extend(source.input)
        target.output.extend(source.output)
        target.attribute.extend(source.attribute)
        return
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


def _may_start_in_padding(pool: NodeProto) -> bool:
    """Return whether `ceil_mode` of a pool may count a last window that starts in the padding after the data.

    Such a window is none, but onnx's shape inference counts it. A window of `extent` elements that the data begin
    starts inside them if extent >= stride + padding after the data.
    """
    attrs = {attribute.name: attribute for attribute in pool.attribute}
    if "ceil_mode" not in attrs or not attrs["ceil_mode"].i:
        return False
    kernel, strides, dilations, pads = (
        list(attrs[name].ints) if name in attrs else [] for name in ("kernel_shape", "strides", "dilations", "pads")
    )
    rank = len(kernel)
    reach = [1 + (extent - 1) * step for extent, step in zip(kernel, dilations or [1] * rank, strict=False)]
    after = pads[rank:] or [0] * rank
    if "auto_pad" in attrs and attrs["auto_pad"].s not in (b"", b"NOTSET"):
        return True
    return any(extent < stride + pad for extent, stride, pad in zip(reach, strides or [1] * rank, after, strict=False))


def _strip_shapes(infos: Iterable[ValueInfoProto]) -> None:
    """Remove the shapes in the types of `infos`."""
    for info in infos:
        type_ = info.type if info.HasField("type") else None
        while type_ is not None:
            kind = type_.WhichOneof("value")
            if kind == "tensor_type" or kind == "sparse_tensor_type":
                getattr(type_, kind).ClearField("shape")
            inner = _ELEMENTS.get(kind or "")
            type_ = None if inner is None else getattr(getattr(type_, kind), inner)


_ELEMENTS = {"sequence_type": "elem_type", "optional_type": "elem_type", "map_type": "value_type"}
"""The field of the type of the elements, by the kind of a type."""


def _strip_tensor(source: TensorProto, target: TensorProto) -> None:
    payload = payload_of(source.raw_data) if placeholders_exist() else None
    size = source.ByteSize() + (0 if payload is None else payload.nbytes)
    if size <= PAYLOAD_LIMIT and source.data_location != TensorProto.EXTERNAL:
        target.CopyFrom(source)
        materialize_tensor(target)
        return
    target.name, target.data_type = source.name, source.data_type
    target.dims.extend(source.dims)
