"""The dataflow graph: values, nodes, graphs and functions.

A graph is SSA: every value is defined once, by a node or as a graph input, and lists its users.
Nodes form an intrusive linked list in topological order. Its last node is `return`, so a graph
output is an ordinary use. Constants are nodes. The bodies of control flow are regions of a node and
read outer values directly.

    graph = Graph("main", {"": 21})
    x = graph.add_input("x", TensorType(F32, (1, 3)))
    relu = graph.append(Node("nn.relu", [x], outputs=[("y", x.type)]))
    graph.set_outputs([relu.output])
    x.users    # {relu: 1}

Passes edit a graph through `irc.ir.rewriter.Rewriter`, which also maintains origins.

Speed: a model has hundreds of thousands of nodes and values, and every pass visits them. So

- classes have slots, and `Node.output` is stored, in one step for a node with one output;
- a loop stands in place of `any` of a generator, which takes twice as long;
- `Graph.nodes`, `walked` and `operators_of` return lists, in a half to a third of the time of an
  iteration, and `operators` begins after the constants with which models begin;
- `Graph.remove` breaks the reference cycle between a node and its values, so that both are freed
  without the garbage collector.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, overload

from .types import Type

if TYPE_CHECKING:
    from .attributes import Attribute, SparseTensor
    from .tensor import Tensor


class Value:
    """One SSA value: a result of a node, or an input of a graph.

        value.type     # f32[N,3,8]
        value.node     # the node of which it is output `value.index`; None for a graph input
        value.users    # {node: 2}: one node reads it, at two inputs

    `users` has the nodes in the order in which they began to read the value. `owner` is the graph
    of a graph input.
    """

    __slots__ = ("_source_name", "index", "name", "node", "owner", "type", "users")

    def __init__(
        self, node: Node | None, index: int, type_: Type, name: str, owner: Graph | None = None
    ) -> None:
        self.node = node
        self.index = index
        self.type = type_
        self.name = name
        self._source_name = ""
        self.owner = owner
        self.users: dict[Node, int] = {}

    def __repr__(self) -> str:
        return f"<Value {self.name!r}: {self.type}>"

    @property
    def graph(self) -> Graph:
        """The graph in which the value is defined."""
        graph = self.owner if self.node is None else self.node.graph
        assert graph is not None, f"value {self.name!r} belongs to no graph"
        return graph

    # its readers

    @property
    def use_count(self) -> int:
        """The number of inputs that read the value, including the inputs of `return`."""
        return sum(self.users.values())

    @property
    def is_returned(self) -> bool:
        """Whether the value is an output of the graph that defines it."""
        return self.graph.return_ in self.users

    def sole_user(self) -> Node | None:
        """Return the node that reads the value, or None unless exactly one input reads it."""
        if len(self.users) != 1:
            return None
        node, count = next(iter(self.users.items()))
        return node if count == 1 else None

    # its names, in the module and in messages

    @property
    def source_name(self) -> str:
        """The name in messages: in the source model, of the value or the result it is a part of."""
        return self._source_name or self.name

    def rename(self, name: str) -> None:
        """Change the name; messages keep the name in the source model."""
        self._source_name = self._source_name or self.name
        self.name = name

    def take_name(self, other: Value) -> None:
        """Take the name of `other`, in messages, too."""
        self.name, self._source_name = other.name, other._source_name

    def made_for(self, result: Value) -> None:
        """Name the value after `result` in messages: it is a step in the computation of it."""
        self._source_name = result._source_name or result.name


class Node:
    """One operation: its operator reads `inputs` and computes `outputs`.

        conv = Node("nn.conv", [x, weight], {"group": 1}, outputs=[("y", UNKNOWN)])
        conv["weight"]    # an operand by its name in the operator's row, None if it is absent
        conv.output       # the first of `outputs`

    `op` is a name in the operator table (`nn.conv`) or, for a foreign operator, `domain::OpType`
    (`::Sigmoid` in the default domain). `overload` distinguishes functions of the same name.
    `inputs` hold None for an absent optional input. `inputs` and `attrs` are replaced, never
    changed in place, so nodes may share them. `regions` are the bodies of control flow.

    `source` is the object that the frontend imported the node from. The backend of the same format
    writes the node back from it, with the differences. It is None for a node that a pass made.

    `origins` are the imported nodes that the node computes; `inherited` are the origins of erased
    nodes that were merged into it. `merged` are the messages of erased nodes whose marks the node
    takes over, as a rope: first the one whose name it took.
    """

    __slots__ = (
        "attrs", "graph", "inherited", "inputs", "merged", "name", "next", "op", "origins",
        "output", "outputs", "overload", "own_metadata", "prev", "regions", "source",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        inputs: Sequence[Value | None] = (),
        attrs: dict[str, Attribute] | None = None,
        *,
        outputs: Sequence[tuple[str, Type]] = (),
        regions: Sequence[Graph] = (),
        name: str = "",
        overload: str = "",
        origins: Origins = (),
        source: Source | None = None,
    ) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.attrs: dict[str, Attribute] = attrs or {}
        if len(outputs) == 1:
            self.output = Value(self, 0, outputs[0][1], outputs[0][0])
            self.outputs: tuple[Value, ...] = (self.output,)
        else:
            self.outputs = tuple(
                [Value(self, i, type_, name_) for i, (name_, type_) in enumerate(outputs)]
            )
            if self.outputs:
                self.output = self.outputs[0]
        self.regions = tuple(regions)
        self.name = name
        self.overload = overload
        self.origins = origins
        self.inherited: Origins = ()
        self.source = source
        self.own_metadata: dict[str, str] | None = None
        """The marks, None until somebody asks for `metadata`."""
        self.merged: tuple[object, ...] = ()
        self.graph: Graph | None = None
        self.prev: Node | None = None
        self.next: Node | None = None
        for region in self.regions:
            region.parent = self
        for value in self.inputs:
            if value is not None:
                value.users[self] = value.users.get(self, 0) + 1

    def __repr__(self) -> str:
        return f"<Node {self.op} {self.name!r}>"

    @property
    def opset(self) -> int:
        """The opset version of ONNX's default domain in the graph of the node."""
        return 1 if self.graph is None else self.graph.opsets.get("", 1)

    @property
    def label(self) -> str:
        """The operator and the name of the node, or `%` and the name of its first output."""
        name = self.name or (f"%{self.outputs[0].name}" if self.outputs else "(nameless)")
        return f"{self.op.removeprefix('::')} {name}"

    @property
    def description(self) -> str:
        """The node for users: its ONNX operator, and its name or the name of its first result."""
        operator = ONNX_NAMES.get(self.op) or self.op.rpartition("::")[2]
        name = self.name or (self.outputs[0].source_name if self.outputs else "")
        return f"{operator} {name!r}"

    @property
    def is_hidden(self) -> bool:
        """Whether the running pass must leave the node and the names of its results alone."""
        return self.op.startswith(HIDDEN)

    # its operands and readers

    @overload
    def __getitem__(self, name: Required) -> Value: ...

    @overload
    def __getitem__(self, name: str) -> Value | None: ...

    def __getitem__(self, name: str) -> Value | None:
        """Return the operand `name` of an operator of the table, None if it is absent."""
        try:
            return self.inputs[OPERANDS[self.op][name]]
        except IndexError:
            return None

    def operand(self, index: int = 0) -> Value:
        """Return a required input, by default the first: the data, whatever the operator."""
        value = self.inputs[index]
        assert value is not None
        return value

    def input(self, index: int) -> Value | None:
        """Return input `index`, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def is_read(self) -> bool:
        """Whether any node reads an output."""
        for value in self.outputs:  # noqa: SIM110 - see Speed
            if value.users:
                return True
        return False

    def set_inputs(self, inputs: Sequence[Value | None]) -> None:
        """Replace all inputs, and update the users of the old and new values. O(inputs)."""
        self._drop_uses()
        self.inputs = tuple(inputs)
        for value in self.inputs:
            if value is not None:
                value.users[self] = value.users.get(self, 0) + 1

    def replace_input(self, old: Value, new: Value) -> None:
        """Replace `old` by `new` in every input that reads it."""
        count = old.users.pop(self)
        inputs, index = list(self.inputs), -1
        for _ in range(count):
            index = inputs.index(old, index + 1)
            inputs[index] = new
        self.inputs = tuple(inputs)
        new.users[self] = new.users.get(self, 0) + count

    def _drop_uses(self) -> None:
        for value in self.inputs:
            if value is not None:
                users = value.users
                count = users[self]
                if count > 1:
                    users[self] = count - 1
                else:
                    del users[self]

    # its source

    @property
    def message(self) -> object:
        """The object that the frontend imported the node from, None if a pass made the node."""
        return None if self.source is None else self.source.message

    @property
    def unchanged_message(self) -> object:
        """The message of a node of which every attribute is as it was read, else None."""
        source = self.source
        return source.message if source is not None and source.states(self.attrs) else None

    def messages(self) -> list[object]:
        """Return the node's message, then merged messages with marks, each once. O(messages)."""
        if not self.merged:
            return [] if self.source is None else [self.source.message]
        found: dict[int, object] = {}
        seen: set[int] = set()
        stack: list[object] = [self.merged, self.message]
        while stack:
            item = stack.pop()
            if not isinstance(item, tuple):
                found.setdefault(id(item), item)
            elif id(item) not in seen:
                seen.add(id(item))
                stack.extend(reversed(item))
        return [message for message in found.values() if message is not None]

    # its marks: metadata_props of ONNX, by users and passes, which are not part of the operator

    @property
    def metadata(self) -> dict[str, str]:
        """The marks by key, at first from its source and from merged nodes. Change them here."""
        if self.own_metadata is None:
            self.own_metadata = self.source_metadata()
        return self.own_metadata

    def source_metadata(self) -> dict[str, str]:
        """Return the marks in the message of the node, and of merged nodes under other keys."""
        marks: dict[str, str] = {}
        for message in self.messages():
            for entry in getattr(message, "metadata_props", ()):
                marks.setdefault(entry.key, entry.value)
        return marks

    def stand_for(self, node: Node) -> None:
        """Be written as `node`, from its source and with its marks, but with the differences."""
        self.source, self.own_metadata, self.merged = node.source, node.own_metadata, node.merged

    def take_marks(self, erased: Node) -> None:
        """Take over the marks of a node that is merged into this one.

        Its own go first, unless it took the name. O(1), but for marks that somebody changed.
        """
        message, takes_place = erased.message, self.source is None and erased.name == self.name
        new = (message, erased.merged) if has_marks(message) else erased.merged
        if erased.own_metadata is not None or self.own_metadata is not None:
            mine, theirs = self.metadata, erased.metadata
            self.own_metadata = {**mine, **theirs} if takes_place else {**theirs, **mine}
        if not new or new is self.merged:
            return
        if not self.merged:
            self.merged = new
        else:
            self.merged = (new, self.merged) if takes_place else (self.merged, new)


