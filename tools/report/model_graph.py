"""Turn the graphs of a ModelProto into data for the page: operators, and values between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
)

from ...ir.ops import DEFAULT_DOMAINS
from ...passes.affine.records.fold_records import Scope
from .page_data import GraphPage, OperatorData
from .page_text import short
from .recorder import Types

MAX_ATTRIBUTE = 200
"""Characters of an attribute that are kept."""
MAX_ITEMS = 32
"""Elements of an attribute that are kept."""

GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


class GraphIndex:
    """One graph: `data` is its part of the page; `by_output` and `by_name` find its operators.

    In `by_name`, a name that several operators have leads to None.
    """

    def __init__(self, scope: Scope, types: Mapping[str, str]) -> None:
        self.scope = scope
        self.nodes: list[OperatorData] = []
        self.values: list[list[str]] = []
        self.by_output: dict[str, OperatorData] = {}
        self.by_name: dict[str, OperatorData | None] = {}
        self.data: GraphPage = {
            "title": title(scope),
            "nodes": self.nodes,
            "values": self.values,
            "inputs": [],
            "outputs": [],
        }
        self._types = types
        self._positions: dict[str, int] = {}

    def value(self, name: str, kind: str = "outer", type_: str = "") -> int:
        """Return the position of a value in `values`; a new one gets `kind` and `type_`."""
        if name not in self._positions:
            self._positions[name] = len(self.values)
            self.values.append([short(name), short(type_ or self._types.get(name, "")), kind])
        return self._positions[name]

    def add(self, proto: NodeProto, inner: list[int], captured: list[str]) -> None:
        """Append an operator; `inner` are its subgraphs' positions, which read `captured`."""
        node: OperatorData = {
            "op": operator_name(proto),
            "name": short(proto.name),
            "in": [self.value(name) if name else -1 for name in proto.input],
            "out": [self.value(name, "value") if name else -1 for name in proto.output],
        }
        if captured:
            node["reads"] = [self.value(name) for name in captured]
        attributes = {
            short(a.name): attribute_text(a) for a in proto.attribute if a.type not in GRAPHS
        }
        if attributes:
            node["attrs"] = attributes
        if inner:
            node["graphs"] = inner
        self.nodes.append(node)
        self.by_output.update((name, node) for name in proto.output if name)
        if proto.name:
            self.by_name[proto.name] = None if proto.name in self.by_name else node


@dataclass(slots=True)
class Body:
    """A graph or function of a model.

    `parent` is the position of the body around it, `inner` has the positions of the bodies inside
    it by position of the node. `free` are the values that it reads from the bodies around it.
    """

    scope: Scope
    proto: GraphProto | FunctionProto
    parent: int | None
    inner: dict[int, list[int]] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    free: list[str] = field(default_factory=list)

    def captured(self, position: int, bodies: list[Body]) -> list[str]:
        """Return the values that a node's subgraphs read from this graph or those around."""
        return list(
            dict.fromkeys(name for i in self.inner.get(position, ()) for name in bodies[i].free)
        )


def graphs_of(model: ModelProto, types: Types) -> list[GraphIndex]:
    """Return every graph of `model`: the main graph first, and each graph before those inside it.

    O(nodes).
    """
    bodies = _bodies(model)
    for body in reversed(bodies):
        body.free = _free(body, bodies)
    for body in bodies:
        around = {} if body.parent is None else bodies[body.parent].constants
        outer = {name: around[name] for name in body.free if name in around}
        body.constants = {**outer, **_constants(body.proto)}
    return [_graph(body, bodies, types.get(body.scope, {})) for body in bodies]


def _bodies(model: ModelProto) -> list[Body]:
    bodies = [Body((), model.graph, None)]
    for function in model.functions:
        name = f"{function.domain}::{function.name}" + (
            f":{function.overload}" if function.overload else ""
        )
        bodies.append(Body((("function", name),), function, None))
    for number, body in enumerate(bodies):  # the loop appends to the list that it walks
        for position, node in enumerate(body.proto.node):
            for step, graph in subgraphs(node):
                body.inner.setdefault(position, []).append(len(bodies))
                bodies.append(Body((*body.scope, step), graph, number))
    return bodies


