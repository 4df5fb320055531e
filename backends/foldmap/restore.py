"""The way back: what a fold map keeps so that the source model can be made from the folded one, bit for bit.

It keeps the source without the elements of its tensors, each of which bears the digest of what was there, and for every
digest that the folded model does not hold a recipe:

- `base`, the digest of a tensor of the folded model, and `factor`: the elements are base / factor in float64, rounded
  to the element type, and moved by `residual` places among the numbers of that type. A fold rounds w * factor once, so
  few residuals are not zero. `values` stand at the flat indices `exceptions`, where this does not reach.
- `data`: the elements themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from ...frontends.onnx.external import all_tensors
from ...frontends.onnx.messages import copy_fields
from ...ir.errors import FoldMapError
from ...ir.tensor import Array, round_to
from ...ir.types import DTYPES as IR_DTYPES
from .arrays import Arrays, Entry
from .identity import graph_digest, payload, tensor_digest

PLACE = "irc.fold_map"
"""Key in `external_data` of a tensor without its elements; the value is their digest."""
INLINE = 64
"""Tensors of so many bytes keep their elements: a digest is no shorter."""
SMALL = 1024
"""Messages of so many bytes are copied sooner as they are than field by field."""
ELEMENTS = (
    *("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data"),
    "external_data",
)
"""The fields of a tensor that hold its elements, or where they are."""
FLOATS: dict[int, tuple[np.dtype[Any], str]] = {
    TensorProto.FLOAT16: (np.dtype(np.float16), "f16"),
    TensorProto.BFLOAT16: (np.dtype(ml_dtypes.bfloat16), "bf16"),
    TensorProto.FLOAT: (np.dtype(np.float32), "f32"),
    TensorProto.DOUBLE: (np.dtype(np.float64), "f64"),
}
"""numpy's and our own name of the element types that a factor can be taken out of."""

Factors = Mapping[str, tuple[str, Array]]
"""By name of an initializer of the source: the one that was made from it, and what it was multiplied by."""


class Payloads:
    """The tensors of a model whose elements can be taken out, and their digests. O(bytes)."""

    def __init__(self, model: ModelProto, base_dir: Path) -> None:
        """Raises ModelError and OSError where external data cannot be read."""
        self.base_dir = base_dir
        count = len(model.graph.initializer)
        self.tensors = [t for i, t in enumerate(all_tensors(model)) if i < count or is_raw(t)]
        self.digests = [tensor_digest(tensor, base_dir) for tensor in self.tensors]
        self.of_initializers = self.digests[:count]
        self.by_digest = dict(zip(reversed(self.digests), reversed(self.tensors), strict=True))
        self.by_name = dict(zip((t.name for t in model.graph.initializer), self.of_initializers, strict=True))

    def digest_of(self, name: str) -> str | None:
        """The digest of an initializer of the main graph, as a fold map writes it; None for other values."""
        found = self.by_name.get(name)
        return None if found is None else f"sha256:{found}"


def identity(model: ModelProto, payloads: Payloads) -> dict[str, Any]:
    """What a fold map says of a model that it belongs to."""
    return {
        "digest": graph_digest(model, payloads.base_dir, payloads.of_initializers),
        "ir_version": model.ir_version,
        "opset": {entry.domain: entry.version for entry in model.opset_import},
    }


def is_raw(tensor: TensorProto) -> bool:
    """Whether the elements stand in `raw_data`, where they can be put back as they were."""
    return tensor.HasField("raw_data") and not tensor.external_data and tensor.data_location != TensorProto.EXTERNAL


def record(
    source: ModelProto, before: Payloads, after: Payloads, factors: Factors, kept: Mapping[str, Entry], arrays: Arrays
) -> dict[str, Any]:
    """The `restore` part of a fold map of `source`, whose tensors are `before`, those of the folded model `after`.

    `kept` are arrays that the map has already, by digest.
    """
    skeleton = ModelProto()
    copy_fields(source, skeleton, ("graph",))
    copy_fields(source.graph, skeleton.graph, ("initializer",))
    count = len(before.of_initializers)
    for tensor in before.tensors[:count]:
        bare = skeleton.graph.initializer.add()
        if tensor.ByteSize() <= SMALL:
            bare.CopyFrom(tensor)
        else:
            copy_fields(tensor, bare, ("raw_data",))
    places = [t for i, t in enumerate(all_tensors(skeleton)) if i < count or is_raw(t)]
    recipes: dict[str, Any] = {}
    for place, tensor, digest in zip(places, before.tensors, before.digests, strict=True):
        elements = _elements(tensor, before.base_dir)
        outside = tensor.data_location == TensorProto.EXTERNAL
        if elements is None or (len(elements) <= INLINE and not outside):
            place.CopyFrom(tensor)
            continue
        _take_out(place, digest)
        if digest in after.by_digest or digest in recipes:
            continue
        if digest in kept:
            recipes[digest] = {"data": kept[digest]}
            continue
        ref = f"restore.{len(recipes)}"
        name, factor = factors.get(tensor.name, ("", None))
        base = after.by_digest.get(after.by_name.get(name, ""))
        recipe = None
        if factor is not None and base is not None and _alike(base, tensor):
            recipe = _scaled(elements, _elements(base, after.base_dir) or b"", base, factor, arrays, ref)
            if recipe is not None:
                recipe["base"] = after.by_name[name]
        recipes[digest] = recipe or {"data": arrays.add(f"{ref}.data", np.frombuffer(elements, np.uint8))}
    text = skeleton.SerializeToString(deterministic=True)
    return {"skeleton": arrays.add("restore.skeleton", np.frombuffer(text, np.uint8)), "tensors": recipes}


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


