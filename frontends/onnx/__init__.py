"""The ONNX reader: `load` and `from_model` return modules, `read_model` a ModelProto."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ...ir.module import Module
from ...ir.payload import FilePart, SourceFile
from ...support.errors import ModelError
from ...support.limits import DEFAULT_LIMITS, Limits
from .codec.external_data import external_part, external_parts
from .codec.protos import ModelProto
from .codec.streaming import extract_payloads
from .codec.traversal import external_tensors
from .foreign_files import HEAD, describe_file, describe_folder
from .importer import import_model
from .input_shapes import complete_declarations, fix_model

if TYPE_CHECKING:
    from .input_preprocessing import Preprocess
    from .input_shapes import InputShapes

LARGE_FILE = 32 << 20
"""Files of at least this many bytes are not read as a whole."""

LARGE_PAYLOAD = 1 << 13
"""In a large file, tensors of at least this many bytes are read on demand."""


def load(
    path: str | Path,
    limits: Limits = DEFAULT_LIMITS,
    input_shapes: InputShapes | None = None,
    preprocess: Preprocess | None = None,
) -> Module:
    """Import the ONNX file at `path`, or standard input for `-`.

    External data of standard input is below the working folder. The inputs get the extents of
    `input_shapes`, and then the operators of `preprocess`.

    The large tensors of a large file are not read; the file stays open as long as the module lives.
    Raises ModelError if the file cannot be read, is not an ONNX model, or exceeds `limits`.
    """
    with _with_file_name(path):
        model, parts = _read(path)
        if input_shapes:
            fix_model(model, input_shapes)
        inserted = _inserted(model, preprocess)
        parts += external_parts(model, Path(path).parent)
        module = import_model(model, Path(path).parent, limits)
    module.inserted = inserted
    if input_shapes:
        complete_declarations(module)
    module.payloads.extend(parts)
    return module


def read_model(path: str | Path) -> tuple[ModelProto, Path]:
    """Return the ModelProto at `path`, and the folder of its external data.

    `-` is standard input. External data is checked, not read. Raises ModelError if a file cannot be
    read or is not an ONNX model, or if external data is missing or outside that folder.
    """
    with _with_file_name(path):
        model, _ = _read(path, whole=True)
        external_parts(model, Path(path).parent)
    return model, Path(path).parent


def from_model(
    model: ModelProto,
    base_dir: str | Path = ".",
    limits: Limits = DEFAULT_LIMITS,
    input_shapes: InputShapes | None = None,
    preprocess: Preprocess | None = None,
) -> Module:
    """Import a ModelProto; its external data is below `base_dir`.

    The message must not be changed while the module lives. With `input_shapes` a copy of it is
    imported, whose inputs have these extents; with `preprocess` one with these operators. Raises
    ModelError if the model breaks ONNX's rules for graphs, or exceeds `limits`.
    """
    if input_shapes or preprocess:
        source, model = model, ModelProto()
        model.CopyFrom(source)
    if input_shapes:
        fix_model(model, input_shapes)
    inserted = _inserted(model, preprocess)
    module = import_model(model, Path(base_dir), limits)
    module.inserted = inserted
    if input_shapes:
        complete_declarations(module)
    for tensor in external_tensors(model):
        with suppress(ModelError):  # raised when the elements are read
            module.payloads.append(external_part(tensor, Path(base_dir)))
    return module


def _inserted(model: ModelProto, preprocess: Preprocess | None) -> frozenset[str]:
    """Insert the operators of `preprocess`, and return the names of their nodes."""
    if not preprocess:
        return frozenset()
    from .input_preprocessing import insert_preprocessing  # no other compile needs it

    return insert_preprocessing(model, preprocess)


@contextmanager
def _with_file_name(path: str | Path) -> Iterator[None]:
    """Put the name of the file before the message of a ModelError."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        yield
    except ModelError as error:
        raise (
            error if str(error).startswith(f"{name}: ") else ModelError(f"{name}: {error}")
        ) from None


def _read(path: str | Path, *, whole: bool = False) -> tuple[ModelProto, list[FilePart]]:
    """Return the message at `path`, and the parts of the file for which it has placeholders.

    With `whole` it has no placeholders.
    """
    if str(path) == "-":
        return _parsed(sys.stdin.buffer.read(), path), []
    file_path = Path(path)
    parts: list[FilePart] = []
    try:
        if not file_path.is_file():  # a pipe or device: it can be read once, from beginning to end
            return _parsed(file_path.read_bytes(), path), []
        file = SourceFile.at(file_path)
    except FileNotFoundError:
        raise ModelError("there is no such file") from None
    except IsADirectoryError:
        found = describe_folder(file_path)
        if found is None:
            has_models = next(file_path.glob("*.onnx"), None) is not None
            found = "a folder, not an ONNX file" + f": give {path}/*.onnx" * has_models
        raise ModelError(f"this is {found}") from None
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}") from None
    if whole or file.size < LARGE_FILE:
        data = file.read(0, file.size)
    else:
        data, parts = extract_payloads(file, LARGE_PAYLOAD)
    file.check_unchanged()
    return _parsed(data, path), parts


def _parsed(data: bytes, path: str | Path) -> ModelProto:
    if not data:
        raise ModelError("the file is empty")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        if "MaxDepth" in str(error):
            raise ModelError(
                "its messages are nested deeper than the 100 levels that protobuf reads"
            ) from None
        found = _described(data, path)
        raise ModelError(f"this is {found or 'not an ONNX model, or it is truncated'}") from None
    if not model.HasField("graph") and (found := _described(data, path)) is not None:
        raise ModelError(f"this is {found}")
    return model


def _described(data: bytes, path: str | Path) -> str | None:
    """Return the format of a file that is not an ONNX model, None if it is unknown."""
    return describe_file(data[:HEAD], path)


__all__ = ["from_model", "load", "read_model"]