def _constants(proto: GraphProto | FunctionProto) -> dict[str, str]:
    """Return the constants of a graph with their types, as far as these are known."""
    constants: dict[str, str] = {}
    if isinstance(proto, GraphProto):
        constants.update((tensor.name, tensor_type(tensor)) for tensor in proto.initializer)
        constants.update((tensor.values.name, "sparse") for tensor in proto.sparse_initializer)
    constants.update(
        (name, "") for node in proto.node if node.op_type == "Constant" for name in node.output
    )
    return constants


def _free(body: Body, bodies: list[Body]) -> list[str]:
    """Return the values that a graph and its subgraphs read and do not define."""
    known = {*_names(body.proto.input), *_constants(body.proto)}
    read: dict[str, None] = {}
    for position, node in enumerate(body.proto.node):
        names = (*node.input, *body.captured(position, bodies))
        read.update((name, None) for name in names if name and name not in known)
        known.update(node.output)
    return [
        *read,
        *(name for name in _names(body.proto.output) if name not in known and name not in read),
    ]


def _graph(body: Body, bodies: list[Body], types: Mapping[str, str]) -> GraphIndex:
    graph = GraphIndex(body.scope, types)
    inputs = [name for name in _names(body.proto.input) if name not in body.constants]
    graph.data["inputs"] = [graph.value(name, "value") for name in inputs]
    for name, type_ in body.constants.items():
        graph.value(name, "constant", type_)
    for position, node in enumerate(body.proto.node):
        if node.op_type != "Constant":
            captured = [
                name for name in body.captured(position, bodies) if name not in body.constants
            ]
            graph.add(node, body.inner.get(position, []), captured)
    graph.data["outputs"] = [graph.value(name) for name in _names(body.proto.output)]
    return graph


def subgraphs(node: NodeProto) -> Iterator[tuple[tuple[str, str], GraphProto]]:
    """Yield the graphs in the attributes of a node, each with its step of a scope."""
    label = node.name or next(iter(node.output), "")
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield (label, attribute.name), attribute.g
        for i, graph in enumerate(attribute.graphs):
            yield (label, f"{attribute.name}.{i}"), graph


def _names(values: Iterable[str | ValueInfoProto]) -> list[str]:
    """Return the names of inputs or outputs, which a function lists as plain names."""
    return [value if isinstance(value, str) else value.name for value in values]


def operator_name(proto: NodeProto) -> str:
    """Return the operator type, with its domain unless that is ONNX's own."""
    domain = "" if proto.domain in DEFAULT_DOMAINS else f"{proto.domain}::"
    return short(domain + proto.op_type)


def title(scope: Scope) -> str:
    """Return the title of a graph."""
    if not scope:
        return "main graph"
    return short(" / ".join(f"function {b}" if a == "function" else f"{a} {b}" for a, b in scope))


def tensor_type(tensor: TensorProto) -> str:
    """Return element type and shape of a tensor as text."""
    try:
        name = helper.tensor_dtype_to_np_dtype(tensor.data_type).name
    except (KeyError, ValueError):
        name = f"type {tensor.data_type}"
    return f"{name}[{','.join(map(str, tensor.dims))}]"


def attribute_text(attribute: AttributeProto) -> str:
    """Return an attribute that holds no graph as short text."""
    if attribute.ref_attr_name:
        return short(f"@{attribute.ref_attr_name}")
    if attribute.type == AttributeProto.TENSOR:
        return tensor_type(attribute.t)
    if attribute.type in (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS):
        items: list[float | bytes] = [*attribute.floats, *attribute.ints, *attribute.strings]
        more = [f"… ({len(items)})"] * (len(items) > MAX_ITEMS)
        return short(f"[{', '.join([*map(_scalar, items[:MAX_ITEMS]), *more])}]", MAX_ATTRIBUTE)
    kinds: dict[int, float | bytes] = {
        AttributeProto.FLOAT: attribute.f,
        AttributeProto.INT: attribute.i,
        AttributeProto.STRING: attribute.s,
    }
    if attribute.type in kinds:
        return short(_scalar(kinds[attribute.type]), MAX_ATTRIBUTE)
    return AttributeProto.AttributeType.Name(attribute.type).lower()


def _scalar(item: float | bytes) -> str:
    if isinstance(item, bytes):
        return item.decode(errors="replace")
    return f"{item:.7g}" if item % 1 else str(item)