class Graph:
    """A graph or a region: inputs, then nodes in topological order, the last of them `return`.

        for node in graph: ...      # any node may be removed meanwhile
        graph.outputs               # the inputs of graph.return_
        graph.parent                # the node of a region, None for the main graph

    `opsets` maps operator domains to versions and is shared with the nested regions. `output_names`
    are the names of the graph outputs; they may differ from the names of the returned values.
    `defaults` holds the payloads of inputs with an initializer that the caller may override (ONNX
    IR >= 4).

    `source` is the object that the frontend imported (for ONNX a GraphProto). If its nodes are not
    in topological order, `source_order` holds the position of each node in it.
    """

    __slots__ = (
        "_count", "_first", "_first_operator", "_nested", "defaults",
        "inputs", "name", "opsets", "output_names", "parent", "return_", "source",
        "source_order",
    )  # fmt: skip

    def __init__(
        self, name: str = "", opsets: dict[str, int] | None = None, source: object = None
    ) -> None:
        self.name = name
        self.opsets: dict[str, int] = {} if opsets is None else opsets
        self.inputs: list[Value] = []
        self.defaults: dict[Value, Tensor | SparseTensor] = {}
        self.output_names: tuple[str, ...] = ()
        self.parent: Node | None = None
        self.source = source
        self.source_order: dict[Node, int] = {}
        self.return_ = Node("return")
        self.return_.graph = self
        self._first: Node = self.return_
        self._first_operator: Node = self.return_
        """A node with only constants before it, where `operators` begins."""
        self._count = 0
        self._nested = 0
        """The number of regions of all nodes."""

    def add_input(self, name: str, type_: Type) -> Value:
        """Append a graph input."""
        value = Value(None, len(self.inputs), type_, name, owner=self)
        self.inputs.append(value)
        return value

    def append(self, node: Node) -> Node:
        """Insert a detached `node` at the end, before `return`. O(1)."""
        return self.insert_before(self.return_, node)

    def set_outputs(self, values: Sequence[Value], names: Sequence[str] | None = None) -> None:
        """Make `values` the outputs of the graph, under `names` or by default their own names."""
        self.return_.set_inputs(values)
        self.output_names = tuple(value.name for value in values) if names is None else tuple(names)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The returned values."""
        return tuple(value for value in self.return_.inputs if value is not None)

    # its nodes, in order and without `return`

    def __len__(self) -> int:
        """Return the number of nodes, without `return` and without the nodes of regions."""
        return self._count

    def __iter__(self) -> Iterator[Node]:
        """Yield the nodes. Any node may be removed during the iteration."""
        node = self._first
        while node is not self.return_:
            if node.graph is self:
                yield node
            following = node.next
            assert following is not None
            node = following

    def nodes(self) -> list[Node]:
        """Return a list of the nodes."""
        found: list[Node] = []
        node = self._first
        while node is not self.return_:
            found.append(node)
            assert node.next is not None
            node = node.next
        return found

    def operators(self) -> Iterator[Node]:
        """Yield the nodes that are not constants. Any node may be removed during the iteration."""
        node = self._first_operator
        while node is not self.return_:
            if node.op != "constant" and node.graph is self:
                yield node
            following = node.next
            assert following is not None
            node = following

    def operators_of(self, ops: Container[str]) -> list[Node]:
        """Return a list of the nodes whose operators are `ops`, which lack `constant`."""
        found: list[Node] = []
        node = self._first_operator
        while node is not self.return_:
            if node.op in ops:
                found.append(node)
            assert node.next is not None
            node = node.next
        return found

    def constants_with(self, attribute: str) -> list[Node]:
        """Return a list of the constants that have an attribute."""
        found: list[Node] = []
        node = self._first
        while node is not self.return_:
            if node.op == "constant" and attribute in node.attrs:
                found.append(node)
            assert node.next is not None
            node = node.next
        return found

    # the graphs in it and around it

    @property
    def has_regions(self) -> bool:
        """Whether any node of the graph has regions. O(1)."""
        return self._nested > 0

    def walk(self) -> Iterator[Node]:
        """Yield all nodes, in regions too, and each `return`; a node comes before its regions."""
        if not self.has_regions:
            for node in self:
                yield node
                for region in node.regions:  # added during the iteration
                    yield from region.walk()
            yield self.return_
            return
        stack: list[Iterator[Node]] = [self._with_return()]
        while stack:
            for node in stack[-1]:
                yield node
                if node.regions:
                    stack.extend(region._with_return() for region in reversed(node.regions))
                    break
            else:
                stack.pop()

    def walked(self) -> list[Node]:
        """Return a list of the nodes that `walk` yields."""
        return list(self.walk()) if self.has_regions else [*self.nodes(), self.return_]

    def _with_return(self) -> Iterator[Node]:
        yield from self
        yield self.return_

    def graphs(self) -> Iterator[Graph]:
        """Yield this graph and all graphs nested in it, outer graphs first."""
        yield self
        if self.has_regions:
            for node in self.walk():
                yield from node.regions

    def ancestors(self) -> Iterator[Graph]:
        """Yield this graph, the graph that encloses it, and so on to the outermost."""
        graph: Graph | None = self
        while graph is not None:
            yield graph
            graph = None if graph.parent is None else graph.parent.graph

    # changing it

    def insert_before(self, anchor: Node, node: Node) -> Node:
        """Insert a detached `node` before `anchor`, a node of this graph. O(1)."""
        assert node.graph is None, f"{node!r} is already in a graph"
        assert anchor.graph is self, f"{anchor!r} is not in this graph"
        before = anchor.prev
        node.graph, node.prev, node.next = self, before, anchor
        if before is None:
            self._first = node
        else:
            before.next = node
        anchor.prev = node
        if node.op != "constant":
            if anchor is self._first_operator:
                self._first_operator = node
            elif anchor.op == "constant":  # perhaps one of the first
                self._first_operator = self._first
        self._count += 1
        if node.regions:
            self._nested += len(node.regions)
        return node

    def remove(self, node: Node) -> None:
        """Remove a node whose outputs have no users. O(inputs + size of its regions).

        The node loses its inputs and outputs.
        """
        assert node.graph is self, f"{node!r} is not in this graph"
        assert node is not self.return_, "return cannot be removed"
        for value in node.outputs:
            assert not value.users, f"{node!r} is still read"
        if node.inputs:
            node._drop_uses()
            node.inputs = ()
        if node.regions:
            for region in node.regions:
                for inner in list(region.walk()):
                    inner._drop_uses()
                    inner.inputs, inner.graph = (), None
        self._unlink(node)
        if node.outputs:
            del node.output
            node.outputs = ()

    def splice(self, region: Graph, anchor: Node) -> None:
        """Move the nodes of `region`, a graph without inputs, before `anchor`. O(nodes moved)."""
        for node in list(region):
            region._unlink(node)
            self.insert_before(anchor, node)

    def forget_first_operator(self) -> None:
        """Let `operators` search from the first node: the operator of a constant changes."""
        self._first_operator = self._first

    def _unlink(self, node: Node) -> None:
        before, after = node.prev, node.next
        assert after is not None
        if node is self._first_operator:
            self._first_operator = after
        if before is None:
            self._first = after
        else:
            before.next = after
        after.prev = before
        node.graph = None  # prev and next stay, so that an iteration at this node can go on
        self._count -= 1
        if node.regions:
            self._nested -= len(node.regions)


FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a model-local function."""


