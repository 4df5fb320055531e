"""The arrays of a fold map: entries of the document refer to them, a store holds them exactly."""

from __future__ import annotations

import base64
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.lib import format as npy

from ...ir.tensor import Array, numpy_dtype
from ...ir.types import BF16
from ...support.errors import FoldMapError, clipped
from ...support.limits import DEFAULT_LIMITS, Limits
from .npz import NpzWriter

if TYPE_CHECKING:
    from .entries import ArrayEntry, ElementType

_PLAIN = {
    name: np.dtype(name)
    for name in ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")
}
DTYPES = frozenset((*_PLAIN, "bfloat16"))
"""Element types of arrays in a fold map."""

POOLED = 64 << 10
"""Arrays of fewer bytes share one member of the store per element type, a pool.

Each member is expensive. Larger arrays have a member of their own, so that they can be written at
once instead of waiting in memory.
"""


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a name in DTYPES; raise KeyError for another name."""
    return numpy_dtype(BF16) if name == "bfloat16" else _PLAIN[name]


@cache
def _name(dtype: np.dtype[Any]) -> ElementType:
    assert dtype.name in DTYPES, dtype
    return cast("ElementType", dtype.name)


class ArrayStore:
    """The members of a store.

    Large arrays that are added go to the file `spill` at once, if it is given.
    """

    def __init__(
        self, items: Mapping[str, Array] | None = None, spill: NpzWriter | None = None
    ) -> None:
        """Start with the members `items`."""
        self._items: dict[str, Array] = {}
        self._pools: dict[str, bytearray] = {}
        self._spill = spill
        for ref, array in (items or {}).items():
            if ref in DTYPES:
                self._pools[ref] = bytearray(array.tobytes())
            else:
                self._items[ref] = array

    def add(self, ref: str, array: Array) -> ArrayEntry:
        """Store `array`, whose dtype is in DTYPES, and return its entry.

        A large one becomes the member `ref`.
        """
        name = _name(array.dtype)
        if array.nbytes >= POOLED:
            if self._spill is not None:
                self._spill.add(ref, array)
            else:
                self._items[ref] = np.ascontiguousarray(array).reshape(array.shape)
            return {"dtype": name, "shape": list(array.shape), "ref": ref}
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = bytearray()
        offset = len(pool) // array.itemsize
        pool += array.tobytes()
        return {"dtype": name, "shape": list(array.shape), "ref": name, "offset": offset}

    def put(self, entry: ArrayEntry, array: Array) -> None:
        """Replace the array of `entry` by `array`, which has the same dtype and shape."""
        assert (entry["dtype"], entry["shape"]) == (_name(array.dtype), list(array.shape)), entry
        if "offset" in entry:
            begin = entry["offset"] * array.itemsize
            self._pools[entry["ref"]][begin : begin + array.nbytes] = array.tobytes()
        else:
            self._items[entry["ref"]] = np.ascontiguousarray(array)

    def get(self, entry: ArrayEntry) -> Array:
        """Return the array of an entry, read-only.

        Raises FoldMapError if the store does not hold it.
        """
        try:
            dtype, shape = dtype_named(entry["dtype"]), tuple(entry["shape"])
            stored = self._bytes(entry, dtype)
            is_shape = all(isinstance(dim, int) and dim >= 0 for dim in shape)
            if not is_shape or len(stored) != prod(shape) * dtype.itemsize:
                raise ValueError(f"{entry['ref']} does not have the shape {list(shape)}")
            array = np.frombuffer(stored, dtype).reshape(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise FoldMapError(
                f"an array of the fold map cannot be read: {clipped(str(error))}"
            ) from None
        array.flags.writeable = False
        return array

    def _bytes(self, entry: ArrayEntry, dtype: np.dtype[Any]) -> bytes:
        """Return the elements of an entry, or fewer if its member ends before them."""
        if "offset" not in entry:
            return self._items[entry["ref"]].tobytes()
        begin, size = entry["offset"] * dtype.itemsize, prod(entry["shape"]) * dtype.itemsize
        if entry["ref"] != entry["dtype"] or begin < 0 or size < 0:
            raise ValueError(f"no array stands at {entry['offset']} of {entry['ref']}")
        return bytes(memoryview(self._pools[entry["ref"]])[begin : begin + size])

    def members(self) -> dict[str, Array]:
        """Return all members by name, sorted, without those that went to `spill`."""
        pools = {
            name: np.frombuffer(bytes(pool), dtype_named(name))
            for name, pool in self._pools.items()
        }
        return dict(sorted((self._items | pools).items()))

    def write_npz(self, writer: NpzWriter) -> None:
        """Write all members that are not written yet."""
        for ref, array in self.members().items():
            writer.add(ref, array)

    @classmethod
    def from_npz(cls, path: Path, limits: Limits = DEFAULT_LIMITS) -> ArrayStore:
        """Read an npz file; sizes are checked before anything is unpacked.

        Raises FoldMapError if the file is not a valid npz file, or its arrays exceed `limits`.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
                _check_size(sum(member.file_size for member in members), limits)
                items = {
                    member.filename.removesuffix(".npy"): _read_member(archive, member)
                    for member in members
                }
                for ref, array in items.items():
                    if ref in DTYPES and array.itemsize != dtype_named(ref).itemsize:
                        raise ValueError(f"the elements of {ref} are {array.dtype}")
        except FoldMapError:
            raise
        except Exception as error:
            # zipfile, its decompressors and NumPy's parser share no base class of errors
            raise FoldMapError(f"the arrays cannot be read: {clipped(str(error))}") from None
        return cls(items)

    def to_text(self) -> dict[str, str]:
        """Return each member as its little-endian bytes, compressed by zlib, in base64."""
        return {
            ref: base64.b64encode(zlib.compress(_little(array))).decode()
            for ref, array in self.members().items()
        }

    @classmethod
    def from_text(
        cls,
        items: Mapping[str, str],
        entries: Iterator[ArrayEntry],
        limits: Limits = DEFAULT_LIMITS,
    ) -> ArrayStore:
        """Decode the members of `to_text`; `entries` of the document say how large each one is.

        Raises FoldMapError if a text does not match its entries, or the arrays exceed `limits`.
        """
        members: dict[str, Array] = {}
        try:
            extents = _extents(entries)
            _check_size(sum(size for _, size in extents.values()), limits)
            for ref, (dtype, size) in extents.items():
                data = zlib.decompressobj().decompress(
                    base64.b64decode(items[ref], validate=True), size + 1
                )
                if len(data) < size or (len(data) > size and ref not in DTYPES):
                    raise ValueError(f"{ref} does not have the size that the document says")
                members[ref] = np.frombuffer(data[:size], dtype.newbyteorder("<")).astype(
                    dtype, copy=False
                )
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise FoldMapError(
                f"an array of the fold map cannot be read: {clipped(str(error))}"
            ) from None
        return cls(members)


def _extents(entries: Iterator[ArrayEntry]) -> dict[str, tuple[np.dtype[Any], int]]:
    """Return the element type and the least size in bytes of each member.

    Raises ValueError for a negative size.
    """
    found: dict[str, tuple[np.dtype[Any], int]] = {}
    for entry in entries:
        dtype, ref = dtype_named(entry["dtype"]), entry["ref"]
        size = (entry.get("offset", 0) + prod(entry["shape"])) * dtype.itemsize
        if size < 0:
            raise ValueError(f"{ref} has {size} bytes")
        if ref not in found or found[ref][1] < size:
            found[ref] = (dtype, size)
    return found


def entries_of(document: object) -> Iterator[ArrayEntry]:
    """Yield every array entry in a document."""
    stack = [document]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if item.keys() - {"offset"} == {"dtype", "shape", "ref"}:
                yield cast("ArrayEntry", item)
            else:
                stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.max_fold_map_bytes:
        raise FoldMapError(
            f"its arrays have {size} bytes, more than the limit of {limits.max_fold_map_bytes}"
            " (--max-fold-map-bytes)"
        )


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Return the array of a member, whose header must agree with the member's size."""
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
