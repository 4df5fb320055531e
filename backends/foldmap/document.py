"""The fold map as a document: what was written can be read, asked and brought up to date."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...codec.protos import FOLD_MAP_KEY, ModelProto, remove_fold_map
from ...codec.traversal import value_names
from ...ir.payload import file_digest
from ...passes.affine.statistics import Statistic
from ...support.errors import FoldMapError, clipped
from ...support.files import FileTransaction, replacing, writing
from ...support.limits import DEFAULT_LIMITS, Limits
from ...support.output_paths import path_from_text, path_to_text
from .arrays import Arrays, entries_of
from .lines import lines_of
from .npz import NpzWriter
from .restore import Payloads, identity

FORMAT = "irc.fold_map"
VERSION = "1.0"
STORES = ("npz", "inline")


class FoldMap:
    """A fold map in memory: `data` is the JSON document, `arrays` what it refers to; see docs/fold_map.md."""

    def __init__(self, data: dict[str, Any], arrays: Arrays | None = None) -> None:
        """Raises FoldMapError where `data` is no fold map of a version that is known here."""
        if data.get("format") != FORMAT:
            raise FoldMapError("this is not a fold map")
        if str(data.get("version", "")).split(".")[0] != VERSION.split(".")[0]:
            version = clipped(data.get("version"))
            raise FoldMapError(f"fold map version {version} is not known here (this is {VERSION})")
        for key, kind in (("sources", list), ("layers", list), ("statistics", list), ("folded_model", dict)):
            if not isinstance(data.get(key), kind):
                raise FoldMapError(f"the fold map has no {key}")
        self.data = data
        self.arrays = Arrays() if arrays is None else arrays

    # reading and writing

    @classmethod
    def load(cls, path: str | Path, limits: Limits = DEFAULT_LIMITS) -> FoldMap:
        """Read a fold map: a JSON document, with the npz file that it names beside it, or an ONNX model that holds one.

        Raises FoldMapError where a file cannot be read, is no fold map, is not what the document says, is larger than
        `limits`, or would lie in another folder.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise FoldMapError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise FoldMapError(f"{path!r}: cannot be read: {error}") from None
        try:
            data = _parsed(content if content.lstrip()[:1] in (b"{", b"[", b"") else _of_model(content, limits))
            fold_map = cls(data)
            _check_nesting(data, limits)
            check_structure(data)
            fold_map.arrays = _stored(data, path.parent, limits)
        except FoldMapError as error:
            raise FoldMapError(f"{path}: {error}") from None
        return fold_map

    def save(self, path: str | Path, *, store: str = "npz") -> None:
        """Write the document, and with `store` = npz its arrays to the npz file of the same name beside it; with
        `inline` they stand in the document. Either all is there or nothing.

        Raises FoldMapError for another store, or where both files would be one; EmitError where one cannot be written.
        """
        check_store(store)
        path = Path(path)
        with FileTransaction(path) as files:
            target = files.enter_context(replacing(path))
            npz = NpzWriter(path, files) if store == "npz" else None
            with writing(path):
                self.write(target, npz)

    def write(self, path: Path, npz: NpzWriter | None) -> None:
        """Write the document to `path`, with its arrays, or to `npz` those that it does not have yet."""
        write_document(path, self.data.items(), self.arrays, npz)

    def to_json(self) -> str:
        """The document with its arrays as text, and a final newline; equal maps give equal text."""
        return "".join(lines_of(_with_store(self.data.items(), self.arrays, None)))

    def embed(self, model: ModelProto) -> None:
        """Put the map into the metadata of `model`, which every tool that was tried keeps; `load` finds it there."""
        text = base64.b64encode(zlib.compress(self.to_json().encode())).decode()
        remove_fold_map(model)
        model.metadata_props.add(key=FOLD_MAP_KEY, value=text)

    # asking

    @property
    def sources(self) -> list[dict[str, Any]]:
        """One entry for every affine of the source model, in the model's order."""
        sources: list[dict[str, Any]] = self.data["sources"]
        return sources

    @property
    def layers(self) -> list[dict[str, Any]]:
        """One entry for every layer that absorbed something, in the model's order."""
        layers: list[dict[str, Any]] = self.data["layers"]
        return layers

    @property
    def statistics(self) -> list[dict[str, Any]]:
        """One entry for every tensor of the folded model of which BatchNormalization knew mean and deviation."""
        statistics: list[dict[str, Any]] = self.data["statistics"]
        return statistics

    def layer(self, layer: str) -> dict[str, Any]:
        """The layer with this id or, in the folded model, node name.

        Raises FoldMapError where there is none.
        """
        for entry in self.layers:
            if layer in (entry["id"], entry["node"]["name"]):
                return entry
        raise FoldMapError(f"the fold map has no layer {layer!r}")

    def statistic(self, tensor: str, scope: Iterable[Mapping[str, str]] = ()) -> Statistic | None:
        """What is known of a tensor of the folded model, by default of its main graph.

        Raises FoldMapError where its numbers are no vectors of one length.
        """
        scope = list(scope)
        entry = next((e for e in self.statistics if e["tensor"] == tensor and e["scope"] == scope), None)
        if entry is None:
            return None
        mean, std, gamma = (self.arrays.get(entry[key]) for key in ("mean", "std", "gamma"))
        if not (mean.ndim == 1 and mean.shape == std.shape == gamma.shape):
            raise FoldMapError(f"the statistics of {tensor!r} are not as long as each other")
        return Statistic(entry["axis"], mean, std, gamma, int(entry["source"][1:]))

    def output_stats(self, layer: str) -> Statistic | None:
        """What is known of the result of a layer, with everything that was folded into it, None where nothing is.

        What was folded into a layer forward says nothing of its result. Raises FoldMapError where there is no such
        layer.
        """
        entry = self.layer(layer)
        return self.statistic(entry["output"]["name"], entry["scope"])

    def input_stats(self, layer: str) -> Statistic | None:
        """What is known of the data of a layer, None where nothing is.

        Raises FoldMapError where there is no such layer.
        """
        entry = self.layer(layer)
        return self.statistic(entry["input"], entry["scope"])

    def rescale(self, layer: str, scale: Any, shift: Any = 0.0) -> None:
        """Keep the map true: the result of a layer is now scale * y + shift, as cross-layer equalization leaves it.

        `scale` and `shift` are finite, [C] or []; no scale is zero. Raises FoldMapError where they are not, there is no
        such layer, or nothing is known of its result. When all is said, `adopt` binds the map to the model.
        """
        entry = self.layer(layer)
        known = self.output_stats(layer)
        if known is None:
            raise FoldMapError(f"the fold map knows nothing of the result of {entry['node']['name']}")
        try:
            factors, shifts = np.asarray(scale, np.float64), np.asarray(shift, np.float64)
        except (TypeError, ValueError):
            raise FoldMapError("a scale and a shift are numbers, one for each channel or one for all") from None
        if any(array.shape not in ((), known.mean.shape) for array in (factors, shifts)):
            raise FoldMapError(
                f"{entry['node']['name']} has {known.mean.size} channels: {factors.shape}, {shifts.shape}"
            )
        if not (np.isfinite(factors).all() and np.isfinite(shifts).all() and factors.all()):
            raise FoldMapError(f"{entry['node']['name']}: a scale is zero or a number is not finite")
        known = known.applied(factors, shifts)
        for item in self.statistics:
            if item["tensor"] == entry["output"]["name"] and item["scope"] == entry["scope"]:
                for key in ("mean", "std", "gamma"):
                    self.arrays.put(item[key], getattr(known, key))

    def adopt(self, model: ModelProto, base_dir: Path | None = None) -> None:
        """Bind the map to `model`, which another tool made of the folded one, and of which the map is true (`rescale`).

        Digests become those of the model, statistics of tensors that it does not have go, and the source cannot be
        restored any more. Raises ModelError where external data cannot be read. O(bytes).
        """
        payloads = Payloads(model, base_dir or Path())
        self.data["folded_model"] = identity(model, payloads)
        self.data["restore"] = None
        names = value_names(model)
        self.data["statistics"] = [item for item in self.statistics if item["tensor"] in names]
        for layer in self.layers:
            for part in (layer["weight"], layer["bias"]):
                if part is not None:
                    part["digest"] = payloads.digest_of(part["name"])

    def count(self) -> Counter[str]:
        """Affines by status: `folded`, `partial`, `merged`, `dead`, and those kept as `kept: <reason>`."""
        return count_statuses((source["status"], source["reason"]) for source in self.sources)


