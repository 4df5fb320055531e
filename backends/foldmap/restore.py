"""The way back: what a fold map keeps so that the source model can be made from the folded one, bit for bit.

It keeps the source without the elements of its tensors, each of which bears the digest of what was there, and for every
digest that the folded model does not hold a recipe:

- `base`, the digest of a tensor of the folded model, `factor` and `residual`: the elements are base / factor, but for
  their last place (see `residual`). `values` stand at the flat indices `exceptions`, where this does not reach.
- `data`: the elements themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ...codec.protos import ModelProto, TensorProto
from ...codec.streaming import contains_placeholder, materialize
from ...codec.tensors import ELEMENT_FIELDS, OnnxTensor, detached_payload, raw_elements
from ...codec.traversal import all_tensors
from ...ir.tensor import Array
from ...support.errors import FoldMapError
from ...support.lazy import lazy
from .arrays import Arrays
from .digests import graph_digest, tensor_digest
from .readings import Readings
from .residual import Residual
from .residual import restored as restored_bits

PLACE = "irc.fold_map"
"""Key in `external_data` of a tensor without its elements; the value is their digest."""
INLINE = 64
"""Tensors of so many bytes keep their elements: a digest is no shorter."""
FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
"""The element types that a factor can be taken out of."""

Factors = Mapping[str, tuple[str, Array]]
"""By name of an initializer of the source: the one that was made from it, and what it was multiplied by."""


class Payloads:
    """The tensors of a model whose elements can be taken out, and their digests. O(bytes)."""

    def __init__(self, model: ModelProto, base_dir: Path, readings: Readings | None = None) -> None:
        """`readings` has digests of large tensors that are known. Raises ModelError where a file cannot be read."""
        self.base_dir = base_dir
        count = len(model.graph.initializer)
        found = list(all_tensors(model))
        self.bare_nodes = len(found) == count
        """Whether there are no tensors but the initializers of the main graph."""
        self.tensors = [*found[:count], *filter(is_movable, found[count:])]
        self.digests = [tensor_digest(tensor, base_dir, readings) for tensor in self.tensors]
        self._initializers = count

    def of_initializers(self) -> list[tuple[str, str]]:
        """Names and digests of the main graph's initializers; made anew, as many are asked for but once."""
        count = self._initializers
        return [(t.name, digest) for t, digest in zip(self.tensors[:count], self.digests[:count], strict=True)]

    @lazy
    def by_digest(self) -> dict[str, TensorProto]:
        """The first tensor with each digest."""
        return dict(zip(reversed(self.digests), reversed(self.tensors), strict=True))

    @lazy
    def by_name(self) -> dict[str, str]:
        """The digests of the main graph's initializers."""
        return dict(self.of_initializers())

    @lazy
    def out(self) -> list[bool]:
        """Whether the digest of a tensor stands in the place of its elements in the skeleton of a source."""
        return [_goes_out(tensor, self.base_dir) for tensor in self.tensors]

    def in_copy(self, model: ModelProto) -> list[TensorProto]:
        """The tensors of a copy of the model, in the order of `tensors`."""
        count = self._initializers
        found = list(model.graph.initializer if self.bare_nodes else all_tensors(model))
        return [*found[:count], *filter(is_movable, found[count:])]

    def digest_of(self, name: str) -> str | None:
        """The digest of an initializer of the main graph, as a fold map writes it; None for other values."""
        found = self.by_name.get(name)
        return None if found is None else f"xxh128:{found}"


def identity(model: ModelProto, payloads: Payloads) -> dict[str, Any]:
    """What a fold map says of a model that it belongs to."""
    return {
        "digest": graph_digest(model, payloads.base_dir, payloads.of_initializers(), bare_nodes=payloads.bare_nodes),
        "ir_version": model.ir_version,
        "opset": {entry.domain: entry.version for entry in model.opset_import},
    }


def is_movable(tensor: TensorProto) -> bool:
    """Whether the elements stand in `raw_data`, where they can be put back as they were, or in another file."""
    outside = tensor.data_location == TensorProto.EXTERNAL
    return outside or (tensor.HasField("raw_data") and not tensor.external_data)


def way_back(
    source: ModelProto,
    before: Payloads,
    after: Payloads,
    factors: Factors,
    kept: Mapping[str, str],
    readings: Readings,
) -> dict[str, Any]:
    """The `restore` part of a fold map of `source`, whose tensors are `before`, those of the folded model `after`.

    `kept` are the entries (JSON) of arrays that the map has already, by digest, and `readings` has recipes that are
    known.
    """
    skeleton = _without_elements(source, before) if any(before.out) else source
    recipes: dict[str, Any] = {}
    for tensor, digest, is_out in zip(before.tensors, before.digests, before.out, strict=True):
        if not is_out or digest in after.by_digest or digest in recipes:
            continue
        if digest in kept:
            recipes[digest] = {"data": json.loads(kept[digest])}
        elif digest in readings.recipes:
            recipes[digest] = readings.recipes[digest]
        else:
            recipes[digest] = _recipe(tensor, digest, before, after, factors, readings.arrays)
    text = skeleton.SerializeToString(deterministic=True)
    if contains_placeholder(text):  # in attributes that by their kind hold no tensors
        text = materialize(skeleton).SerializeToString(deterministic=True)
    return {"skeleton": readings.arrays.add("restore.skeleton", np.frombuffer(text, np.uint8)), "tensors": recipes}


