"""From the folded model back to the source, and whether a fold map is that of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...codec.protos import ModelProto
from ...codec.traversal import all_nodes, value_names
from ...support.errors import FoldMapError
from .digests import graph_digest
from .document import FoldMap
from .restore import Payloads, restored

STALE = "the fold map belongs to another model, or the model was changed since"


def unfold(model: ModelProto, fold_map: FoldMap, base_dir: Path | None = None) -> ModelProto:
    """The source model that was compiled to `model`, bit for bit whatever passes were run: its graph digest is checked.

    `base_dir` is the folder of the external data. What came back from a fold stands in the model itself. O(bytes).
    Raises FoldMapError where the map belongs to another model, holds no source, or was changed; ModelError where
    external data cannot be read.
    """
    base_dir = base_dir or Path()
    after = Payloads(model, base_dir)
    if not is_of(fold_map, model, after):
        raise FoldMapError(STALE)
    if fold_map.data.get("restore") is None or fold_map.data.get("source_model") is None:
        raise FoldMapError("the fold map holds no source model: what was compiled was no ONNX model")
    source = restored(fold_map.data["restore"], after, fold_map.arrays)
    if graph_digest(source, base_dir) != fold_map.data["source_model"].get("digest"):
        raise FoldMapError("what comes back is not the source model: the fold map was changed")
    return source


def is_of(fold_map: FoldMap, model: ModelProto, payloads: Payloads | None = None) -> bool:
    """Whether `model` is the folded model of the map, as it was emitted; `payloads` are its, where they are known.

    Raises ModelError where external data cannot be read.
    """
    known = (None, None) if payloads is None else (payloads.base_dir, payloads.of_initializers())
    return bool(graph_digest(model, *known) == fold_map.data["folded_model"].get("digest"))


@dataclass(frozen=True, slots=True)
class Staleness:
    """What of a fold map does not hold for a model any more.

    `same` is whether the model is the very one; `layers` are the node names of layers that are gone or whose weight or
    bias is another one, `tensors` those with statistics that are not in the model.
    """

    same: bool
    layers: tuple[str, ...]
    tensors: tuple[str, ...]


def check(model: ModelProto, fold_map: FoldMap, base_dir: Path | None = None) -> Staleness:
    """Hold a fold map against a model, layer by layer. O(bytes).

    Raises ModelError where external data cannot be read.
    """
    after = Payloads(model, base_dir or Path())
    same = is_of(fold_map, model, after)
    nodes = {node.name: node for node in all_nodes(model)}
    names = value_names(model)
    stale = []
    for layer in fold_map.layers:
        node = nodes.get(layer["node"]["name"])
        parts = [part for part in (layer["weight"], layer["bias"]) if part is not None]
        read = () if node is None else tuple(node.input)
        if not all(part["name"] in read and _is(part, after) for part in parts):
            stale.append(layer["node"]["name"])
    gone = [item["tensor"] for item in fold_map.statistics if item["tensor"] not in names]
    return Staleness(same, tuple(stale), tuple(gone))


def _is(part: dict[str, str | None], after: Payloads) -> bool:
    """Whether a weight or bias is the one of the map; of those that are no initializers nothing is known."""
    return part["digest"] in (None, after.digest_of(str(part["name"])))
