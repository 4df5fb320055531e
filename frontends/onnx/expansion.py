"""A bound on the size of a model once every call of a function is expanded."""

from __future__ import annotations

from ...ir.ops import canonical_domain
from .codec.protos import ModelProto, NodeProto
from .codec.traversal import all_graphs

FunctionName = tuple[str, str]
"""Domain and name, which the overloads of a function share."""

MAX_EXPANDED_NODES = 200_000
"""Nodes that shape inference may visit because functions are called more than once. It takes 10 us for each."""


def is_expansion_bounded(model: ModelProto) -> bool:
    """Return whether shape inference, which enters a function at each call, ends soon. O(nodes).

    It does not if a function calls itself, or if calls of calls make the model exponentially large.
    """
    if not model.functions:
        return True
    calls: dict[FunctionName, list[FunctionName]] = {}
    sizes: dict[FunctionName, int] = {}
    for function in model.functions:
        nodes = _nodes(function.node)
        name = (canonical_domain(function.domain), function.name)
        calls[name] = calls.get(name, []) + list(map(_called, nodes))
        sizes[name] = sizes.get(name, 0) + len(nodes)
    expanded = _expanded_sizes(calls, sizes)
    if expanded is None:
        return False
    own = sum(sizes.values()) + len(model.graph.node)
    called = sum(expanded.get(_called(node), 0) for graph in all_graphs(model) for node in graph.node)
    return called <= MAX_EXPANDED_NODES + 10 * own


def _called(node: NodeProto) -> FunctionName:
    return canonical_domain(node.domain), node.op_type


def _expanded_sizes(
    calls: dict[FunctionName, list[FunctionName]], sizes: dict[FunctionName, int]
) -> dict[FunctionName, int] | None:
    """Return the number of nodes of each function with its calls expanded, None if one calls itself."""
    expanded: dict[FunctionName, int] = {}
    for start in calls:
        stack, entered = [start], set[FunctionName]()
        while stack:
            name = stack[-1]
            missing = [called for called in dict.fromkeys(calls[name]) if called in calls and called not in expanded]
            if name not in expanded and missing:
                if name in entered:
                    return None
                entered.add(name)
                stack.extend(missing)
                continue
            stack.pop()
            if name not in expanded:
                expanded[name] = sizes[name] + sum(expanded.get(called, 0) for called in calls[name])
    return expanded


def _nodes(nodes: object) -> list[NodeProto]:
    """Return the nodes and those in their graphs."""
    found: list[NodeProto] = []
    stack = list(nodes)  # type: ignore[call-overload]
    while stack:
        node = stack.pop()
        found.append(node)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                stack.extend(graph.node)
    return found
