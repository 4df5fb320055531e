"""Models to files: large tensors go from file to file, or are computed on the way."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError, EncodeError
from xxhash import xxh3_128

from ...codec.external_data import external_location, external_part
from ...codec.protos import ModelProto, TensorProto
from ...codec.streaming import extract_payloads, insert_payloads, payload_of
from ...codec.tensors import ELEMENT_FIELDS, OnnxTensor, raw_elements
from ...codec.traversal import all_graphs, external_tensors
from ...ir.payload import Block, FilePart, Payload, SourceFile, raw
from ...ir.tensor import ArrayTensor, ScaledTensor
from ...support.errors import EmitError, ModelError
from ...support.files import FileTransaction, replacing, writing
from ...support.record import record
from .external_output import DIGITS, place_external_data, point_to_temporary

MAX_FILE = (1 << 31) - 1
"""Bytes of the largest message that protobuf reads."""

ALIGNMENT = 4096
"""Tensors in a file of external data start at multiples of this, so that they can be mapped."""

LEAST = 1024
"""Bytes of a tensor in memory from which it goes to external data where that is asked for, as in onnx.save."""

Pieces = list[bytes | Payload]
Through = Callable[[Payload], Iterator[Block]]
"""Yields the blocks of a payload on their way to a file, and may look at them."""
Check = Callable[[ModelProto, Path], None]
"""Takes a model as it was written, and the folder of its external data, and raises where it must not be there."""


def save_model(
    model: ModelProto,
    path: str | Path,
    base_dir: Path,
    files: FileTransaction | None = None,
    through: Through | None = None,
    check: Check | None = None,
    *,
    external_data: bool = False,
) -> None:
    """Write `model`, whose external data stands below `base_dir`, to a file, which is complete or not there; `-` is
    standard output. With `files`, it is there when those are closed.

    External data stays where it is, or goes beside the model. Where some of it was folded, and where the model would
    be larger than protobuf's 2 GiB, all large tensors go to a file of external data that is named after the model and
    its own content, and in place before the model; with `external_data` all initializers of 1 KiB and more do. `check`
    is given what stands in the file, or is about to go to standard output, before any of it is there.

    Raises EmitError where a file cannot be written or the model cannot stand in it; ModelError where a file of the
    source does not have its elements any more; what `check` raises.
    """
    if str(path) == "-":
        if external_data:
            raise EmitError("standard output: external data needs a file that it can stand beside")
        with writing("standard output"):
            _stream(sys.stdout.buffer, _pieces(model, "standard output"), through, check, base_dir)
            sys.stdout.buffer.flush()
        return
    if files is None:
        with FileTransaction(path) as own:
            save_model(model, path, base_dir, own, through, check, external_data=external_data)
        return
    path = Path(path)
    new = _NewData(path, files)
    target = files.enter_context(replacing(path))
    pieces = [] if external_data else insert_payloads(_serialized(model, str(path)))
    external = list(external_tensors(model))
    if external_data or _size(pieces) > MAX_FILE or any(map(_is_folded_external, pieces)):
        model = _with_data_file(model, path, base_dir, files, through, in_memory=external_data)
        pieces, through = _pieces(model, str(path)), None
        external = list(external_tensors(model))
    elif external:
        model = place_external_data(model, base_dir, path, files)
        pieces = _pieces(model, str(path))
        external = list(external_tensors(model))
    with writing(path), target.open("wb") as stream:
        if target == path:
            _stream(stream, pieces, through, check, path.parent)
        else:
            _write(stream, pieces, through)
    if check is not None and target != path:
        written = _parsed(target.read_bytes(), path)
        point_to_temporary(written, path.parent, files)
        check(written, path.parent)
    new.read = set(map(external_location, external))
    files.push(new.look)


def _stream(stream: BinaryIO, pieces: Pieces, through: Through | None, check: Check | None, folder: Path) -> None:
    """Write to what cannot be read back: what is checked is made first, all of it."""
    blocks = _raw_blocks(pieces, through)
    if check is not None:
        data = b"".join(blocks)
        check(_parsed(data, stream.name), folder)
        blocks = iter([data])
    for block in blocks:
        stream.write(block)


def _raw_blocks(pieces: Pieces, through: Through | None) -> Iterator[Any]:
    for piece in pieces:
        yield from [piece] if isinstance(piece, bytes) else map(raw, (through or _blocks)(piece))


def _parsed(data: bytes, name: object) -> ModelProto:
    try:
        return ModelProto.FromString(data)
    except DecodeError:
        raise EmitError(f"{name}: what was written is no model") from None


def _pieces(model: ModelProto, name: str) -> Pieces:
    """Raises EmitError where they are more than one file can hold."""
    pieces = insert_payloads(_serialized(model, name))
    if _size(pieces) > MAX_FILE:
        raise EmitError(f"{name}: the model is larger than the 2 GiB that one ONNX file can hold")
    return pieces


def _serialized(model: ModelProto, name: str) -> bytes:
    try:
        return model.SerializeToString(deterministic=True)
    except EncodeError:
        raise EmitError(f"{name}: the model is larger than the 2 GiB that one ONNX file can hold") from None


def _size(pieces: Pieces) -> int:
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)


def _is_folded_external(piece: bytes | Payload) -> bool:
    """Whether a payload was made from external data."""
    if not isinstance(piece, ScaledTensor):
        return False
    base = piece.base
    while isinstance(base, ScaledTensor):
        base = base.base
    return isinstance(base, OnnxTensor) and base.proto.data_location == TensorProto.EXTERNAL


def _blocks(payload: Payload) -> Iterator[Block]:
    return payload.blocks()


def _write(stream: BinaryIO, pieces: Sequence[bytes | Payload], through: Through | None) -> None:
    if len(pieces) == 1 and isinstance(pieces[0], bytes):
        stream.write(pieces[0])
        return
    from .background_writer import BackgroundWriter

    with BackgroundWriter(stream) as background:
        for piece in pieces:
            if isinstance(piece, bytes):
                background.write(piece)
            elif through is None and isinstance(piece, FilePart):
                background.drain()
                _copy(piece, stream)
            else:
                for block in (through or _blocks)(piece):
                    background.write(raw(block))


def _copy(part: FilePart, stream: BinaryIO) -> None:
    """Let the system copy, which need not move the bytes at all; where it cannot, do it."""
    stream.flush()
    done = 0
    try:
        while hasattr(os, "copy_file_range") and done < part.nbytes:
            count = os.copy_file_range(part.file.fileno(), stream.fileno(), part.nbytes - done, part.offset + done)
            if not count:
                break
            done += count
    except OSError:  # other file systems, other systems
        pass
    for block in FilePart(part.file, part.offset + done, part.nbytes - done).blocks():
        stream.write(raw(block))


@record
class _Placed:
    """A tensor and its place in a file of external data."""

    tensor: TensorProto
    payload: Payload
    offset: int


def _with_data_file(
    model: ModelProto, path: Path, base_dir: Path, files: FileTransaction, through: Through | None, *, in_memory: bool
) -> ModelProto:
    """`model` with its large tensors, or only those `in_memory` too, in a file of external data beside `path`, which is
    written if there are any.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    placed: list[_Placed] = []
    end = 0
    for tensor, payload in _movable(copy, base_dir, in_memory=in_memory):
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        placed.append(_Placed(tensor, payload, offset))
        end = offset + payload.nbytes
    if not placed:
        return copy
    hasher = xxh3_128(repr([(each.offset, each.payload.nbytes) for each in placed]).encode())
    file = files.add(path)  # a temporary file by the model's name: its next compile finds it

    def hashed(payload: Payload) -> Iterator[Block]:
        for block in (through or _blocks)(payload):
            hasher.update(raw(block))
            yield block

    with writing(path.with_name(f"{path.name}.data")), file.temporary.open("wb") as stream:
        _write(stream, _laid_out(placed), hashed)
    file.path = path.with_name(f"{path.name}.{hasher.hexdigest()[:DIGITS]}.data")
    for each in placed:
        for field in ELEMENT_FIELDS:
            each.tensor.ClearField(field)
        each.tensor.data_location = TensorProto.EXTERNAL
        values = {"location": file.path.name, "offset": each.offset, "length": each.payload.nbytes}
        for key, value in values.items():
            each.tensor.external_data.add(key=key, value=str(value))
    return copy


