"""Read the document of a fold map from a file and check it against its types (`entries`)."""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
from google.protobuf.message import DecodeError

from ...frontends.onnx.codec.protos import FOLD_MAP_KEY, ModelProto
from ...ir.payload import file_digest
from ...support.errors import FoldMapError, clipped
from ...support.limits import Limits
from ...support.output_paths import path_from_text, path_to_text
from .arrays import ArrayStore, entries_of
from .entries import StoredDocument
from .serialize import check_version

if TYPE_CHECKING:
    from .entries import RecipeEntry, ScopeStep, SourceEntry, StoreEntry

LONGEST_REASON = 200

EXACT = 2.0**53
"""Bound of the floats that tell integers apart."""


def read_document(path: Path, limits: Limits) -> tuple[StoredDocument, ArrayStore]:
    """Read and check a fold map: a JSON document, or metadata of an ONNX model.

    Raises FoldMapError if the file cannot be read, is not a fold map, breaks the schema, exceeds
    `limits`, or names arrays that are missing, changed or in another folder.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FoldMapError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FoldMapError(f"{path!r}: cannot be read: {error}") from None
    try:
        data = _parse_json(
            content if content.lstrip()[:1] in (b"{", b"[", b"") else _extract(content, limits)
        )
        check_version(data)
        _check_nesting(data, limits)
        document = check_document(data)
        return document, _read_arrays(document, path.parent, limits)
    except FoldMapError as error:
        raise FoldMapError(f"{path}: {error}") from None


def check_document(data: dict[str, Any]) -> StoredDocument:
    """Return `data` as a document, in which unknown keys may stand.

    Raises FoldMapError that names the first place that breaks the schema, and the reason.
    """
    try:
        msgspec.convert(data, StoredDocument)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `")
        where = re.sub(r"^.*\$\.?", "", place.removesuffix("`")) or "the document"
        if reason.startswith("Invalid enum value") and (allowed := _allowed(StoredDocument, where)):
            raise FoldMapError(
                f"{where}: {reason[:LONGEST_REASON]} (allowed: {', '.join(allowed)})"
            ) from None
        raise FoldMapError(f"{where[:LONGEST_REASON]}: {reason[:LONGEST_REASON]}") from None
    document: StoredDocument = data  # type: ignore[assignment]  # the very object keeps the keys that are unknown here
    for source in document["sources"]:
        if source["epsilon"] is not None:
            source["epsilon"] = float(source["epsilon"])
    for where, reason in _broken_rules(document):
        raise FoldMapError(f"{where}: {reason}")
    return document


def _allowed(hint: object, where: str) -> tuple[str, ...]:
    """Return the values that `hint` admits at a place in it, `sources[0].status` for example.

    The result is () if they are unknown.
    """
    for step in (*re.findall(r"\[[^\]]*\]|[^.\[\]]+", where), ""):
        while get_origin(hint) in (Annotated, NotRequired, Union, UnionType):
            hint = next(each for each in get_args(hint) if each is not NoneType)
        if not step:
            break
        if is_typeddict(hint):
            hint = get_type_hints(hint, include_extras=True).get(step)
        elif step.startswith("["):
            hint = get_args(hint)[-1] if get_args(hint) else None
    return get_args(hint) if get_origin(hint) is Literal else ()


def _broken_rules(document: StoredDocument) -> Iterator[tuple[str, str]]:
    """Yield place and reason for each rule between fields that types cannot express."""
    layers = {layer["id"] for layer in document["layers"]}
    for i, source in enumerate(document["sources"]):
        if reason := _source_fault(source):
            yield f"sources[{i}]", reason
        if not layers.issuperset(source["layers"]):
            yield f"sources[{i}].layers", f"{source['id']} went into a layer that is not in the map"
    for key, entries in (
        ("sources", document["sources"]),
        ("layers", document["layers"]),
        ("statistics", document["statistics"]),
    ):
        for i, entry in enumerate(entries):
            if not all(map(_is_step, entry["scope"])):
                yield f"{key}[{i}].scope", "a step has either node and attribute, or function"
    if document["restore"] is not None:
        for digest, recipe in document["restore"]["tensors"].items():
            if not _is_recipe(recipe):
                yield (
                    f"restore.tensors.{digest}",
                    "a recipe has either data, or base, factor and residual",
                )
    store = document["tensor_store"]
    lacking = {"npz": {"path", "digest"}, "inline": {"arrays"}}[store["kind"]] - store.keys()
    if lacking:
        yield "tensor_store", f"{' and '.join(sorted(lacking))} is missing"


def _source_fault(source: SourceEntry) -> str | None:
    status = source["status"]
    if (status == "kept") != (source["reason"] is not None):
        return "an affine has a reason if and only if its status is kept"
    if status == "kept" and not source["detail"]:
        return "an affine that is kept has a detail"
    if (status in ("folded", "partial")) != bool(source["layers"]):
        return "an affine has layers if and only if its status is folded or partial"
    is_complete = {"gamma", "beta", "mean", "var"} <= source["params"].keys()
    if source["kind"] == "batch_norm" and not is_complete:
        return "a BatchNormalization has the parameters gamma, beta, mean and var"
    return None


def _is_step(step: ScopeStep) -> bool:
    return ("node" in step and "attribute" in step) != ("function" in step)


def _is_recipe(recipe: RecipeEntry) -> bool:
    has_scaled = {"base", "factor", "residual"} <= recipe.keys()
    if ("exceptions" in recipe) != ("values" in recipe):
        has_scaled = False
    return ("data" in recipe) != has_scaled


def _parse_json(content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(content, parse_float=_number)
    except (ValueError, RecursionError):
        raise FoldMapError("this is neither JSON nor an ONNX model") from None
    return data if isinstance(data, dict) else {}


def _number(text: str) -> int | float:
    """Return a number of a JSON document; to its schema, 4.0 is an integer."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < EXACT else number


