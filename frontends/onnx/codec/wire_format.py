"""Scanning serialized protobuf messages without parsing them.

A message is a sequence of fields. Each is a varint (field number << 3 | wire type), then its value.
Wire type 2 is a varint with the length, then that many bytes: strings, bytes and nested messages
(protobuf's encoding guide).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

Read = Callable[[int, int], bytes]
"""Returns the bytes of a message from one offset up to another."""

_WINDOW = 1 << 16
_LONGEST_HEADER = 20
"""Bytes that a key and a varint may take together, and some more."""


class MalformedMessage(Exception):
    """Bytes that are not a protobuf message. protobuf's own parser reports it better."""


def length_delimited_fields(
    read: Read, start: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of wire type 2 in the message from `start` to `end`.

    Each is (field number, offset of the field, offset of its content, offset of its end). Raises
    MalformedMessage.
    """
    position = base = start
    window = b""
    while position < end:
        if position - base + _LONGEST_HEADER > len(window) and base + len(window) < end:
            base, window = position, read(position, min(end, position + _WINDOW))
        field = position
        try:
            key, content, stop = _field(window, position - base)
        except IndexError:
            raise MalformedMessage from None
        position = base + stop
        if position > end:
            raise MalformedMessage
        if key & 7 == 2:
            yield key >> 3, field, base + content, position


def _field(data: bytes, i: int) -> tuple[int, int, int]:
    """Return the key of the field at `i`, the index of its content and the index of its end."""
    key = data[i]
    i += 1
    if key > 127:
        key, i = _read_varint(data, i - 1, 5)
    match key & 7:
        case 2:
            length = data[i]
            i += 1
            if length > 127:
                length, i = _read_varint(data, i - 1, 5)
            return key, i, i + length
        case 0:
            return key, i, _read_varint(data, i, 10)[1]
        case 1:
            return key, i, i + 8
        case 5:
            return key, i, i + 4
    raise MalformedMessage


def _read_varint(data: bytes, i: int, most: int) -> tuple[int, int]:
    """Return the varint at `i` of at most `most` bytes, and the index after it."""
    value = 0
    for shift in range(0, 7 * most, 7):
        byte = data[i]
        i += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if most == 5 and value >> 32:  # protobuf reads keys and lengths as 32 bits
                raise MalformedMessage
            return value, i
    raise MalformedMessage


def field_header(number: int, length: int) -> bytes:
    """Return the key and length of a field of wire type 2."""
    return _varint(number << 3 | 2) + _varint(length)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
