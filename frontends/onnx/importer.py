"""From ONNX to the IR.

The import changes nothing: every node keeps its inputs, outputs and attributes in their order, initializers become
constants, the protobuf messages are held by reference for the backend. In-house names are given by `lowering`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError, Message

from ...codec.onnx_attributes import NUMERIC_KINDS, UnknownAttribute, import_attribute, import_sparse
from ...codec.onnx_types import import_type
from ...codec.protos import IR_VERSION, AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto
from ...codec.tensor_checks import size_mismatch
from ...codec.tensors import OnnxTensor, decode_small
from ...ir.attributes import Attribute, EmptyList, RegionRef, SparseTensor
from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Function, Graph, Node, Value
from ...ir.module import Module
from ...ir.ops import BY_ONNX_NAME, DEFAULT_DOMAINS
from ...ir.ops.inference import TYPE_OF_DATA
from ...ir.ops.row import NodeView
from ...ir.rewriter import infer_types, is_known
from ...ir.tensor import Array, ArrayTensor, Tensor
from ...ir.types import UNKNOWN, TensorType, Type, has_unknown_dtype
from ...support.errors import ModelError, clipped
from ...support.limits import DEFAULT_LIMITS, Limits
from .lowering import lower
from .shape_inference import infer_shapes
from .toposort import reads, topological_order

SURE_OPSET = 24
"""The last opset of the default domain in the oldest onnx package that irc runs with."""

CONSTANT_FORMS = {
    "value": "t",
    "sparse_value": "sparse_tensor",
    "value_float": "f",
    "value_floats": "floats",
    "value_int": "i",
    "value_ints": "ints",
    "value_string": "s",
    "value_strings": "strings",
}
"""The attributes of ONNX's Constant, one of which is set, with the field that holds each."""


_INFERRED = frozenset((*BY_ONNX_NAME, *(name.removeprefix("::") for name in TYPE_OF_DATA), "Constant"))
"""Operators of the default domain whose results the op table may know the types of."""


def import_model(model: ModelProto, base_dir: Path, limits: Limits = DEFAULT_LIMITS) -> Module:
    """The module of `model`, whose external data stands below `base_dir`. O(nodes + uses).

    Raises ModelError where the model is no graph: a value that nothing defines, or that two nodes define, or a cycle;
    and where it is larger than `limits`.
    """
    if not model.HasField("graph"):
        raise ModelError("this is not an ONNX model: it holds no graph")
    try:
        if _may_type_itself(model):
            try:
                return _Importer(model, base_dir, limits, by_itself=True).run()
            except _Untyped:
                pass
        return _Importer(model, base_dir, limits).run()
    except (RecursionError, DecodeError):  # before a limit was reached, protobuf's own of 100 messages among them
        raise ModelError("graphs or types stand in each other too deep") from None
    except UnicodeDecodeError:
        raise ModelError("a name in the model is not UTF-8 text") from None


class _Untyped(Exception):
    """The types of a model cannot be told, or are not those that it declares, without onnx's shape inference."""


def _may_type_itself(model: ModelProto) -> bool:
    """Whether the op table may know the types of all values, so that shape inference, which reads a copy of the whole
    model, would find nothing more.
    """
    known = {(domain, name) for domain in DEFAULT_DOMAINS for name in _INFERRED}
    return not model.functions and known.issuperset({(node.domain, node.op_type) for node in model.graph.node})


class _Scope:
    """The names visible in a graph: its own, then those of the graphs around it."""

    __slots__ = ("outer", "values")

    def __init__(self, outer: _Scope | None = None) -> None:
        self.outer = outer
        self.values: dict[str, Value] = {}

    def lookup(self, name: str) -> Value | None:
        scope: _Scope | None = self
        while scope is not None:
            value = scope.values.get(name)
            if value is not None:
                return value
            scope = scope.outer
        return None


