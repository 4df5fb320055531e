"""The elements of a tensor as raw bytes, and digests of files."""

from __future__ import annotations

from pathlib import Path

from xxhash import xxh3_128

from ..ir.payload import FilePart, SourceFile, raw
from .protos import TensorProto
from .tensors import OnnxTensor, elsewhere

ELEMENTS = (
    *("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data"),
    "external_data",
)
"""The fields of a tensor that hold its elements, or where they are."""


def raw_elements(proto: TensorProto, base_dir: Path) -> bytes:
    """Return the elements of a tensor as ONNX's raw data, whichever field or file they stand in.

    Raises ModelError where a file cannot be read, ValueError for strings and elements that do not fit their shape.
    """
    found = elsewhere(proto, base_dir)
    if found is not None:
        return b"".join(map(raw, found.blocks()))
    if proto.HasField("raw_data"):
        return proto.raw_data
    if proto.data_type == TensorProto.STRING:
        raise ValueError("strings have no raw data")
    from onnx import numpy_helper

    return numpy_helper.from_array(OnnxTensor(proto, base_dir).numpy()).raw_data


def file_digest(path: Path) -> str:
    """Return the digest of a file as fold maps write it. Raises OSError where it cannot be read."""
    file, hasher = SourceFile(path), xxh3_128()
    for block in FilePart(file, 0, file.size).blocks():
        hasher.update(raw(block))
    return f"xxh128:{hasher.hexdigest()}"