def _recipe(
    tensor: TensorProto, digest: str, before: Payloads, after: Payloads, factors: Factors, arrays: Arrays
) -> dict[str, Any]:
    """How a tensor comes from one that was made of it, or its elements."""
    name, factor = factors.get(tensor.name, ("", None))
    base = after.by_digest.get(after.by_name.get(name, ""))
    found = None
    if factor is not None and base is not None and _alike(base, tensor):
        residual = Residual(OnnxTensor(tensor, before.base_dir).dtype, len(tensor.dims), np.asarray(factor, np.float64))
        blocks = (OnnxTensor(t, each.base_dir).blocks() for t, each in ((tensor, before), (base, after)))
        for original, made in zip(*blocks, strict=True):
            residual.add(original, made)
        found = residual.arrays()
    ref = f"restore.{digest}"
    if found is None:
        elements = np.frombuffer(raw_elements(tensor, before.base_dir), np.uint8)
        return {"data": arrays.add(f"{ref}.data", elements)}
    return {"base": after.by_name[name], **{key: arrays.add(f"{ref}.{key}", array) for key, array in found.items()}}


def restored(restore: Mapping[str, Any], after: Payloads, arrays: Arrays) -> ModelProto:
    """The source model. Tensors that the folded model keeps in another file stay there.

    Raises FoldMapError where the record does not hold together.
    """
    model = ModelProto()
    try:
        model.ParseFromString(arrays.get(restore["skeleton"]).tobytes())
        recipes: Mapping[str, Any] = restore["tensors"]
        for tensor in all_tensors(model):
            digest = next((entry.value for entry in tensor.external_data if entry.key == PLACE), None)
            if digest is not None:
                _put_back(tensor, digest, after, recipes.get(digest), arrays)
    except (DecodeError, KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise FoldMapError(f"what is kept of the source model cannot be read: {error}") from None
    return model


def _goes_out(tensor: TensorProto, base_dir: Path) -> bool:
    """Whether the digest of a tensor stands in the place of its elements: not where those are few or no raw data."""
    outside = tensor.data_location == TensorProto.EXTERNAL
    if _raw_bytes(tensor, base_dir) <= (0 if outside else INLINE):
        return False
    return outside or not tensor.external_data


def _without_elements(source: ModelProto, before: Payloads) -> ModelProto:
    """A copy of `source` in which digests stand in the place of the elements that go out."""
    skeleton = ModelProto()
    skeleton.CopyFrom(source)  # large elements are not in the messages
    for tensor, digest, is_out in zip(before.in_copy(skeleton), before.digests, before.out, strict=True):
        if is_out:
            for name in ELEMENT_FIELDS:
                tensor.ClearField(name)
            if tensor.data_location == TensorProto.EXTERNAL:
                tensor.ClearField("data_location")
            tensor.external_data.add(key=PLACE, value=digest)
    return skeleton


def _raw_bytes(tensor: TensorProto, base_dir: Path) -> int:
    """Bytes of the elements as raw data, 0 where they have none."""
    found = detached_payload(tensor, base_dir)
    if found is not None:
        return found.nbytes
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data)
    try:
        return len(raw_elements(tensor, base_dir))
    except ValueError:
        return 0


def _put_back(
    tensor: TensorProto, digest: str, after: Payloads, recipe: Mapping[str, Any] | None, arrays: Arrays
) -> None:
    del tensor.external_data[:]
    same = after.by_digest.get(digest)
    if same is not None and same.data_location == TensorProto.EXTERNAL:
        tensor.external_data.extend(same.external_data)
        tensor.data_location = TensorProto.EXTERNAL
    elif same is not None:
        tensor.raw_data = raw_elements(same, after.base_dir)
    elif recipe is None:
        raise ValueError(f"nothing is known of {tensor.name!r}")
    elif "data" in recipe:
        tensor.raw_data = arrays.get(recipe["data"]).tobytes()
    else:
        tensor.raw_data = _unscaled(recipe, after.by_digest[recipe["base"]], after.base_dir, arrays)


def _alike(base: TensorProto, tensor: TensorProto) -> bool:
    return base.data_type == tensor.data_type and base.data_type in FLOATS and list(base.dims) == list(tensor.dims)


def _unscaled(recipe: Mapping[str, Any], base: TensorProto, base_dir: Path, arrays: Arrays) -> bytes:
    tensor = OnnxTensor(base, base_dir)
    bits = restored_bits(
        tensor.numpy(), arrays.get(recipe["factor"]), arrays.get(recipe["residual"]), tensor.dtype
    ).copy()
    if "exceptions" in recipe:
        bits[arrays.get(recipe["exceptions"])] = arrays.get(recipe["values"])
    return bits.tobytes()