def _elements(tensor: TensorProto, base_dir: Path) -> bytes | None:
    """None for what has no raw data, as strings."""
    try:
        return payload(tensor, base_dir)
    except ValueError:
        return None


def _take_out(tensor: TensorProto, digest: str) -> None:
    for name in ELEMENTS:
        tensor.ClearField(name)
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor.ClearField("data_location")
    tensor.external_data.add(key=PLACE, value=digest)


def _put_back(
    tensor: TensorProto, digest: str, after: Payloads, recipe: Mapping[str, Any] | None, arrays: Arrays
) -> None:
    del tensor.external_data[:]
    same = after.by_digest.get(digest)
    if same is not None and same.data_location == TensorProto.EXTERNAL:
        tensor.external_data.extend(same.external_data)
        tensor.data_location = TensorProto.EXTERNAL
    elif same is not None:
        tensor.raw_data = payload(same, after.base_dir)
    elif recipe is None:
        raise ValueError(f"nothing is known of {tensor.name!r}")
    elif "data" in recipe:
        tensor.raw_data = arrays.get(recipe["data"]).tobytes()
    else:
        tensor.raw_data = _unscaled(recipe, after.by_digest[recipe["base"]], after.base_dir, arrays)


def _alike(base: TensorProto, tensor: TensorProto) -> bool:
    return base.data_type == tensor.data_type and base.data_type in FLOATS and list(base.dims) == list(tensor.dims)


def _scaled(
    elements: bytes, made: bytes, base: TensorProto, factor: Array, arrays: Arrays, ref: str
) -> dict[str, Any] | None:
    """The recipe by a factor, None where the elements themselves are shorter."""
    wanted, near = _bits(elements, base), _divided(made, base, factor)
    residual = _ordered(wanted) - _ordered(near)
    far = np.flatnonzero((residual > 127) | (residual < -127))
    if factor.nbytes + residual.size + far.size * (8 + wanted.itemsize) > len(elements):
        return None
    residual[far] = 0
    recipe: dict[str, Entry] = {
        "factor": arrays.add(f"{ref}.factor", np.asarray(factor, np.float64)),
        "residual": arrays.add(f"{ref}.residual", residual.astype(np.int8)),
    }
    if far.size:
        recipe["exceptions"] = arrays.add(f"{ref}.exceptions", far.astype(np.int64))
        recipe["values"] = arrays.add(f"{ref}.values", wanted[far])
    return recipe


def _unscaled(recipe: Mapping[str, Any], base: TensorProto, base_dir: Path, arrays: Arrays) -> bytes:
    near = _divided(payload(base, base_dir), base, arrays.get(recipe["factor"]))
    bits = _ordered(_ordered(near) + arrays.get(recipe["residual"]).ravel().astype(near.dtype))
    if "exceptions" in recipe:
        bits[arrays.get(recipe["exceptions"])] = arrays.get(recipe["values"])
    return bits.tobytes()


def _bits(elements: bytes, like: TensorProto) -> Array:
    """The elements as signed integers of their width, flat."""
    return np.frombuffer(elements, f"<i{FLOATS[like.data_type][0].itemsize}")


def _divided(elements: bytes, tensor: TensorProto, factor: Array) -> Array:
    """The bits of the elements divided by the factor."""
    dtype, name = FLOATS[tensor.data_type]
    with np.errstate(all="ignore"):
        array = np.frombuffer(elements, dtype).reshape(tuple(tensor.dims)).astype(np.float64) / factor
    return _bits(round_to(array, IR_DTYPES[name]).tobytes(), tensor)


def _ordered(bits: Array) -> Array:
    """Places of numbers in their order, -0 next to +0, from their bits; or the bits from the places."""
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
