"""Relate the operators of a source model and of its compiled model, and give each a status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .layer_rows import scope_of
from .model_graph import GraphIndex
from .page_data import OperatorData, Position

if TYPE_CHECKING:
    from ...backends.foldmap.entries import LayerEntry, SourceEntry

Graphs = Sequence[GraphIndex]


def relate(
    sources: Sequence[SourceEntry], layers: Sequence[LayerEntry], before: Graphs, after: Graphs
) -> None:
    """Fill `to`, `from`, `affine`, `layer` and `status` of every operator of both models.

    An operator is related to its counterpart (see `_counterparts`), and an affine to the layers
    that it was folded into. The status is one of

    - the status of an affine in the fold map, for an affine of the source and for one that stays;
    - `layer`: affines were folded into it;
    - `gone` or `new`: it has no counterpart in the compiled model, or in the source;
    - `inside`: one of its subgraphs changed;
    - `same`.
    """
    positions = {
        id(node): [g, n]
        for graphs in (before, after)
        for g, graph in enumerate(graphs)
        for n, node in enumerate(graph.nodes)
    }
    old_graphs = {graph.scope: graph for graph in before}
    new_graphs = {graph.scope: graph for graph in after}
    for scope in old_graphs.keys() & new_graphs.keys():
        for old, new in _counterparts(old_graphs[scope], new_graphs[scope]):
            _link(old, new, positions)
    targets: dict[str, OperatorData | None] = {}
    for i, layer in enumerate(layers):
        graph = new_graphs.get(scope_of(layer))
        node = None if graph is None else graph.by_name.get(layer["node"]["name"])
        targets[layer["id"]] = node
        if node is not None:
            node["layer"] = i
            for g, n in node.get("from", ()):
                before[g].nodes[n]["layer"] = i
    for i, source in enumerate(sources):
        graph = old_graphs.get(scope_of(source))
        affine = None if graph is None else graph.by_output.get(source["output"])
        if affine is None:
            continue
        affine["affine"] = i
        for number in source["layers"]:
            if (target := targets[number]) is not None:
                _link(affine, target, positions)
    _mark_before(sources, before)
    _mark_after(before, after)
    for graphs in (before, after):
        _mark_outer(graphs)


def _link(old: OperatorData, new: OperatorData, positions: dict[int, Position]) -> None:
    to, origin = old.setdefault("to", []), new.setdefault("from", [])
    if positions[id(new)] not in to:
        to.append(positions[id(new)])
    if positions[id(old)] not in origin:
        origin.append(positions[id(old)])


def _mark_before(sources: Sequence[SourceEntry], before: Graphs) -> None:
    for node in _operators(before):
        if "affine" in node:
            node["status"] = sources[node["affine"]]["status"]
        elif "layer" in node:
            node["status"] = "layer"
        else:
            node["status"] = "same" if "to" in node else "gone"


def _mark_after(before: Graphs, after: Graphs) -> None:
    for node in _operators(after):
        origins = [before[g].nodes[n] for g, n in node.get("from", ())]
        kept = next((old for old in origins if old["status"] in ("kept", "partial")), None)
        if "layer" in node:
            node["status"] = "layer"
        elif kept is not None:
            node["status"], node["affine"] = kept["status"], kept["affine"]
        else:
            node["status"] = "same" if origins else "new"


def _mark_outer(graphs: Graphs) -> None:
    for graph in reversed(graphs):  # inner graphs come last and are marked first
        for node in graph.nodes:
            inner = (each for number in node.get("graphs", ()) for each in graphs[number].nodes)
            has_changed = any(each["status"] not in ("same", "kept") for each in inner)
            if has_changed and node["status"] == "same":
                node["status"] = "inside"


def _operators(graphs: Graphs) -> Iterator[OperatorData]:
    return (node for graph in graphs for node in graph.nodes)


def _counterparts(before: GraphIndex, after: GraphIndex) -> list[tuple[OperatorData, OperatorData]]:
    """Pair operators of one type by node name, and those that are left by the name of a result."""
    found: list[tuple[OperatorData, OperatorData]] = []
    done: set[int] = set()
    for name, new in after.by_name.items():
        old = before.by_name.get(name)
        # The index has None for a name that several operators have.
        if old is not None and new is not None and old["op"] == new["op"]:
            found.append((old, new))
            done.update((id(old), id(new)))
    for name, new in after.by_output.items():
        old = before.by_output.get(name)
        if old is not None and done.isdisjoint((id(old), id(new))):
            found.append((old, new))
            done.update((id(old), id(new)))
    return found
