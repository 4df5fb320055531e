"""The arrays of a fold map: named in the document, and kept beside it or in it, bit for bit."""

from __future__ import annotations

import base64
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

from ...ir.errors import FoldMapError, clipped
from ...ir.limits import DEFAULT_LIMITS, Limits
from ...ir.tensor import Array

DTYPES = {
    name: np.dtype(dtype)
    for name, dtype in (
        *((name, name) for name in ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")),
        ("bfloat16", ml_dtypes.bfloat16),
    )
}
"""Element types of arrays in a fold map."""

Entry = dict[str, Any]
"""An array in the document: `dtype`, `shape`, and `ref`, its name in the store."""


class Arrays:
    """Arrays by name; what a document refers to by entries."""

    def __init__(self, items: Mapping[str, Array] | None = None) -> None:
        self._items: dict[str, Array] = dict(items or {})

    def add(self, ref: str, array: Array) -> Entry:
        """Keep `array`, whose dtype is one of DTYPES, under `ref`; the entry for it."""
        assert array.dtype.name in DTYPES, array.dtype
        self._items[ref] = np.ascontiguousarray(array).reshape(array.shape)
        return {"dtype": array.dtype.name, "shape": list(array.shape), "ref": ref}

    def get(self, entry: Mapping[str, Any]) -> Array:
        """The array of an entry, read-only.

        Raises FoldMapError where the entry and the store do not fit.
        """
        try:
            dtype, shape, ref = DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["ref"]
            stored = self._items[ref]
            if (
                not all(isinstance(dim, int) and dim >= 0 for dim in shape)
                or stored.nbytes != prod(shape) * dtype.itemsize
            ):
                raise ValueError(f"{ref} does not have the shape {list(shape)}")
            array = np.frombuffer(stored.tobytes(), dtype).reshape(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise FoldMapError(f"an array of the fold map cannot be read: {clipped(str(error))}") from None
        array.flags.writeable = False
        return array

    def to_npz(self) -> bytes:
        """The arrays as an npz file, equal for equal arrays; bfloat16 as its bits in uint16."""
        buffer = io.BytesIO()
        items = sorted(self._items.items())
        plain = {ref: array if array.dtype.kind != "V" else array.view(np.uint16) for ref, array in items}
        np.savez_compressed(buffer, **plain)  # type: ignore[arg-type]
        return buffer.getvalue()

    @classmethod
    def from_npz(cls, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Arrays:
        """Nothing is unpacked before it is known how large it is.

        Raises FoldMapError where `data` is no npz file, or one whose arrays are larger than `limits`.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                members = archive.infolist()
                _check_size(sum(member.file_size for member in members), limits)
                items = {member.filename.removesuffix(".npy"): _member(archive, member) for member in members}
        except FoldMapError:
            raise
        except Exception as error:  # zipfile, its decompressors and numpy's parser have no error in common
            raise FoldMapError(f"the arrays cannot be read: {clipped(str(error))}") from None
        return cls(items)

    def to_text(self) -> dict[str, str]:
        """The little-endian bytes of each array, compressed by zlib, in base64."""
        return {
            ref: base64.b64encode(zlib.compress(_little(array))).decode() for ref, array in sorted(self._items.items())
        }

    @classmethod
    def from_text(
        cls, items: Mapping[str, Any], entries: Iterator[Mapping[str, Any]], limits: Limits = DEFAULT_LIMITS
    ) -> Arrays:
        """The arrays of `to_text`, of which `entries` say how large they are.

        Raises FoldMapError where the text is not what an entry says, or the arrays are larger than `limits`.
        """
        arrays, total = cls(), 0
        for entry in entries:
            try:
                dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
                size = prod(shape) * dtype.itemsize
                if size < 0:
                    raise ValueError(f"{entry['ref']} has {size} bytes")
                known = arrays._items.get(entry["ref"])
                if known is not None and known.nbytes == size:
                    continue
                total += size
                _check_size(total, limits)
                data = zlib.decompressobj().decompress(base64.b64decode(items[entry["ref"]], validate=True), size + 1)
                if len(data) != size:
                    raise ValueError(f"{entry['ref']} does not have the shape {shape}")
                arrays._items[entry["ref"]] = np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape)
            except (KeyError, TypeError, ValueError, zlib.error) as error:
                raise FoldMapError(f"an array of the fold map cannot be read: {clipped(str(error))}") from None
        return arrays


def entries_of(document: object) -> Iterator[Entry]:
    """Every entry for an array in a document."""
    stack = [document]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if item.keys() == {"dtype", "shape", "ref"}:
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
