"""Comparison of two modules: a digest that ignores names, and a diff of their texts."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator

from .attributes import RegionRef, SparseTensor
from .graph import Graph, Node, Value
from .module import Module
from .tensor import Tensor
from .text.printer import to_text


def structural_digest(module: Module) -> str:
    """Return a digest of operators, attributes, constants, dataflow and interface types.

    It ignores the names of values and nodes, and the order of independent nodes. O(nodes + bytes).
    """
    hasher = hashlib.sha256(f"{sorted(module.graph.opsets.items())}".encode())
    hasher.update(f"{module.graph.output_names}{_graph_digest(module.graph, {})}".encode())
    for (domain, name, overload), function in sorted(
        module.functions.items(), key=lambda item: item[0]
    ):
        hasher.update(f"{domain}:{name}:{overload}:{_graph_digest(function.graph, {})}".encode())
    return hasher.hexdigest()


def _graph_digest(graph: Graph, outer: dict[Value, str]) -> str:
    known = dict(outer)
    for i, value in enumerate(graph.inputs):
        known[value] = f"input {i} {value.type} {_payload_text(graph.defaults.get(value))}"
    for node in graph:
        digest = _node_digest(node, known)
        for value in node.outputs:
            known[value] = f"{digest}.{value.index}"
    effects = sorted(
        known[node.outputs[0]]
        for node in graph
        if node.outputs and not any(v.users for v in node.outputs)
    )
    results = [known[value] for value in graph.outputs]
    return hashlib.sha256(repr((results, effects)).encode()).hexdigest()


def _node_digest(node: Node, known: dict[Value, str]) -> str:
    attributes = sorted(
        (name, _attribute_text(value, node, known)) for name, value in node.attrs.items()
    )
    inputs = [None if value is None else known[value] for value in node.inputs]
    return hashlib.sha256(
        repr((node.op, node.overload, attributes, inputs, len(node.outputs))).encode()
    ).hexdigest()


def _attribute_text(value: object, node: Node, known: dict[Value, str]) -> str:
    if isinstance(value, Tensor | SparseTensor):
        return _payload_text(value)
    if isinstance(value, RegionRef):
        return _graph_digest(node.regions[value.index], known)
    if isinstance(value, tuple):
        return repr([_attribute_text(item, node, known) for item in value])
    return repr(value)


def _payload_text(value: Tensor | SparseTensor | None) -> str:
    if isinstance(value, SparseTensor):
        return f"{value.values.digest()} {value.indices.digest()}"
    return "" if value is None else value.digest()


def operator_changes(a: Module, b: Module) -> dict[str, int]:
    """Return how many more nodes of each operator `b` has than `a`, without constants.

    Returns do not count either.
    """
    first, second = a.operators(), b.operators()
    return {op: second[op] - first[op] for op in sorted(first | second) if second[op] != first[op]}


def diff_lines(a: Module | str, b: Module | str, names: tuple[str, str]) -> Iterator[str]:
    """Yield the lines of the unified diff of two texts of modules, without line ends."""
    first, second = (to_text(module) if isinstance(module, Module) else module for module in (a, b))
    return difflib.unified_diff(first.splitlines(), second.splitlines(), *names, lineterm="")
