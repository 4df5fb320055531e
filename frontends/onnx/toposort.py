"""A stable topological order for graphs whose nodes do not stand in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from ...codec.protos import NodeProto
from ...support.errors import ModelError


def reads(node: NodeProto) -> Iterator[str]:
    """The names a node reads, those inside its graphs included, whether or not they are defined there."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield from top.input
        for attribute in top.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from (info.name for info in graph.output)
                stack.extend(graph.node)


def topological_order(nodes: Sequence[NodeProto], known: Callable[[str], object]) -> list[int] | None:
    """Positions of `nodes` such that every name is defined before it is read, earlier positions first where there is
    a choice; None where they stand so already. Names that `known` finds around the
    graph need no order. O(n log n).

    Raises ModelError naming a node on it where there is a cycle.
    """
    defined: set[str] = set()
    ahead: list[str] = []  # what is read before any node has defined it
    for node in nodes:
        ahead += [name for name in node.input if name not in defined]
        defined.update(node.output)
    if all(known(name) is not None for name in ahead if name and name in defined):
        return None
    producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    readers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for i, node in enumerate(nodes):
        for name in set(reads(node)):
            source = producer.get(name)
            if (source is not None and source != i) or (source == i and name in node.input):
                assert source is not None
                readers[source].append(i)
                missing[i] += 1
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
        raise ModelError(f"node {stuck.name or list(stuck.output)!r} ({stuck.op_type}) is part of a cycle")
    return order
