"""ONNX graphs and functions decoded once: steps with constants and the last use of every value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path

import onnx
from onnx import AttributeProto

from .values import Tensor, decode, decode_sparse


@dataclass(frozen=True, slots=True)
class Step:
    """One node. `references` maps an attribute to the attribute of the enclosing function that
    gives its value.
    """

    op_type: str
    domain: str
    overload: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, object]
    references: dict[str, str]
    dead: tuple[str, ...]
    node: onnx.NodeProto


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph or a function body; `captures` are the names it reads from enclosing graphs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Tensor]
    steps: tuple[Step, ...]
    captures: frozenset[str]


@dataclass(frozen=True, slots=True)
class Function:
    body: Graph
    defaults: dict[str, object]
    opsets: dict[str, int]


_Decoded = tuple[onnx.NodeProto, dict[str, object], dict[str, str]]


def domain_name(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def opset_versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Version per domain."""
    return {domain_name(entry.domain): entry.version for entry in imports}


def decode_graph(graph: onnx.GraphProto, base_dir: Path | None) -> Graph:
    constants = {tensor.name: decode(tensor, base_dir) for tensor in graph.initializer}
    constants |= {
        tensor.values.name: decode_sparse(tensor, base_dir) for tensor in graph.sparse_initializer
    }
    inputs = [value.name for value in graph.input]
    outputs = [value.name for value in graph.output]
    return _decode_body(graph.node, inputs, outputs, constants, base_dir)


def decode_function(function: onnx.FunctionProto) -> Function:
    body = _decode_body(function.node, list(function.input), list(function.output), {}, None)
    defaults = {
        attribute.name: _decode_attribute(attribute, None) for attribute in function.attribute_proto
    }
    return Function(body, defaults, opset_versions(function.opset_import))


def _decode_body(
    nodes: Iterable[onnx.NodeProto],
    inputs: list[str],
    outputs: list[str],
    constants: dict[str, Tensor],
    base_dir: Path | None,
) -> Graph:
    local = {*inputs, *constants}
    decoded = _ordered([(node, *_decode_attributes(node, base_dir)) for node in nodes], local)
    last_use: dict[str, int] = {}
    for index, (node, attributes, _) in enumerate(decoded):
        local.update(filter(None, node.output))
        last_use |= dict.fromkeys(filter(None, node.output), index)
        last_use |= dict.fromkeys(_reads(node, attributes), index)
    dead: dict[int, list[str]] = {}
    for name, index in last_use.items():
        if name in local and name not in outputs:
            dead.setdefault(index, []).append(name)
    steps = tuple(
        Step(
            node.op_type,
            domain_name(node.domain),
            node.overload,
            tuple(node.input),
            tuple(node.output),
            attributes,
            references,
            tuple(dead.get(index, ())),
            node,
        )
        for index, (node, attributes, references) in enumerate(decoded)
    )
    captures = frozenset(last_use.keys() | set(outputs)) - local
    return Graph(tuple(inputs), tuple(outputs), constants, steps, captures)


def _ordered(nodes: list[_Decoded], given: set[str]) -> list[_Decoded]:
    """Producers before consumers, otherwise as the file has them: some files are not sorted.

    A node that overwrites a given value, as old training BatchNormalization does, is not its
    producer.
    """
    outputs = ((name, index) for index, (node, *_) in enumerate(nodes) for name in node.output)
    producers = {name: index for name, index in outputs if name and name not in given}
    needs = [
        {producers[name] for name in _reads(node, attributes) if name in producers}
        for node, attributes, _ in nodes
    ]
    consumers: list[list[int]] = [[] for _ in nodes]
    for index, needed in enumerate(needs):
        for producer in needed:
            consumers[producer].append(index)
    ready = [index for index, needed in enumerate(needs) if not needed]
    order = []
    while ready:
        index = heappop(ready)
        order.append(nodes[index])
        for consumer in consumers[index]:
            needs[consumer].discard(index)
            if not needs[consumer]:
                heappush(ready, consumer)
    if len(order) < len(nodes):
        raise ValueError("the graph has a cycle")
    return order


def _reads(node: onnx.NodeProto, attributes: dict[str, object]) -> Iterator[str]:
    yield from filter(None, node.input)
    for attribute in attributes.values():
        for value in attribute if isinstance(attribute, tuple) else (attribute,):
            if isinstance(value, Graph):
                yield from value.captures


def _decode_attributes(
    node: onnx.NodeProto, base_dir: Path | None
) -> tuple[dict[str, object], dict[str, str]]:
    attributes: dict[str, object] = {}
    references: dict[str, str] = {}
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            references[attribute.name] = attribute.ref_attr_name
        else:
            attributes[attribute.name] = _decode_attribute(attribute, base_dir)
    return attributes, references


def _decode_attribute(attribute: AttributeProto, base_dir: Path | None) -> object:
    match attribute.type or _guess_type(attribute):
        case AttributeProto.FLOAT:
            return attribute.f
        case AttributeProto.INT:
            return attribute.i
        case AttributeProto.STRING:
            return attribute.s.decode()
        case AttributeProto.TENSOR:
            return decode(attribute.t, base_dir)
        case AttributeProto.SPARSE_TENSOR:
            return decode_sparse(attribute.sparse_tensor, base_dir)
        case AttributeProto.GRAPH:
            return decode_graph(attribute.g, base_dir)
        case AttributeProto.FLOATS:
            return tuple(attribute.floats)
        case AttributeProto.INTS:
            return tuple(attribute.ints)
        case AttributeProto.STRINGS:
            return tuple(text.decode() for text in attribute.strings)
        case AttributeProto.TENSORS:
            return tuple(decode(tensor, base_dir) for tensor in attribute.tensors)
        case AttributeProto.GRAPHS:
            return tuple(decode_graph(graph, base_dir) for graph in attribute.graphs)
    return None


def _guess_type(attribute: AttributeProto) -> int:
    """The type of an attribute of IR version 1, which does not state it."""
    singles = {"f": AttributeProto.FLOAT, "i": AttributeProto.INT, "s": AttributeProto.STRING}
    singles |= {"t": AttributeProto.TENSOR, "g": AttributeProto.GRAPH}
    lists = {
        "floats": AttributeProto.FLOATS,
        "ints": AttributeProto.INTS,
        "strings": AttributeProto.STRINGS,
    }
    for field, kind in singles.items():
        if attribute.HasField(field):
            return int(kind)
    for field, kind in lists.items():
        if len(getattr(attribute, field)):
            return int(kind)
    return int(AttributeProto.INTS)
