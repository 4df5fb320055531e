"""Calls of model-local functions: how much there would be if each stood where it is called."""

from __future__ import annotations

from ...codec.protos import ModelProto, NodeProto
from ...codec.traversal import all_graphs

EXPANDED = 200_000
"""Nodes that shape inference may visit because functions are called more than once; it takes 10 us for each."""


def expands_little(model: ModelProto) -> bool:
    """Whether shape inference, which goes into a function at each call, comes to an end soon. O(nodes), if there are
    functions at all.
    """
    if not model.functions:
        return True
    calls: dict[tuple[str, str], list[tuple[str, str]]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for function in model.functions:
        nodes = _nodes(function.node)
        key = (function.domain, function.name)
        calls[key] = calls.get(key, []) + [(node.domain, node.op_type) for node in nodes]
        sizes[key] = sizes.get(key, 0) + len(nodes)
    total: dict[tuple[str, str], int] = {}
    for start in calls:
        stack, open_ = [start], set[tuple[str, str]]()
        while stack:
            key = stack[-1]
            missing = [called for called in dict.fromkeys(calls[key]) if called in calls and called not in total]
            if key in total:
                stack.pop()
            elif missing and key in open_:
                return False  # it calls itself
            elif missing:
                open_.add(key)
                stack.extend(missing)
            else:
                total[key] = sizes[key] + sum(total.get(called, 0) for called in calls[key])
                stack.pop()
    own = sum(sizes.values()) + len(model.graph.node)
    called = sum(total.get((node.domain, node.op_type), 0) for graph in all_graphs(model) for node in graph.node)
    return called <= EXPANDED + 10 * own


def _nodes(nodes: object) -> list[NodeProto]:
    """The nodes with those in their graphs."""
    found: list[NodeProto] = []
    stack = list(nodes)  # type: ignore[call-overload]
    while stack:
        node = stack.pop()
        found.append(node)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                stack.extend(graph.node)
    return found
