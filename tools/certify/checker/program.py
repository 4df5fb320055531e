"""The graphs of a model as the checker sees them: values, operations and bodies, with types."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)
from onnx.inliner import inline_local_functions

from .inferred_types import bodies_of, copy_of, infer_types, label_of

Array = np.ndarray[Any, Any]
Extents = tuple["int | str | FreeExtent | None", ...] | None

MADE_UP = "unk__"
"""How the names begin that onnx's inference gives to extents it does not know."""

STATED = "#extent "
"""Prefix of the names that stand for an extent; the value's label and the axis follow."""

FLOATS = frozenset(
    (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
)


ALIAS = "ai.onnx"
"""Another name of ONNX's own domain."""

MAX_KEPT = 1 << 14
"""Most elements of a stored constant that are kept in float64, too."""

MAX_RECENT = 1 << 22
"""Most elements of one that are kept until others were read."""

STANDARD = ("", "ai.onnx.ml")
"""The domains of ONNX's operators."""

TAKEN = ("ai.onnx", "com.microsoft", "com.ms.")
"""Prefixes of domains whose operators runtimes know, and prefer to a function of the name."""


class Unproved(Exception):
    """Raised where a step, or the end of a proof, does not hold; the argument is the reason."""


class Misrounded(Unproved):
    """Raised where numbers are not those that follow, and all else holds."""


MALFORMED = (
    LookupError, TypeError, ValueError, AssertionError, AttributeError, ArithmeticError,
    RuntimeError, MemoryError,
    onnx.checker.ValidationError, onnx.shape_inference.InferenceError,
)  # fmt: skip
"""The errors that an invalid model may lead to."""


class Stored:
    """A constant: a tensor of the file, or an array that the checker computed.

    `is_unrounded` says that `exact` was computed without the roundings that a runtime may make.
    """

    def __init__(
        self, tensor: TensorProto | None, array: Array | None = None, exact: Array | None = None
    ) -> None:
        if tensor is not None and tensor.data_location == TensorProto.EXTERNAL:
            raise Unproved(f"the elements of {tensor.name!r} are in another file")
        self._tensor = tensor
        self._array = array
        self._exact = exact
        self.is_unrounded = exact is not None
        self._key: tuple[Any, ...] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def array(self) -> Array:
        """The elements in their element type. Raises Unproved where they do not fit the extents."""
        if self._array is None:
            assert self._tensor is not None
            try:
                self._array = numpy_helper.to_array(self._tensor)
            except ValueError:
                raise Unproved(f"the elements of {self._tensor.name!r} cannot be read") from None
        return self._array

    @property
    def exact(self) -> Array:
        """The elements in float64; computed ones are not rounded to their element type."""
        if self._exact is not None:
            return self._exact
        made = self.array.astype(np.float64)
        if made.size <= MAX_KEPT:
            self._exact = made
        elif made.size <= MAX_RECENT:
            if len(_RECENT) == _RECENT.maxlen:
                _RECENT[0]._exact = None
            _RECENT.append(self)
            self._exact = made
        return made

    @property
    def key(self) -> tuple[Any, ...]:
        """Element type, extents and elements."""
        if self._key is None:
            tensor = self._tensor
            if tensor is not None:
                kind, extents = tensor.data_type, tuple(tensor.dims)
            else:
                kind, extents = helper.np_dtype_to_tensor_dtype(self.array.dtype), self.array.shape
            self._key = ("constant", kind, extents, _Elements(self._content))
        return self._key

    def _content(self) -> bytes:
        """Return the elements as bytes, as a tensor of the file has them."""
        tensor = self._tensor
        if tensor is not None and tensor.HasField("raw_data"):
            return tensor.raw_data
        if self.array.dtype == object:
            return repr(self.array.tolist()).encode()
        if tensor is not None and tensor.data_type in _PACKED:
            return numpy_helper.from_array(self.array).raw_data
        return self.array.tobytes()


class _Elements:
    """Elements of a constant, which are read again where another constant may have them, too."""

    __slots__ = ("_hash", "_read")

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._hash = hash(read())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Elements) or self._hash != other._hash:
            return False
        return self is other or self._read() == other._read()


_RECENT: deque[Stored] = deque(maxlen=3)
"""The large constants that were read in float64 last."""

