"""Files of external data that irc writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from xxhash import xxh3_128

from ...frontends.onnx.codec.external_data import external_part
from ...frontends.onnx.codec.protos import ModelProto, TensorProto
from ...frontends.onnx.codec.streaming import payload_of
from ...frontends.onnx.codec.tensors import ELEMENT_FIELDS, raw_elements
from ...frontends.onnx.codec.traversal import all_graphs, external_tensors
from ...ir.payload import Block, Payload, byte_view
from ...ir.record import Record
from ...ir.tensor import ArrayTensor
from ...support.files import FileTransaction, writing
from .data_file_cleanup import DIGITS
from .output_stream import Tap, read_blocks, write_pieces

ALIGNMENT = 4096
"""Tensors in external data start at multiples of this, so that they can be mapped into memory."""

MIN_EXTERNAL_BYTES = 1024
"""Smaller tensors stay in the message when external data is asked for, as with `onnx.save`."""


class _Allocation(Record):
    """A tensor and its offset in a file of external data."""

    tensor: TensorProto
    payload: Payload
    offset: int


def with_data_file(
    model: ModelProto,
    path: Path,
    base_dir: Path,
    files: FileTransaction,
    tap: Tap | None,
    *,
    in_memory: bool,
) -> ModelProto:
    """Return a copy of `model` whose large tensors are in one new file beside `path`.

    They are the external tensors and the initializers that a placeholder represents, with
    `in_memory` also the other initializers of 1 KiB and more. The file is entered in `files`; its
    name ends in the digest of its content. No file is written if there is no such tensor.
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
    # a temporary file named after the model: its next compile removes it if need be
    file = files.add(path)

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


def _movable_tensors(
    model: ModelProto, base_dir: Path, *, in_memory: bool
) -> Iterator[tuple[TensorProto, Payload]]:
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
    """Return the elements of a tensor in a message, None if they cannot or need not be external."""
    try:
        elements = raw_elements(tensor, base_dir)
    except ValueError:  # strings, or elements that do not fit the shape
        return None
    if len(elements) < MIN_EXTERNAL_BYTES:
        return None
    return ArrayTensor(np.frombuffer(elements, np.uint8))
