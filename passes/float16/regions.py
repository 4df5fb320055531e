"""Which operators stay float32 beside those that have to: a minimum cut.

An operator in float32 costs its multiplications and the elements of its results; a Cast costs the
elements of its value, once however many operators read the cast value. Operators near those that
have to stay are cut apart from all others at the least cost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from ...ir.graph import Node, Value, is_constant
from ...ir.module import Module
from ...ir.multiplications import multiplications
from ...ir.types import shape_of
from .half_forms import HalfForm, is_single

REACH = 6
"""Operators between one that has to stay float32 and the last that may join it."""

OPEN_EXTENT = 64
"""The number that an open extent counts as."""

CAST = 3
"""The cost of casting an element: 6 bytes, against 4 for computing one in float32 and not 16."""

TOO_MANY = 4000
"""Operators beyond which nothing joins: a cut would take seconds."""


Vertex = Node | str | tuple[str, Value]
"""A vertex of the network: an operator, an end, or a Cast of a value."""


def joining(module: Module, forms: Mapping[Node, HalfForm], stay: Collection[Node]) -> set[Node]:
    """Return the operators that are cheaper in float32, next to those that `stay`."""
    near = _near(stay, forms)
    if not near or len(near) > TOO_MANY:
        return set()
    from networkx import DiGraph, minimum_cut  # 0.2 s

    network: DiGraph[Vertex] = DiGraph()
    single, half = "float32", "float16"
    network.add_nodes_from((single, half))
    for node in near:
        network.add_edge(node, half, capacity=float(work_of(node)))
    values = {value for node in near for value in (*node.inputs, *node.outputs)}
    for value in sorted((each for each in values if each is not None), key=lambda v: v.name):
        if not is_single(value) or is_constant(value):
            continue
        size = float(CAST * elements_of(value))
        ends = _end(value.node, near, stay, forms, single, half)
        readers = {
            _end(user, near, stay, forms, single, half)
            for user in value.users
            if user.graph is module.graph and user.op != "return"
        }
        if module.graph.return_ in value.users or any(
            user.graph is not module.graph for user in value.users
        ):
            readers.add(single)
        narrowed, widened = ("narrowed", value), ("widened", value)
        network.add_edge(ends, narrowed, capacity=size)
        network.add_edge(widened, ends, capacity=size)
        for reader in readers:
            network.add_edge(narrowed, reader)  # without a capacity: never cut
            network.add_edge(reader, widened)
    _, (_, kept) = minimum_cut(network.reverse(), half, single)  # of equal cuts the smallest
    return {node for node in kept if isinstance(node, Node)}


def _end(
    node: Node | None,
    near: Collection[Node],
    stay: Collection[Node],
    forms: Mapping[Node, HalfForm],
    single: str,
    half: str,
) -> Node | str:
    """Return the vertex of the network that stands for a node."""
    if node is None or node in stay:
        return single
    if node in near:
        return node
    return half if node in forms else single


def _near(stay: Collection[Node], forms: Mapping[Node, HalfForm]) -> dict[Node, None]:
    """Return the operators within REACH of those that stay, in a stable order."""
    found: dict[Node, None] = {}
    ring = [node for node in stay if node.op != "constant"]
    for _ in range(REACH):
        beyond = [other for node in ring for other in _neighbours(node)]
        ring = [
            node
            for node in dict.fromkeys(beyond)
            if node in forms and node not in stay and node not in found
        ]
        found.update(dict.fromkeys(ring))
    return found


def _neighbours(node: Node) -> list[Node]:
    before = [
        value.node
        for value in node.inputs
        if value is not None and value.node is not None and is_single(value)
    ]
    return before + [user for value in node.outputs if is_single(value) for user in value.users]


def elements_of(value: Value) -> int:
    """Return the number of elements of a value; open extents count as OPEN_EXTENT."""
    shape = shape_of(value.type)
    dims = (OPEN_EXTENT, OPEN_EXTENT) if shape is None else shape
    return max(1, prod(dim if isinstance(dim, int) else OPEN_EXTENT for dim in dims))


def work_of(node: Node) -> int:
    """Return the cost of a node in float32: multiplications, and elements of its results."""
    return sum(map(elements_of, node.outputs)) + (multiplications(node, OPEN_EXTENT) or 0)
