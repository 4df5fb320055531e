"""Files of external data that irc writes, and the removal of those that no model needs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from xxhash import xxh3_128

from ...codec.external_data import external_location, external_part
from ...codec.protos import ModelProto, TensorProto
from ...codec.streaming import extract_payloads, payload_of
from ...codec.tensors import ELEMENT_FIELDS, raw_elements
from ...codec.traversal import all_graphs, external_tensors
from ...ir.payload import Block, Payload, SourceFile, byte_view
from ...ir.tensor import ArrayTensor
from ...support.errors import ModelError
from ...support.files import FileTransaction, writing
from ...support.record import record
from .external_output import DIGITS
from .output_stream import Tap, read_blocks, write_pieces

ALIGNMENT = 4096
"""Tensors in a file of external data start at multiples of this, so that they can be mapped into memory."""

MIN_EXTERNAL_BYTES = 1024
"""Smaller tensors stay in the message when external data is asked for, as with `onnx.save`."""


@record
class _Allocation:
    """A tensor and its offset in a file of external data."""

    tensor: TensorProto
    payload: Payload
    offset: int


def with_data_file(
    model: ModelProto, path: Path, base_dir: Path, files: FileTransaction, tap: Tap | None, *, in_memory: bool
) -> ModelProto:
    """Return a copy of `model` whose large tensors are in one new file of external data beside `path`.

    They are the external tensors and the initializers that a placeholder represents, with `in_memory` also the other
    initializers of 1 KiB and more. The file is entered in `files`; its name ends in the digest of its content. No file
    is written if there is no such tensor.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    allocations: list[_Allocation] = []
    end = 0
    for tensor, payload in _movable_tensors(copy, base_dir, in_memory=in_memory):
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        allocations.append(_Allocation(tensor, payload, offset))
        end = offset + payload.nbytes
    if not allocations:
        return copy
    hasher = xxh3_128(repr([(each.offset, each.payload.nbytes) for each in allocations]).encode())
    file = files.add(path)  # a temporary file named after the model, so that its next compile removes it if need be

    def hashed(payload: Payload) -> Iterator[Block]:
        for block in (tap or read_blocks)(payload):
            hasher.update(byte_view(block))
            yield block

    with writing(path.with_name(f"{path.name}.data")), file.temporary.open("wb") as stream:
        write_pieces(stream, _padded(allocations), hashed)
    file.path = path.with_name(f"{path.name}.{hasher.hexdigest()[:DIGITS]}.data")
    for each in allocations:
        for field in ELEMENT_FIELDS:
            each.tensor.ClearField(field)
        each.tensor.data_location = TensorProto.EXTERNAL
        values = {"location": file.path.name, "offset": each.offset, "length": each.payload.nbytes}
        for key, value in values.items():
            each.tensor.external_data.add(key=key, value=str(value))
    return copy


def _padded(allocations: Sequence[_Allocation]) -> list[bytes | Payload]:
    """Return the payloads in order, with zeros before each up to its offset."""
    pieces: list[bytes | Payload] = []
    end = 0
    for each in allocations:
        pieces += (bytes(each.offset - end), each.payload)
        end = each.offset + each.payload.nbytes
    return pieces


def _movable_tensors(model: ModelProto, base_dir: Path, *, in_memory: bool) -> Iterator[tuple[TensorProto, Payload]]:
    """Yield the tensors that `with_data_file` moves, with their elements."""
    for tensor in external_tensors(model):
        yield tensor, external_part(tensor, base_dir)
    for graph in all_graphs(model):
        for tensor in graph.initializer:
            payload = payload_of(tensor.raw_data)
            if payload is None and in_memory and tensor.data_location != TensorProto.EXTERNAL:
                payload = _large_elements(tensor, base_dir)
            if payload is not None:
                yield tensor, payload


def _large_elements(tensor: TensorProto, base_dir: Path) -> Payload | None:
    """Return the elements of a tensor in a message, None if they are small or cannot be external data."""
    try:
        elements = raw_elements(tensor, base_dir)
    except ValueError:  # strings, or elements that do not fit the shape
        return None
    return ArrayTensor(np.frombuffer(elements, np.uint8)) if len(elements) >= MIN_EXTERNAL_BYTES else None


class DataFileCleanup:
    """The removal of new files of external data whose model does not come into place.

    Such a file is named after the model and its own content. If the process is killed, the next compile to the same
    path removes it. Files that the old model reads stay, because copies of that model may read them, too.
    """

    def __init__(self, path: Path, files: FileTransaction) -> None:
        """Watch `path`. Create before the model enters `files`: exits run in reverse, and `_remove` must run last."""
        self.read: set[str] = set()
        """The locations that the new model reads."""
        self._path = path
        self._lock = files.locks[path]
        self._new: set[str] = set()
        self._candidates: set[str] = set()
        files.push(self._remove)

    def _is_ours(self, name: str) -> bool:
        """Return whether `name` is one that a compile to the path gives to a file of external data."""
        prefix = f"{self._path.name}."
        rest = name[len(prefix) :]
        return name.startswith(prefix) and re.fullmatch(rf"[0-9a-f]{{{DIGITS}}}\.[^/\0]+", rest) is not None

    def record(self, kind: type[BaseException] | None, *_: object) -> None:
        """Note which files are new. Call when everything is written, and nothing is in place."""
        if kind is not None:
            return
        with writing(self._path):
            existing = set(filter(self._is_ours, _listed(self._path.parent)))
            self._new = set(filter(self._is_ours, self.read)) - existing
            if existing:
                old = self._locations_in_place()
                noted = set(self._lock.read_journal()) if old is not None else set()
                self._candidates = (noted - (old or set())) & existing
            self._candidates |= self._new
            self._lock.write_journal(sorted(self._candidates))

    def _remove(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._candidates:
            return
        read = self.read if kind is None else self._locations_in_place()
        with suppress(OSError):  # the next compile tries again
            for name in self._new if read is None else self._candidates - read:
                self._path.with_name(name).unlink(missing_ok=True)
            self._lock.write_journal(())

    def _locations_in_place(self) -> set[str] | None:
        """Return the locations that the model at `path` reads now, None if there is no model."""
        try:
            if not self._path.is_file():
                return None
            data, _parts = extract_payloads(SourceFile(self._path), 1 << 10)
            return set(map(external_location, external_tensors(ModelProto.FromString(data))))
        except (OSError, ModelError, DecodeError):
            return None


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
