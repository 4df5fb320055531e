"""The importer: from a ModelProto to a module.

Every node keeps its inputs, outputs and attributes in their order, initializers become constants,
and nodes keep references to their messages for the backend. `lowering` chooses the in-house
operators. Of these, the parameters that are attributes in the model's opset become constant
operands without a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError, Message

from ...ir.attributes import Attribute, RegionRef, SparseTensor
from ...ir.graph import Function, Graph, Node, Source, Value
from ...ir.module import Module
from ...ir.ops import BY_ONNX_NAME, DEFAULT_DOMAINS, OPS, canonical_domain
from ...ir.ops.inference import unknown
from ...ir.ops.parameters import with_operands
from ...ir.ops.row import NodeView
from ...ir.tensor import Tensor
from ...ir.type_inference import contradicts, infer_types, is_known, may_infer_more
from ...ir.types import (
    UNKNOWN,
    TensorType,
    Type,
    have_unknown_dtype,
    is_static,
    shape_of,
    without_shapes,
)
from ...support.errors import ModelError, clipped
from ...support.limits import DEFAULT_LIMITS, Limits
from .codec.onnx_attributes import NUMERIC_KINDS, UnknownAttribute, import_attribute, import_sparse
from .codec.onnx_types import import_type
from .codec.protos import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    require_utf8,
)
from .codec.tensor_checks import size_mismatch
from .codec.tensors import OnnxTensor, decode_small
from .codec.toposort import reads, topological_order
from .constants import constant_payload
from .declared_types import ML_DOMAIN, value_types, with_schema_types
from .doubts import Doubts
from .lowering import lower
from .onnx_operators import ONNX_OPERATORS
from .opsets import is_newer, opset_versions, version_warnings
from .shape_inference import infer_shapes

_INFERRED = frozenset(
    (*(name for name, row in BY_ONNX_NAME.items() if row.infer is not unknown), "Constant")
)
"""Operators of the default domain whose result types the operator table may infer."""


def import_model(model: ModelProto, base_dir: Path, limits: Limits = DEFAULT_LIMITS) -> Module:
    """Return the module of `model`, whose external data is below `base_dir`. O(nodes + uses).

    Raises ModelError if a value is undefined, or defined twice, if the graph has a cycle, or if it
    exceeds `limits`.
    """
    if not model.HasField("graph"):
        raise ModelError("this is not an ONNX model: it has no graph")
    try:
        if _may_skip_inference(model):
            try:
                return _Importer(model, base_dir, limits, skip_inference=True).run()
            except _InferenceNeeded:
                pass
        return _Importer(model, base_dir, limits).run()
    except (RecursionError, DecodeError):
        # nested deeper than Python or protobuf (100 messages) can follow
        raise ModelError("graphs or types are nested too deeply") from None
    except UnicodeDecodeError:
        raise ModelError("a name in the model is not UTF-8 text") from None


class _InferenceNeeded(Exception):
    """A signal that onnx's shape inference might know more types than the operator table."""


def _may_skip_inference(model: ModelProto) -> bool:
    """Return whether the operator table may infer the types of all values.

    onnx's shape inference, which serializes a copy of the model, would add nothing then.
    """
    if model.functions:
        return False
    known = {(domain, name) for domain in DEFAULT_DOMAINS for name in _INFERRED}
    return known.issuperset({(node.domain, node.op_type) for node in model.graph.node})


