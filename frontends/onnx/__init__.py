"""The ONNX frontend: `load` and `from_model`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from google.protobuf.message import DecodeError

from ...codec.external_data import external_part, external_parts
from ...codec.protos import ModelProto
from ...codec.streaming import extract_payloads
from ...codec.traversal import external_tensors
from ...ir.module import Module
from ...ir.payload import FilePart, SourceFile
from ...support.errors import ModelError
from ...support.limits import DEFAULT_LIMITS, Limits
from .importer import import_model

LARGE_FILE = 32 << 20
"""Files from so many bytes on are not read whole."""

LARGE_PAYLOAD = 1 << 13
"""In a large file, tensors from so many bytes on are read when they are needed."""


def load(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> Module:
    """Import the ONNX file at `path`; `-` reads standard input, with external data below the working folder.

    Of a large file the large tensors are left where they are: it stays open as long as the module lives. Raises
    ModelError where the file cannot be read, holds no ONNX model, or one that is larger than `limits`.
    """
    with _naming(path):
        model, parts = _read(path)
        parts += external_parts(model, Path(path).parent)
        module = import_model(model, Path(path).parent, limits)
    module.payloads.extend(parts)
    return module


def read_model(path: str | Path) -> tuple[ModelProto, Path]:
    """The ModelProto at `path`, or on standard input for `-`, and the folder of its external data, which stay there.

    Raises ModelError where a file cannot be read, is no ONNX model, or lies outside that folder.
    """
    with _naming(path):
        model, _ = _read(path, whole=True)
        external_parts(model, Path(path).parent)
    return model, Path(path).parent


def from_model(model: ModelProto, base_dir: str | Path = ".", limits: Limits = DEFAULT_LIMITS) -> Module:
    """Import a ModelProto, which must not be changed while the module lives; external data stands below `base_dir`.

    Raises ModelError where the model breaks ONNX's rules for graphs, or is larger than `limits`.
    """
    module = import_model(model, Path(base_dir), limits)
    for tensor in external_tensors(model):
        with suppress(ModelError):  # who reads the elements is told
            module.payloads.append(external_part(tensor, Path(base_dir)))
    return module


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Say in errors which file they are about."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        yield
    except ModelError as error:
        raise error if str(error).startswith(f"{name}: ") else ModelError(f"{name}: {error}") from None


def _read(path: str | Path, *, whole: bool = False) -> tuple[ModelProto, list[FilePart]]:
    """The message at `path`, and the parts of the file that placeholders in it stand for: none with `whole`."""
    if str(path) == "-":
        return _parsed(sys.stdin.buffer.read()), []
    place = Path(path)
    parts: list[FilePart] = []
    try:
        if not place.is_file():  # what is no regular file can be read once, from its beginning to its end
            return _parsed(place.read_bytes()), []
        file = SourceFile.at(place)
    except FileNotFoundError:
        raise ModelError("there is no such file") from None
    except IsADirectoryError:
        raise ModelError("this is a folder, not an ONNX file") from None
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}") from None
    if whole or file.size < LARGE_FILE:
        data = file.read(0, file.size)
    else:
        data, parts = extract_payloads(file, LARGE_PAYLOAD)
    file.check_unchanged()
    return _parsed(data), parts


def _parsed(data: bytes) -> ModelProto:
    if not data:
        raise ModelError("the file is empty")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        if "MaxDepth" in str(error):
            raise ModelError("its messages stand in each other deeper than the 100 that protobuf reads") from None
        raise ModelError("this is not an ONNX model, or it is truncated") from None
    return model


__all__ = ["from_model", "load", "read_model"]