class _Importer:
    def __init__(self, model: ModelProto, base_dir: Path, limits: Limits, *, by_itself: bool = False) -> None:
        """Import `model`, `by_itself` without shape inference: then every type has to be found by the op table."""
        self.model = model
        self.by_itself = by_itself
        self.base_dir = base_dir
        self.limits = limits
        self.count, self.depth = 0, 0
        self.module = Module(Graph(), ir_version=model.ir_version, source=model, limits=limits)
        self.module.base_dir = base_dir
        self.module.warnings.extend(newer_than_known(model))
        self.evaluator = ConstantEvaluator(limits.max_constant_bytes)
        self.shared: dict[bytes, tuple[str, Attribute]] = {}
        self.types: dict[tuple[str, tuple[int, ...]], TensorType] = {}
        # a function in the default domain takes the place of the operator of that name
        self.overriding = {function.name for function in model.functions if function.domain in DEFAULT_DOMAINS}
        self.variables = _trained_names(model)
        trained = (name for node in model.graph.node for name in node.output if name in self.variables)
        if self.variables and (name := next(trained, None)) is not None:
            self.module.untouchable = f"training_info of the model refers to its intermediate value {name!r}"

    def run(self) -> Module:
        model, module = self.model, self.module
        inferred = None
        if not self.by_itself:
            given = {item.name: item for items in (model.graph.input, model.graph.initializer) for item in items}
            order = topological_order(model.graph.node, given.get)
            inferred = infer_shapes(model, order, isolate=self.limits.isolate)
        opsets = _opsets(model.opset_import)
        module.graph = self.graph(model.graph, _Scope(), opsets, None if inferred is None else inferred.graph)
        for proto in model.functions:
            function = self.function(proto)
            if function.key in module.functions:
                raise ModelError(f"function {proto.domain}::{proto.name} is defined twice")
            module.functions[function.key] = function
        return module

    def graph(self, proto: GraphProto, scope: _Scope, opsets: dict[str, int], inferred: GraphProto | None) -> Graph:
        self.depth += 1
        if self.depth > self.limits.max_nesting:
            raise ModelError(self.limits.too_deep())
        graph = Graph(as_text(proto.name, "the name of a graph"), opsets, source=proto)
        types = _types(proto, inferred)
        declared: dict[str, Type] = {}
        if self.by_itself:
            inputs = {info.name for info in proto.input}
            declared = {name: type_ for name, type_ in types.items() if name not in inputs}
            types = {name: type_ for name, type_ in types.items() if name in inputs}
        payloads = self.payloads(proto)
        for info in proto.input:
            payload = payloads.get(info.name)
            if payload is not None and self.model.ir_version < 4:
                continue
            value = graph.add_input(info.name, types.get(info.name, UNKNOWN))
            self.define(scope, value, proto)
            if payload is not None:
                graph.defaults[value] = payload[0]
        for name, (tensor, source) in payloads.items():
            if name not in scope.values:
                self.define(scope, graph.append(self.initializer(name, tensor, source)).output, proto)
        self.nodes(graph, proto.node, scope, types, inferred.node if inferred is not None else None)
        for name, type_ in declared.items():
            if name not in scope.values or not _completes(scope.values[name].type, type_):
                raise _Untyped
        names = [info.name for info in proto.output]
        graph.set_outputs([self.read(scope, name, f"graph {clipped(proto.name)} returns") for name in names], names)
        self.depth -= 1
        return graph

    def nodes(
        self,
        graph: Graph,
        protos: Sequence[NodeProto],
        scope: _Scope,
        types: dict[str, Type],
        inferred: Sequence[NodeProto] | None,
    ) -> None:
        """Append the nodes; those of a graph that is not sorted come in a stable topological order."""
        self.count += len(protos)
        if self.count > self.limits.max_nodes:
            raise ModelError(self.limits.too_many_nodes())
        order = topological_order(protos, scope.lookup)
        sorted_mirror = (
            scope.outer is None
        )  # shape inference has seen the main graph in this order, regions in their own
        for place, i in enumerate(range(len(protos)) if order is None else order):
            mirror = None if inferred is None else inferred[place if sorted_mirror else i]
            self.node(graph, protos[i], scope, types, mirror)
        if order is not None:
            placed = [node for node in graph if isinstance(node.source, NodeProto)]
            graph.source_order = dict(zip(placed, order, strict=True))

    def node(
        self, graph: Graph, proto: NodeProto, scope: _Scope, types: dict[str, Type], inferred: NodeProto | None
    ) -> None:
        name, op_type, domain, overload = proto.name, proto.op_type, proto.domain, proto.overload
        if not (
            isinstance(name, str) and isinstance(op_type, str) and isinstance(domain, str) and isinstance(overload, str)
        ):
            raise ModelError(f"a name of node {clipped(name)} ({clipped(op_type)}) is not UTF-8 text")
        known = scope.values
        inputs = tuple([known.get(name) or self.read(scope, name, "", proto) if name else None for name in proto.input])
        origins = self.module.new_origin()
        regions: list[Graph] = []
        attrs = self.attributes(proto, regions, scope, graph.opsets, inferred)
        results = tuple(proto.output)
        op = f"{domain}::{op_type}"
        overridden = domain in DEFAULT_DOMAINS and op_type in self.overriding
        if attrs is not None:
            constant = self.constant_attrs(proto, attrs) if op_type == "Constant" else None
            if constant is not None:
                op, attrs = "constant", constant
            elif (
                not overridden
                and domain in DEFAULT_DOMAINS
                and not is_newer(opset := graph.opsets.get("", 1))
                and not _odd_types(inputs, results, types)
            ):
                lowered, refusal = lower(domain, op_type, NodeView(opset, attrs, inputs, results))
                op = lowered or op
                if refusal is not None:
                    self.module.provenance.refusals[self.module.next_origin - 1] = refusal
        node = Node(
            op,
            inputs,
            attrs or {},
            outputs=[(result, types.get(result, UNKNOWN)) for result in results],
            regions=regions,
            name=name,
            overload=proto.overload,
            origins=origins,
            source=proto,
        )
        graph.append(node)
        if not overridden:
            infer_types(node, self.evaluator)
        for value in node.outputs:
            if value.name:
                self.define(scope, value, proto)
                if self.by_itself and not is_known(value.type):
                    raise _Untyped

    def attributes(
        self,
        proto: NodeProto,
        regions: list[Graph],
        scope: _Scope,
        opsets: dict[str, int],
        inferred: NodeProto | None,
    ) -> dict[str, Attribute] | None:
        """The attributes of a node, None where one of them is newer than this program; fills `regions`."""
        attrs: dict[str, Attribute] = {}
        complete = True
        for i, attribute in enumerate(proto.attribute):
            if attribute.type in NUMERIC_KINDS:
                name, value = self.numbers(attribute)
                attrs[name] = value
                continue
            name = as_text(attribute.name, "the name of an attribute")
            mirror = None if inferred is None else inferred.attribute[i]
            nested = iter([] if mirror is None else [mirror.g] if mirror.HasField("g") else list(mirror.graphs))

            def region(graph: GraphProto, nested: Iterable[GraphProto] = nested) -> RegionRef:
                if self.by_itself:
                    raise _Untyped
                regions.append(self.graph(graph, _Scope(scope), opsets, next(iter(nested), None)))
                return RegionRef(len(regions) - 1)

            try:
                attrs[name] = import_attribute(attribute, self.base_dir, region)
            except UnknownAttribute:
                complete = False
        return attrs if complete else None

    def numbers(self, attribute: AttributeProto) -> tuple[str, Attribute]:
        """Name and value of an attribute that is numbers; most nodes share theirs with others."""
        data = attribute.SerializeToString()
        known = self.shared.get(data)
        if known is None:
            name = as_text(attribute.name, "the name of an attribute")
            known = self.shared[data] = name, import_attribute(attribute, self.base_dir, _no_region)
        return known

    def constant_attrs(self, proto: NodeProto, attrs: dict[str, Attribute]) -> dict[str, Attribute] | None:
        """`value` and `form` of a Constant node, None for one of an odd form or of another domain."""
        if proto.domain not in DEFAULT_DOMAINS or proto.input or len(proto.output) != 1:
            return None
        if len(attrs) != 1 or not proto.output[0]:
            return None
        form, value = next(iter(attrs.items()))
        payload = constant_payload(form, value)
        if payload is None or self.is_malformed(proto.output[0], payload):
            return None
        return {"value": payload, "form": form}

    def is_malformed(self, name: str, payload: Attribute) -> bool:
        """Whether a constant is none that can be read: its elements disagree with its shape."""
        if isinstance(payload, OnnxTensor) and payload.is_decoded:
            return False
        fault = None
        for tensor in (payload.values, payload.indices) if isinstance(payload, SparseTensor) else (payload,):
            if isinstance(tensor, OnnxTensor):
                fault = fault or size_mismatch(tensor)
        if fault is not None:
            self.module.warnings.append(f"the tensor {clipped(name)} {fault}: it is kept as it is")
        return fault is not None

    def function(self, proto: FunctionProto) -> Function:
        scope = _Scope()
        for name in (proto.name, proto.domain, proto.overload, *proto.attribute):
            as_text(name, "the name of a function, or of its attribute,")
        graph = Graph(proto.name, _opsets(proto.opset_import), source=proto)
        types = {info.name: import_type(info.type) for info in proto.value_info}
        for name in proto.input:
            self.define(scope, graph.add_input(name, types.get(name, UNKNOWN)), proto)
        self.nodes(graph, proto.node, scope, types, None)
        values = [self.read(scope, name, f"function {proto.name!r} returns") for name in proto.output]
        graph.set_outputs(values, list(proto.output))
        function = Function(proto.domain, proto.name, graph, overload=proto.overload, source=proto)
        function.attributes = tuple(proto.attribute)
        for attribute in proto.attribute_proto:
            try:
                name = as_text(attribute.name, "the name of an attribute")
                function.defaults[name] = import_attribute(attribute, self.base_dir, _no_region)
            except UnknownAttribute:
                continue
        return function

    def payloads(self, proto: GraphProto) -> dict[str, tuple[Tensor | SparseTensor, Message]]:
        """The dense, then the sparse initializers by name, each with its message."""
        payloads: dict[str, tuple[Tensor | SparseTensor, Message]] = {}
        dense = [OnnxTensor(tensor, self.base_dir) for tensor in proto.initializer]
        decode_small(dense)
        for tensor in dense:
            payloads[tensor.proto.name] = (tensor, tensor.proto)
        for sparse in proto.sparse_initializer:
            payloads[sparse.values.name] = (import_sparse(sparse, self.base_dir), sparse)
        if len(payloads) < len(proto.initializer) + len(proto.sparse_initializer):
            names = [t.name for t in proto.initializer] + [s.values.name for s in proto.sparse_initializer]
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise ModelError(f"graph {proto.name!r}: {twice!r} is initialized twice")
        return payloads

    def initializer(self, name: str, payload: Tensor | SparseTensor, source: Message) -> Node:
        op = "variable" if name in self.variables or self.is_malformed(name, payload) else "constant"
        dtype = payload.dtype if isinstance(payload, Tensor) else payload.values.dtype
        key = (dtype.name, payload.shape)
        type_ = self.types.get(key)
        if type_ is None:
            type_ = self.types[key] = TensorType(dtype, payload.shape)
        outputs = [(name, type_)]
        return Node(op, attrs={"value": payload}, outputs=outputs, origins=self.module.new_origin(), source=source)

    def define(self, scope: _Scope, value: Value, owner: GraphProto | NodeProto | FunctionProto) -> None:
        name, values = value.name, scope.values
        if not isinstance(name, str):  # protobuf gives bytes where a string is not UTF-8
            raise ModelError(f"the name {clipped(name)} is not UTF-8 text")
        if name in values:
            if value.node is None or values[name].node is not None:
                raise ModelError(f"value {clipped(name)} is defined twice, the second time by {_describe(owner)}")
            self.module.untouchable = f"the model defines {clipped(name)} twice: it is not SSA"
        values[name] = value

    def read(self, scope: _Scope, name: str, reader: str, node: NodeProto | None = None) -> Value:
        value = scope.lookup(name)
        if value is None:
            who = reader if node is None else f"{_describe(node)} reads"
            raise ModelError(f"{who} {clipped(name)}, which nothing defines")
        return value


