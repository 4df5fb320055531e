"""Placeholders for large tensors, which stay in their files.

A reader extracts the tensors from a serialized model, and a writer puts them back.

A placeholder is `raw_data` of 24 bytes. It begins with bytes drawn at random for the process, so no
model can contain one by accident or intent. It names its payload as long as the payload is alive:
the registry holds it weakly. The docstring of `irc.frontends.onnx.codec` describes the whole path
of a large tensor.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_left
from itertools import count

from ....ir.payload import FilePart, Payload, SourceFile, byte_view
from ....support.errors import ModelError
from .protos import ModelProto, TensorProto
from .traversal import all_tensors
from .wire_format import MalformedMessage, field_header, length_delimited_fields

TOKEN = os.urandom(16)
PLACEHOLDER_LENGTH = len(TOKEN) + 8

RAW_DATA = "raw_data"
MESSAGE_FIELDS: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {9: RAW_DATA},
}
"""Fields that may contain a tensor, by message type: number and type (onnx.proto)."""

MAX_DEPTH = 100
"""protobuf refuses messages nested deeper than this."""

_payloads: weakref.WeakValueDictionary[bytes, Payload] = weakref.WeakValueDictionary()
_numbers = count()
_used: list[bool] = []
"""Not empty once a placeholder was made: most models have none, and need no search for them."""


def make_placeholder(payload: Payload) -> bytes:
    """Return `raw_data` that represents `payload`, which the caller has to keep alive."""
    if not _used:
        _used.append(True)
    name = TOKEN + next(_numbers).to_bytes(8, "little")
    _payloads[name] = payload
    return name


def is_placeholder(raw_data: bytes) -> bool:
    """Return whether `raw_data` is a placeholder, even one whose payload is gone."""
    return len(raw_data) == PLACEHOLDER_LENGTH and raw_data.startswith(TOKEN)


def placeholders_exist() -> bool:
    """Return whether this process ever made a placeholder."""
    return bool(_used)


def contains_placeholder(data: bytes) -> bool:
    """Return whether a serialized message contains a placeholder."""
    return bool(_used) and TOKEN in data


def payload_of(raw_data: bytes) -> Payload | None:
    """Return the payload that `raw_data` represents, None if it is not a placeholder.

    Raises ModelError if the payload is gone.
    """
    if not _used or not is_placeholder(raw_data):
        return None
    payload = _payloads.get(raw_data)
    if payload is None:
        raise ModelError(
            "the module that these elements belong to is gone: keep it, or save the model first"
        )
    return payload


def extract_payloads(file: SourceFile, threshold: int) -> tuple[bytes, list[FilePart]]:
    """Replace the large tensors in `file` by placeholders; return message and replaced parts.

    Every `raw_data` of at least `threshold` bytes gets a placeholder. Bytes that are not a model
    are returned as they are. Raises ModelError if the file cannot be read. O(fields of the messages
    that contain a payload).
    """
    parts: list[FilePart] = []

    def read(start: int, end: int) -> bytes:
        return file.read(start, end - start)

    def shortened(start: int, end: int, message: str, depth: int) -> bytes | None:
        """Return the message from `start` to `end` with placeholders, None if it gets none."""
        pieces: list[bytes] = []
        done = start
        fields = MESSAGE_FIELDS[message]
        for number, field, content, stop in length_delimited_fields(read, start, end):
            kind = fields.get(number) if stop - content >= threshold else None
            if kind is None:
                continue
            if kind == RAW_DATA:
                parts.append(FilePart(file, content, stop - content))
                short: bytes | None = make_placeholder(parts[-1])
            else:
                short = shortened(content, stop, kind, depth + 1) if depth < MAX_DEPTH else None
            if short is not None:
                pieces += (read(done, field), field_header(number, len(short)), short)
                done = stop
        return b"".join((*pieces, read(done, end))) if pieces else None

    try:
        short = shortened(0, file.size, "ModelProto", 0)
    except MalformedMessage:
        short = None
    return (file.read(0, file.size), []) if short is None else (short, parts)


def insert_payloads(data: bytes) -> list[bytes | Payload]:
    """Return the pieces of a serialized model, with payloads in place of placeholders.

    The lengths of the messages around a payload are corrected. Raises ModelError if a payload is
    gone.
    """
    offsets: list[int] = []
    offset = data.find(TOKEN) if _used else -1
    while offset >= 0:
        offsets.append(offset)
        offset = data.find(TOKEN, offset + PLACEHOLDER_LENGTH)
    if not offsets:
        return [data]

    def completed(start: int, end: int, message: str) -> tuple[list[bytes | Payload], int]:
        """Return the pieces of the message from `start` to `end`, and the sum of their lengths."""
        pieces: list[bytes | Payload] = []
        done, size = start, 0
        fields = MESSAGE_FIELDS[message]
        for number, field, content, stop in length_delimited_fields(
            lambda i, j: data[i:j], start, end
        ):
            kind = fields.get(number)
            first = bisect_left(offsets, content) if kind is not None else len(offsets)
            if kind is None or first == len(offsets) or offsets[first] >= stop:
                continue
            if kind == RAW_DATA:
                payload = payload_of(data[content:stop])
                assert payload is not None
                inner: list[bytes | Payload] = [payload]
                length = payload.nbytes
            else:
                inner, length = completed(content, stop, kind)
            before = data[done:field] + field_header(number, length)
            pieces += (before, *inner)
            size += len(before) + length
            done = stop
        pieces.append(data[done:end])
        return pieces, size + end - done

    return completed(0, len(data), "ModelProto")[0]


def materialize(model: ModelProto) -> ModelProto:
    """Return `model` with all elements in it: a copy, or itself if it has no placeholder. O(bytes).

    Raises ModelError if a payload is gone, or its file no longer contains it.
    """
    if not _used:
        return model
    if all(payload_of(tensor.raw_data) is None for tensor in all_tensors(model, any_kind=True)):
        return model
    complete = ModelProto()
    complete.CopyFrom(model)
    materialize_in_place(complete)
    return complete


def materialize_in_place(model: ModelProto) -> None:
    """Replace every placeholder in `model` by the elements. Raises ModelError as `materialize`."""
    for tensor in all_tensors(model, any_kind=True) if _used else ():
        materialize_tensor(tensor)


def materialize_tensor(tensor: TensorProto) -> None:
    """Replace the placeholder in `tensor`, if there is one, by the elements.

    Raises ModelError as `materialize`.
    """
    payload = payload_of(tensor.raw_data) if _used else None
    if payload is not None:
        tensor.raw_data = b"".join(map(byte_view, payload.blocks()))
