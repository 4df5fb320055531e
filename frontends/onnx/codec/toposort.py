"""A stable topological sort of the nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from ....support.errors import ModelError
from .protos import NodeProto


def reads(node: NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, including all names read inside its graphs."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield from top.input
        for attribute in top.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from (info.name for info in graph.output)
                stack.extend(graph.node)


def topological_order(
    nodes: Sequence[NodeProto], known: Callable[[str], object]
) -> list[int] | None:
    """Return an order of `nodes`, as indices, that defines names before they are read. O(n log n).

    Of several nodes that could come next, the first in `nodes` does. The result is None if they are
    sorted already. `known` returns a value for the names that graph inputs, initializers and outer
    graphs define. Raises ModelError, which names a node on the cycle, if there is no such order.
    """
    if _is_sorted(nodes, known):
        return None
    readers, missing = _dependencies(nodes)
    ready = [i for i, count in enumerate(missing) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        i = heappop(ready)
        order.append(i)
        for reader in readers[i]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = next(node for i, node in enumerate(nodes) if missing[i])
        raise ModelError(
            f"node {stuck.name or list(stuck.output)!r} ({stuck.op_type}) is part of a cycle"
        )
    return order


def _is_sorted(nodes: Sequence[NodeProto], known: Callable[[str], object]) -> bool:
    """Return whether no node reads a name that a later node defines, unless `known` has it too."""
    defined: set[str] = set()
    early: set[str] = set()
    for node in nodes:
        early.update([name for name in node.input[:] if name not in defined])
        defined.update(node.output[:])
    return all(known(name) is not None for name in early & defined if name)


def _dependencies(nodes: Sequence[NodeProto]) -> tuple[list[list[int]], list[int]]:
    """Return the readers of each node, by index, and the number of nodes that each node reads."""
    producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    readers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for i, node in enumerate(nodes):
        for name in set(reads(node)):
            source = producer.get(name)
            # a name that a region of the node reads and the node itself defines is the region's own
            if source is not None and (source != i or name in node.input):
                readers[source].append(i)
                missing[i] += 1
    return readers, missing
