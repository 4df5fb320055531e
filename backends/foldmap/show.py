"""Print a fold map as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...ir.provenance import REMOVED
from ...ir.tensor import Array
from ...support.errors import FoldMapError, listed, visible
from .fold_map import FoldMap
from .inverse import MapComparison
from .status_counts import statuses

if TYPE_CHECKING:
    from .entries import LayerEntry, SourceEntry

MAX_NAMED = 8
"""Most layers or tensors that a difference names."""


def show(fold_map: FoldMap, console: Console, *, by_module: bool = False) -> None:
    """Print the producer, every affine with its status, and every layer with its statistics.

    With `by_module` they stand in one table, grouped by the torch modules around them. Raises
    FoldMapError if the map names no modules.
    """
    tables = (
        [_modules(fold_map)]
        if by_module
        else [_sources(fold_map), _layers(fold_map), _others(fold_map)]
    )
    producer = fold_map.data["producer"]
    who = f"fold map {fold_map.data['version']} by {producer['name']} {producer['version']}"
    console.print(visible(who), highlight=False, markup=False)
    console.print(
        visible(f"passes: {','.join(producer['passes']) or 'none'}"),
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    console.print(visible(f"scales and shifts: {statuses(fold_map.count())}"), markup=False)
    for table in tables:
        if table.row_count:
            console.print(table)


def explain(fold_map: FoldMap) -> list[str]:
    """Return a line for every affine of the source, and one for every attempt to fold it."""
    names = _names(fold_map)
    lines = []
    for source in fold_map.sources:
        lines.append(f"{source['node']['op_type']} {_label(source)}: {_fate(source, names)}")
        lines.extend(f"    {note}" for note in source["notes"])
    return lines


def mismatch_lines(found: MapComparison) -> Iterator[str]:
    """Yield a line for the layers, and one for the tensors, in which a model and its map differ."""
    layers = "missing, or weight or bias were changed"
    for kind, what, names in (
        ("layer", layers, found.layers),
        ("tensor", "missing", found.tensors),
    ):
        if names:
            count = f"1 {kind}" if len(names) == 1 else f"{len(names)} {kind}s"
            yield f"{count} {what}: {listed(names, MAX_NAMED)}"


def _names(fold_map: FoldMap) -> dict[str, str]:
    return {layer["id"]: layer["node"]["name"] for layer in fold_map.layers}


def _label(source: SourceEntry) -> str:
    scope = "/".join(step.get("function", step.get("node", "")) for step in source["scope"])
    name = source["node"]["name"] or repr(source["output"])
    return f"{scope}/{name}" if scope else name


def _fate(source: SourceEntry, names: dict[str, str]) -> str:
    status = source["status"]
    if status in ("folded", "partial"):
        where = ", ".join(names[layer] for layer in source["layers"])
        return f"{'partly ' * (status == 'partial')}folded into {where}"
    if status == "kept":
        return f"kept ({source['reason']}): {source['detail']}"
    is_removed = source["detail"].startswith(REMOVED)
    return f"{'removed' if is_removed else status}: {source['detail']}"


def _sources(fold_map: FoldMap) -> Table:
    names = _names(fold_map)
    table = Table(
        "id", "affine", "kind", "C", "status", title="Affines of the source", title_justify="left"
    )
    for source in fold_map.sources:
        channels = "" if source["channels"] is None else str(source["channels"])
        table.add_row(
            _text(source["id"]),
            _text(_label(source)),
            _text(source["kind"]),
            channels,
            _text(_fate(source, names)),
        )
    return table


def _layers(fold_map: FoldMap) -> Table:
    table = Table(
        "id",
        "layer",
        "folded",
        "weight",
        "bias",
        "mean",
        "std",
        title="Layers",
        title_justify="left",
    )
    for layer in fold_map.layers:
        folds = ", ".join(
            f"{fold['source']} {fold['direction']}" for fold in fold_map.folds_of(layer)
        )
        known = fold_map.output_stats(layer["id"])
        bias = layer["bias"]
        table.add_row(
            _text(layer["id"]),
            _text(layer["node"]["name"]),
            _text(folds),
            _text(layer["weight"]["name"]),
            _text(
                ""
                if bias is None
                else bias["name"] + " (new)" * bias["created"] + _bias_error(layer)
            ),
            "" if known is None else _range(known.mean),
            "" if known is None else _range(known.std),
        )
    return table


def _bias_error(layer: LayerEntry) -> str:
    """Return the largest error of an integer bias that was rounded."""
    quantized = layer.get("quantized")
    if quantized is None or not quantized["bias_error"]:
        return ""
    return f" ±{quantized['bias_error']:.2g}"


def _others(fold_map: FoldMap) -> Table:
    """List the statistics of tensors that are not the result of a layer."""
    results = {layer["output"]["name"] for layer in fold_map.layers}
    table = Table(
        "tensor", "of", "mean", "std", title="Statistics of other tensors", title_justify="left"
    )
    for item in fold_map.statistics:
        if item["tensor"] not in results:
            mean, std = (
                _range(fold_map.arrays.get(entry)) for entry in (item["mean"], item["std"])
            )
            table.add_row(_text(item["tensor"]), _text(item["source"]), mean, std)
    return table


def _modules(fold_map: FoldMap) -> Table:
    """List layers, affines and statistics of other tensors, block by block (`layer1.0`)."""
    entries = [*fold_map.layers, *fold_map.sources, *fold_map.statistics]
    if all(entry.get("module") is None for entry in entries):
        raise FoldMapError(
            "the fold map names no modules: its source was not exported by torch, or it was written"
            " before version 1.2"
        )
    table = Table(
        "module", "id", "operator", "status", "mean", "std", title="By module", title_justify="left"
    )
    block = None
    for module, row in _in_blocks(_module_rows(fold_map)):
        if block not in (None, _block(module)):
            table.add_section()
        block = _block(module)
        table.add_row(
            _text("(unknown)" if module is None else module or "(model)"), *map(_text, row)
        )
    return table


Row = tuple[str | None, tuple[str, ...]]
"""A module path, and the other cells of its row."""


def _module_rows(fold_map: FoldMap) -> Iterator[Row]:
    """Yield each affine after the layers that absorbed it, then the results of no layer."""
    names, layers = _names(fold_map), {layer["id"]: layer for layer in fold_map.layers}
    for source in fold_map.sources:
        for layer in [layers.pop(key) for key in source["layers"] if key in layers]:
            folds = ", ".join(
                f"{fold['source']} {fold['direction']}" for fold in fold_map.folds_of(layer)
            )
            known = fold_map.output_stats(layer["id"])
            numbers = ("", "") if known is None else (_range(known.mean), _range(known.std))
            yield (
                layer.get("module"),
                (layer["id"], layer["node"]["op_type"], f"takes {folds}", *numbers),
            )
        yield (
            source.get("module"),
            (source["id"], source["node"]["op_type"], _fate(source, names), "", ""),
        )
    results = {layer["output"]["name"] for layer in fold_map.layers}
    for item in fold_map.statistics:
        if item["tensor"] not in results:
            mean, std = (
                _range(fold_map.arrays.get(entry)) for entry in (item["mean"], item["std"])
            )
            yield item.get("module"), (item["source"], "", f"tensor {item['tensor']}", mean, std)


def _in_blocks(rows: Iterable[Row]) -> Iterator[Row]:
    blocks: dict[str | None, list[Row]] = {}
    for row in rows:
        blocks.setdefault(_block(row[0]), []).append(row)
    return chain.from_iterable(blocks.values())


def _block(module: str | None) -> str | None:
    return None if module is None else module.rpartition(".")[0]


def _range(vector: Array) -> str:
    return f"{vector.min():.4g} .. {vector.max():.4g}" if vector.size else ""


def _text(text: str) -> str:
    return escape(visible(text))
