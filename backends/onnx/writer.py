"""The writer of the nodes of one graph as ONNX messages."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import itemgetter

from ...frontends.onnx.codec.onnx_attributes import export_attribute, export_sparse, value_field
from ...frontends.onnx.codec.protos import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    copy_fields,
)
from ...frontends.onnx.codec.tensors import OnnxTensor, tensor_proto, write_tensor
from ...ir.attributes import EmptyList, SparseTensor
from ...ir.graph import Graph, Node, Value
from ...ir.ops import has_trait, is_legal
from ...ir.ops.row import NUMPY_BROADCAST, Trait
from ...ir.sparse import dense
from ...ir.tensor import ArrayTensor, Tensor
from ...support.errors import EmitError, clipped
from .legalize import Legalization, describe, is_from_source, onnx_op_type
from .value_names import Names

WriteGraph = Callable[[Graph, GraphProto], None]


def is_named(payload: Tensor, name: str) -> bool:
    """Return whether `payload` is a tensor of the source model under `name`."""
    return isinstance(payload, OnnxTensor) and payload.proto.name == name


class GraphWriter:
    """The writer of one graph to `target`.

    Constants go to `initializers`; with `as_nodes` new ones become nodes. A function has no
    initializers: all its constants become nodes. `write_graph` writes a region. `written` holds the
    messages of the layers, which a fold map refers to.
    """

    def __init__(
        self,
        graph: Graph,
        target: GraphProto | FunctionProto,
        legal: Legalization,
        names: Names,
        write_graph: WriteGraph,
        *,
        as_nodes: bool,
    ) -> None:
        self.write_graph = write_graph
        self.graph = graph
        self.target = target.node
        self.as_nodes = as_nodes
        self.has_initializers = isinstance(target, GraphProto)
        self.legal = legal
        self.names = names
        self.written: dict[Node, NodeProto] = {}
        self.initializers: dict[str, Tensor] = {}
        self.sparse: list[SparseTensorProto] = []
        self.replaced: set[str] = set()

    def nodes(self) -> None:
        for value, payload in self.graph.defaults.items():
            name = self.names.declared(value)
            if isinstance(payload, Tensor):
                self.initializers[name] = payload
                continue
            try:
                self.sparse.append(export_sparse(payload, name))
            except ValueError as error:
                raise EmitError(f"initializer {clipped(name)}: {reason(error)}") from None
        for value in self.names.aliased(self.graph):
            self.add_identity(value.name, self.names.of(value))
        for node in self.graph.nodes():
            try:
                if node not in self.legal.skipped:
                    self.node(node)
            except ValueError as error:
                # elements that IR text left out, or that ONNX has no field for
                raise EmitError(f"{describe(node)}: {reason(error)}") from None
        self.returns()
        self.restore_order()

    def defined(self) -> set[str]:
        """Return the names that the graph defines. O(nodes)."""
        names = {name for proto in self.target for name in proto.output[:]}
        names.update(self.initializers)
        names.update(map(self.names.declared, self.graph.inputs))
        names.update(sparse.values.name for sparse in self.sparse)
        return names

    def drop_unread(self, names: Container[str]) -> None:
        """Leave out the constants of these names that nothing reads."""
        for node in self.graph:
            if node.op == "constant" and not node.is_read and node.output.name in names:
                self.initializers.pop(node.output.name, None)

    def write_initializers(self, target: GraphProto, order: Iterable[str]) -> None:
        """Write the initializers, those named in `order` first."""
        rest = dict(self.initializers)
        first = [(name, rest.pop(name)) for name in order if name in rest]
        for name, tensor in (*first, *rest.items()):
            _fill(target.initializer.add(), tensor, name)

    def restore_order(self) -> None:
        """Put the nodes back into the order of the source, if it was not sorted.

        Does nothing if passes changed the nodes.
        """
        order = self.graph.source_order
        if not order:
            return
        placed = [node for node in self.graph if node in order and node not in self.legal.skipped]
        if len(placed) == len(order) == len(self.target):
            ranked = zip(map(order.__getitem__, placed), list(self.target), strict=True)
            protos = [proto for _, proto in sorted(ranked, key=itemgetter(0))]
            del self.target[:]
            self.target.extend(protos)

    def node(self, node: Node) -> None:
        legal = self.legal
        if node.op in ("constant", "variable"):
            self.constant(node)
        elif node in legal.restored:
            self.batch_norm(node, *legal.restored[node])
        elif node.outputs and node.output in legal.computed:
            self.payload(self.names.of(node.output), legal.computed[node.output])
        else:
            self.ordinary(node)

    def constant(self, node: Node) -> None:
        payload, name = node.attrs["value"], self.names.of(node.output)
        is_source_node = node.source is not None and "form" in node.attrs
        if isinstance(node.unchanged_message, NodeProto):
            self.write_source(node, [], [name])
        elif isinstance(payload, SparseTensor) and not is_source_node:
            self.sparse_constant(node, payload, name)
        elif "form" in node.attrs:
            self.constant_node(node, name)
        elif isinstance(payload, Tensor):
            self.payload(name, payload, new=node.source is None and not is_named(payload, name))

    def sparse_constant(self, node: Node, payload: SparseTensor, name: str) -> None:
        """Write a sparse constant as it was, or if changed in its shorter form, dense or sparse."""
        source = node.unchanged_message
        unchanged = source if isinstance(source, SparseTensorProto) else None
        if unchanged is not None and unchanged.values.name == name and self.has_initializers:
            self.sparse.append(unchanged)
            return
        proto = export_sparse(payload, name)
        if node.source is not None and self.has_initializers:
            self.sparse.append(proto)
            return
        elsewhere = sum(
            part.nbytes for part in (payload.values, payload.indices) if not part.in_memory
        )
        length = proto.ByteSize() + elsewhere
        if payload.dense_nbytes <= length:
            whole = ArrayTensor(dense(payload), payload.dtype)
            if tensor_proto(whole, name).ByteSize() <= length:
                self.payload(name, whole)
                return
        self.replaced.add(name)
        if self.as_nodes or "form" in node.attrs:
            self.write_new("Constant", node, [], [name], {"sparse_value": payload})
        else:
            self.sparse.append(proto)

    def constant_node(self, node: Node, name: str) -> None:
        """Write a Constant node in the form that the constant had."""
        payload, form = node.attrs["value"], node.attrs["form"]
        value = payload
        if not isinstance(form, str):
            raise EmitError(
                f"constant {clipped(name)}: its form is {form!r}, not the name of an attribute of"
                " Constant"
            )
        if isinstance(payload, Tensor) and form != "value":
            items = tuple(payload.numpy().ravel().tolist())
            value = (
                items[0] if payload.shape == () else items or EmptyList(form.removeprefix("value_"))
            )
        self.write_new("Constant", node, [], [name], {form: value})

    def payload(self, name: str, tensor: Tensor, *, new: bool = True) -> None:
        """Write a constant."""
        if new:
            self.replaced.add(name)
        if self.has_initializers and not (self.as_nodes and new):
            self.initializers[name] = tensor
            return
        node = self.target.add(
            op_type="Constant", name=self.names.nodes.unique("", name), output=[name]
        )
        _fill(node.attribute.add(name="value", type=4).t, tensor, name)

    def batch_norm(self, add: Node, data: Value, affine: Node) -> None:
        inputs = [self.names.of(value) for value in (data, *affine.inputs) if value is not None]
        outputs = [self.names.of(add.output)]
        if isinstance(affine.message, NodeProto):
            outputs += [""] * (len(affine.message.output) - 1)
            self.write_source(affine, inputs, outputs)
        else:
            self.write_new("BatchNormalization", affine, inputs, outputs, dict(affine.attrs))

    def ordinary(self, node: Node) -> None:
        legal = self.legal
        dated = legal.dated.get(node)
        values = node.inputs if dated is None else dated.inputs
        inputs = [self.names.of(value) if value is not None else "" for value in values]
        outputs = [self.names.of(value) for value in node.outputs]
        fused = legal.fused.get(node)
        if fused is not None:
            bias = fused["rhs"]
            inputs = [*inputs[:2], self.names.of(bias)]
            outputs = [self.names.of(fused.output)]
        for index in range(len(inputs)):
            narrow = legal.narrowed.get((node, index))
            if narrow is not None:
                parameter = node.inputs[index] if fused is None else fused["rhs"]
                assert parameter is not None
                inputs[index] = self.narrowed(parameter, narrow)
        if isinstance(node.message, NodeProto):
            proto = self.write_source(node, inputs, outputs)
        else:
            op_type = onnx_op_type(node)
            if op_type is None:
                raise EmitError(f"{describe(node)}: ONNX has no such operator")
            proto = self.write_new(op_type, node, inputs, outputs, self.exported_attrs(node))
        if fused is not None:
            _write_marks(proto, node, fused)
        if has_trait(node, Trait.ABSORBS):
            self.written[node] = proto

    def narrowed(self, parameter: Value, tensor: Tensor) -> str:
        """Return the name of the constant that replaces a parameter.

        It is written at its first use.
        """
        name, fresh = self.names.narrowed(self.graph, parameter, tensor)
        if fresh:
            self.payload(name, tensor)
        return name

    def exported_attrs(self, node: Node) -> dict[str, object]:
        attrs: dict[str, object] = dict(node.attrs)
        if has_trait(node, Trait.ALIGNED):
            if not is_legal(node.op, NUMPY_BROADCAST, node):
                attrs["broadcast"] = 1
            else:
                attrs.pop("axis", None)
        attrs.update(
            (name, value)
            for name, value in self.dated_attributes(node).items()
            if value is not None
        )
        return attrs

    def dated_attributes(self, node: Node) -> dict[str, object]:
        """Return the attributes that an old opset adds to the node, None for one that is absent."""
        dated, fused = self.legal.dated.get(node), self.legal.fused.get(node)
        attrs = {} if dated is None else dict(dated.attrs)
        if node.op != "nn.dense":
            return attrs
        bias = node["bias"] if fused is None else fused["rhs"]
        if bias is None or is_from_source(node, bias):
            return attrs
        if not is_legal(node.op, NUMPY_BROADCAST, node):
            attrs["broadcast"] = 1
        return attrs

    def write_new(
        self,
        op_type: str,
        node: Node,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attrs: dict[str, object],
    ) -> NodeProto:
        """Write a node from the IR alone."""
        name = self.names.nodes.unique(node.name, outputs[0] if outputs else op_type)
        proto = self.target.add(
            op_type=op_type, name=name, overload=node.overload, input=inputs, output=outputs
        )
        if "::" in node.op:
            proto.domain = node.op.split("::", 1)[0]
        regions = self.regions(node)
        for name, value in attrs.items():
            proto.attribute.append(_attribute(name, value, regions))
        _write_marks(proto, node)
        return proto

    def write_source(self, node: Node, inputs: Sequence[str], outputs: Sequence[str]) -> NodeProto:
        """Write the message that the node came from, with the changes of passes.

        These are names, attributes and regions. A node that is not as in the source then gets a
        name that no other node has.
        """
        source = node.message
        assert isinstance(source, NodeProto)
        proto = self.target.add()
        if node.unchanged_message is None or node.regions:
            copy_fields(source, proto, ("attribute",))
            self.copy_attributes(node, source, proto)
        else:
            proto.CopyFrom(source)
        if source.name != node.name:
            proto.name = node.name
        if source.input[:] != inputs:
            del proto.input[:]
            proto.input.extend(inputs)
        if source.output[:] != outputs:
            del proto.output[:]
            proto.output.extend(outputs)
        if attrs := self.dated_attributes(node):
            _set_attributes(proto, attrs, [attribute.name for attribute in source.attribute[:]])
        _write_marks(proto, node)
        is_renamed = source.input[:] != inputs or source.output[:] != outputs
        if is_renamed and proto.device_configurations:
            renamed = [
                *zip(source.input, inputs, strict=False),
                *zip(source.output, outputs, strict=False),
            ]
            _keep_sharding(proto, dict(renamed))
        if not self.names.nodes.is_unique(proto.name) and proto != source:
            proto.name = self.names.nodes.unique(
                proto.name, proto.output[0] if proto.output else proto.op_type
            )
        return proto

    def add_identity(self, source: str, result: str) -> None:
        name = self.names.nodes.unique("", result)
        self.target.add(op_type="Identity", name=name, input=[source], output=[result])

    def copy_attributes(self, node: Node, source: NodeProto, proto: NodeProto) -> None:
        """Write the attributes in the order of `source`, with those that passes have set.

        An attribute that was not read, such as one that the operator does not know, is written as
        it was.
        """
        assert node.source is not None
        attrs, read, regions = node.attrs, node.source.attrs, self.regions(node)
        graphs = iter(regions)
        for attribute in source.attribute:
            name, field = attribute.name, value_field(attribute)
            if name in read and attrs.get(name) is not read[name]:
                if name in attrs:
                    proto.attribute.append(export_attribute(name, attrs[name], regions))
                continue
            copy = proto.attribute.add()
            if attribute.ref_attr_name or field not in ("g", "graphs"):
                copy.CopyFrom(attribute)
            elif field == "g":
                region = next(graphs)
                copy_fields(attribute, copy, ("g",))
                if attribute.HasField("g"):
                    copy.g.CopyFrom(region)
            else:
                copy_fields(attribute, copy, ("graphs",))
                for _ in attribute.graphs:
                    copy.graphs.append(next(graphs))
        before = {attribute.name for attribute in source.attribute}
        for name, value in attrs.items():
            if name not in before and read.get(name) is not value:
                proto.attribute.append(export_attribute(name, value, regions))

    def regions(self, node: Node) -> list[GraphProto]:
        protos = []
        for region in node.regions:
            proto = GraphProto()
            self.write_graph(region, proto)
            protos.append(proto)
        return protos

    def returns(self) -> None:
        """Write an Identity for each result that has another name than its value."""
        for value, name in zip(self.graph.outputs, self.names.results(self.graph), strict=True):
            inner = self.names.of(value)
            if inner != name:
                self.add_identity(inner, name)


def _write_marks(proto: NodeProto, *nodes: Node) -> None:
    """Write the metadata of the first node, and entries of the others under other keys.

    A node that a pass made gets the documentation and the device configurations of the first node
    in its place.
    """
    if not any(node.merged or node.own_metadata is not None for node in nodes) and len(nodes) == 1:
        return
    marks: dict[str, str] = {}
    for node in nodes:
        own = node.source_metadata() if node.own_metadata is None else node.own_metadata
        marks = {**own, **marks}
    if marks != {entry.key: entry.value for entry in proto.metadata_props}:
        del proto.metadata_props[:]
        for key, value in marks.items():
            proto.metadata_props.add(key=key, value=value)
    if nodes[0].source is not None:
        return
    for message in (message for node in nodes for message in node.messages()):
        if isinstance(message, NodeProto):
            if message.doc_string and not proto.doc_string:
                proto.doc_string = message.doc_string
            if not proto.device_configurations:
                proto.device_configurations.extend(message.device_configurations)
    _keep_sharding(proto, {})


def _keep_sharding(proto: NodeProto, renamed: Mapping[str, str]) -> None:
    """Let device configurations name tensors of the node only.

    The others may have been `renamed`.
    """
    tensors = {*proto.input, *proto.output}
    for configuration in proto.device_configurations:
        for index in reversed(range(len(configuration.sharding_spec))):
            spec = configuration.sharding_spec[index]
            if spec.tensor_name in tensors:
                continue
            spec.tensor_name = renamed.get(spec.tensor_name, "")
            if not spec.tensor_name:
                del configuration.sharding_spec[index]


def reason(error: ValueError) -> str:
    """Return why protobuf refuses a value."""
    if isinstance(error, UnicodeEncodeError):
        return "its text contains half of a surrogate pair, which UTF-8 cannot encode"
    return str(error)


def _attribute(name: str, value: object, regions: Sequence[GraphProto] = ()) -> AttributeProto:
    return value if isinstance(value, AttributeProto) else export_attribute(name, value, regions)  # type: ignore[arg-type]


def _set_attributes(proto: NodeProto, attrs: Mapping[str, object], order: Sequence[str]) -> None:
    """Set attributes of `proto`, or remove those that are None.

    Those named in `order` come first, in that order.
    """
    before = {attribute.name: attribute for attribute in proto.attribute}
    after = before | {
        name: _attribute(name, value) for name, value in attrs.items() if value is not None
    }
    kept = [name for name in after if name not in attrs or attrs[name] is not None]
    rank = {name: i for i, name in enumerate(order)}
    kept.sort(key=lambda name: rank.get(name, len(rank)))
    if kept == list(before) and all(after[name] == before[name] for name in kept):
        return
    copies = NodeProto(attribute=[after[name] for name in kept])
    del proto.attribute[:]
    proto.attribute.extend(copies.attribute)


def _fill(target: TensorProto, tensor: Tensor, name: str) -> None:
    try:
        write_tensor(target, tensor, name)
    except ValueError as error:
        raise EmitError(f"constant {clipped(name)}: {reason(error)}") from None
