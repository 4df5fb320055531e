"""The head of a certificate: its format, and the digests by which it names models and content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from google.protobuf.unknown_fields import UnknownFieldSet

if TYPE_CHECKING:  # the Python of onnx takes long to import, and a compile needs none of it
    from onnx import ModelProto

FORMAT = "irc-certificate"

VERSION = 1
"""The version of a certificate with all steps of the proof."""

RECORDED = 2
"""The version of one with the records of a compile, for which `irc certify` finds the steps."""

LARGE = 1 << 16
"""Least bytes of an item that is written again rather than kept."""

MARK = "irc.compiled"
"""The key in the metadata of a model that bears irc's mark, which a certificate does not see."""


def digest_of_model(model: ModelProto) -> str:
    """Return the SHA-256 of a model as protobuf writes it, without irc's mark.

    Its elements have to be in it. The graph is written item by item: as one message, its weights
    would be copied several times.
    """
    found = sha256()
    for part in _parts(model)[1]:
        found.update(part if isinstance(part, bytes) else _bytes_of(part))
    return found.hexdigest()


def _parts(message: Any) -> tuple[int, list[Any]]:
    """Return how many bytes protobuf writes of a model or graph, and these in parts.

    Large items are parts that are not written yet. irc's mark counts, and is left out.
    """
    size, parts = 0, list[Any]()
    for field, content in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            parts.append(type(message)(**{field.name: content}).SerializeToString())
            size += len(parts[-1])
            continue
        if field.name == "graph":
            length, inner = _parts(content)
            head = _head(field.number, length)
            parts += [head, *inner]
            size += len(head) + length
            continue
        may_be_mark = field.name == "metadata_props" and hasattr(message, "graph")
        for item in [content] if hasattr(content, "ListFields") else content[:]:
            made = _bytes_of(item)
            head = _head(field.number, len(made))
            size += len(head) + len(made)
            if not may_be_mark or item.key != MARK:
                parts += (head, made if len(made) < LARGE else item)
    if len(UnknownFieldSet(message)):  # which protobuf writes last
        parts.append(_bytes_of(message)[size:])
        size += len(parts[-1])
    return size, parts


def _bytes_of(message: Any) -> bytes:
    made: bytes = message.SerializeToString(deterministic=True)
    return made


@lru_cache(maxsize=1 << 10)
def _head(number: int, size: int) -> bytes:
    """Return what protobuf writes before a message: the number of its field, and its size."""
    made = bytearray()
    for each in (number << 3 | 2, size):
        while each > 127:
            made.append(each & 127 | 128)
            each >>= 7
        made.append(each)
    return bytes(made)


def digest_of_content(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the rewrites of a certificate, and of its steps or records."""
    content = [document.get("rewrites"), document.get("steps", document.get("records"))]
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def is_complete(model: ModelProto) -> bool:
    """Return whether a message has all elements of the model: none are in other files."""
    stack: list[Any] = [model]
    while stack:
        message = stack.pop()
        if message.DESCRIPTOR.name == "TensorProto" and message.data_location == message.EXTERNAL:
            return False
        for field, content in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                stack.extend([content] if hasattr(content, "ListFields") else content)
    return True
