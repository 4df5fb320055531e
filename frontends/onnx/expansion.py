"""A bound on the size of a model once every call of a function is expanded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir.ops import canonical_domain
from .codec.protos import ModelProto, NodeProto
from .codec.traversal import all_graphs

FunctionName = tuple[str, str, str]
"""Domain, name and overload."""

MAX_EXPANDED_NODES = 200_000
"""Nodes that shape inference may visit because functions are called more than once.

It takes 10 us for each.
"""


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
        name = (canonical_domain(function.domain), function.name, function.overload)
        calls[name] = calls.get(name, []) + list(map(_called, nodes))
        sizes[name] = sizes.get(name, 0) + len(nodes)
    called = [
        name for graph in all_graphs(model) for name in map(_called, graph.node) if name in calls
    ]
    expanded = _expanded_sizes(called, calls, sizes)
    if expanded is None:
        return False
    own = sum(sizes.values()) + len(model.graph.node)
    return sum(expanded[name] for name in called) <= MAX_EXPANDED_NODES + 10 * own


def _called(node: NodeProto) -> FunctionName:
    return canonical_domain(node.domain), node.op_type, node.overload


def _expanded_sizes(
    called: Sequence[FunctionName],
    calls: Mapping[FunctionName, Sequence[FunctionName]],
    sizes: Mapping[FunctionName, int],
) -> dict[FunctionName, int] | None:
    """Count the nodes of each `called` function with its calls expanded.

    Returns None if a function calls itself.
    """
    expanded: dict[FunctionName, int] = {}
    for start in called:
        stack, entered = [start], set[FunctionName]()
        while stack:
            name = stack[-1]
            missing = [
                each
                for each in dict.fromkeys(calls[name])
                if each in calls and each not in expanded
            ]
            if name not in expanded and missing:
                if name in entered:
                    return None
                entered.add(name)
                stack.extend(missing)
                continue
            stack.pop()
            if name not in expanded:
                expanded[name] = sizes[name] + sum(expanded.get(each, 0) for each in calls[name])
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
