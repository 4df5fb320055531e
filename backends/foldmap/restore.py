"""Keep the source model in a fold map, and rebuild it from the folded model, bit for bit.

The map keeps the source without the elements of its tensors (the skeleton). Each tensor bears the
digest of its elements, and the field (if not `raw_data`) or the place in another file where they
were. For each digest that the folded model does not hold, the map has a recipe of one of two kinds:

- `data`: the elements themselves;
- `base`, `factor`, `residual`: the digest of a tensor of the folded model, divided by factor and
  corrected by the residual (see `residual`); `values` replace the elements at the flat indices
  `exceptions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from google.protobuf.message import DecodeError

from ...frontends.onnx.codec.external_data import is_byte_count
from ...frontends.onnx.codec.protos import ModelProto, TensorProto
from ...frontends.onnx.codec.streaming import contains_placeholder, materialize
from ...frontends.onnx.codec.tensors import (
    ELEMENT_FIELDS,
    OnnxTensor,
    detached_payload,
    raw_elements,
)
from ...frontends.onnx.codec.traversal import all_tensors
from ...ir.payload import Payload
from ...ir.record import Record
from ...ir.tensor import Array
from ...support.errors import FoldMapError
from .arrays import ArrayStore
from .digests import graph_digest, message_digest
from .observer import PayloadObserver
from .residual import ResidualEncoder, decode_residual
from .storage import is_restored, put_elements, typed_field

if TYPE_CHECKING:
    from .entries import ArrayEntry, ModelEntry, RecipeEntry, RestoreEntry

DIGEST_KEY = "irc.fold_map"
"""Key in `external_data` of a tensor of the skeleton; the value is the digest of its elements."""
FIELD_KEY = "irc.field"
"""Key in `external_data` of a tensor of the skeleton.

The value is the field of its elements, if not `raw_data`.
"""
KEPT_BYTES = 64
"""Tensors of at most so many bytes keep their elements in the skeleton: a digest is not shorter."""
FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
"""Element types of weights that can be restored by a factor."""

Factors = Mapping[str, tuple[str, Array]]
"""An initializer made from each one of the source, and the factor between them, by name."""


class StoredOutside(Record):
    """A tensor of a restored source whose elements were in another file.

    `entries` are the keys and values that tell their place.
    """

    tensor: TensorProto
    entries: tuple[tuple[str, str], ...]

    def _value(self, key: str) -> str | None:
        return next((value for name, value in self.entries if name == key), None)

    @property
    def location(self) -> str:
        """The name of the file, relative to the folder of the model."""
        return self._value("location") or ""

    @property
    def offset(self) -> int:
        """The first byte in the file."""
        return int(self._value("offset") or "0")

    @property
    def length(self) -> str | None:
        """The number of bytes in the file, None if all that follow."""
        return self._value("length")

    def put_outside(self) -> None:
        """Make the tensor refer to its file in place of its elements."""
        for name in ELEMENT_FIELDS:
            self.tensor.ClearField(name)
        for key, value in self.entries:
            self.tensor.external_data.add(key=key, value=value)
        self.tensor.data_location = TensorProto.EXTERNAL


class TensorIndex:
    """The tensors of a model whose elements can be taken out, with their digests. O(bytes)."""

    def __init__(
        self, model: ModelProto, base_dir: Path, observer: PayloadObserver | None = None
    ) -> None:
        """Compute the digests that `observer` does not know.

        Raises ModelError if a file cannot be read.
        """
        self.base_dir = base_dir
        observer = observer or PayloadObserver()
        count = len(model.graph.initializer)
        found = list(all_tensors(model))
        self.has_bare_nodes = len(found) == count
        """Whether all tensors are initializers of the main graph."""
        self.tensors = [*found[:count], *filter(is_movable, found[count:])]
        self._payloads = [detached_payload(tensor, base_dir) for tensor in self.tensors]
        self.digests = [
            message_digest(tensor, base_dir)
            if payload is None
            else observer.digest(payload, tensor)
            for tensor, payload in zip(self.tensors, self._payloads, strict=True)
        ]
        self._initializers = count

    def initializer_digests(self) -> list[tuple[str, str]]:
        """Return names and digests of the main graph's initializers."""
        count = self._initializers
        return [
            (t.name, digest)
            for t, digest in zip(self.tensors[:count], self.digests[:count], strict=True)
        ]

    @cached_property
    def by_digest(self) -> dict[str, TensorProto]:
        """Return the first tensor with each digest."""
        return dict(zip(reversed(self.digests), reversed(self.tensors), strict=True))

    @cached_property
    def by_name(self) -> dict[str, str]:
        """Return the digests of the main graph's initializers."""
        return dict(self.initializer_digests())

    @cached_property
    def is_extracted(self) -> list[bool]:
        """For each tensor, whether a digest replaces its elements in the skeleton."""
        pairs = zip(self.tensors, self._payloads, strict=True)
        return [_is_extracted(tensor, payload, self.base_dir) for tensor, payload in pairs]

    def tensors_of_copy(self, model: ModelProto) -> list[TensorProto]:
        """Return the tensors of a copy of the model, in the order of `tensors`."""
        count = self._initializers
        found = list(model.graph.initializer if self.has_bare_nodes else all_tensors(model))
        return [*found[:count], *filter(is_movable, found[count:])]

    def digest_of(self, name: str) -> str | None:
        """Return the digest of an initializer of the main graph as fold maps write it, or None."""
        found = self.by_name.get(name)
        return None if found is None else f"xxh128:{found}"


