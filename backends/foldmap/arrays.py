"""The arrays of a fold map: named in the document, and kept beside it or in it, bit for bit."""

from __future__ import annotations

import base64
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from ...ir.tensor import Array, numpy_dtype
from ...ir.types import BF16
from ...support.errors import FoldMapError, clipped
from ...support.limits import DEFAULT_LIMITS, Limits
from .lines import quoted
from .npz import NpzWriter

_PLAIN = {
    name: np.dtype(name) for name in ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")
}
DTYPES = frozenset((*_PLAIN, "bfloat16"))
"""Element types of arrays in a fold map."""

POOLED = 64 << 10
"""Arrays of fewer bytes stand together, in one member of the store for each element type: a member is dear. Larger ones
do not wait in memory for the others.
"""

Entry = dict[str, Any]
"""An array in the document: `dtype`, `shape`, and `ref`, its member of the store; where several arrays stand in that
member, which then bears the name of their dtype, `offset` counts the elements in front of it.
"""


def dtype_named(name: str) -> np.dtype[Any]:
    """The element type of that name. Raises KeyError where it is none of DTYPES."""
    return numpy_dtype(BF16) if name == "bfloat16" else _PLAIN[name]


@cache
def _name(dtype: np.dtype[Any]) -> str:
    assert dtype.name in DTYPES, dtype
    return dtype.name


