"""Saving a model. Large tensors are copied from file to file, or computed on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from google.protobuf.message import DecodeError, EncodeError

from ...frontends.onnx.codec.external_data import external_location
from ...frontends.onnx.codec.protos import ModelProto, TensorProto
from ...frontends.onnx.codec.streaming import insert_payloads
from ...frontends.onnx.codec.tensors import OnnxTensor
from ...frontends.onnx.codec.traversal import external_tensors
from ...ir.payload import Payload, byte_view
from ...ir.tensor import ScaledTensor
from ...support.errors import EmitError
from ...support.files import FileTransaction, replacing, writing
from .data_file import with_data_file
from .data_file_cleanup import DataFileCleanup
from .external_output import place_external_data, point_to_temporary
from .output_stream import Pieces, Tap, read_blocks, write_pieces

MAX_FILE = (1 << 31) - 1
"""Bytes of the largest message that protobuf reads."""

Check = Callable[[ModelProto, Path], None]
"""Raises if a model must not come into place.

It gets the model as it was written, and the folder of its external data.
"""


def save_model(
    model: ModelProto,
    path: str | Path,
    base_dir: Path,
    files: FileTransaction | None = None,
    tap: Tap | None = None,
    check: Check | None = None,
    *,
    external_data: bool = False,
) -> None:
    """Write `model` to a file; `-` is standard output.

    Its external data is below `base_dir`. The file is complete or does not appear. With `files` it
    comes into place when those are closed. `tap` yields the blocks of every large tensor. `check`
    gets the model as it was written, before it comes into place.

    External data stays where it is, or is copied beside the model. One new file of external data,
    named after the model and its own content, takes all large tensors if some of the external data
    was folded, or if the model would exceed protobuf's 2 GiB. With `external_data` it takes all
    initializers of 1 KiB and more.

    Raises EmitError if a file cannot be written or the model does not fit into it, ModelError if a
    file of the source no longer has its elements, and every error of `check`.
    """
    if str(path) == "-":
        if external_data:
            raise EmitError(
                "standard output: external data needs a model file to be beside: give a path"
                " with -o"
            )
        with writing("standard output"):
            _write_checked(
                sys.stdout.buffer, _pieces(model, "standard output"), tap, check, base_dir
            )
            sys.stdout.buffer.flush()
        return
    if files is None:
        with FileTransaction(path) as own:
            _save_file(model, Path(path), base_dir, own, tap, check, external_data=external_data)
    else:
        _save_file(model, Path(path), base_dir, files, tap, check, external_data=external_data)


def _save_file(
    model: ModelProto,
    path: Path,
    base_dir: Path,
    files: FileTransaction,
    tap: Tap | None,
    check: Check | None,
    *,
    external_data: bool,
) -> None:
    cleanup = DataFileCleanup(path, files)
    target = files.enter_context(replacing(path))
    pieces = [] if external_data else insert_payloads(_serialized(model, str(path)))
    if external_data or _size(pieces) > MAX_FILE or any(map(_is_folded_external, pieces)):
        model = with_data_file(model, path, base_dir, files, tap, in_memory=external_data)
        pieces, tap = _pieces(model, str(path)), None
        external = list(external_tensors(model))
    elif external := list(external_tensors(model)):
        model = place_external_data(model, base_dir, path, files)
        pieces = _pieces(model, str(path))
        external = list(external_tensors(model))
    with writing(path), target.open("wb") as stream:
        if target == path:  # a device or a pipe
            _write_checked(stream, pieces, tap, check, path.parent)
        else:
            write_pieces(stream, pieces, tap)
    if check is not None and target != path:
        written = _parsed(target.read_bytes(), path)
        point_to_temporary(written, path.parent, files)
        check(written, path.parent)
    cleanup.read = set(map(external_location, external))
    files.push(cleanup.record)


def _write_checked(
    stream: BinaryIO, pieces: Pieces, tap: Tap | None, check: Check | None, folder: Path
) -> None:
    """Write to a stream that cannot be read back.

    With `check` the whole model is built in memory before.
    """
    blocks = _raw_blocks(pieces, tap)
    if check is not None:
        data = b"".join(blocks)
        check(_parsed(data, stream.name), folder)
        blocks = iter([data])
    for block in blocks:
        stream.write(block)


def _raw_blocks(pieces: Pieces, tap: Tap | None) -> Iterator[Any]:
    for piece in pieces:
        yield from (
            [piece] if isinstance(piece, bytes) else map(byte_view, (tap or read_blocks)(piece))
        )


def _parsed(data: bytes, name: object) -> ModelProto:
    try:
        return ModelProto.FromString(data)
    except DecodeError:
        raise EmitError(f"{name}: the written file is not a model: compile again") from None


def _pieces(model: ModelProto, name: str) -> list[bytes | Payload]:
    """Return the pieces of a serialized model. Raises EmitError if they exceed 2 GiB."""
    pieces = insert_payloads(_serialized(model, name))
    if _size(pieces) > MAX_FILE:
        raise _too_large(name)
    return pieces


def _serialized(model: ModelProto, name: str) -> bytes:
    try:
        return model.SerializeToString(deterministic=True)
    except EncodeError:
        raise _too_large(name) from None


def _too_large(name: str) -> EmitError:
    return EmitError(f"{name}: the model is larger than the 2 GiB that one ONNX file can hold")


def _size(pieces: Pieces) -> int:
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)


def _is_folded_external(piece: bytes | Payload) -> bool:
    """Return whether a payload is computed from external data."""
    if not isinstance(piece, ScaledTensor):
        return False
    base = piece.base
    while isinstance(base, ScaledTensor):
        base = base.base
    return isinstance(base, OnnxTensor) and base.proto.data_location == TensorProto.EXTERNAL