def describe_model(model: ModelProto, tensors: TensorIndex) -> ModelEntry:
    """Return the entry that identifies a model in a fold map."""
    digests = tensors.initializer_digests()
    return {
        "digest": graph_digest(model, tensors.base_dir, digests, bare_nodes=tensors.has_bare_nodes),
        "ir_version": model.ir_version,
        "opset": {entry.domain: entry.version for entry in model.opset_import},
    }


def is_movable(tensor: TensorProto) -> bool:
    """Return whether the elements stand in `raw_data` or in a file, and can be put back there."""
    outside = tensor.data_location == TensorProto.EXTERNAL
    return outside or (tensor.HasField("raw_data") and not tensor.external_data)


def build_restore(
    source: ModelProto,
    before: TensorIndex,
    after: TensorIndex,
    factors: Factors,
    stored: Mapping[str, ArrayEntry],
    observer: PayloadObserver,
) -> RestoreEntry:
    """Return the `restore` entry of `source`.

    `before` and `after` index the source and the folded model. `stored` has entries of arrays that
    hold elements of the source already, by digest; `observer` has recipes that are known, and the
    store of arrays.
    """
    skeleton = _build_skeleton(source, before) if any(before.is_extracted) else source
    recipes: dict[str, RecipeEntry] = {}
    for tensor, digest, is_extracted in zip(
        before.tensors, before.digests, before.is_extracted, strict=True
    ):
        if not is_extracted or digest in after.by_digest or digest in recipes:
            continue
        if digest in stored:
            recipes[digest] = {"data": stored[digest]}
        elif digest in observer.recipes:
            recipes[digest] = observer.recipes[digest]
        else:
            recipes[digest] = _build_recipe(tensor, digest, before, after, factors, observer.arrays)
    text = skeleton.SerializeToString(deterministic=True)
    # placeholders may be in attributes whose type does not say that they hold tensors
    if contains_placeholder(text):
        text = materialize(skeleton).SerializeToString(deterministic=True)
    return {
        "skeleton": observer.arrays.add("restore.skeleton", np.frombuffer(text, np.uint8)),
        "tensors": recipes,
    }


def _build_skeleton(source: ModelProto, before: TensorIndex) -> ModelProto:
    """Return a copy of `source` in which digests replace the elements that are extracted."""
    skeleton = ModelProto()
    skeleton.CopyFrom(source)  # cheap: large elements are not in the messages
    for tensor, digest, is_extracted in zip(
        before.tensors_of_copy(skeleton), before.digests, before.is_extracted, strict=True
    ):
        if is_extracted:
            outside = tensor.data_location == TensorProto.EXTERNAL
            field = None if outside or tensor.HasField("raw_data") else typed_field(tensor)
            for name in ELEMENT_FIELDS:
                if name != "external_data":  # it says where the elements were
                    tensor.ClearField(name)
            if outside:
                tensor.ClearField("data_location")
            elif field is not None:
                tensor.external_data.add(key=FIELD_KEY, value=field)
            tensor.external_data.add(key=DIGEST_KEY, value=digest)
    return skeleton


def _build_recipe(
    tensor: TensorProto,
    digest: str,
    before: TensorIndex,
    after: TensorIndex,
    factors: Factors,
    arrays: ArrayStore,
) -> RecipeEntry:
    """Return the recipe of a tensor: by a factor, or from its elements if that is shorter."""
    name, factor = factors.get(tensor.name, ("", None))
    base = after.by_digest.get(after.by_name.get(name, ""))
    found = None
    if factor is not None and base is not None and _are_alike(base, tensor):
        dtype = OnnxTensor(tensor, before.base_dir).dtype
        encoder = ResidualEncoder(dtype, len(tensor.dims), np.asarray(factor, np.float64))
        blocks = (
            OnnxTensor(t, each.base_dir).blocks() for t, each in ((tensor, before), (base, after))
        )
        for original, made in zip(*blocks, strict=True):
            encoder.add(original, made)
        found = encoder.arrays()
    ref = f"restore.{digest}"
    if found is None:
        elements = np.frombuffer(raw_elements(tensor, before.base_dir), np.uint8)
        return {"data": arrays.add(f"{ref}.data", elements)}
    entries = {key: arrays.add(f"{ref}.{key}", array) for key, array in found.items()}
    return cast("RecipeEntry", {"base": after.by_name[name], **entries})