def write_document(path: Path, fields: Iterable[tuple[str, Any]], arrays: Arrays, npz: NpzWriter | None = None) -> None:
    """Write a document of `fields`, which are read one after the other, and last its `arrays`, to `npz` if given."""
    with path.open("wb") as stream:
        stream.writelines(map(_bytes, lines_of(_with_store(fields, arrays, npz))))


def _with_store(fields: Iterable[tuple[str, Any]], arrays: Arrays, npz: NpzWriter | None) -> Iterator[tuple[str, Any]]:
    yield from fields
    if npz is None:
        yield "tensor_store", {"kind": "inline", "arrays": arrays.to_text()}
    else:
        arrays.write_npz(npz)
        yield "tensor_store", npz.finish()


def count_statuses(found: Iterable[tuple[str, str | None]]) -> Counter[str]:
    """Affines by status, given with their reasons; those that are kept as `kept: <reason>`."""
    return Counter(f"kept: {reason}" if status == "kept" else status for status, reason in found)


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        raise FoldMapError("this is neither JSON nor an ONNX model") from None
    return data if isinstance(data, dict) else {}


def check_structure(data: Mapping[str, Any]) -> None:
    """Hold a document against the schema, in which keys that it does not know may stand.

    Raises FoldMapError that says what is wrong where.
    """
    from importlib.resources import files

    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    schema = json.loads(files("irc.backends.foldmap").joinpath("schema.json").read_text(encoding="utf-8"))
    try:
        error = best_match(Draft202012Validator(_lenient(schema)).iter_errors(data))
    except RecursionError:
        raise FoldMapError("the document is nested too deep") from None
    if error is not None:
        where = "/".join(map(str, error.absolute_path))[:200] or "the document"
        raise FoldMapError(f"{where}: {error.message[:200]}")
    layers = {layer["id"] for layer in data["layers"]}
    for source in data["sources"]:
        if not layers.issuperset(source["layers"]):
            raise FoldMapError(f"{source['id']} went into a layer that is not there")