def call_key(node: Node) -> FunctionKey:
    """Return the key of the function that `node` calls, if the module has one under that key."""
    domain, _, name = node.op.partition("::")
    return (domain, name, node.overload)


class Function:
    """A model-local function; `graph` is its body.

    `attributes` are the names of attributes without a default, `defaults` the others with theirs.
    """

    __slots__ = ("attributes", "defaults", "domain", "graph", "name", "overload", "source")

    def __init__(
        self, domain: str, name: str, graph: Graph, *, overload: str = "", source: object = None
    ) -> None:
        self.domain = domain
        self.name = name
        self.overload = overload
        self.graph = graph
        self.attributes: tuple[str, ...] = ()
        self.defaults: dict[str, Attribute] = {}
        self.source = source

    @property
    def key(self) -> FunctionKey:
        """The key that a call names."""
        return (self.domain, self.name, self.overload)


def producer_of(value: Value | None, *ops: str) -> Node | None:
    """Return the node that computes `value` if its operator is one of `ops`, else None."""
    node = None if value is None else value.node
    return node if node is not None and node.op in ops else None


def is_constant(value: Value | None) -> bool:
    """Return whether `value` is a payload: the result of a `constant`."""
    return value is not None and value.node is not None and value.node.op == "constant"


def payload_of(value: Value | None) -> Attribute | None:
    """Return the payload of a `constant`, None for any other value."""
    node = None if value is None else value.node
    return node.attrs.get("value") if node is not None and node.op == "constant" else None