def rebuild_source(
    restore: RestoreEntry, after: TensorIndex, arrays: ArrayStore, *, knows_storage: bool
) -> tuple[ModelProto, list[StoredOutside]]:
    """Return the source model, and its tensors that were in other files.

    The elements of these are in the model, or in a file of the folded model. Without
    `knows_storage` (a map of version 1.0) every tensor that the folded model keeps in a file stays
    there. Raises FoldMapError if the entries contradict each other.
    """
    model = ModelProto()
    outside: list[StoredOutside] = []
    try:
        model.ParseFromString(arrays.get(restore["skeleton"]).tobytes())
        recipes = restore["tensors"]
        for tensor in all_tensors(model):
            digest = next(
                (entry.value for entry in tensor.external_data if entry.key == DIGEST_KEY), None
            )
            if digest is None:
                continue
            found = [
                (entry.key, entry.value)
                for entry in tensor.external_data
                if entry.key != DIGEST_KEY
            ]
            field = dict(found).get(FIELD_KEY, "raw_data")
            has_text = all(isinstance(item, str) for pair in found for item in pair)
            is_outside = has_text and "location" in dict(found)
            stored = StoredOutside(tensor, tuple(found)) if is_outside else None
            stays = stored is not None or not knows_storage
            _fill(tensor, digest, after, recipes.get(digest), arrays, field, stays=stays)
            if stored is not None:
                _check_place(stored)
                outside.append(stored)
    except (DecodeError, KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise FoldMapError(
            f"the source model in the fold map cannot be restored: {error}"
        ) from None
    return model, outside


def _check_place(stored: StoredOutside) -> None:
    for text in (str(stored.offset), stored.length):
        if text is not None and not is_byte_count(text):
            raise ValueError(f"{text[:40]!r} is not a number of bytes")


def _fill(
    tensor: TensorProto,
    digest: str,
    after: TensorIndex,
    recipe: RecipeEntry | None,
    arrays: ArrayStore,
    field: str,
    *,
    stays: bool,
) -> None:
    """Give a tensor of the skeleton its elements.

    With `stays` they may be in a file of the folded model.
    """
    del tensor.external_data[:]
    same = after.by_digest.get(digest)
    if stays and same is not None and same.data_location == TensorProto.EXTERNAL:
        tensor.external_data.extend(same.external_data)
        tensor.data_location = TensorProto.EXTERNAL
    elif same is not None:
        put_elements(tensor, field, raw_elements(same, after.base_dir))
    elif recipe is None:
        raise ValueError(f"there is no recipe for {tensor.name!r}")
    elif "data" in recipe:
        put_elements(tensor, field, arrays.get(recipe["data"]).tobytes())
    else:
        put_elements(
            tensor,
            field,
            _undo_scaling(recipe, after.by_digest[recipe["base"]], after.base_dir, arrays),
        )


def _undo_scaling(
    recipe: RecipeEntry, base: TensorProto, base_dir: Path, arrays: ArrayStore
) -> bytes:
    tensor = OnnxTensor(base, base_dir)
    factor, residual = arrays.get(recipe["factor"]), arrays.get(recipe["residual"])
    bits = decode_residual(tensor.numpy(), factor, residual, tensor.dtype).copy()
    if "exceptions" in recipe:
        bits[arrays.get(recipe["exceptions"])] = arrays.get(recipe["values"])
    return bits.tobytes()


def _are_alike(base: TensorProto, tensor: TensorProto) -> bool:
    if base.data_type != tensor.data_type or base.data_type not in FLOATS:
        return False
    return list(base.dims) == list(tensor.dims)


def _is_extracted(tensor: TensorProto, payload: Payload | None, base_dir: Path) -> bool:
    """Return whether a digest replaces the elements of a tensor.

    It does not if they are few, or have no raw bytes.
    """
    if tensor.data_location == TensorProto.EXTERNAL:
        return payload is not None and payload.nbytes > 0
    if payload is not None:
        size = payload.nbytes
    elif tensor.HasField("raw_data"):
        size = len(tensor.raw_data)
    else:
        field = typed_field(tensor)
        try:
            elements = raw_elements(tensor, base_dir)
        except ValueError:
            return False
        if field is None or len(elements) <= KEPT_BYTES or not is_restored(tensor, field, elements):
            return False
        size = len(elements)
    # The size comes first: protobuf keeps memory for every message whose empty list was looked at.
    return size > KEPT_BYTES and not tensor.external_data
