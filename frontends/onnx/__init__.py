"""The ONNX frontend: `load` and `from_model`."""

from __future__ import annotations

import sys
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto

from ...ir.errors import ModelError
from ...ir.graph import Module
from ...ir.limits import DEFAULT_LIMITS, Limits
from .external import check_external_data
from .importer import import_model


def load(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> Module:
    """Import the ONNX file at `path`; `-` reads standard input, with external data below the working folder.

    Raises ModelError where the file cannot be read, holds no ONNX model, or one that is larger than `limits`.
    """
    model, base_dir = read_model(path)
    try:
        return import_model(model, base_dir, limits)
    except ModelError as error:
        raise ModelError(f"{_label(path)}: {error}") from None


def read_model(path: str | Path) -> tuple[ModelProto, Path]:
    """The ModelProto at `path`, or on standard input for `-`, and the folder of its external data, which stay there.

    Raises ModelError where a file cannot be read, is no ONNX model, or lies outside that folder.
    """
    file, name = Path(path), _label(path)
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else file.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ModelError(f"{path}: this is a folder, not an ONNX file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    model, base_dir = _parse(data, name), file.parent
    try:
        check_external_data(model, base_dir)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from None
    return model, base_dir


def from_model(model: ModelProto, base_dir: str | Path = ".", limits: Limits = DEFAULT_LIMITS) -> Module:
    """Import a ModelProto, which must not be changed while the module lives; external data stands below `base_dir`.

    Raises ModelError where the model breaks ONNX's rules for graphs, or is larger than `limits`.
    """
    return import_model(model, Path(base_dir), limits)


def _label(path: str | Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def _parse(data: bytes, name: str) -> ModelProto:
    if not data:
        raise ModelError(f"{name}: the file is empty")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        if "MaxDepth" in str(error):
            raise ModelError(
                f"{name}: its messages stand in each other deeper than the 100 that protobuf reads"
            ) from None
        raise ModelError(f"{name}: this is not an ONNX model, or it is truncated") from None
    return model


__all__ = ["from_model", "load", "read_model"]