class _Scope:
    """The values that a graph can read, by name: its own, and those of graphs around it.

    Operators of other domains may prescribe the names of the inputs of their bodies.
    """

    __slots__ = ("has_fixed_inputs", "outer", "values")

    def __init__(self, outer: _Scope | None = None, *, has_fixed_inputs: bool = False) -> None:
        self.outer = outer
        self.has_fixed_inputs = has_fixed_inputs
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
    def __init__(
        self, model: ModelProto, base_dir: Path, limits: Limits, *, skip_inference: bool = False
    ) -> None:
        self.model = model
        self.skip_inference = skip_inference
        """Whether the operator table has to infer all types, or `_InferenceNeeded` is raised."""
        self.base_dir = base_dir
        self.limits = limits
        self.count, self.depth = 0, 0
        self.module = Module(Graph(), ir_version=model.ir_version, source=model, limits=limits)
        self.module.foreign = ONNX_OPERATORS
        self.module.base_dir = base_dir
        self.module.warnings.extend(version_warnings(model))
        self.shared: dict[bytes, tuple[str, Attribute]] = {}
        self.types: dict[tuple[str, tuple[int, ...]], TensorType] = {}
        # a function in the default domain replaces the operator of that name
        self.overriding = {
            function.name for function in model.functions if function.domain in DEFAULT_DOMAINS
        }
        self.functions = {
            (canonical_domain(function.domain), function.name) for function in model.functions
        }
        self.symbols: set[str] = set()
        """The extents of the inputs of the main graph, which may be any number."""
        self.doubts = Doubts()
        self.owner: ModelProto | FunctionProto = model
        """The model or function that imports the opsets of the nodes that are being read."""
        self.variables = _trained_names(model)
        trained = (
            name for node in model.graph.node for name in node.output if name in self.variables
        )
        for imports in (
            model.opset_import,
            *[function.opset_import for function in model.functions],
        ):
            versions = {entry.version for entry in imports if entry.domain in DEFAULT_DOMAINS}
            if len(versions) > 1:
                listed = " and ".join(map(str, sorted(versions)))
                self.module.untouchable = (
                    f"the model imports opsets {listed} of ONNX, of which runtimes take either"
                )
        if self.variables and (name := next(trained, None)) is not None:
            self.module.untouchable = (
                f"training_info of the model refers to its intermediate value {name!r}"
            )

    def run(self) -> Module:
        model, module = self.model, self.module
        inferred = None
        if not self.skip_inference:
            # the operator table infers the types of most models
            given = {
                item.name: item
                for items in (model.graph.input, model.graph.initializer)
                for item in items
            }
            order = topological_order(model.graph.node, given.get)
            inferred = infer_shapes(model, order, isolate=self.limits.isolate)
        opsets = opset_versions(model.opset_import)
        module.graph = self.graph(
            model.graph, _Scope(), opsets, None if inferred is None else inferred.graph
        )
        for proto in model.functions:
            function = self.function(proto)
            if function.key in module.functions:
                raise ModelError(f"function {proto.domain}::{proto.name} is defined twice")
            module.functions[function.key] = function
        module.warnings.extend(self.doubts.sentences(module))
        return module

    def graph(
        self, proto: GraphProto, scope: _Scope, opsets: dict[str, int], inferred: GraphProto | None
    ) -> Graph:
        for annotation in proto.quantization_annotation:
            self.module.notes.annotating.update(
                entry.value for entry in annotation.quant_parameter_tensor_names
            )
        self.depth += 1
        if self.depth > self.limits.max_nesting:
            raise ModelError(self.limits.too_deep())
        graph = Graph(require_utf8(proto.name, "the name of a graph"), opsets, source=proto)
        types = value_types(proto, inferred, is_main=scope.outer is None)
        if self.skip_inference:
            inputs = {info.name for info in proto.input}
            types = {name: type_ for name, type_ in types.items() if name in inputs}
        self.inputs(graph, proto, scope, types)
        self.nodes(graph, proto.node, scope, types, inferred.node if inferred is not None else None)
        self.check_declarations(graph, proto, scope)
        names = [info.name for info in proto.output]
        graph.set_outputs(
            [self.read(scope, name, f"graph {clipped(proto.name)} returns") for name in names],
            names,
        )
        self.depth -= 1
        return graph

    def check_declarations(self, graph: Graph, proto: GraphProto, scope: _Scope) -> None:
        """Record the values of `graph` whose declared types the inferred ones contradict."""
        for info in proto.value_info:
            value = scope.values.get(info.name)
            if value is not None and info.HasField("type"):
                declared = import_type(info.type)
                if contradicts(declared, value.type, self.symbols):
                    self.module.notes.misdeclared.setdefault(graph, set()).add(info.name)
                    self.doubts.contradictions.append(
                        f"{clipped(info.name)} is {value.type}, not {declared}"
                    )
                elif not is_static(value.type):
                    self.module.notes.declared.setdefault(graph, {})[info.name] = (
                        declared,
                        value.type,
                    )

    def inputs(
        self, graph: Graph, proto: GraphProto, scope: _Scope, types: dict[str, Type]
    ) -> None:
        """Add the inputs of a graph, and its initializers as constants.

        From IR version 4 on, an initializer that is an input is its default, which callers may
        override.
        """
        payloads = self.payloads(proto)
        for info in proto.input:
            payload = payloads.get(info.name)
            if payload is not None and self.model.ir_version < 4:
                continue
            value = graph.add_input(info.name, types.get(info.name, UNKNOWN))
            if scope.outer is None:
                self.symbols.update(
                    dim for dim in shape_of(value.type) or () if isinstance(dim, str)
                )
            self.define(scope, value, proto)
            if payload is not None:
                graph.defaults[value] = payload[0]
        for name, (tensor, source) in payloads.items():
            if name not in scope.values:
                self.define(
                    scope, graph.append(self.initializer(name, tensor, source)).output, proto
                )

    def nodes(
        self,
        graph: Graph,
        protos: Sequence[NodeProto],
        scope: _Scope,
        types: dict[str, Type],
        inferred: Sequence[NodeProto] | None,
    ) -> None:
        """Append the nodes, in a stable topological order if they are not sorted."""
        self.count += len(protos)
        if self.count > self.limits.max_nodes:
            raise ModelError(self.limits.too_many_nodes())
        order = topological_order(protos, scope.lookup)
        for position, i in enumerate(range(len(protos)) if order is None else order):
            # Shape inference gets the main graph sorted, and regions as they are.
            at = position if scope.outer is None else i
            self.node(graph, protos[i], scope, types, None if inferred is None else inferred[at])
        if order is not None:
            placed = [node for node in graph if isinstance(node.message, NodeProto)]
            graph.source_order = dict(zip(placed, order, strict=True))

    def node(
        self,
        graph: Graph,
        proto: NodeProto,
        scope: _Scope,
        types: dict[str, Type],
        inferred: NodeProto | None,
    ) -> None:
        name, op_type, domain, overload = proto.name, proto.op_type, proto.domain, proto.overload
        if not type(name) is type(op_type) is type(domain) is type(overload) is str:
            raise ModelError(
                f"a name of node {clipped(name)} ({clipped(op_type)}) is not UTF-8 text"
            )
        known = scope.values
        inputs = tuple(
            [
                known.get(name) or self.read(scope, name, "", proto) if name else None
                for name in proto.input[:]
            ]
        )
        origins = self.module.new_origin()
        regions: list[Graph] = []
        attrs = self.attributes(proto, regions, scope, graph.opsets, inferred)
        outputs = [(result, types.get(result, UNKNOWN)) for result in proto.output[:]]
        domain = domain and canonical_domain(domain)
        if domain == ML_DOMAIN and (domain, op_type) not in self.functions:
            data = inputs[0].type if inputs and inputs[0] is not None else UNKNOWN
            outputs = with_schema_types(outputs, op_type, domain, graph.opsets.get(domain, 0), data)
        op = f"{domain}::{op_type}"
        overridden = not domain and op_type in self.overriding
        if attrs is not None:
            constant = (
                self.constant_attrs(proto, attrs) if op_type == "Constant" and not domain else None
            )
            if constant is not None:
                op, attrs = "constant", constant
            elif not domain and not overridden:
                opset = graph.opsets.get("", 1)
                lowered = self.lowered(op_type, attrs, inputs, outputs, opset)
                if lowered is not None:
                    op, info = lowered, OPS[lowered]
                    if info.parameters:
                        sources = {attribute.name: attribute for attribute in proto.attribute[:]}
                        attrs, inputs = with_operands(
                            info, attrs, inputs, graph.append, opset, sources.get
                        )
        attrs = {} if attrs is None else attrs
        node = Node(
            op,
            inputs,
            attrs,
            outputs=outputs,
            regions=regions,
            name=name,
            overload=overload,
            origins=origins,
            source=Source(proto, attrs),
        )
        graph.append(node)
        if "::" in op and (key := (domain, op_type, id(graph.opsets))) not in self.doubts.foreign:
            self.doubts.foreign[key] = node, graph, self.owner
        if not overridden:
            infer_types(node, self.module.constants)
        for value in node.outputs:
            if value.name:
                self.define(scope, value, proto)
                if self.skip_inference and not is_known(value.type) and may_infer_more(node, value):
                    raise _InferenceNeeded

    def lowered(
        self,
        op_type: str,
        attrs: dict[str, Attribute],
        inputs: tuple[Value | None, ...],
        outputs: Sequence[tuple[str, Type]],
        opset: int,
    ) -> str | None:
        """Return the in-house operator of a node of ONNX's own domain, None if it stays foreign."""
        types = [type_ for _, type_ in outputs] + [
            value.type for value in inputs if value is not None
        ]
        if is_newer(opset) or have_unknown_dtype(types):
            return None
        view = NodeView(opset, attrs, inputs, tuple([name for name, _ in outputs]))
        op, refusal = lower("", op_type, view)
        if refusal is not None:
            self.module.provenance.refusals[self.module.next_origin - 1] = refusal
        return op

    def attributes(
        self,
        proto: NodeProto,
        regions: list[Graph],
        scope: _Scope,
        opsets: dict[str, int],
        inferred: NodeProto | None,
    ) -> dict[str, Attribute] | None:
        """Return the attributes of a node, None if irc cannot represent one.

        Their graphs are appended to `regions`.
        """
        attrs: dict[str, Attribute] = {}
        complete = True
        for i, attribute in enumerate(proto.attribute[:]):
            if attribute.type in NUMERIC_KINDS:
                name, value = self.numbers(attribute)
                attrs[name] = value
                continue
            name = require_utf8(attribute.name, "the name of an attribute")
            mirror = None if inferred is None else inferred.attribute[i]
            nested = iter(() if mirror is None else _graphs_of(mirror))

            def region(graph: GraphProto, nested: Iterable[GraphProto] = nested) -> RegionRef:
                if self.skip_inference:
                    raise _InferenceNeeded
                inner = _Scope(scope, has_fixed_inputs=proto.domain not in DEFAULT_DOMAINS)
                regions.append(self.graph(graph, inner, opsets, next(iter(nested), None)))
                return RegionRef(len(regions) - 1)

            try:
                attrs[name] = import_attribute(attribute, self.base_dir, region)
            except UnknownAttribute:
                complete = False
        return attrs if complete else None

    def numbers(self, attribute: AttributeProto) -> tuple[str, Attribute]:
        """Return name and value of a numeric attribute.

        Equal attributes of different nodes share one value.
        """
        data = attribute.SerializeToString()
        known = self.shared.get(data)
        if known is None:
            name = require_utf8(attribute.name, "the name of an attribute")
            known = self.shared[data] = name, import_attribute(attribute, self.base_dir, _no_region)
        return known

    def constant_attrs(
        self, proto: NodeProto, attrs: dict[str, Attribute]
    ) -> dict[str, Attribute] | None:
        """Return `value` and `form` of a Constant node, None if it stays foreign."""
        # A valid Constant has no operand, one attribute, and one result that has a name.
        if proto.input or len(proto.output) != 1 or len(attrs) != 1 or not proto.output[0]:
            return None
        form, value = next(iter(attrs.items()))
        payload = constant_payload(form, value)
        if payload is None or self.is_malformed(proto.output[0], payload):
            return None
        return {"value": payload, "form": form}

    def is_malformed(self, name: str, payload: Attribute) -> bool:
        """Return whether the elements of a constant disagree with its shape, and warn then.

        Such a constant must not be read.
        """
        if isinstance(payload, OnnxTensor) and payload.is_decoded:
            return False
        problem = None
        for tensor in (
            (payload.values, payload.indices) if isinstance(payload, SparseTensor) else (payload,)
        ):
            if isinstance(tensor, OnnxTensor):
                problem = problem or size_mismatch(tensor)
        if problem is not None:
            self.module.warnings.append(
                f"the tensor {clipped(name)} {problem}: it is kept as it is"
            )
        return problem is not None

    def function(self, proto: FunctionProto) -> Function:
        scope, self.owner = _Scope(), proto
        for name in (proto.name, proto.domain, proto.overload, *proto.attribute):
            require_utf8(name, "the name of a function, or of its attribute,")
        graph = Graph(proto.name, opset_versions(proto.opset_import), source=proto)
        types = {info.name: without_shapes(import_type(info.type)) for info in proto.value_info}
        for name in proto.input:
            self.define(scope, graph.add_input(name, types.get(name, UNKNOWN)), proto)
        self.nodes(graph, proto.node, scope, types, None)
        values = [
            self.read(scope, name, f"function {proto.name!r} returns") for name in proto.output
        ]
        graph.set_outputs(values, list(proto.output))
        function = Function(
            canonical_domain(proto.domain), proto.name, graph, overload=proto.overload, source=proto
        )
        function.attributes = tuple(proto.attribute)
        for attribute in proto.attribute_proto:
            try:
                name = require_utf8(attribute.name, "the name of an attribute")
                function.defaults[name] = import_attribute(attribute, self.base_dir, _no_region)
            except UnknownAttribute:
                continue
        return function

    def payloads(self, proto: GraphProto) -> dict[str, tuple[Tensor | SparseTensor, Message]]:
        """Return the dense, then the sparse initializers by name, each with its message."""
        payloads: dict[str, tuple[Tensor | SparseTensor, Message]] = {}
        dense = [OnnxTensor(tensor, self.base_dir) for tensor in proto.initializer]
        decode_small(dense)
        for tensor in dense:
            payloads[tensor.proto.name] = (tensor, tensor.proto)
        for sparse in proto.sparse_initializer:
            payloads[sparse.values.name] = (import_sparse(sparse, self.base_dir), sparse)
        if len(payloads) < len(proto.initializer) + len(proto.sparse_initializer):
            names = [t.name for t in proto.initializer] + [
                s.values.name for s in proto.sparse_initializer
            ]
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise ModelError(f"graph {proto.name!r}: {twice!r} is initialized twice")
        return payloads

    def initializer(self, name: str, payload: Tensor | SparseTensor, source: Message) -> Node:
        is_decoded = isinstance(payload, OnnxTensor) and payload.is_decoded
        is_unread = name in self.variables or (not is_decoded and self.is_malformed(name, payload))
        op = "variable" if is_unread else "constant"
        dtype = payload.dtype if isinstance(payload, Tensor) else payload.values.dtype
        key = (dtype.name, payload.shape)
        type_ = self.types.get(key)
        if type_ is None:
            type_ = self.types[key] = TensorType(dtype, payload.shape)
        attrs: dict[str, Attribute] = {"value": payload}
        origins = self.module.new_origin()
        return Node(
            op, (), attrs, outputs=[(name, type_)], origins=origins, source=Source(source, attrs)
        )

    def define(
        self, scope: _Scope, value: Value, owner: GraphProto | NodeProto | FunctionProto
    ) -> None:
        name, values = value.name, scope.values
        if not isinstance(name, str):  # protobuf gives bytes if a string is not UTF-8
            raise ModelError(f"the name {clipped(name)} is not UTF-8 text")
        if name in values:
            if value.node is None or values[name].node is not None:
                raise ModelError(
                    f"value {clipped(name)} is defined twice, the second time by {_describe(owner)}"
                )
            self.module.untouchable = f"the model defines {clipped(name)} twice: it is not SSA"
        elif scope.outer is None or (scope.has_fixed_inputs and value.node is None):
            pass
        elif scope.outer.lookup(name) is not None:
            self.doubts.shadowing.append(f"{_describe(owner)} defines {clipped(name)}")
        values[name] = value

    def read(self, scope: _Scope, name: str, reader: str, node: NodeProto | None = None) -> Value:
        value = scope.lookup(name)
        if value is None:
            who = reader if node is None else f"{_describe(node)} reads"
            raise ModelError(f"{who} {clipped(name)}, which nothing defines")
        return value


def _graphs_of(attribute: AttributeProto) -> Sequence[GraphProto]:
    """Return the graphs that an attribute holds."""
    return [attribute.g] if attribute.HasField("g") else list(attribute.graphs)


def _no_region(graph: GraphProto) -> RegionRef:
    raise UnknownAttribute("a graph as a function's default")


def _describe(owner: GraphProto | NodeProto | FunctionProto) -> str:
    if isinstance(owner, NodeProto):
        return f"node {clipped(owner.name or list(owner.output))} ({clipped(owner.op_type)[1:-1]})"
    return f"{'graph' if isinstance(owner, GraphProto) else 'function'} {clipped(owner.name)}"


def _trained_names(model: ModelProto) -> set[str]:
    """Return the names that training may read or rebind.

    Initializers of these names are not constants.
    """
    names: set[str] = set()
    for training in model.training_info:
        for binding in (*training.initialization_binding, *training.update_binding):
            names.update((binding.key, binding.value))
        for graph in (training.initialization, training.algorithm):
            names.update(name for node in graph.node for name in reads(node))
    return names