_PACKED = frozenset(
    value
    for name, value in TensorProto.DataType.items()
    if name in ("INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1")
)


@dataclass(frozen=True, slots=True)
class FreeExtent:
    """An extent that no one states, of a value along an axis.

    Values that onnx infers to have the same have it.
    """

    value: Datum
    axis: int

    def __repr__(self) -> str:
        return f"extent {self.axis} of {self.value.label!r}"


@dataclass(eq=False, slots=True)
class Datum:
    """A value of a graph. `label` is its name behind the path of the bodies that it stands in.

    `term` is its class in a proof: values of one class are equal. `numbers` are the elements of
    computed pads and bounds, None for those that differ with the extents of the inputs.
    """

    label: str
    producer: Operation | None = None
    index: int = 0
    kind: int = 0
    extents: Extents = None
    stored: Stored | None = None
    term: int = -1
    readers: list[Operation] = field(default_factory=list)
    numbers: list[int | None] | None = None

    @property
    def rank(self) -> int | None:
        """The number of axes, None if it is unknown."""
        return None if self.extents is None else len(self.extents)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.kind in FLOATS


Same = Callable[[Datum], Datum]
"""Returns another value that is equal, or the value."""


@dataclass(eq=False, slots=True)
class Operation:
    """A node. `attributes` has no schema defaults; `version` is its domain's opset.

    `line` is the affine that it is by itself, or None, once that is known; `head` are the parts of
    its key besides operands and bodies. `checked` are the lines of layers that were looked at.
    """

    label: str
    domain: str
    kind: str
    version: int
    attributes: dict[str, Any]
    bodies: dict[str, Block]
    inputs: list[Datum | None]
    outputs: list[Datum]
    line: tuple[Any] | None = None
    head: tuple[Any, ...] = field(init=False, default=())
    checked: dict[tuple[Any, ...], Any] = field(init=False, default_factory=dict)

    def operand(self, index: int) -> Datum | None:
        """Return an input, None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def constant(self, index: int) -> Array | None:
        """Return the elements of a constant input, None if it is absent or not constant."""
        found = self.operand(index)
        return None if found is None or found.stored is None else found.stored.array

    def integers(self, name: str, index: int | None = None) -> list[int] | None:
        """Return a list of integers that is an attribute or, in newer opsets, a constant input."""
        value = self.attributes.get(name)
        if value is not None:
            return [int(value)] if isinstance(value, int) else [int(each) for each in value]
        found = None if index is None else self.constant(index)
        return None if found is None else [int(each) for each in found.reshape(-1)]

    def numbers(self, name: str, index: int) -> Sequence[int | None] | None:
        """Return a list of integers as `integers` does, with None for those that are computed."""
        given = self.operand(index)
        found = self.integers(name, index)
        return given.numbers if found is None and given is not None else found


@dataclass(eq=False, slots=True)
class Block:
    """A graph: the main one, or one inside an operation."""

    inputs: list[Datum]
    operations: list[Operation]
    outputs: list[Datum]


@dataclass(eq=False)
class Program:
    """A model: its graph, and the parts of its interface that a compile must keep.

    `settled` are small constants that follow from extents.
    """

    model: ModelProto
    body: Block
    interface: list[tuple[str, bytes]]
    overridable: dict[str, Stored]
    results: list[tuple[str, bytes]]
    opsets: dict[str, int]
    data: dict[str, Datum]
    operations: dict[str, Operation]
    settled: dict[Datum, Stored] = field(default_factory=dict)

    def forget(self) -> None:
        """Remove what a proof noted at the values, so that another can begin."""
        for value in self.data.values():
            value.term = -1
            operation = value.producer
            if operation is not None:
                value.stored = None
                if operation.kind != "BatchNormalization" or any(
                    each is not None and each.producer is not None for each in operation.inputs[1:]
                ):
                    operation.line = None
        for operation in self.operations.values():
            for body in operation.bodies.values():
                for value in body.inputs:
                    value.stored = None


def load(model: ModelProto) -> Program:
    """Return the program of a model, whose functions are inlined by onnx first. Raises Unproved."""
    model = _with_one_domain(model)
    if model.functions:
        if any(not each.domain or each.domain.startswith(TAKEN) for each in model.functions):
            raise Unproved(
                "a function of the model has the domain of operators of ONNX or onnxruntime"
            )
        _check_imports(model)
        try:
            model = inline_local_functions(_with_defaults(model))
        except RuntimeError:  # of onnx's inliner, for a call with too many operands
            raise Unproved("a function of the model cannot be inlined") from None
        if model.functions:  # of another opset than the model
            raise Unproved("a function of the model cannot be inlined")
    if not all(any(node.output) for node in _nodes(model.graph)):
        raise Unproved("an operator has no result")
    if not _is_sorted(model.graph, frozenset()):
        copy = ModelProto()
        copy.CopyFrom(model)
        _sort(copy.graph)
        model = copy
    return _Reader(model).run()


def _with_one_domain(model: ModelProto) -> ModelProto:
    """Return a model without aliases of ONNX's domain, which onnx's own tools refuse."""

    def named(each: ModelProto) -> Iterator[NodeProto | FunctionProto | OperatorSetIdProto]:
        yield from each.opset_import
        yield from _nodes(each.graph)
        for function in each.functions:
            yield function
            yield from function.opset_import
            yield from _nodes(function)

    if all(each.domain != ALIAS for each in named(model)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for each in named(copy):
        if each.domain == ALIAS:
            each.ClearField("domain")
    return copy


def _check_imports(model: ModelProto) -> None:
    """Refuse a function of another opset than the model's, unless the model imports none."""
    local = {each.domain for each in model.functions}
    opsets = {each.domain: each.version for each in model.opset_import}
    for function in model.functions:
        own = {each.domain: each.version for each in function.opset_import}
        for domain in {node.domain for node in _nodes(function)} - local:
            if domain not in own or own[domain] != opsets.get(domain):
                raise Unproved(f"the function {function.name} has another opset than the model")


