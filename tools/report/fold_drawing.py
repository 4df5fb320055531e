"""A drawing of a model before and after a compile: where affines went, and changed operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...frontends.onnx.codec.protos import ModelProto, NodeProto
from ...support.errors import listed
from .drawing import draw
from .graph_boxes import Mark, graph_boxes

if TYPE_CHECKING:
    from ...backends.foldmap.fold_map import FoldMap

NAMES = 2
"""Most names in a note."""


def fold_drawing(source: ModelProto, result: ModelProto, fold_map: FoldMap) -> str:
    """Return both main graphs side by side as SVG.

    An affine of the source has its status in the fold map. Of both models the operators are marked
    that have no counterpart of their type in the other one, by name or by result, and the layers
    that took an affine.
    """
    return draw(
        ("before", graph_boxes(source.graph, _mark_before(source, result, fold_map))),
        ("after", graph_boxes(result.graph, _mark_after(source, result, fold_map))),
    )


def _mark_before(source: ModelProto, result: ModelProto, fold_map: FoldMap) -> Mark:
    layers = {layer["id"]: layer["node"]["name"] for layer in fold_map.layers}
    affines = {entry["output"]: entry for entry in fold_map.sources if not entry["scope"]}
    left = _known(result)

    def mark(node: NodeProto) -> tuple[str, str]:
        entry = next((affines[name] for name in node.output if name in affines), None)
        if entry is None:
            return ("same", "") if _is_known(node, left) else ("removed", "")
        if entry["status"] in ("kept", "partial"):
            return "kept", ": ".join(filter(None, (entry["status"], entry["reason"])))
        into = listed((layers[number] for number in entry["layers"]), NAMES)
        return "removed", f"{entry['status']} into {into}" if into else entry["status"]

    return mark


def _mark_after(source: ModelProto, result: ModelProto, fold_map: FoldMap) -> Mark:
    names = {entry["id"]: entry["node"]["name"] or entry["output"] for entry in fold_map.sources}
    affines = [entry for entry in fold_map.sources if not entry["scope"]]
    kept = {entry["output"] for entry in affines if entry["status"] == "kept"}
    folds = {
        layer["node"]["name"]: dict.fromkeys(
            names[fold["source"]] for fold in fold_map.folds_of(layer)
        )
        for layer in fold_map.layers
        if not layer["scope"]
    }
    known = _known(source)

    def mark(node: NodeProto) -> tuple[str, str]:
        if node.name in folds:
            return "changed", f"took {listed(folds[node.name], NAMES)}"
        if any(name in kept for name in node.output):
            return "kept", ""
        return ("same", "") if _is_known(node, known) else ("changed", "new")

    return mark


def _known(model: ModelProto) -> set[tuple[str, str]]:
    """Return the operators of the main graph by name, and by result, each with its type."""
    nodes = model.graph.node
    return {(node.op_type, name) for node in nodes for name in (node.name, *node.output) if name}


def _is_known(node: NodeProto, known: set[tuple[str, str]]) -> bool:
    return any((node.op_type, name) in known for name in (node.name, *node.output) if name)