def _lenient(schema: Any) -> Any:
    """The schema without the rule that there are no other keys."""
    if isinstance(schema, dict):
        items = ((k, v) for k, v in schema.items() if not (k == "additionalProperties" and v is False))
        return {key: _lenient(value) for key, value in items}
    return [_lenient(item) for item in schema] if isinstance(schema, list) else schema


def check_store(store: str) -> None:
    """Raises FoldMapError for what is not in STORES."""
    if store not in STORES:
        raise FoldMapError(f"{store!r} is no store for arrays: {', '.join(STORES)}")


def _check_nesting(data: Any, limits: Limits) -> None:
    level: list[Any] = [data]
    for _ in range(limits.max_nesting):
        inside = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
    if level:
        raise FoldMapError(limits.too_deep("lists and objects"))


def _of_model(content: bytes, limits: Limits) -> bytes:
    """The fold map in a model's metadata."""
    from google.protobuf.message import DecodeError

    model = ModelProto()
    try:
        model.ParseFromString(content)
        text = next((entry.value for entry in model.metadata_props if entry.key == FOLD_MAP_KEY), None)
        if text is None:
            raise FoldMapError("the model holds no fold map")
        unpacker = zlib.decompressobj()
        document = unpacker.decompress(base64.b64decode(text, validate=True), 2 * limits.max_fold_map_bytes)
        if not unpacker.eof:
            raise FoldMapError(
                "the fold map in the model is truncated, or larger than the limit (--max-fold-map-bytes)"
            )
        return document
    except DecodeError:
        raise FoldMapError("this is neither JSON nor an ONNX model") from None
    except (ValueError, zlib.error):
        raise FoldMapError("the fold map in the model cannot be read") from None


def _bytes(text: str) -> bytes:
    """JSON as UTF-8; what is no character, as in names of files, by JSON's escapes."""
    return text.encode(errors="backslashreplace")


def _stored(data: dict[str, Any], folder: Path, limits: Limits) -> Arrays:
    """The arrays of a document, whose `tensor_store` is taken out of it."""
    store = data.pop("tensor_store", None)
    kind = store.get("kind") if isinstance(store, dict) else None
    if data.get("format") != FORMAT or kind is None:
        return Arrays()
    if kind == "inline":
        items = store.get("arrays")
        return Arrays.from_text(items if isinstance(items, dict) else {}, entries_of(data), limits)
    if kind != "npz":
        raise FoldMapError(f"arrays in {clipped(kind)} are not known here")
    name = str(store.get("path"))
    shown = clipped(name)
    try:
        path = folder / path_from_text(name)
        inside = path_to_text(path.name) == name and os.path.dirname(os.path.realpath(path)) == os.path.realpath(folder)
    except (OSError, ValueError) as error:
        raise FoldMapError(f"{shown} is no name of a file: {error}") from None
    if not inside:
        raise FoldMapError(f"{shown} lies outside the fold map's folder")
    try:
        if path.exists() and not path.is_file():
            raise FoldMapError(f"its arrays in {shown} cannot be read: this is no regular file")
        if path.stat().st_size > limits.max_fold_map_bytes:
            raise FoldMapError(f"{shown} is larger than {limits.max_fold_map_bytes} bytes (--max-fold-map-bytes)")
        digest = file_digest(path)
    except (OSError, ValueError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise FoldMapError(f"its arrays in {shown} cannot be read: {why}") from None
    if digest != store.get("digest"):
        raise FoldMapError(f"{shown} belongs to another fold map, or was changed")
    return Arrays.from_npz(path, limits)
