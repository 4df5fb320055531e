"""How a notebook shows a module, a result and a fold map: tables, IR text and drawings."""

from __future__ import annotations

from ...backends.foldmap.fold_map import FoldMap
from ...ir.module import Module
from ...result import Result
from .drawing import draw
from .node_boxes import node_boxes
from .notebook import folded_text, frame, table

MAX_LINES = 1000
"""Most lines of IR text that a notebook shows."""


def module_html(module: Module) -> str:
    """Return the inputs, outputs, operators, IR text and graph of a module."""
    ends = [
        (kind, value.name, value.type)
        for kind, values in (("input", module.graph.inputs), ("output", module.graph.outputs))
        for value in values
    ]
    counts = sorted(module.operators().items(), key=lambda item: (-item[1], item[0]))
    lines = str(module).splitlines()
    text = "\n".join(lines[:MAX_LINES])
    title = "IR text"
    if len(lines) > MAX_LINES:
        title += f", first {MAX_LINES} of {len(lines)} lines"
    return frame(
        repr(module),
        table(("", "name", "type"), ends),
        table(("operator", "count"), counts),
        folded_text(title, text),
        draw(("", node_boxes(module.graph))),
    )


def result_html(result: Result) -> str:
    """Return where each affine went, and the graphs before and after."""
    warned = table(("warning",), [(warning,) for warning in result.warnings])
    return frame(repr(result), warned, affine_table(result.fold_map), result.drawing())


def fold_map_html(fold_map: FoldMap) -> str:
    """Return where each affine went, and the layers."""
    layers: list[tuple[str, str, str]] = []
    for layer in fold_map.layers:
        node, folds = layer["node"], fold_map.folds_of(layer)
        layers.append((node["op_type"], node["name"], ", ".join(fold["source"] for fold in folds)))
    return frame(repr(fold_map), affine_table(fold_map), table(("layer", "name", "folded"), layers))


def affine_table(fold_map: FoldMap) -> str:
    """Return an HTML table of the affines of a fold map."""
    names = {layer["id"]: layer["node"]["name"] for layer in fold_map.layers}
    rows: list[tuple[str, ...]] = []
    for source in fold_map.sources:
        node, status = source["node"], source["status"]
        places = ", ".join(names[layer] for layer in source["layers"])
        why = ": ".join(filter(None, (source["reason"], source["detail"])))
        name = node["name"] or source["output"]
        rows.append((source["id"], node["op_type"], name, status, places or why))
    return table(("id", "affine", "name", "status", "where, or why not"), rows)