def _laid_out(placed: Iterable[_Placed]) -> Pieces:
    """The payloads in their order, each moved by zeros to its offset."""
    pieces: Pieces = []
    end = 0
    for each in placed:
        pieces += (bytes(each.offset - end), each.payload)
        end = each.offset + each.payload.nbytes
    return pieces


def _movable(model: ModelProto, base_dir: Path, *, in_memory: bool) -> Iterator[tuple[TensorProto, Payload]]:
    """The external tensors, and the initializers that only have placeholders, with their elements; those `in_memory`
    too, if they are not few.
    """
    for tensor in external_tensors(model):
        yield tensor, external_part(tensor, base_dir)
    for graph in all_graphs(model):
        for tensor in graph.initializer:
            if (found := payload_of(tensor.raw_data)) is not None:
                yield tensor, found
            elif in_memory and tensor.data_location != TensorProto.EXTERNAL:
                with suppress(ValueError):  # strings, and what does not fit its shape, stay
                    elements = np.frombuffer(raw_elements(tensor, base_dir), np.uint8)
                    if len(elements) >= LEAST:
                        yield tensor, ArrayTensor(elements)


class _NewData:
    """Files of external data that are named after the model at `path` and their own content, while it is replaced.

    Where the old model stays, new ones go; if the process is ended, the next one does it. What the old model read
    stays: copies of that model may read it, too.
    """

    def __init__(self, path: Path, files: FileTransaction) -> None:
        """To be made before the model is entered in `files`: what is entered first is left last."""
        self.read: set[str] = set()
        """What the new model reads."""
        self._path = path
        self._lock = files.locks[path]
        self._name = re.compile(re.escape(path.name) + rf"\.[0-9a-f]{{{DIGITS}}}\.[^/\0]+")
        self._new: set[str] = set()
        self._doubtful: set[str] = set()
        files.push(self._forget)

    def look(self, kind: type[BaseException] | None, *_: object) -> None:
        """See what is there. To be called when everything is written, and nothing in place."""
        if kind is not None:
            return
        with writing(self._path):
            there = set(filter(self._name.fullmatch, _listed(self._path.parent)))
            self._new = set(filter(self._name.fullmatch, self.read)) - there
            if there:
                old = self._read_now()
                left = set(self._lock.read_journal()) if old is not None else set()
                self._doubtful = (left - (old or set())) & there
            self._doubtful |= self._new
            self._lock.write_journal(sorted(self._doubtful))

    def _forget(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._doubtful:
            return
        read = self.read if kind is None else self._read_now()
        with suppress(OSError):  # the next one will see to it
            for name in self._new if read is None else self._doubtful - read:
                self._path.with_name(name).unlink(missing_ok=True)
            self._lock.write_journal(())

    def _read_now(self) -> set[str] | None:
        """What the model that is there reads; None where there is none."""
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
