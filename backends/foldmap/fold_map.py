"""The fold map in memory: load it, ask it, keep it true, save it."""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...frontends.onnx.codec.protos import FOLD_MAP_KEY, ModelProto, remove_fold_map
from ...frontends.onnx.codec.traversal import value_names
from ...passes.affine.records.statistics import Statistic
from ...support.errors import FoldMapError
from ...support.files import FileTransaction, replacing, writing
from ...support.hooks import provided
from ...support.limits import DEFAULT_LIMITS, Limits
from .arrays import ArrayStore
from .loading import read_document
from .npz import NpzWriter
from .restore import TensorIndex, describe_model
from .serialize import check_store, check_version, document_lines, with_store, write_document
from .status_counts import count_statuses, statuses

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .entries import Document, FoldEntry, LayerEntry, ScopeStep, SourceEntry, StatisticEntry


class FoldMap:
    """A fold map: the JSON document `data`, and the store `arrays` that it refers to.

    docs/fold_map.md describes it.
    """

    def __init__(self, data: Document, arrays: ArrayStore | None = None) -> None:
        """Raise FoldMapError if `data` is not a fold map, or one of another major version."""
        check_version(data)
        for key, kind in (
            ("sources", list),
            ("layers", list),
            ("statistics", list),
            ("folded_model", dict),
        ):
            if not isinstance(data.get(key), kind):
                raise FoldMapError(f"the fold map has no {key}")
        self.data = data
        self.arrays = ArrayStore() if arrays is None else arrays

    def __repr__(self) -> str:
        return f"<FoldMap: {len(self.layers)} layers, scales and shifts: {statuses(self.count())}>"

    def _repr_html_(self) -> str:
        """Return where each affine went, and the layers, for a notebook."""
        return str(provided("fold_map_html")(self))

    # reading and writing

    @classmethod
    def load(cls, path: str | Path, limits: Limits = DEFAULT_LIMITS) -> FoldMap:
        """Read a fold map: a JSON document with its npz file, or an ONNX model that holds one.

        Raises FoldMapError if a file cannot be read, is not a fold map, does not match the
        document, exceeds `limits`, or lies in another folder.
        """
        data, arrays = read_document(Path(path), limits)
        del data["tensor_store"]  # type: ignore[misc]  # a Document from here on: the arrays are read
        return cls(data, arrays)

    def save(self, path: str | Path, *, store: str = "npz") -> None:
        """Write the map to `path`.

        Its arrays go to the npz file of the same name (`npz`), or into the document (`inline`).
        Both files are replaced together, or neither is. Raises FoldMapError for another `store`, or
        if both files have the same name; EmitError if a file cannot be written.
        """
        check_store(store)
        path = Path(path)
        with FileTransaction(path) as files:
            target = files.enter_context(replacing(path))
            npz = NpzWriter(path, files) if store == "npz" else None
            with writing(path):
                write_document(target, self.data.items(), self.arrays, npz)

    def to_json(self) -> str:
        """Return the document with inline arrays; equal maps give equal text."""
        return "".join(document_lines(with_store(self.data.items(), self.arrays, None)))

    def embed(self, model: ModelProto) -> None:
        """Put the map into the metadata of `model`, where `load` finds it."""
        text = base64.b64encode(zlib.compress(self.to_json().encode())).decode()
        remove_fold_map(model)
        model.metadata_props.add(key=FOLD_MAP_KEY, value=text)

    # asking

    @property
    def sources(self) -> list[SourceEntry]:
        """The affines of the source model, in the model's order."""
        return self.data["sources"]

    @property
    def layers(self) -> list[LayerEntry]:
        """The layers into which affines were folded, in the model's order."""
        return self.data["layers"]

    @property
    def statistics(self) -> list[StatisticEntry]:
        """The tensors of the folded model whose mean and deviation a BatchNormalization kept."""
        return self.data["statistics"]

    @property
    def exponents(self) -> dict[str, int]:
        """The exponents of scaled tensors of the main graph: the source's times 2^exponent."""
        return {entry["tensor"]: entry["exponent"] for entry in self.data.get("exponents", [])}

    def layer(self, layer: str | None = None, *, module: str | None = None) -> LayerEntry:
        """Return the layer with this id or node name (in the folded model), or of a torch module.

        Raises FoldMapError if there is no such layer, or if the module was called more than once
        and has several.
        """
        if (layer is None) == (module is None):
            raise FoldMapError("give either the id or node name of a layer, or its module")
        if layer is not None:
            for entry in self.layers:
                if layer in (entry["id"], entry["node"]["name"]):
                    return entry
            raise FoldMapError(f"the fold map has no layer {layer!r}")
        found = [entry for entry in self.layers if entry.get("module") == module]
        if len(found) > 1:
            ids = ", ".join(entry["id"] for entry in found)
            raise FoldMapError(
                f"the module {module!r} is called more than once: name one of its layers {ids}"
            )
        if not found:
            raise FoldMapError(
                f"the fold map has no layer of a module {module!r}{self._why_unknown()}"
            )
        return found[0]

    def _why_unknown(self) -> str:
        if any(entry.get("module") is not None for entry in (*self.sources, *self.layers)):
            return ""
        why = "its source was not exported by torch, or its version is old"
        return f": it names no modules, so {why}"

    def folds_of(self, layer: LayerEntry) -> list[FoldEntry]:
        """Return the affines in a layer, those of its branches first."""
        branches = layer.get("branches", [])
        return [*[fold for branch in branches for fold in branch["folds"]], *layer["folds"]]

    def statistic(self, tensor: str, scope: Sequence[ScopeStep] = ()) -> Statistic | None:
        """Return the statistic of a tensor of the folded model, or None.

        The tensor is in the main graph, or in `scope`. Raises FoldMapError if its arrays are not
        vectors of one length.
        """
        scope = list(scope)
        entry = next(
            (e for e in self.statistics if e["tensor"] == tensor and e["scope"] == scope), None
        )
        if entry is None:
            return None
        mean, std, gamma = (
            self.arrays.get(array) for array in (entry["mean"], entry["std"], entry["gamma"])
        )
        if not (mean.ndim == 1 and mean.shape == std.shape == gamma.shape):
            raise FoldMapError(f"the statistics of {tensor!r} differ in length")
        return Statistic(entry["axis"], mean, std, gamma, int(entry["source"][1:]))

    def bounds(self) -> dict[str, Statistic]:
        """Return mean and bound of the deviation of sums of branches, by tensor of the main graph.

        The tensors are results of layers of the folded model. No BatchNormalization kept these.
        """
        found = {}
        for layer in self.layers:
            total = layer.get("sum")
            known = None if total is None else total.get("result")
            if known is not None and not layer["scope"]:
                mean, bound = self.arrays.get(known["mean"]), self.arrays.get(known["bound"])
                source = int(known["source"][1:])
                name = layer["output"]["name"]
                found[name] = Statistic(known["axis"], mean, bound, bound, source)
        return found

    def output_stats(
        self, layer: str | None = None, *, module: str | None = None
    ) -> Statistic | None:
        """Return the statistic of a layer's result after all its folds, or None.

        The layer is given as for `layer`. A fold of the layer's data (`forward`) says nothing about
        its result. Raises FoldMapError as `layer` does.
        """
        entry = self.layer(layer, module=module)
        return self.statistic(entry["output"]["name"], entry["scope"])

    def input_stats(
        self, layer: str | None = None, *, module: str | None = None
    ) -> Statistic | None:
        """Return the statistic of a layer's data, or None; raise FoldMapError as `layer` does."""
        entry = self.layer(layer, module=module)
        return self.statistic(entry["input"], entry["scope"])

    def count(self) -> Counter[str]:
        """Count affines by status: `folded`, `partial`, `merged`, `dead`, and `kept: <reason>`."""
        return count_statuses((source["status"], source["reason"]) for source in self.sources)

    # keeping it true

    def rescale(self, layer: str, scale: ArrayLike, shift: ArrayLike = 0.0) -> None:
        """Record that the result of a layer is now scale * y + shift.

        Cross-layer equalization leaves it so. `scale` and `shift` are finite, of shape [C] or [],
        and no scale is zero; otherwise FoldMapError is raised, as for an unknown layer and for a
        layer without a statistic. Call `adopt` after the last change.
        """
        entry = self.layer(layer)
        known = self.output_stats(layer)
        if known is None:
            raise FoldMapError(
                f"the fold map knows nothing of the result of {entry['node']['name']}"
            )
        try:
            factors, shifts = np.asarray(scale, np.float64), np.asarray(shift, np.float64)
        except (TypeError, ValueError):
            raise FoldMapError(
                "scale and shift must be numbers, one for each channel or one for all"
            ) from None
        if any(array.shape not in ((), known.mean.shape) for array in (factors, shifts)):
            raise FoldMapError(
                f"{entry['node']['name']} has {known.mean.size} channels: {factors.shape},"
                f" {shifts.shape}"
            )
        if not (np.isfinite(factors).all() and np.isfinite(shifts).all() and factors.all()):
            raise FoldMapError(
                f"{entry['node']['name']}: a scale is zero or a number is not finite"
            )
        known = known.applied(factors, shifts)
        for item in self.statistics:
            if item["tensor"] == entry["output"]["name"] and item["scope"] == entry["scope"]:
                self.arrays.put(item["mean"], known.mean)
                self.arrays.put(item["std"], known.std)
                self.arrays.put(item["gamma"], known.gamma)

    def adopt(self, model: ModelProto, base_dir: Path | None = None) -> None:
        """Bind the map to `model`, which another tool made from the folded model.

        The map must describe it. Digests become those of `model`, statistics of tensors that it
        lacks are removed, and the source can no longer be restored. `base_dir` is the folder of
        external data. Raises ModelError if that cannot be read. O(bytes).
        """
        tensors = TensorIndex(model, base_dir or Path())
        self.data["folded_model"] = describe_model(model, tensors)
        self.data["restore"] = None
        names = value_names(model)
        self.data["statistics"] = [item for item in self.statistics if item["tensor"] in names]
        for layer in self.layers:
            for part in (layer["weight"], layer["bias"]):
                if part is not None:
                    part["digest"] = tensors.digest_of(part["name"])
