"""The affines and layers of a fold map as rows of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto, TensorProto

from ...backends.foldmap.fold_map import FoldMap
from ...frontends.onnx.codec.tensors import OnnxTensor
from ...ir.tensor import Array
from ...passes.affine.records.fold_records import Scope
from ...support.errors import IRError
from .channels import chart, weight_chart
from .page_data import AffineRow, FoldRow, LayerRow
from .page_text import short

if TYPE_CHECKING:
    from ...backends.foldmap.entries import (
        FoldEntry,
        LayerEntry,
        ParameterName,
        SourceEntry,
        StatisticEntry,
    )

PARAMETERS: tuple[ParameterName, ...] = ("gamma", "beta", "mean", "var", "scale", "shift")

ReadConstant = Callable[[str], Array | None]
"""Returns the constant of a name in float64, or None if it is absent or unreadable."""


def affine_rows(fold_map: FoldMap) -> list[AffineRow]:
    """Return a row for every affine of the source; its `layers` are positions in `layer_rows`."""
    positions = {layer["id"]: i for i, layer in enumerate(fold_map.layers)}
    return [_affine_row(source, fold_map, positions) for source in fold_map.sources]


def _affine_row(source: SourceEntry, fold_map: FoldMap, positions: Mapping[str, int]) -> AffineRow:
    values = {key: source["params"][key]["value"] for key in PARAMETERS if key in source["params"]}
    return {
        "id": source["id"],
        "op": source["node"]["op_type"],
        "name": short(source["node"]["name"] or source["output"]),
        "module": _module(source),
        "status": source["status"],
        "reason": source["reason"],
        "detail": short(source["detail"]),
        "notes": [short(note) for note in source["notes"]],
        "channels": source["channels"],
        "epsilon": None if source["epsilon"] is None else float(f"{source['epsilon']:.6g}"),
        "layers": [positions[layer] for layer in source["layers"]],
        "params": {
            key: chart(fold_map.arrays.get(entry).astype(np.float64))
            for key, entry in values.items()
            if entry is not None
        },
    }


def layer_rows(
    fold_map: FoldMap, source: ModelProto, model: ModelProto, base_dir: Path
) -> list[LayerRow]:
    """Return a row for every layer of the fold map, with the range of its weight in both models."""
    before, after = _constant_reader(source, base_dir), _constant_reader(model, base_dir)
    positions = {source["id"]: i for i, source in enumerate(fold_map.sources)}
    return [_layer_row(layer, fold_map, positions, before, after) for layer in fold_map.layers]


def _layer_row(
    layer: LayerEntry,
    fold_map: FoldMap,
    positions: Mapping[str, int],
    before: ReadConstant,
    after: ReadConstant,
) -> LayerRow:
    weight, bias = layer["weight"], layer["bias"]
    ranges = [
        None if array is None else weight_chart(array, weight["out_axis"], weight["group"])
        for array in (before(weight["original_name"]), after(weight["name"]))
    ]
    return {
        "name": short(layer["node"]["name"]),
        "op": layer["node"]["op_type"],
        "module": _module(layer),
        "weight": short(weight["name"]),
        "bias": None if bias is None else short(bias["name"]),
        "bias_created": bias is not None and bias["created"],
        "remainder": None if layer["remainder"] is None else short(layer["remainder"]["output"]),
        "ranges": ranges,
        "folds": [_fold_row(fold, fold_map, positions) for fold in fold_map.folds_of(layer)],
    }


def _module(entry: SourceEntry | LayerEntry) -> str | None:
    path = entry.get("module")
    return None if path is None else short(path)


def _fold_row(fold: FoldEntry, fold_map: FoldMap, positions: Mapping[str, int]) -> FoldRow:
    return {
        "affine": positions[fold["source"]],
        "direction": fold["direction"],
        "crossed": [short(name) for name in fold["crossed"]],
        "scale": chart(fold_map.arrays.get(fold["scale"])),
        "shift": chart(fold_map.arrays.get(fold["shift"])),
    }


def scope_of(entry: SourceEntry | LayerEntry | StatisticEntry) -> Scope:
    """Return the scope of an entry of a fold map, as graphs of a report have it."""
    scope: list[tuple[str, str]] = []
    for step in entry["scope"]:
        if "function" in step:
            scope.append(("function", step["function"]))
        else:
            scope.append((step["node"], step["attribute"]))
    return tuple(scope)


def _constant_reader(model: ModelProto, base_dir: Path) -> ReadConstant:
    tensors = dict(_constants(model))

    def read(name: str) -> Array | None:
        if name not in tensors:
            return None
        try:
            return OnnxTensor(tensors[name], base_dir).numpy().astype(np.float64)
        except (IRError, OSError, ValueError, TypeError):
            return None

    return read


def _constants(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    for tensor in model.graph.initializer:
        yield tensor.name, tensor
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" and node.output else ():
            if attribute.name == "value":
                yield node.output[0], attribute.t
