"""Unfold a model, and compare a model with a fold map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...frontends.onnx.codec.protos import ModelProto
from ...frontends.onnx.codec.traversal import all_nodes, value_names
from ...ir.record import Record
from ...support.errors import FoldMapError
from .digests import graph_digest
from .fold_map import FoldMap
from .restore import StoredOutside, TensorIndex, rebuild_source

if TYPE_CHECKING:
    from .entries import BiasEntry, WeightEntry

OTHER_MODEL = "the fold map belongs to another model, or the model was changed since"


def unfold(model: ModelProto, fold_map: FoldMap, base_dir: Path | None = None) -> ModelProto:
    """Return the source model that was compiled to `model` by any passes, bit for bit. O(bytes).

    Elements come back in the field that they had. Those that the source had in other files are in
    the model, or in the external data of `model`, whose folder is `base_dir`; `save_source` writes
    the files of the source. The digest of the result is checked. Raises FoldMapError if the map
    belongs to another model, holds no source or was changed; ModelError if external data cannot be
    read.
    """
    return restore_source(model, fold_map, base_dir)[0]


def restore_source(
    model: ModelProto, fold_map: FoldMap, base_dir: Path | None = None
) -> tuple[ModelProto, list[StoredOutside]]:
    """Return the source model as `unfold` does, and its tensors that were in other files."""
    base_dir = base_dir or Path()
    after = TensorIndex(model, base_dir)
    if not belongs_to(fold_map, model, after):
        raise FoldMapError(OTHER_MODEL)
    restore, expected = fold_map.data.get("restore"), fold_map.data.get("source_model")
    passes = fold_map.data["producer"]["passes"]
    if restore is None and any(each.startswith("ConvertToFloat16") for each in passes):
        raise FoldMapError(
            "the fold map does not hold the bits that float16 lost, which are as many as the source"
            " has: write it with irc compile --float16 --keep-bits"
        )
    if restore is None or expected is None:
        raise FoldMapError(
            "the fold map holds no source model: an ONNX model was not the input of this compile"
        )
    knows_storage = fold_map.data["version"] != "1.0"
    source, outside = rebuild_source(restore, after, fold_map.arrays, knows_storage=knows_storage)
    if graph_digest(source, base_dir) != expected["digest"]:
        raise FoldMapError("the restored model is not the source model: the fold map was changed")
    return source, outside


def belongs_to(fold_map: FoldMap, model: ModelProto, tensors: TensorIndex | None = None) -> bool:
    """Return whether `model` is the folded model of the map.

    `tensors` is its index, if that exists already. Raises ModelError if external data cannot be
    read.
    """
    known = (None, None) if tensors is None else (tensors.base_dir, tensors.initializer_digests())
    return graph_digest(model, *known) == fold_map.data["folded_model"].get("digest")


class MapComparison(Record):
    """The result of comparing a model with a fold map.

    `same` says whether it is the folded model of the map. `layers` are the node names of layers
    that are gone or whose weight or bias differs, `tensors` the tensors with statistics that are
    gone.
    """

    same: bool
    layers: tuple[str, ...]
    tensors: tuple[str, ...]


def check(model: ModelProto, fold_map: FoldMap, base_dir: Path | None = None) -> MapComparison:
    """Compare a model with a fold map, layer by layer. O(bytes).

    Raises ModelError if external data cannot be read.
    """
    after = TensorIndex(model, base_dir or Path())
    same = belongs_to(fold_map, model, after)
    nodes = {node.name: node for node in all_nodes(model)}
    names = value_names(model)
    changed = []
    for layer in fold_map.layers:
        node = nodes.get(layer["node"]["name"])
        parts = [part for part in (layer["weight"], layer["bias"]) if part is not None]
        read = () if node is None else tuple(node.input)
        if not all(part["name"] in read and _is_unchanged(part, after) for part in parts):
            changed.append(layer["node"]["name"])
    gone = [item["tensor"] for item in fold_map.statistics if item["tensor"] not in names]
    return MapComparison(same, tuple(changed), tuple(gone))


def _is_unchanged(part: WeightEntry | BiasEntry, after: TensorIndex) -> bool:
    # Only initializers have a digest; without one nothing can be compared.
    return part["digest"] is None or part["digest"] == after.digest_of(part["name"])