def _odd_types(inputs: Iterable[Value | None], results: Iterable[str], types: Mapping[str, Type]) -> bool:
    """Whether a node reads or makes elements of a type that irc does not know."""
    if any([value is not None and has_unknown_dtype(value.type) for value in inputs]):
        return True
    return any([name in types and has_unknown_dtype(types[name]) for name in results])


def constant_payload(form: str, value: Attribute) -> Attribute | None:
    """The payload that the attribute `form` of a Constant stands for, None where it is none."""
    if form in ("value", "sparse_value"):
        return value if CONSTANT_FORMS[form] != "t" or isinstance(value, Tensor) else None
    kinds: dict[str, type] = {"f": np.float32, "i": np.int64, "s": object}
    field = CONSTANT_FORMS.get(form)
    if field is None:
        return None
    single = field if field in kinds else field[0]
    items = () if value == EmptyList(field) else (value,) if field == single else value
    if not isinstance(items, tuple) or not all(isinstance(item, ELEMENTS[single]) for item in items):
        return None
    array = _array(items, kinds[single])
    return ArrayTensor(array.reshape(()) if field == single else array)


ELEMENTS: dict[str, tuple[type, ...]] = {"f": (float,), "i": (int,), "s": (str, bytes)}


def _array(items: Sequence[object], dtype: type) -> Array:
    array: Array = np.empty(len(items), dtype)
    array[:] = items
    return array


