"""Structural verification: one message for each broken invariant of the IR."""

from __future__ import annotations

from collections.abc import Iterator

from ..support.errors import VerifyError, visible
from .graph import Function, Graph, Node, Value
from .module import Module, check_module
from .ops import op_info
from .ops.parameters import attribute_name
from .ops.row import missing_operands
from .types import F64, dtype_of


def verify(module: Module) -> None:
    """Check every invariant of `module`. O(nodes + uses).

    Raises VerifyError with one line for each broken invariant, UsageError for no module.
    """
    check_module(module)
    problems = list(check(module))
    if problems:
        raise VerifyError("\n".join(map(visible, problems)))


def check(module: Module) -> Iterator[str]:
    """Yield a sentence for each broken invariant of `module`."""
    for graph in module.top_graphs():
        if graph.parent is not None:
            yield f"graph {graph.name!r} is a region and a top-level graph"
        yield from _check_graph(graph)
    yield from _check_imports(module)
    yield from _check_functions(module)
    yield from _check_uses(module)
    yield from _check_origins(module)


def _check_graph(top: Graph) -> Iterator[str]:
    """Check links, interfaces, definitions before uses, and nodes of a graph and its regions."""
    for graph in top.graphs():
        yield from _check_links(graph)
        if len(graph.output_names) != len(graph.return_.inputs):
            values, names = len(graph.return_.inputs), len(graph.output_names)
            yield f"graph {graph.name!r} returns {values} values under {names} names"
        for i, argument in enumerate(graph.inputs):
            if argument.node is not None or argument.owner is not graph or argument.index != i:
                yield f"input {i} of graph {graph.name!r} is not its own"
        for overridable in graph.defaults:
            if overridable.owner is not graph:
                yield (
                    f"graph {graph.name!r} has a default for %{overridable.name}, which is not its"
                    " input"
                )
    visited: set[Node] = set()
    for node in top.walk():
        for i, value in enumerate(node.inputs):
            if value is not None and not _visible(value, node, visited):
                yield (
                    f"{node.label} reads %{value.name} as input {i} before its definition, or"
                    " outside its scope"
                )
        yield from _check_node(node)
        visited.add(node)


def _visible(value: Value, node: Node, visited: set[Node]) -> bool:
    """Return whether `value` is defined before `node`, in its graph or one around it.

    A node around `node` does not count: its results are not there yet.
    """
    if value.node is not None and value.node not in visited:
        return False
    scope = value.owner if value.node is None else value.node.graph
    graph = node.graph
    while graph is not None:
        if graph is scope:
            return True
        if graph.parent is None or graph.parent is value.node:
            return False
        graph = graph.parent.graph
    return False


def _check_links(graph: Graph) -> Iterator[str]:
    count, previous = 0, None
    for node in graph:
        if node.prev is not previous:
            yield f"the list of graph {graph.name!r} is broken before {node.label}"
        previous = node
        count += 1
    if graph.return_.prev is not previous or graph.return_.graph is not graph:
        yield f"the list of graph {graph.name!r} does not end in its return"
    if count != len(graph):
        yield f"graph {graph.name!r} counts {len(graph)} nodes and holds {count}"


def _check_node(node: Node) -> Iterator[str]:
    for i, value in enumerate(node.outputs):
        if value.node is not node or value.index != i:
            yield f"output {i} of {node.label} is not its own"
    for region in node.regions:
        if region.parent is not node:
            yield f"region {region.name!r} of {node.label} does not know its node"
    if node.op == "return":
        if any(value is None for value in node.inputs):
            yield f"graph {node.graph.name if node.graph else '?'!r} returns an absent value"
        return
    info = op_info(node.op)
    if info is None:
        return
    low, high = info.arity
    if not low <= len(node.inputs) <= high:
        yield f"{node.label} has {len(node.inputs)} inputs, {low} to {high} are allowed"
    if missing := missing_operands(info.inputs, low, node.inputs):
        yield f"{node.label} lacks {missing}"
    needed = info.result_counts[0]
    if len(node.outputs) < needed:
        yield f"{node.label} has {len(node.outputs)} outputs, {needed} are needed"
    for name, parameter in info.parameters.items():
        if (attribute := attribute_name(name, parameter, 0)) in node.attrs:
            yield f"{node.label} has {attribute} as an attribute, which is an operand in the IR"
    if node.op in ("constant", "variable") and "value" not in node.attrs:
        yield f"{node.label} has no payload"
    yield from _check_widths(node, info.wide)


def _check_widths(node: Node, wide: str | None) -> Iterator[str]:
    """Check that float64 operands of narrower data are parameters, at inputs that allow them."""
    parameter = None if wide is None else node[wide]
    if parameter is None or dtype_of(parameter.type) is not F64:
        return
    data = node.input(0)
    if data is None or dtype_of(data.type) in (F64, None):
        return
    if parameter.node is None or op_info(parameter.node.op) is None:
        narrow = dtype_of(data.type)
        yield (
            f"{node.label} has {narrow} data and a float64 operand %{parameter.name} that is not a"
            " parameter"
        )


def _check_imports(module: Module) -> Iterator[str]:
    """Check that the domains of all nodes that passes made are imported."""
    for node in module.walk():
        if node.source is None and "::" in node.op and node.graph is not None:
            domain, opsets = node.op.partition("::")[0], node.graph.opsets
            if domain and domain not in opsets and domain not in module.notes.unimported:
                example = f"graph.opsets[{domain!r}] = 1"
                yield (
                    f"{node.label} is of domain {domain!r}, of which its graph imports no opset:"
                    f" set {example}"
                )


def _check_functions(module: Module) -> Iterator[str]:
    for key, function in module.functions.items():
        if function.key != key:
            yield f"function {_function_name(function)} is registered as {key}"


def _function_name(function: Function) -> str:
    return f"{function.domain}::{function.name}" + (
        f":{function.overload}" if function.overload else ""
    )


def _check_uses(module: Module) -> Iterator[str]:
    """Check that the users of a value are the nodes that read it, with their counts."""
    found: dict[Value, dict[Node, int]] = {}
    for node in module.walk():
        for value in node.inputs:
            if value is not None:
                users = found.setdefault(value, {})
                users[node] = users.get(node, 0) + 1
    values = [value for graph in module.graphs() for value in graph.inputs]
    values.extend(value for node in module.walk() for value in node.outputs)
    for value in values:
        if value.users != found.get(value, {}):
            yield (
                f"the users of %{value.name} are {_users(value.users)}, its readers"
                f" {_users(found.get(value, {}))}"
            )


def _users(users: dict[Node, int]) -> str:
    return "[" + ", ".join(f"{node.label} x{count}" for node, count in users.items()) + "]"


def _check_origins(module: Module) -> Iterator[str]:
    known = range(module.next_origin)
    for node in module.walk():
        if any(isinstance(origin, int) and origin not in known for origin in node.origins):
            yield f"{node.label} has an origin that does not exist"