def _with_defaults(model: ModelProto) -> ModelProto:
    """Return a model whose calls state attributes that have a default: onnx leaves them out."""
    made = ModelProto()
    made.CopyFrom(model)
    defaults = {
        (each.domain, each.name, each.overload): each.attribute_proto for each in made.functions
    }
    for function in (None, *made.functions):
        passed = set() if function is None else {each.name for each in function.attribute_proto}
        for node in list(_nodes(function or made.graph)):
            absent = {
                each.name: each
                for each in defaults.get((node.domain, node.op_type, node.overload), ())
            }
            for item in node.attribute:
                if (
                    absent.pop(item.name, None) is not None
                    and item.ref_attr_name
                    and item.ref_attr_name not in passed
                ):
                    raise Unproved(
                        f"the function {node.op_type} may have its"
                        f" default of {item.name!r}, or none"
                    )
            node.attribute.extend(absent.values())
    return made


def _nodes(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for inner in _graphs(node):
            yield from _nodes(inner)


def _graphs(node: NodeProto) -> Iterator[GraphProto]:
    return (item.g for item in node.attribute if item.type == AttributeProto.GRAPH)


def _defined(graph: GraphProto) -> set[str]:
    given = {each.name for each in graph.input} | {each.name for each in graph.initializer}
    return given | {each.values.name for each in graph.sparse_initializer}


def _is_sorted(graph: GraphProto, outer: frozenset[str]) -> bool:
    """Return whether every node stands behind those that it reads, in the bodies of nodes, too."""
    seen = _defined(graph) | outer
    for node in graph.node:
        if any(name and name not in seen for name in node.input):
            return False
        if any(not _is_sorted(inner, frozenset(seen)) for inner in _graphs(node)):
            return False
        seen.update(node.output)
    return True


def _read(node: NodeProto) -> set[str]:
    """Return the names that a node reads, also of outer graphs that its bodies read."""
    found = {name for name in node.input if name}
    for inner in _graphs(node):
        own = _defined(inner) | {name for each in inner.node for name in each.output}
        found |= (
            set().union(*(_read(each) for each in inner.node), (each.name for each in inner.output))
            - own
        )
    return found


def _sort(graph: GraphProto) -> None:
    """Order the nodes of a graph so that each stands behind those that it reads."""
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    before = {
        i: {makers[name] for name in _read(node) if name in makers}
        for i, node in enumerate(graph.node)
    }
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        raise Unproved("the graph has a circle") from None
    nodes = [graph.node[i] for i in order]
    for node in nodes:
        for inner in _graphs(node):
            _sort(inner)
    copies = [copy_of(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _interface_type(type_: TypeProto) -> bytes:
    """Return a type as bytes, in which a negative extent is an unknown one."""
    made = TypeProto()
    made.CopyFrom(type_)
    made.ClearField("denotation")
    if made.HasField("tensor_type"):
        for dim in made.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")
    return made.SerializeToString(deterministic=True)


def declared(graph: GraphProto, path: str = "") -> Iterator[tuple[str, Extents]]:
    """Yield declared extents of inner values, and of all values in bodies, by label."""
    for each in (
        *graph.value_info,
        *(graph.input if path else ()),
        *(graph.output if path else ()),
    ):
        if each.type.tensor_type.HasField("shape"):
            yield path + each.name, tuple(_extent(dim) for dim in each.type.tensor_type.shape.dim)
    for node in graph.node:
        for item in node.attribute:
            yield from declared(item.g, f"{label_of(node, path)}/{item.name}/")


def note_types(program: Program, typed: GraphProto) -> None:
    """Give the values the types that were inferred."""
    given = {name for name, _ in program.interface}
    _note_types(program, typed, [each for each in typed.input if each.name not in given])
    _settle(program)


def _note_types(program: Program, typed: GraphProto, inputs: Iterable[ValueInfoProto]) -> None:
    for each in (*typed.value_info, *typed.output, *inputs):
        if each.name in program.data:
            _note_type(program.data[each.name], each.type)
    for node in typed.node:
        for _, body in bodies_of(node):
            _note_types(program, body, body.input)


def unsettled(value: Datum, axis: int) -> int | str | None:
    """Return an extent as it is written for onnx's inference, None if it has no name."""
    extent = None if value.extents is None else value.extents[axis]
    if isinstance(extent, FreeExtent):
        return f"{STATED}{extent.value.label} {extent.axis}"
    return extent


def _settle(program: Program) -> None:
    """Replace the names that onnx made up for extents by their first values.

    A made-up name means one extent in the main graph, and as much as none in the bodies of nodes.
    """
    named: dict[str, FreeExtent] = {}
    main = [
        *program.body.inputs,
        *(each for operation in program.body.operations for each in operation.outputs),
    ]
    inside = {each.label for each in main}
    for value in (*main, *(each for each in program.data.values() if each.label not in inside)):
        if value.extents is None or value.stored is not None:
            continue
        if all(isinstance(extent, int | FreeExtent) for extent in value.extents):
            continue
        extents: list[int | str | FreeExtent | None] = []
        for axis, extent in enumerate(value.extents):
            if isinstance(extent, str) and extent.startswith(STATED):
                label, _, place = extent[len(STATED) :].rpartition(" ")
                extents.append(FreeExtent(program.data[label], int(place)))
            elif extent is None or (isinstance(extent, str) and extent.startswith(MADE_UP)):
                own = FreeExtent(value, axis)
                is_named = extent is not None and value.label in inside
                extents.append(named.setdefault(str(extent), own) if is_named else own)
            else:
                extents.append(extent)
        value.extents = tuple(extents)


class _Reader:
    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.opsets = {each.domain: each.version for each in model.opset_import}
        self.data: dict[str, Datum] = {}
        self.operations: dict[str, Operation] = {}
        self.is_old = model.ir_version < 4

    def run(self) -> Program:
        graph = self.model.graph
        initialized = {tensor.name: tensor for tensor in graph.initializer}
        versions = {(each.domain, each.version) for each in self.model.opset_import}
        if len(versions) > len(self.opsets):
            raise Unproved("two versions of one domain are imported")
        if self.opsets and "" not in self.opsets and any(not node.domain for node in _nodes(graph)):
            # Runtimes take their newest one then.
            raise Unproved("the opset of ONNX's operators is not imported")
        free = [each for each in graph.input if not (self.is_old and each.name in initialized)]
        overridable = {
            each.name: Stored(initialized[each.name]) for each in free if each.name in initialized
        }
        if any(STATED.encode() in each.type.SerializeToString() for each in free):
            raise Unproved(f"the name of an extent contains {STATED!r}")
        body = self.graph(graph, infer_types(self.model, {}), {}, "")
        program = Program(
            self.model,
            body,
            [(each.name, _interface_type(each.type)) for each in free],
            overridable,
            [(each.name, _interface_type(each.type)) for each in graph.output],
            self.opsets,
            self.data,
            self.operations,
        )
        _settle(program)
        return program

    def datum(self, name: str, path: str) -> Datum:
        label = path + name
        if label in self.data:
            raise Unproved(f"the value {label!r} is computed twice")
        made = self.data[label] = Datum(label)
        return made

    def graph(
        self, graph: GraphProto, typed: GraphProto, outer: Mapping[str, Datum], path: str
    ) -> Block:
        scope: dict[str, Datum] = {}
        given = {each.name for each in graph.input}
        if len({tensor.name for tensor in graph.initializer}) < len(graph.initializer):
            raise Unproved("two initializers have one name")
        inputs = []
        declared: dict[str, TypeProto] = {}
        if path:  # inputs of bodies have the inferred types
            declared = {each.name: each.type for each in typed.input}
        for each in graph.input:
            is_constant = (
                self.is_old and not path and any(each.name == t.name for t in graph.initializer)
            )
            if not is_constant:
                scope[each.name] = self.datum(each.name, path)
                inputs.append(scope[each.name])
                _note_type(scope[each.name], declared.get(path + each.name, each.type))
        for tensor in graph.initializer:
            if tensor.name in given and tensor.name in scope:
                continue
            scope[tensor.name] = made = self.datum(tensor.name, path)
            made.stored = Stored(tensor)
            made.kind, made.extents = tensor.data_type, tuple(tensor.dims)
        for sparse in graph.sparse_initializer:
            scope[sparse.values.name] = self.datum(sparse.values.name, path)
        names = _Visible(scope, outer)
        types = {each.name: each.type for each in (*typed.value_info, *typed.output)}
        operations = [
            self.node(node, bare, names, types, path)
            for node, bare in zip(graph.node, typed.node, strict=True)
        ]
        return Block(
            inputs,
            [each for each in operations if each is not None],
            [names[o.name] for o in graph.output],
        )

    def node(
        self,
        node: NodeProto,
        bare: NodeProto,
        names: _Visible,
        types: Mapping[str, TypeProto],
        path: str,
    ) -> Operation | None:
        domain = node.domain
        inputs = [names[name] if name else None for name in node.input]
        kind = (label_of(node, path), domain, node.op_type, self.opsets.get(domain, 0))
        operation = Operation(*kind, {}, {}, inputs, [])
        typed = {item.name: item for item in bare.attribute}
        constant = node.op_type == "Constant" and not domain
        for item in node.attribute:
            if item.type == AttributeProto.GRAPH:
                inner = f"{operation.label}/{item.name}/"
                operation.bodies[item.name] = self.graph(
                    item.g, typed[item.name].g, names.all(), inner
                )
            elif not constant:
                operation.attributes[item.name] = _attribute(item)
        _drop_defaults(operation)
        written = list(node.output)
        # Absent results at the end do not count, but a Split cuts a part for each.
        while written and not written[-1] and node.op_type != "Split":
            written.pop()
        if not domain and node.op_type == "Concat" and operation.version < 4:
            operation.attributes.setdefault("axis", 1)
        if {"auto_pad", "pads"} <= operation.attributes.keys() and (
            operation.attributes["auto_pad"] != b"VALID" or any(operation.attributes["pads"])
        ):
            raise Unproved(f"{node.op_type} {operation.label!r} states its pads twice")
        if operation.attributes.get("num_outputs", len(written)) != len(written):
            raise Unproved(
                f"{node.op_type} {operation.label!r} has another number of outputs than it states"
            )
        for i, name in enumerate(written):
            made = self.datum(name or f"{operation.label[len(path) :]}#{i}", path)
            made.producer, made.index = operation, i
            if name:
                names.own[name] = made
            if path + name in types:
                _note_type(made, types[path + name])
            operation.outputs.append(made)
        if constant:
            stored = _constant(node)
            if stored is not None:
                result = operation.outputs[0]
                result.stored, result.producer = stored, None
                result.kind = helper.np_dtype_to_tensor_dtype(stored.array.dtype)
                result.extents = tuple(stored.array.shape)
                return None
            operation.attributes = {item.name: _attribute(item) for item in node.attribute}
        for each in inputs:
            if each is not None:
                each.readers.append(operation)
        self.operations[operation.label] = operation
        return operation


class _Visible:
    """The names that are visible inside a graph."""

    def __init__(self, own: dict[str, Datum], outer: Mapping[str, Datum]) -> None:
        self.own = own
        self.outer = outer

    def __getitem__(self, name: str) -> Datum:
        found = self.own.get(name) or self.outer.get(name)
        if found is None:
            raise Unproved(f"the value {name!r} is read and not computed")
        return found

    def all(self) -> dict[str, Datum]:
        return {**self.outer, **self.own}


def _note_type(datum: Datum, type_: TypeProto) -> None:
    if not type_.HasField("tensor_type"):
        return
    datum.kind = type_.tensor_type.elem_type
    found = extents_of(type_)
    if found is not None:
        datum.extents = found


def extents_of(type_: TypeProto) -> tuple[int | str | None, ...] | None:
    """Return the extents of the type of a tensor, None if the rank is unknown."""
    if not type_.tensor_type.HasField("shape"):
        return None
    return tuple(_extent(dim) for dim in type_.tensor_type.shape.dim)


def _extent(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) if dim.dim_param not in ("", "?") else None


def _attribute(item: AttributeProto) -> Any:
    if item.ref_attr_name:
        raise Unproved(f"the attribute {item.name!r} refers to one of a function")
    if item.type in (AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS):
        return tuple(helper.get_attribute_value(item))
    if item.type in (AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.STRING):
        return helper.get_attribute_value(item)
    if item.type == AttributeProto.TENSOR:
        return Stored(item.t)
    if item.type == AttributeProto.GRAPHS or item.HasField("g"):
        raise Unproved(
            f"the attribute {item.name!r} is a list of graphs, or a graph of another type"
        )
    for sparse in (item.sparse_tensor, *item.sparse_tensors):
        _ = Stored(sparse.values), Stored(sparse.indices)  # which have their elements
    copy = AttributeProto()
    copy.CopyFrom(item)
    copy.ClearField("doc_string")
    return copy.SerializeToString(deterministic=True)


@lru_cache(maxsize=1024)
def _defaults(kind: str, version: int, domain: str) -> Mapping[str, Any]:
    """Return the defaults of an operator's attributes, none for one that onnx does not know."""
    try:
        schema = onnx.defs.get_schema(kind, version, domain)
    except Exception:  # of onnx's own class
        return {}
    return {
        name: _attribute(each.default_value)
        for name, each in schema.attributes.items()
        if each.default_value.type
    }


def _drop_defaults(operation: Operation) -> None:
    if not operation.attributes or operation.domain not in STANDARD:
        return
    defaults = _defaults(operation.kind, operation.version, operation.domain)
    for name, value in list(operation.attributes.items()):
        if name in defaults and defaults[name] == value:
            del operation.attributes[name]


def _constant(node: NodeProto) -> Stored | None:
    """Return the constant of a Constant node, None for one that the checker does not look into."""
    (item, *others) = node.attribute
    if others or item.ref_attr_name:
        return None
    value = helper.get_attribute_value(item)
    if item.name == "value":
        return Stored(item.t)
    if item.name in ("value_int", "value_ints"):
        return Stored(None, np.array(value, np.int64))
    if item.name in ("value_float", "value_floats"):
        return Stored(None, np.array(value, np.float32))
    return None


def operations_of(body: Block) -> Iterator[Operation]:
    """Yield the operations of a body and of the bodies inside, those inside first."""
    for operation in body.operations:
        for inner in operation.bodies.values():
            yield from operations_of(inner)
        yield operation


def before(value: Datum) -> Iterator[Datum]:
    """Yield the values that a value is computed from, and this one, also in bodies."""
    seen, stack = {value}, [value]
    while stack:
        value = stack.pop()
        yield value
        inside = [] if value.producer is None else [value.producer]
        while inside:
            operation = inside.pop()
            inside += [each for body in operation.bodies.values() for each in body.operations]
            new = {
                each for each in (*operation.inputs, *operation.outputs) if each is not None
            } - seen
            seen |= new
            stack += new


def static(extents: Extents) -> tuple[int, ...] | None:
    """Return the extents as integers, None if one is unknown."""
    if extents is None:
        return None
    found = [extent for extent in extents if isinstance(extent, int)]
    return tuple(found) if len(found) == len(extents) else None


def product(extents: Sequence[int]) -> int:
    """Return the number of elements of a tensor."""
    return int(np.prod(np.array(extents, np.int64))) if extents else 1
