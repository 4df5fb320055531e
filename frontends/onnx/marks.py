"""What a file is, by the outer fields of its message: a model, or a result of irc."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnx import StringStringEntryProto

from ...ir.payload import SourceFile
from .codec.protos import COMPILED_KEY, ModelProto
from .codec.wire_format import MalformedMessage, length_delimited_fields

GRAPH = ModelProto.GRAPH_FIELD_NUMBER
METADATA = ModelProto.METADATA_PROPS_FIELD_NUMBER


def is_model(path: Path) -> bool:
    """Return whether a file is an ONNX model, as far as its outer fields say.

    Raises OSError, and ModelError if it cannot be read.
    """
    try:
        return any(number == GRAPH for number, _ in _fields(path))
    except MalformedMessage:
        return False


def is_result(path: Path) -> bool:
    """Return whether a file is an ONNX model with the mark of irc's own results.

    Raises OSError, and ModelError if it cannot be read.
    """
    try:
        entries = [content for number, content in _fields(path) if number == METADATA]
        return any(StringStringEntryProto.FromString(each).key == COMPILED_KEY for each in entries)
    except (MalformedMessage, ValueError):  # of which protobuf's errors are
        return False


def _fields(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield graph and metadata of a model: the number of the field, and of metadata the content."""
    file = SourceFile.at(path)

    def read(start: int, end: int) -> bytes:
        return file.read(start, end - start)

    for number, _, content, stop in length_delimited_fields(read, 0, file.size):
        if number in (GRAPH, METADATA):
            yield number, read(content, stop) if number == METADATA else b""