def _check_nesting(data: object, limits: Limits) -> None:
    level: list[Any] = [data]
    for _ in range(limits.max_nesting):
        inside = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
    if level:
        raise FoldMapError(limits.too_deep("lists and objects"))


def _extract(content: bytes, limits: Limits) -> bytes:
    """Return the document in the metadata of a serialized model."""
    model = ModelProto()
    try:
        model.ParseFromString(content)
        text = next(
            (entry.value for entry in model.metadata_props if entry.key == FOLD_MAP_KEY), None
        )
        if text is None:
            raise FoldMapError("the model holds no fold map")
        unpacker = zlib.decompressobj()
        document = unpacker.decompress(
            base64.b64decode(text, validate=True), 2 * limits.max_fold_map_bytes
        )
        if not unpacker.eof:
            raise FoldMapError(
                "the fold map in the model is truncated, or larger than the limit"
                " (--max-fold-map-bytes)"
            )
        return document
    except DecodeError:
        raise FoldMapError("this is neither JSON nor an ONNX model") from None
    except (ValueError, zlib.error):
        raise FoldMapError("the fold map in the model cannot be read") from None


def _read_arrays(document: StoredDocument, folder: Path, limits: Limits) -> ArrayStore:
    store = document["tensor_store"]
    if store["kind"] == "inline":
        return ArrayStore.from_text(store["arrays"], entries_of(document), limits)
    return ArrayStore.from_npz(_check_npz(store, folder, limits), limits)


def _check_npz(store: StoreEntry, folder: Path, limits: Limits) -> Path:
    """Return the path of the npz file, which lies in `folder` itself and has the known digest."""
    name = store["path"]
    shown = clipped(name)
    try:
        path = folder / path_from_text(name)
        real_folder = os.path.dirname(os.path.realpath(path))
        inside = path_to_text(path.name) == name and real_folder == os.path.realpath(folder)
    except (OSError, ValueError) as error:
        raise FoldMapError(f"{shown} is not a valid file name: {error}") from None
    if not inside:
        raise FoldMapError(f"{shown} lies outside the fold map's folder")
    try:
        if path.exists() and not path.is_file():
            raise FoldMapError(f"its arrays in {shown} cannot be read: this is not a regular file")
        if path.stat().st_size > limits.max_fold_map_bytes:
            raise FoldMapError(
                f"{shown} is larger than {limits.max_fold_map_bytes} bytes (--max-fold-map-bytes)"
            )
        digest = file_digest(path)
    except (OSError, ValueError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise FoldMapError(f"its arrays in {shown} cannot be read: {why}") from None
    if digest != store["digest"]:
        raise FoldMapError(f"{shown} belongs to another fold map, or was changed")
    return path
