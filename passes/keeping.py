"""Nodes that the user names, and passes leave alone.

While a pass runs, a kept node has an operator that nothing knows. So no rule matches it, no affine
passes it, and nothing erases or computes it, in any pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ..ir.graph import HIDDEN, ONNX_NAMES, Node, call_key
from ..ir.module import Module
from ..ir.provenance import Refusal, SideTable
from ..support.errors import UsageError, clipped, did_you_mean


class KeptNodes(SideTable):
    """The nodes that passes leave alone."""

    def __init__(self) -> None:
        self.operators: dict[Node, str] = {}
        """The kept nodes with their operators."""
        self.names: tuple[str, ...] = ()
        """The names that the user gave for them."""


def kept_nodes(module: Module) -> KeptNodes:
    """Return the nodes of a module that passes leave alone."""
    return module.provenance.table(KeptNodes)


def keep_nodes(module: Module, names: Iterable[str]) -> None:
    """Let passes leave alone the nodes with these names, or whose results have them.

    A text is one name. A node or value of any graph or function body may have a name, and several
    may. Inputs of graphs stay in any case. Raises UsageError for a name that the module does not
    have, with the nearest one.
    """
    wanted = dict.fromkeys((names,) if isinstance(names, str) else names)
    if not wanted:
        return
    by_name = _nodes_by_name(module)
    for name in wanted:
        if name not in by_name:
            raise UsageError(
                f"the model has no node or value {clipped(name)} to"
                f" keep{did_you_mean(name, by_name)}"
            )
        for node in by_name[name]:
            _keep(module, node, f"{node.description} is to be kept")
    kept = kept_nodes(module)
    kept.names = (*kept.names, *wanted)


def _keep(module: Module, node: Node, reason: str) -> None:
    kept_nodes(module).operators[node] = node.op
    if node.origins:
        module.provenance.refuse(node.origins, Refusal("kept_by_user", reason))


def _nodes_by_name(module: Module) -> dict[str, list[Node]]:
    """Return the nodes by their names, and by the names of results and graph outputs."""
    found: dict[str, list[Node]] = {}
    for graph in module.graphs():
        for value in graph.inputs:
            found.setdefault(value.source_name, [])
        for node in graph:
            for name in {node.name, *(value.source_name for value in node.outputs)}:
                found.setdefault(name, []).append(node)
        for name, result in zip(graph.output_names, graph.outputs, strict=False):
            if result is None or result.node is None:
                continue
            if result.node not in found.setdefault(name, []):
                found[name].append(result.node)
    found.pop("", None)
    return found


@contextmanager
def hidden_nodes(module: Module) -> Iterator[None]:
    """Give the kept nodes an unknown operator within this context.

    Calls of functions keep theirs.
    """
    operators = kept_nodes(module).operators
    hidden = [
        node
        for node in operators
        if node.graph is not None and call_key(node) not in module.functions
    ]
    for node in hidden:
        operators[node] = node.op
        node.op = HIDDEN + (ONNX_NAMES.get(node.op) or node.op.rpartition("::")[2])
        if node.graph is not None:
            node.graph.forget_first_operator()
    try:
        yield
    finally:
        for node in hidden:
            node.op = operators[node]
