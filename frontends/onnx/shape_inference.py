"""The types of values, by onnx's own shape inference from the inputs of the model.

The shapes that a model declares for other values are hints, which may be stale. Inference does not
get them, so no shape in the IR comes from them. It gets the element types: a runtime refuses a
model that lies about one.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set

from ...ir.ops.views import Window
from ...ir.types import Dim, shape_of
from .codec import onnx_parts
from .codec.onnx_types import declare, import_type
from .codec.protos import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    copy_fields,
)
from .codec.streaming import materialize_tensor, payload_of, placeholders_exist
from .expansion import is_expansion_bounded
from .hiding import Scope, hidden_in, hide
from .inference_quirks import QUIRKS, may_start_in_padding, pads_unlike
from .sandbox import infer_shapes_in_child

PAYLOAD_LIMIT = 1024
"""Tensors of up to this many bytes keep their elements: inference reads shapes and axes."""

POOLS = ("AveragePool", "LpPool", "MaxPool")
MAX_POOLS_IN_A_ROW = 8
"""Most inferences beyond the first: each shows pools whose data became known by the one before."""

MAX_COUNTED = 1 << 20
"""Largest extent of which windows are counted: versions of onnx divide in float32."""


STAND_INS = {("com.microsoft", "DynamicQuantizeLSTM"): "LSTM"}
"""Operators of other domains, and an operator of ONNX with the same result types."""


def infer_shapes(
    model: ModelProto,
    order: Sequence[int] | None = None,
    *,
    known: Sequence[ValueInfoProto] = (),
    isolate: bool = False,
) -> ModelProto | None:
    """Return a copy of `model` with the types that onnx infers in value_info.

    The copy has no large payloads and no declared shapes. The nodes of the main graph come in
    `order`, if given: onnx wants them sorted. `known` are types of values of the main graph that
    are proved. With `isolate` inference runs in a child process. The result is None if inference
    fails, as it may on an invalid model or an unknown operator version. Pools that round up are
    hidden from it until the extents of their data are known and show that onnx is right.
    """
    shown: set[str] = set()
    inferred = _infer(model, order, shown, known, isolate=isolate)
    for _ in range(MAX_POOLS_IN_A_ROW):
        found = set() if inferred is None else set(_pools_to_show(inferred)) - shown
        if not found:
            break
        shown |= found
        again = _infer(model, order, shown, known, isolate=isolate)
        inferred = inferred if again is None else again
    return inferred


def _infer(
    model: ModelProto,
    order: Sequence[int] | None,
    shown: Set[str],
    known: Sequence[ValueInfoProto],
    *,
    isolate: bool,
) -> ModelProto | None:
    """Return the result of one inference; pools with a result in `shown` are not hidden from it."""
    # before IR version 4, onnx ignores initializers that are not inputs
    light = ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    if is_expansion_bounded(model):
        for function in model.functions:
            copy_fields(function, light.functions.add(), ("value_info",))
    may_override = model.ir_version >= 4
    overridable = (
        frozenset(info.name for info in model.graph.input) if may_override else frozenset[str]()
    )
    _strip_graph(model.graph, light.graph, order, is_main=True, overridable=overridable)
    declare(light.graph, known)

    def is_hidden_pool(node: NodeProto, scope: Scope) -> bool:
        # names in bodies may stand twice
        if scope.is_main and node.output and node.output[0] in shown:
            return False
        return may_start_in_padding(node) or pads_unlike(node, scope)

    hide(light, {**dict.fromkeys(POOLS, is_hidden_pool), **QUIRKS})
    _drop_negative_extents(light.graph.input)
    if model.ir_version < 4:
        constants = {tensor.name for tensor in model.graph.initializer}
        inputs = [info for info in light.graph.input if info.name not in constants]
        del light.graph.input[:]
        light.graph.input.extend(inputs)
    try:
        if isolate and os.name == "posix":
            return infer_shapes_in_child(light)
        return ModelProto.FromString(onnx_parts.infer_shapes(light.SerializeToString()))
    except Exception:  # whatever onnx raises, the model is imported without these types
        return None


def _strip_graph(
    source: GraphProto,
    target: GraphProto,
    order: Sequence[int] | None = None,
    *,
    is_main: bool = False,
    overridable: Container[str] = (),
) -> None:
    """Copy the graph to be inferred, its nodes in `order`, if given.

    Callers may give other elements of the `overridable` initializers, so that no extent follows
    from these.
    """
    target.name = source.name
    target.input.extend(source.input)
    target.output.extend(source.output)
    target.value_info.extend(source.value_info)
    hints = (*(() if is_main else target.input), *target.output, *target.value_info)
    _strip_shapes(hints)
    for tensor in source.initializer:
        if tensor.name not in overridable:
            _strip_tensor(tensor, target.initializer.add())
    # onnx would give them types of sparse tensors, which no operator takes
    for sparse in source.sparse_initializer:
        if sparse.values.name not in overridable:
            target.initializer.add(
                name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims
            )
    _restore_shapes(hints, {tensor.name: tensor.dims for tensor in target.initializer})
    for i in range(len(source.node)) if order is None else order:
        _strip_node(source.node[i], target.node.add())


def _strip_node(source: NodeProto, target: NodeProto) -> None:
    if stand_in := STAND_INS.get((source.domain, source.op_type)):
        target.op_type = stand_in
        target.input.extend(source.input)
        target.output.extend(source.output)
        target.attribute.extend(source.attribute)
        return
    kinds = {attribute.type for attribute in source.attribute[:]}
    if kinds.isdisjoint((AttributeProto.TENSOR, AttributeProto.GRAPH)):
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


def _pools_to_show(inferred: ModelProto) -> Iterator[str]:
    """Yield results of hidden pools of the main graph whose last windows start inside the data.

    For these onnx and runtimes count alike. The extents of their data are known from other
    operators.
    """
    graph = inferred.graph
    hidden = [
        node
        for node in hidden_in(graph.node)
        if node.op_type in POOLS and node.input and node.output
    ]
    if not hidden:
        return
    infos = {info.name: info for info in (*graph.value_info, *graph.input)}
    for node in hidden:
        info, pool = infos.get(node.input[0]), _window_of(node)
        shape = (
            shape_of(import_type(info.type)) if info is not None and info.HasField("type") else None
        )
        if pool is None or shape is None or len(shape) != len(pool[1]) + 2:
            continue
        window, kernel = pool
        sizes = enumerate(shape[2:])
        if all(_counts_agree(window, axis, size, kernel[axis]) for axis, size in sizes):
            yield node.output[0]


def _window_of(pool: NodeProto) -> tuple[Window, tuple[int, ...]] | None:
    """Return window and kernel of a pool with explicit pads, None if its attributes do not fit."""
    attrs = {attribute.name: attribute for attribute in pool.attribute}
    if "auto_pad" in attrs and attrs["auto_pad"].s not in (b"", b"NOTSET"):
        return None
    lists = {name: tuple(attrs[name].ints) if name in attrs else () for name in _WINDOW}
    kernel = lists["kernel_shape"]
    axes = len(kernel)
    pads = lists["pads"] or (0,) * (2 * axes)
    strides = lists["strides"] or (1,) * axes
    dilations = lists["dilations"] or (1,) * axes
    if len(pads) != 2 * axes or not len(strides) == len(dilations) == axes:
        return None
    if min(kernel, default=0) < 1 or min(pads) < 0 or min(*strides, *dilations) < 1:
        return None
    return Window("NOTSET", pads, strides, dilations), kernel


def _counts_agree(window: Window, axis: int, size: Dim, extent: int) -> bool:
    """Return whether onnx and runtimes count the windows along an axis alike, and there are any."""
    if not isinstance(size, int) or size > MAX_COUNTED or window.dilations[axis] != 1:
        return False
    floor, ceil = window.count(axis, size, extent), window.count(axis, size, extent, ceil=True)
    pads = window.pads
    if floor is None or pads is None or floor < 1:
        return False
    rest = (size + pads[axis] + pads[len(pads) // 2 + axis] - window.reach(axis, floor, extent)) > 0
    return ceil == floor + rest


_WINDOW = ("kernel_shape", "strides", "dilations", "pads")
"""The attributes that place the windows of a pool."""


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


def _drop_negative_extents(infos: Iterable[ValueInfoProto]) -> None:
    """Remove extents such as -1, by which some exporters mean any: onnx calculates with them."""
    for info in infos:
        if info.type.HasField("tensor_type"):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


def _restore_shapes(infos: Iterable[ValueInfoProto], extents: Mapping[str, Sequence[int]]) -> None:
    """Give `infos` of initializers the shapes that these have.

    Without one, onnx takes the `axes` of a Slice for absent, and slices the first axis instead.
    """
    for info in infos:
        if info.name in extents and info.type.HasField("tensor_type"):
            shape = info.type.tensor_type.shape
            shape.SetInParent()
            for extent in extents[info.name]:
                shape.dim.add(dim_value=extent)


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
