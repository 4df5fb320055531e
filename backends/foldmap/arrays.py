"""The arrays of a fold map: named in the document, and kept beside it or in it, bit for bit."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ...ir.errors import FoldMapError
from ...ir.tensor import Array
from .npz import NpzWriter

DTYPES = {
    name: np.dtype(dtype)
    for name, dtype in (
        *((name, name) for name in ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")),
        ("bfloat16", ml_dtypes.bfloat16),
    )
}
"""Element types of arrays in a fold map."""

MAX_BYTES = 1 << 40
"""No array in a document is larger."""
SPILLED = 1 << 16
"""Arrays of so many bytes do not wait in memory for the others."""
Entry = dict[str, Any]
"""An array in the document: `dtype`, `shape`, and `ref`, its name in the store."""


class Arrays:
    """Arrays by name; what a document refers to by entries. Large ones go to `spill` at once, if there is one."""

    def __init__(self, items: Mapping[str, Array] | None = None, spill: NpzWriter | None = None) -> None:
        self._items: dict[str, Array] = dict(items or {})
        self._spill = spill

    def add(self, ref: str, array: Array) -> Entry:
        """Keep `array`, whose dtype is one of DTYPES, under `ref`; the entry for it."""
        assert array.dtype.name in DTYPES, array.dtype
        if self._spill is not None and array.nbytes >= SPILLED:
            self._spill.add(ref, array)
        else:
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
            raise FoldMapError(f"an array of the fold map cannot be read: {error}") from None
        array.flags.writeable = False
        return array

    def write_npz(self, writer: NpzWriter) -> None:
        """Write all that was not written when it was added, in the order of names."""
        for ref, array in sorted(self._items.items()):
            writer.add(ref, array)

    @classmethod
    def from_npz(cls, path: Path) -> Arrays:
        """Raises FoldMapError where there is no npz file at `path`."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                items = {ref: archive[ref] for ref in archive.files}
        except Exception as error:  # zipfile, its decompressors and numpy's parser have no error in common
            raise FoldMapError(f"the arrays cannot be read: {error}") from None
        if not all(isinstance(array, np.ndarray) for array in items.values()):
            raise FoldMapError("the arrays cannot be read: one of them is no npy file")
        return cls(items)

    def to_text(self) -> dict[str, str]:
        """The little-endian bytes of each array, compressed by zlib, in base64."""
        return {
            ref: base64.b64encode(zlib.compress(_little(array))).decode() for ref, array in sorted(self._items.items())
        }

    @classmethod
    def from_text(cls, items: Mapping[str, Any], entries: Iterator[Mapping[str, Any]]) -> Arrays:
        """The arrays of `to_text`, of which `entries` say how large they are.

        Raises FoldMapError where the text is not what an entry says.
        """
        arrays = cls()
        for entry in entries:
            try:
                dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
                size = prod(shape) * dtype.itemsize
                if not 0 <= size <= MAX_BYTES:
                    raise ValueError(f"{entry['ref']} has {size} bytes")
                data = zlib.decompressobj().decompress(base64.b64decode(items[entry["ref"]], validate=True), size + 1)
                if len(data) != size:
                    raise ValueError(f"{entry['ref']} does not have the shape {shape}")
                arrays._items[entry["ref"]] = np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape)
            except (KeyError, TypeError, ValueError, zlib.error) as error:
                raise FoldMapError(f"an array of the fold map cannot be read: {error}") from None
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


def _little(array: Array) -> bytes:
    if array.dtype.kind in "fiu":
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return array.tobytes()
