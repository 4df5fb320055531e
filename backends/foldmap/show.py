"""A fold map as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from ...support.errors import visible
from .document import FoldMap
from .inverse import Staleness


def show(fold_map: FoldMap, console: Console) -> None:
    """Print what the map belongs to, every affine with what became of it, and every layer with what is known of it."""
    producer, counts = fold_map.data["producer"], fold_map.count()
    who = f"fold map {fold_map.data['version']} by {producer['name']} {producer['version']}"
    console.print(visible(who), highlight=False, markup=False)
    console.print(visible(f"passes: {','.join(producer['passes']) or 'none'}"), highlight=False, markup=False)
    affines = ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "none"
    console.print(visible(f"affines: {affines}"), markup=False)
    for table in (_sources(fold_map), _layers(fold_map), _others(fold_map)):
        if table.row_count:
            console.print(table)


def explain(fold_map: FoldMap) -> list[str]:
    """A line for every affine of the source: where it went, or why it stays, with a line for every way tried."""
    names = _names(fold_map)
    lines = []
    for source in fold_map.sources:
        lines.append(f"{source['node']['op_type']} {_label(source)}: {_fate(source, names)}")
        lines.extend(f"    {note}" for note in source["notes"])
    return lines


def stale_lines(found: Staleness) -> Iterator[str]:
    """What of the map does not hold, a line each."""
    for layer in found.layers:
        yield f"layer {layer}: gone, or its weight or bias is another one"
    for tensor in found.tensors:
        yield f"tensor {tensor}: gone"


def _names(fold_map: FoldMap) -> dict[str, str]:
    return {layer["id"]: layer["node"]["name"] for layer in fold_map.layers}


def _label(source: dict[str, Any]) -> str:
    scope = "/".join(step.get("function", step.get("node", "")) for step in source["scope"])
    name = source["node"]["name"] or f"%{source['output']}"
    return f"{scope}/{name}" if scope else name


def _fate(source: dict[str, Any], names: dict[str, str]) -> str:
    status = source["status"]
    if status in ("folded", "partial"):
        where = ", ".join(names[layer] for layer in source["layers"])
        return f"{'partly ' * (status == 'partial')}folded into {where}"
    if status == "kept":
        return f"kept ({source['reason']}): {source['detail']}"
    return f"{status}: {source['detail']}"


def _sources(fold_map: FoldMap) -> Table:
    names = _names(fold_map)
    table = Table("id", "affine", "kind", "C", "what became of it", title="Affines of the source", title_justify="left")
    for source in fold_map.sources:
        channels = "" if source["channels"] is None else str(source["channels"])
        table.add_row(
            _text(source["id"]), _text(_label(source)), _text(source["kind"]), channels, _text(_fate(source, names))
        )
    return table


def _layers(fold_map: FoldMap) -> Table:
    table = Table("id", "layer", "folded", "weight", "bias", "mean", "std", title="Layers", title_justify="left")
    for layer in fold_map.layers:
        folds = ", ".join(f"{fold['source']} {fold['direction']}" for fold in layer["folds"])
        known = fold_map.output_stats(layer["id"])
        bias = layer["bias"]
        table.add_row(
            _text(layer["id"]),
            _text(layer["node"]["name"]),
            _text(folds),
            _text(layer["weight"]["name"]),
            _text("" if bias is None else bias["name"] + " (made)" * bias["created"]),
            "" if known is None else _range(known.mean),
            "" if known is None else _range(known.std),
        )
    return table


def _others(fold_map: FoldMap) -> Table:
    """Tensors that are no layer's result of which something is known."""
    results = {layer["output"]["name"] for layer in fold_map.layers}
    table = Table("tensor", "of", "mean", "std", title="Known of other tensors", title_justify="left")
    for item in fold_map.statistics:
        if item["tensor"] not in results:
            mean, std = (_range(fold_map.arrays.get(item[key])) for key in ("mean", "std"))
            table.add_row(_text(item["tensor"]), _text(item["source"]), mean, std)
    return table


def _range(vector: Any) -> str:
    return f"{vector.min():.4g} .. {vector.max():.4g}" if vector.size else ""


def _text(text: str) -> str:
    from rich.markup import escape

    return escape(visible(text))