class Arrays:
    """Arrays in the members of a store; what a document refers to by entries. Large ones go to `spill`, if any."""

    def __init__(self, items: Mapping[str, Array] | None = None, spill: NpzWriter | None = None) -> None:
        """Hold the members `items`."""
        self._items: dict[str, Array] = {}
        self._pools: dict[str, bytearray] = {}
        self._spill = spill
        for ref, array in (items or {}).items():
            if ref in DTYPES:
                self._pools[ref] = bytearray(array.tobytes())
            else:
                self._items[ref] = array

    def add(self, ref: str, array: Array) -> Entry:
        """Keep `array`, whose dtype is one of DTYPES, under `ref` if it is large; the entry for it."""
        offset, name = self._keep(ref, array), _name(array.dtype)
        if offset is None:
            return {"dtype": name, "shape": list(array.shape), "ref": ref}
        return {"dtype": name, "shape": list(array.shape), "ref": name, "offset": offset}

    def add_text(self, ref: str, array: Array) -> str:
        """As `add`; the entry as JSON."""
        offset = self._keep(ref, array)
        if offset is None:
            return f'{_typed(array.dtype, array.shape)}"ref": {quoted(ref)}}}'
        return f'{_pooled(array.dtype, array.shape)}"offset": {offset}}}'

    def _keep(self, ref: str, array: Array) -> int | None:
        """Where in the pool of its dtype `array` begins, None where it is a member of its own."""
        if array.nbytes >= POOLED:
            if self._spill is not None:
                self._spill.add(ref, array)
            else:
                self._items[ref] = np.ascontiguousarray(array).reshape(array.shape)
            return None
        name = _name(array.dtype)
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = bytearray()
        offset = len(pool) // array.itemsize
        pool += array.tobytes()
        return offset

    def put(self, entry: Mapping[str, Any], array: Array) -> None:
        """Let `array`, of the same dtype and shape, stand in the place of the one of `entry`."""
        assert (entry["dtype"], entry["shape"]) == (_name(array.dtype), list(array.shape)), entry
        if "offset" in entry:
            begin = entry["offset"] * array.itemsize
            self._pools[entry["ref"]][begin : begin + array.nbytes] = array.tobytes()
        else:
            self._items[entry["ref"]] = np.ascontiguousarray(array)

    def get(self, entry: Mapping[str, Any]) -> Array:
        """The array of an entry, read-only.

        Raises FoldMapError where the entry and the store do not fit.
        """
        try:
            dtype, shape = dtype_named(entry["dtype"]), tuple(entry["shape"])
            stored = self._bytes(entry, dtype)
            if (
                not all(isinstance(dim, int) and dim >= 0 for dim in shape)
                or len(stored) != prod(shape) * dtype.itemsize
            ):
                raise ValueError(f"{entry['ref']} does not have the shape {list(shape)}")
            array = np.frombuffer(stored, dtype).reshape(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise FoldMapError(f"an array of the fold map cannot be read: {clipped(str(error))}") from None
        array.flags.writeable = False
        return array

    def _bytes(self, entry: Mapping[str, Any], dtype: np.dtype[Any]) -> bytes:
        """The elements of an entry, or fewer where its member ends before."""
        if "offset" not in entry:
            return self._items[entry["ref"]].tobytes()
        begin, size = entry["offset"] * dtype.itemsize, prod(entry["shape"]) * dtype.itemsize
        if entry["ref"] != entry["dtype"] or begin < 0 or size < 0:
            raise ValueError(f"no array stands at {entry['offset']} of {entry['ref']}")
        return bytes(memoryview(self._pools[entry["ref"]])[begin : begin + size])

    def members(self) -> dict[str, Array]:
        """All members of the store by name, in its order, but those that went to `spill`."""
        pools = {name: np.frombuffer(bytes(pool), dtype_named(name)) for name, pool in self._pools.items()}
        return dict(sorted((self._items | pools).items()))

    def write_npz(self, writer: NpzWriter) -> None:
        """Write all members that are not written yet."""
        for ref, array in self.members().items():
            writer.add(ref, array)

    @classmethod
    def from_npz(cls, path: Path, limits: Limits = DEFAULT_LIMITS) -> Arrays:
        """Nothing is unpacked before it is known how large it is.

        Raises FoldMapError where there is no npz file at `path`, or one whose arrays are larger than `limits`.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
                _check_size(sum(member.file_size for member in members), limits)
                items = {member.filename.removesuffix(".npy"): _member(archive, member) for member in members}
                for ref, array in items.items():
                    if ref in DTYPES and array.itemsize != dtype_named(ref).itemsize:
                        raise ValueError(f"the elements of {ref} are {array.dtype}")
        except FoldMapError:
            raise
        except Exception as error:  # zipfile, its decompressors and numpy's parser have no error in common
            raise FoldMapError(f"the arrays cannot be read: {clipped(str(error))}") from None
        return cls(items)

    def to_text(self) -> dict[str, str]:
        """The little-endian bytes of each member, compressed by zlib, in base64."""
        return {ref: base64.b64encode(zlib.compress(_little(array))).decode() for ref, array in self.members().items()}

    @classmethod
    def from_text(
        cls, items: Mapping[str, Any], entries: Iterator[Mapping[str, Any]], limits: Limits = DEFAULT_LIMITS
    ) -> Arrays:
        """The arrays of `to_text`, of which `entries` say how large they are.

        Raises FoldMapError where the text is not what an entry says, or the arrays are larger than `limits`.
        """
        members: dict[str, Array] = {}
        try:
            extents = _extents(entries)
            _check_size(sum(size for _, size in extents.values()), limits)
            for ref, (dtype, size) in extents.items():
                data = zlib.decompressobj().decompress(base64.b64decode(items[ref], validate=True), size + 1)
                if len(data) < size or (len(data) > size and ref not in DTYPES):
                    raise ValueError(f"{ref} does not have the size that the document says")
                members[ref] = np.frombuffer(data[:size], dtype.newbyteorder("<")).astype(dtype, copy=False)
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise FoldMapError(f"an array of the fold map cannot be read: {clipped(str(error))}") from None
        return cls(members)


@lru_cache(1024)
def _typed(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """The beginning of an entry as JSON."""
    return f'{{"dtype": "{_name(dtype)}", "shape": {list(shape)}, '


@lru_cache(1024)
def _pooled(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """The beginning of the entry of an array in a pool."""
    return f'{_typed(dtype, shape)}"ref": "{_name(dtype)}", '


def _extents(entries: Iterator[Mapping[str, Any]]) -> dict[str, tuple[np.dtype[Any], int]]:
    """Element type and least size in bytes of every member that entries speak of. Raises ValueError for none."""
    found: dict[str, tuple[np.dtype[Any], int]] = {}
    for entry in entries:
        dtype, ref = dtype_named(entry["dtype"]), entry["ref"]
        size = (entry.get("offset", 0) + prod(entry["shape"])) * dtype.itemsize
        if size < 0:
            raise ValueError(f"{ref} has {size} bytes")
        if ref not in found or found[ref][1] < size:
            found[ref] = (dtype, size)
    return found


def entries_of(document: object) -> Iterator[Entry]:
    """Every entry for an array in a document."""
    stack = [document]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if item.keys() - {"offset"} == {"dtype", "shape", "ref"}:
                yield item
            else:
                stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.max_fold_map_bytes:
        raise FoldMapError(
            f"its arrays have {size} bytes, more than the limit of {limits.max_fold_map_bytes} (--max-fold-map-bytes)"
        )


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """The array in a member, whose header has to agree with its size."""
    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
        size = prod(shape) * dtype.itemsize
        if dtype.hasobject or stream.tell() + size != member.file_size:
            raise ValueError(f"{member.filename} does not have the shape {shape}")
        return np.frombuffer(stream.read(size), dtype).reshape(shape, order="F" if fortran else "C")


def _little(array: Array) -> bytes:
    if array.dtype.kind in "fiu":
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array.tobytes()