class Source:
    """The object that a frontend imported a node from: `message`, for ONNX a NodeProto.

    Passes do not look into it. `attrs` are the attributes that were read from it, by name. A
    backend of the same format takes an attribute of the node from the message only if it is the
    same object: an equal number that a pass has set is written from the IR.
    """

    __slots__ = ("attrs", "message")

    def __init__(self, message: object, attrs: Mapping[str, Attribute]) -> None:
        self.message = message
        self.attrs = attrs

    def states(self, attrs: Mapping[str, Attribute]) -> bool:
        """Return whether `attrs` are the attributes that were read, neither more nor fewer."""
        if attrs is self.attrs:
            return True
        if len(attrs) != len(self.attrs):
            return False
        return all(attrs.get(name) is value for name, value in self.attrs.items())


def has_marks(message: object) -> bool:
    """Return whether the message of a node has metadata, documentation or devices."""
    if getattr(message, "metadata_props", None) or getattr(message, "doc_string", ""):
        return True
    return bool(getattr(message, "device_configurations", None))


HIDDEN = "irc.hidden::"
"""The beginning of the operator of a node that the running pass must leave alone.

`irc.passes.keeping` hides nodes so.
"""

ONNX_NAMES: dict[str, str] = {}
"""The names in ONNX of in-house operators, for messages; `ir.ops` enters them."""

OPERANDS: dict[str, Mapping[str, int]] = {}
"""The positions of the operands of each operator by name; `ir.ops` enters them."""

Required = Literal[
    "data", "lhs", "rhs", "weight", "scale", "indices", "slope", "x", "y", "base", "exponent"
]
"""Names of operands that no operator may lack."""


Origins = tuple["int | Origins", ...]
"""Ids of imported nodes, as a rope: nested tuples, of which two merge in O(1)."""


def flatten_origins(origins: Origins, seen: set[int] | None = None) -> list[int]:
    """Return the ids in a rope of origins, each once, in ascending order.

    Ropes share parts. Pass the same `seen` for several ropes to visit each shared part once: linear
    time in all, and the ids of a shared part are listed for the first rope only.
    """
    if seen is None and len(origins) == 1 and isinstance(origins[0], int):
        return [origins[0]]
    found: set[int] = set()
    stack: list[int | Origins] = [origins]
    seen = set() if seen is None else seen
    while stack:
        item = stack.pop()
        if isinstance(item, int):
            found.add(item)
        elif id(item) not in seen:
            seen.add(id(item))
            stack.extend(item)
    return sorted(found)