def _no_region(graph: GraphProto) -> RegionRef:
    raise UnknownAttribute("a graph as a function's default")


def _describe(owner: GraphProto | NodeProto | FunctionProto) -> str:
    if isinstance(owner, NodeProto):
        return f"node {clipped(owner.name or list(owner.output))} ({clipped(owner.op_type)[1:-1]})"
    return f"{'graph' if isinstance(owner, GraphProto) else 'function'} {clipped(owner.name)}"


def as_text(name: str, what: str) -> str:
    """`name`, of which protobuf gives bytes where it is not UTF-8. Raises ModelError there."""
    if not isinstance(name, str):
        raise ModelError(f"{what} is not UTF-8 text: {clipped(name)}")
    return name


def newer_than_known(model: ModelProto) -> Iterator[str]:
    """Warnings of versions that are newer than the installed onnx package."""
    if model.ir_version > IR_VERSION:
        yield f"IR version {model.ir_version} is newer than the {IR_VERSION} known here"
    owners = [("the model", model.opset_import)]
    owners.extend((f"function {clipped(function.name)}", function.opset_import) for function in model.functions)
    for what, imports in owners:
        version = _opsets(imports)[""]
        if is_newer(version):
            yield f"{what} is in opset {version}, newer than the {newest_opset()} known here: its operators are kept"


