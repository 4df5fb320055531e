"""Large `raw_data` taken out of a serialized model, and put back, without decoding what stands around it.

A message is a sequence of fields, each a varint (number << 3 | wire type) with its value behind it; wire type 2 is a
varint of the length, then that many bytes (protobuf's encoding guide). The payloads of a large model are a few fields
of wire type 2, some levels down; the rest is small, and is left to protobuf.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from ..ir.payload import FilePart, Payload, SourceFile
from .placeholders import LENGTH, TOKEN, any_held, held, placeholder

RAW = "raw_data"
CHILDREN: dict[str, dict[int, str]] = {
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
    "TensorProto": {9: RAW},
}
"""By message the fields that may hold a tensor, and what they are (onnx.proto)."""

MAX_DEPTH = 100
"""Messages nested deeper are refused by protobuf itself."""

_WINDOW = 1 << 16


class _Malformed(Exception):
    """The bytes are no message: protobuf has to say so."""


class _File:
    """The bytes of a file, by window."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file

    def window(self, start: int, end: int) -> bytes:
        return self.file.read(start, min(end - start, _WINDOW))

    def read(self, start: int, end: int) -> bytes:
        return self.file.read(start, end - start)


class _Memory:
    """The bytes of a string."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def window(self, start: int, end: int) -> bytes:
        return self.data[start : min(end, start + _WINDOW)]

    def read(self, start: int, end: int) -> bytes:
        return self.data[start:end]


def cut(file: SourceFile, threshold: int) -> tuple[bytes, list[FilePart]]:
    """The serialized model in `file` with placeholders for every raw_data of at least `threshold` bytes, and those.

    Raises ModelError where the file cannot be read. O(fields on the way to a payload).
    """
    parts: list[FilePart] = []
    source = _File(file)

    def shortened(start: int, end: int, kind: str, depth: int) -> bytes | None:
        """The message from `start` to `end` without its payloads, None where it has none."""
        pieces: list[bytes] = []
        done = start
        children = CHILDREN[kind]
        for number, head, body, stop in _fields(source, start, end):
            child = children.get(number) if stop - body >= threshold else None
            if child is None:
                continue
            if child == RAW:
                parts.append(FilePart(file, body, stop - body))
                inner: bytes | None = placeholder(parts[-1])
            else:
                inner = shortened(body, stop, child, depth + 1) if depth < MAX_DEPTH else None
            if inner is not None:
                pieces += (source.read(done, head), _key(number), _varint(len(inner)), inner)
                done = stop
        return None if done == start else b"".join((*pieces, source.read(done, end)))

    try:
        found = shortened(0, file.size, "ModelProto", 0)
    except _Malformed:
        found = None
    return (file.read(0, file.size), []) if found is None else (found, parts)


def splice(data: bytes, kind: str = "ModelProto") -> list[bytes | Payload]:
    """The pieces of a serialized message in which every placeholder in `data` is replaced by what it stands for."""
    places: list[int] = []
    at = data.find(TOKEN) if any_held() else -1
    while at >= 0:
        places.append(at)
        at = data.find(TOKEN, at + LENGTH)
    if not places:
        return [data]
    source = _Memory(data)

    def whole(start: int, end: int, kind: str) -> tuple[list[bytes | Payload], int]:
        """The pieces of the message from `start` to `end`, and how many bytes they have together."""
        pieces: list[bytes | Payload] = []
        done, size = start, 0
        children = CHILDREN[kind]
        for number, head, body, stop in _fields(source, start, end):
            child = children.get(number)
            first = bisect_left(places, body) if child is not None else len(places)
            if child is None or first == len(places) or places[first] >= stop:
                continue
            if child == RAW:
                payload = held(data[body:stop])
                assert payload is not None
                inner: list[bytes | Payload] = [payload]
                length = payload.nbytes
            else:
                inner, length = whole(body, stop, child)
            before = data[done:head] + _key(number) + _varint(length)
            pieces += (before, *inner)
            size += len(before) + length
            done = stop
        pieces.append(data[done:end])
        return pieces, size + end - done

    return whole(0, len(data), kind)[0]


def _fields(source: _File | _Memory, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, start, start of the content and end of every field of wire type 2 in the message from `start` to `end`.

    Raises _Malformed where it is no message.
    """
    position = base = start
    window = b""
    while position < end:
        if position - base + 20 > len(window) and base + len(window) < end:
            base, window = position, source.window(position, end)
        head = position
        try:
            i = head - base
            key = window[i]
            i += 1
            if key > 127:
                key, i = _read_varint(window, i - 1, 5)
            wire = key & 7
            if wire == 2:
                length = window[i]
                i += 1
                if length > 127:
                    length, i = _read_varint(window, i - 1, 5)
                position = base + i + length
                if position > end:
                    raise _Malformed
                yield key >> 3, head, base + i, position
            elif wire == 0:
                position = base + _read_varint(window, i, 10)[1]
            elif wire in (1, 5):
                position = base + i + (8 if wire == 1 else 4)
            else:
                raise _Malformed
        except IndexError:
            raise _Malformed from None
    if position != end:
        raise _Malformed


def _read_varint(data: bytes, i: int, most: int) -> tuple[int, int]:
    """The varint at `i` of at most so many bytes, as protobuf reads them, and the index behind it."""
    value = 0
    for shift in range(0, 7 * most, 7):
        byte = data[i]
        i += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if most == 5 and value >> 32:
                raise _Malformed
            return value, i
    raise _Malformed


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _key(number: int) -> bytes:
    return _varint(number << 3 | 2)
