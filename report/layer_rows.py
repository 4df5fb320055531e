"""What the fold map says of a model's affines and layers, as plain data for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from ..backends.foldmap import FoldMap
from ..codec.tensors import OnnxTensor
from ..ir.tensor import Array
from ..passes.affine.fold_records import Scope
from ..support.errors import IRError
from .channels import chart, weight_chart
from .model_graph import Data
from .page_text import short

PARAMETERS = ("gamma", "beta", "mean", "var", "scale", "shift")


def affines_of(fold_map: FoldMap) -> list[Data]:
    """Every affine of the source: what it was, and what became of it; `layers` are places in `layers_of`."""
    places = {layer["id"]: i for i, layer in enumerate(fold_map.layers)}
    return [_affine(source, fold_map, places) for source in fold_map.sources]


def _affine(source: Mapping[str, Any], fold_map: FoldMap, places: Mapping[str, int]) -> Data:
    values = {key: source["params"][key]["value"] for key in PARAMETERS if key in source["params"]}
    return {
        "id": source["id"],
        "op": source["node"]["op_type"],
        "name": short(source["node"]["name"] or source["output"]),
        "status": source["status"],
        "reason": source["reason"],
        "detail": short(source["detail"]),
        "notes": [short(note) for note in source["notes"]],
        "channels": source["channels"],
        "epsilon": None if source["epsilon"] is None else float(f"{source['epsilon']:.6g}"),
        "layers": [places[layer] for layer in source["layers"]],
        "params": {
            key: chart(fold_map.arrays.get(entry).astype(np.float64))
            for key, entry in values.items()
            if entry is not None
        },
    }


def layers_of(fold_map: FoldMap, source: ModelProto, model: ModelProto, base_dir: Path) -> list[Data]:
    """Every layer that absorbed something: what, and the range of its weights before and after."""
    before, after = _weights(source, base_dir), _weights(model, base_dir)
    order = {source["id"]: i for i, source in enumerate(fold_map.sources)}
    return [_layer(layer, fold_map, order, before, after) for layer in fold_map.layers]


def _layer(
    layer: Mapping[str, Any],
    fold_map: FoldMap,
    order: Mapping[str, int],
    before: Callable[[str], Array | None],
    after: Callable[[str], Array | None],
) -> Data:
    weight, bias = layer["weight"], layer["bias"]
    ranges = [
        None if array is None else weight_chart(array, weight["out_axis"], weight["group"])
        for array in (before(weight["original_name"]), after(weight["name"]))
    ]
    return {
        "name": short(layer["node"]["name"]),
        "op": layer["node"]["op_type"],
        "weight": short(weight["name"]),
        "bias": None if bias is None else short(bias["name"]),
        "bias_created": bias is not None and bias["created"],
        "remainder": None if layer["remainder"] is None else short(layer["remainder"]["output"]),
        "ranges": ranges,
        "folds": [
            {
                "affine": order[fold["source"]],
                "direction": fold["direction"],
                "crossed": [short(name) for name in fold["crossed"]],
                "scale": chart(fold_map.arrays.get(fold["scale"])),
                "shift": chart(fold_map.arrays.get(fold["shift"])),
            }
            for fold in layer["folds"]
        ],
    }


def scope_of(entry: Mapping[str, Any]) -> Scope:
    """The scope of an entry of a fold map, as the provenance has it."""
    steps = entry["scope"]
    return tuple(("function", s["function"]) if "function" in s else (s["node"], s["attribute"]) for s in steps)


def _weights(model: ModelProto, base_dir: Path) -> Callable[[str], Array | None]:
    """Reads the constants of the main graph, as float64; None for what is none, or cannot be read."""
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
