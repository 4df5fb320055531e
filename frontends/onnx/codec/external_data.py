"""External data: the files beside a model that contain its large tensors."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ....ir.payload import FilePart, SourceFile
from ....ir.types import element_count
from ....support.errors import ModelError, clipped
from .onnx_types import import_dtype
from .protos import ModelProto, TensorProto
from .traversal import external_tensors

_OWN = r"(?is:\..*\.(?:\d+-\d+\.tmp|lock)|.*\.(?:irc\.onnx|foldmap\.json|foldmap\.npz|html|irc))"
"""Matches names of files that irc writes (`support.files`, `support.output_paths`)."""


def external_location(proto: TensorProto) -> str:
    """Return the location of an external tensor, relative to the folder of the model."""
    return next((entry.value for entry in proto.external_data if entry.key == "location"), "")


def external_path(proto: TensorProto, base_dir: Path) -> Path:
    """Return the file of an external tensor.

    Raises ModelError if it is missing, is not a regular file, or lies outside `base_dir`, the
    folder of the model.
    """
    location = external_location(proto)
    if not isinstance(location, str):  # protobuf gives bytes if a string is not UTF-8
        raise ModelError(f"{_subject(proto)} is not UTF-8 text")
    try:
        path = base_dir / location
        if not is_inside(location, base_dir):
            raise ModelError(f"{_subject(proto)} lies outside the model's folder")
        if re.fullmatch(_OWN, path.name):
            raise ModelError(
                f"{_subject(proto)} has a name that irc gives to its own files: rename it"
            )
        if not path.is_file():
            raise ModelError(
                f"{_subject(proto)} is {'not a regular file' if path.exists() else 'missing'}"
            )
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # RuntimeError: circular links, before Python 3.13
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{_subject(proto)} cannot be read: {why}") from None
    return path


def is_inside(location: str, folder: Path) -> bool:
    """Return whether a location is relative and in `folder`.

    Raises OSError, ValueError, RuntimeError.
    """
    target = Path(os.path.realpath(folder / location))  # a link may lead outside
    if not location or Path(location).is_absolute() or ".." in Path(location).parts:
        return False
    return Path(os.path.realpath(folder)) in target.parents


def is_location_allowed(location: str, folder: Path) -> bool:
    """Return whether `external_path` reads external data at `location` below `folder`."""
    try:
        return is_inside(location, folder) and not re.fullmatch(_OWN, Path(location).name)
    except (OSError, ValueError, RuntimeError):
        return False


def external_part(proto: TensorProto, base_dir: Path) -> FilePart:
    """Return the part of a file that contains an external tensor.

    It is `length` bytes from `offset`, or all from there. Raises ModelError as `external_path`, and
    if the file does not have these bytes.
    """
    path = external_path(proto, base_dir)
    try:
        file = SourceFile.at(path)
    except OSError as error:
        raise ModelError(f"{_subject(proto)} cannot be read: {error.strerror}") from None
    return FilePart(file, *_range(proto, file.size))


def external_parts(model: ModelProto, base_dir: Path) -> list[FilePart]:
    """Return the `external_part` of every external tensor of `model`.

    Raises ModelError as that does.
    """
    return [external_part(tensor, base_dir) for tensor in external_tensors(model)]


def embed_external_data(model: ModelProto, base_dir: Path) -> None:
    """Move the elements of every external tensor into `model`.

    Raises ModelError as `external_part`. O(bytes).
    """
    for tensor in external_tensors(model):
        tensor.raw_data = external_part(tensor, base_dir).read()
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")


def _subject(proto: TensorProto) -> str:
    return f"tensor {clipped(proto.name)}: external data {clipped(external_location(proto))}"


def is_byte_count(text: object) -> bool:
    """Return whether the text of an entry is a number of bytes of at most 19 digits."""
    if not isinstance(text, str):  # protobuf gives bytes if a string is not UTF-8
        return False
    return text.isascii() and text.isdigit() and len(text) < 20


def _range(proto: TensorProto, size: int) -> tuple[int, int]:
    """Return offset and length of an external tensor in a file of `size` bytes.

    Raises ModelError.
    """
    numbers = {"offset": "0"}
    numbers.update(
        (entry.key, entry.value)
        for entry in proto.external_data
        if entry.key in ("offset", "length")
    )
    for key, text in numbers.items():
        if not is_byte_count(text):
            raise ModelError(f"{_subject(proto)}: {key} {clipped(text)} is not a number of bytes")
    offset = int(numbers["offset"])
    length = int(numbers.get("length", max(size - offset, 0)))
    if offset + length > size:
        raise ModelError(
            f"{_subject(proto)} has {size} bytes, and the tensor asks for {length} from {offset} on"
        )
    dtype = import_dtype(proto.data_type)
    wanted = (element_count(proto.dims) * dtype.bits + 7) // 8
    shape = list(proto.dims)[:8]
    if dtype.bits and any(dim < 0 for dim in proto.dims):
        raise ModelError(
            f"{_subject(proto)}: the tensor has the shape {shape}, which no tensor can have"
        )
    if dtype.bits and length != wanted:
        asked = f"its shape {shape} and type ask for {wanted}"
        raise ModelError(f"{_subject(proto)}: the tensor has {length} bytes, and {asked}")
    return offset, length
