"""The emitter: from a module to a ModelProto.

A node that no pass changed is written as the message that it came from, so without passes the
result equals the source. Nodes that passes made are written from operator, attributes and types.
Initializers, value_info and quantization annotations of values that are gone are left out. A model
of which an operator or constant changed bears irc's mark.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from google.protobuf.message import DecodeError, EncodeError

from ...frontends.onnx.codec.onnx_attributes import export_attribute
from ...frontends.onnx.codec.onnx_types import export_dtype, value_info
from ...frontends.onnx.codec.protos import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    copy_fields,
    is_compiled,
    mark_compiled,
    remove_fold_map,
)
from ...frontends.onnx.codec.tensors import OnnxTensor
from ...ir.graph import Function, Graph, Node, Value
from ...ir.loops import listed_results
from ...ir.module import Module
from ...ir.ops import DEFAULT_DOMAINS
from ...ir.type_inference import contradicts
from ...ir.types import BF16, F16, TensorType, Type, dtype_of, shape_of
from ...support.errors import EmitError
from .legalize import Legalization, legalize
from .value_names import Names
from .writer import GraphWriter, reason

REBUILT = (
    "node",
    "initializer",
    "sparse_initializer",
    "input",
    "output",
    "value_info",
    "quantization_annotation",
)
"""The fields of a GraphProto that are written from the IR; the others are copied."""

DEEP = frozenset(
    (
        AttributeProto.GRAPH,
        AttributeProto.GRAPHS,
        AttributeProto.TYPE_PROTO,
        AttributeProto.TYPE_PROTOS,
    ),
)
"""Kinds of attributes whose messages may nest."""


def emit_model(module: Module) -> tuple[ModelProto, dict[Node, NodeProto], Names]:
    """Return the ModelProto of `module`, the message of each layer, and the names of values.

    The module is not changed. O(nodes + bytes). Raises EmitError if ONNX cannot express it.
    """
    emitter = _Emitter(module)
    try:
        model = emitter.run()
        _check_nesting(model, module)
    except ValueError as error:  # a number or a name that protobuf refuses
        raise EmitError(f"the module cannot be written as ONNX: {reason(error)}") from None
    except DecodeError:  # raised by copies, too
        raise EmitError(
            "graphs or types are nested deeper than the 100 levels that protobuf reads"
        ) from None
    return model, emitter.layers, emitter.names


def _check_nesting(model: ModelProto, module: Module) -> None:
    """Raise DecodeError if a pass or IR text nested messages deeper than protobuf reads."""
    from_text = not isinstance(module.source, ModelProto)
    if not (from_text or module.changed):
        return
    inside = ModelProto()
    if from_text or module.graph.has_regions:
        deep = (
            node
            for node in model.graph.node
            if any(item.type in DEEP for item in node.attribute[:])
        )
        inside.graph.node.extend(deep)
    inside.functions.extend(model.functions)
    if from_text:
        inside.graph.value_info.extend(
            (*model.graph.value_info, *model.graph.input, *model.graph.output)
        )
    with suppress(EncodeError):  # more than 2 GiB: an error on saving
        ModelProto.FromString(inside.SerializeToString())


class _Emitter:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.legal: Legalization = legalize(module)
        self.names = Names(module, self.legal.nameless, self.legal.skipped)
        self.layers: dict[Node, NodeProto] = {}
        source = module.source if isinstance(module.source, ModelProto) else None
        self.lists_initializers = module.ir_version < 4 and _lists_initializers(source)
        self.annotating: set[str] = set()
        """The parameters of the quantization annotations that were written."""

        self.unannotating: set[str] = set()
        """The parameters of the annotations that were dropped."""

    def run(self) -> ModelProto:
        module = self.module
        model = ModelProto()
        if isinstance(module.source, ModelProto):
            copy_fields(module.source, model, ("graph", "functions"))
            if module.changed:
                remove_fold_map(model)
                _import_opsets(model, module.graph)
        else:
            model.ir_version, model.producer_name = module.ir_version, "irc"
            for domain, version in module.graph.opsets.items():
                model.opset_import.add(domain=domain, version=version)
        self.graph(module.graph, model.graph)
        for function in module.functions.values():
            self.function(function, model.functions.add())
        if not module.changed or is_compiled(model):
            return model
        if not _has_same_operators(module.source, model):
            mark_compiled(model)
        return model

    def nodes(
        self, graph: Graph, target: GraphProto | FunctionProto, *, as_nodes: bool
    ) -> GraphWriter:
        writer = GraphWriter(graph, target, self.legal, self.names, self.graph, as_nodes=as_nodes)
        writer.nodes()
        self.layers.update(writer.written)
        return writer

    def graph(self, graph: Graph, target: GraphProto) -> None:
        source = (
            graph.source if isinstance(graph.source, GraphProto) else GraphProto(name=graph.name)
        )
        copy_fields(source, target, REBUILT)
        writer = self.nodes(
            graph, target, as_nodes=self.module.ir_version < 4 and graph.parent is not None
        )
        wrong = self.misdeclared(graph) if self.module.provenance.passes else set()
        self.annotations(source, target, writer, wrong)
        if dropped := self.unannotating - self.annotating:
            writer.drop_unread(dropped)
        writer.write_initializers(target, [tensor.name for tensor in source.initializer])
        target.sparse_initializer.extend(writer.sparse)
        self.inputs(graph, source, target, writer.replaced)
        self.outputs(graph, source, target)
        if self.module.changed:
            for info in (*target.output, *target.value_info):
                _clear_negative_extents(info)

    def misdeclared(self, graph: Graph) -> set[str]:
        """Return the names of values whose declared types inference contradicts.

        Inference did so when the model was read, or does so by now.
        """
        wrong = set(self.module.notes.misdeclared.get(graph, ()))
        declared = self.module.notes.declared.get(graph)
        if not declared or not self.module.changed:
            return wrong
        symbols = {
            dim
            for value in self.module.graph.inputs
            for dim in shape_of(value.type) or ()
            if isinstance(dim, str)
        }
        for node in graph.nodes():
            for value in node.outputs:
                was_declared, was_inferred = declared.get(value.name, (None, None))
                if was_declared is None or value.type is was_inferred:
                    continue
                if contradicts(was_declared, value.type, symbols):
                    wrong.add(value.name)
        return wrong

    def annotations(
        self, source: GraphProto, target: GraphProto, writer: GraphWriter, wrong: Container[str]
    ) -> None:
        """Copy value_info and quantization_annotation of unchanged values, but no `wrong` ones."""
        if not source.value_info and not source.quantization_annotation:
            return
        defined = writer.defined()
        was = {name for node in source.node for name in node.output[:]}
        was.update(tensor.name for tensor in source.initializer)
        was.update(info.name for info in source.input)

        def stale(name: str) -> bool:
            return name in writer.replaced or (name not in defined and name in was)

        made = writer.initializers.keys() - {tensor.name for tensor in source.initializer}

        def is_wrong(info: ValueInfoProto) -> bool:
            # onnx's checker takes an initializer that is declared without a shape for an empty one
            is_open = not info.type.tensor_type.HasField("shape")
            return info.name in wrong or (is_open and info.name in made)

        target.value_info.extend(
            info for info in source.value_info if not (stale(info.name) or is_wrong(info))
        )
        for annotation in source.quantization_annotation:
            parameters = [entry.value for entry in annotation.quant_parameter_tensor_names]
            if any(map(stale, (annotation.tensor_name, *parameters))):
                self.unannotating.update(parameters)
            else:
                self.annotating.update(parameters)
                target.quantization_annotation.append(annotation)

    def inputs(
        self, graph: Graph, source: GraphProto, target: GraphProto, replaced: set[str]
    ) -> None:
        """Write the inputs of the graph.

        Before IR version 4 initializers are inputs, too, if the source listed them. The declaration
        of an initializer is copied unless it is among the `replaced` and has another shape.
        """
        own = {value.name: value for value in graph.inputs}
        declared = [info.name for info in source.input]
        # a copy of the source may have new names for all inputs
        if len(own) == len(declared) and own.keys().isdisjoint(declared):
            own = dict(zip(declared, graph.inputs, strict=True))
        listed: dict[str, TensorProto] = {}
        if self.module.ir_version < 4:
            listed = {tensor.name: tensor for tensor in target.initializer}
        seen: set[str] = set()
        for info in source.input:
            tensor = listed.get(info.name)
            if info.name in own:
                value = own[info.name]
                target.input.append(self.declared(info, self.names.declared(value), value))
                seen.add(info.name)
            elif tensor is None:
                continue
            elif info.name not in replaced or list(tensor.dims) == _dims(info):
                target.input.append(info)
                seen.add(info.name)
        for name, value in own.items():
            if name not in seen:
                target.input.append(value_info(self.names.declared(value), value.type))
        if self.lists_initializers and graph.parent is None:
            for tensor in target.initializer:
                if tensor.name not in seen:
                    target.input.append(value_info(tensor.name, _tensor_type(tensor)))

    def outputs(self, graph: Graph, source: GraphProto, target: GraphProto) -> None:
        """Write the results, with the declarations of the source if it has them."""
        declared = len(source.output) == len(graph.output_names)
        lists = dict(listed_results(graph.parent)) if graph.parent and self.module.changed else {}
        for index, (value, name) in enumerate(
            zip(graph.outputs, self.names.results(graph), strict=True)
        ):
            info = (
                self.declared(source.output[index], name, value)
                if declared
                else value_info(name, value.type)
            )
            if value in lists:
                info = _declared_as_listed(info, lists[value].type)
            target.output.append(info)

    def declared(self, info: ValueInfoProto, name: str, value: Value) -> ValueInfoProto:
        """Return `info` under `name`, with the narrow type that a pass gave a float32 value."""
        is_single = info.type.tensor_type.elem_type == TensorProto.FLOAT
        dtype = dtype_of(value.type)
        is_narrow = dtype in (F16, BF16) and is_single and self.module.changed
        if info.name == name and not is_narrow:
            return info
        copy = ValueInfoProto()
        copy.CopyFrom(info)
        copy.name = name
        if is_narrow and dtype is not None:
            copy.type.tensor_type.elem_type = export_dtype(dtype)
        return copy

    def function(self, function: Function, target: FunctionProto) -> None:
        graph = function.graph
        if isinstance(function.source, FunctionProto):
            copy_fields(function.source, target, ("node", "value_info"))
            if self.module.changed:
                _import_opsets(target, graph)
        else:
            target.domain, target.name, target.overload = (
                function.domain,
                function.name,
                function.overload,
            )
            target.input.extend(value.name for value in graph.inputs)
            target.output.extend(graph.output_names)
            with_default = set(function.defaults)
            target.attribute.extend(
                name for name in function.attributes if name not in with_default
            )
            for name, value in function.defaults.items():
                target.attribute_proto.append(export_attribute(name, value, ()))
            for domain, version in graph.opsets.items():
                target.opset_import.add(domain=domain, version=version)
        writer = self.nodes(graph, target, as_nodes=True)
        if isinstance(function.source, FunctionProto):
            defined = writer.defined() | set(target.input)
            was = {name for node in function.source.node for name in node.output[:]}
            target.value_info.extend(
                i for i in function.source.value_info if i.name in defined or i.name not in was
            )


def _import_opsets(target: ModelProto | FunctionProto, graph: Graph) -> None:
    """Import the domains that passes added to `graph`."""
    imported = {
        entry.domain if entry.domain not in DEFAULT_DOMAINS else "" for entry in target.opset_import
    }
    for domain, version in graph.opsets.items():
        if domain and domain not in imported:
            target.opset_import.add(domain=domain, version=version)


def _has_same_operators(source: object, model: ModelProto) -> bool:
    """Return whether `model` has the operators, constants and functions of its source.

    O(equal nodes + bytes).
    """
    if not isinstance(source, ModelProto):
        return False
    if source.graph.node[:] != model.graph.node[:] or source.functions[:] != model.functions[:]:
        return False
    if source.graph.initializer[:] != model.graph.initializer[:]:
        return False
    return source.graph.sparse_initializer[:] == model.graph.sparse_initializer[:]


def _lists_initializers(source: ModelProto | None) -> bool:
    if source is None:
        return True
    inputs = {info.name for info in source.graph.input}
    return all(tensor.name in inputs for tensor in source.graph.initializer)


def _declared_as_listed(info: ValueInfoProto, list_: Type) -> ValueInfoProto:
    """Return the declaration of a result of a body with the extents that a list of it has.

    A list of no results has the rank that the runtime knows of one.
    """
    dtype, shape = dtype_of(list_), shape_of(list_)
    if dtype is None or shape is None or info.type.tensor_type.HasField("shape"):
        return info
    return value_info(info.name, TensorType(dtype, shape[1:]))


def _clear_negative_extents(info: ValueInfoProto) -> None:
    """Remove extents that some exporters declare as -1: checkers find them contradicted."""
    for dim in info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ():
        if dim.dim_value < 0:
            dim.ClearField("dim_value")


def _dims(info: ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in info.type.tensor_type.shape.dim]


def _tensor_type(proto: TensorProto) -> Type:
    return OnnxTensor(proto, Path()).type