def newest_opset() -> int:
    """The last opset of the default domain whose operators the installed onnx package knows."""
    from onnx import defs

    return int(defs.onnx_opset_version())


def is_newer(opset: int) -> bool:
    """Whether an opset is newer than all that are known; hardly any model makes the onnx package be imported for it."""
    return opset > SURE_OPSET and opset > newest_opset()


def _opsets(imports: Iterable[object]) -> dict[str, int]:
    """Version by domain; the default domain is written "" here, and is opset 1 where none is given."""
    opsets = {"": 1}
    for entry in imports:
        domain = as_text(entry.domain, "a domain")  # type: ignore[attr-defined]
        domain = "" if domain in DEFAULT_DOMAINS else domain
        opsets[domain] = entry.version  # type: ignore[attr-defined]
    return opsets


def _types(proto: GraphProto, inferred: GraphProto | None) -> dict[str, Type]:
    """Types by value name: what inference says, then what the model itself says of its interface."""
    infos: list[ValueInfoProto] = []
    for graph in (proto, inferred):
        if graph is not None:
            infos.extend(graph.value_info)
            infos.extend(graph.output)
    infos.extend(proto.input)
    return {info.name: import_type(info.type) for info in infos if info.HasField("type")}


def _completes(type_: Type, declared: Type) -> bool:
    """Whether `type_` says all that `declared` does, and nothing against it."""
    if not isinstance(type_, TensorType) or not isinstance(declared, TensorType):
        return False
    if declared.dtype not in (None, type_.dtype) or type_.shape is None:
        return False
    shape = type_.shape if declared.shape is None else declared.shape
    if len(shape) != len(type_.shape):
        return False
    return all([b in (None, a) for a, b in zip(type_.shape, shape, strict=True)])


def _trained_names(model: ModelProto) -> set[str]:
    """Names that training may rebind or read: initializers of these names are no constants."""
    names: set[str] = set()
    for training in model.training_info:
        for binding in (*training.initialization_binding, *training.update_binding):
            names.update((binding.key, binding.value))
        for graph in (training.initialization, training.algorithm):
            names.update(name for node in graph.node for name in reads(node))
    return names
