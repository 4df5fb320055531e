"""The protobuf messages of ONNX: the classes of the onnx package.

To read a field of every node or tensor, irc loops over a slice of it, `node.input[:]`: a list, made
at once. A loop over the field itself ends with an IndexError inside protobuf, and takes twice as
long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ....support.errors import ModelError, clipped
from .onnx_parts import onnx_part

if TYPE_CHECKING:
    from onnx import (
        IR_VERSION,
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        OperatorSetIdProto,
        SparseTensorProto,
        TensorProto,
        TypeProto,
        ValueInfoProto,
    )
else:
    _messages = onnx_part("onnx_ml_pb2")

    def __getattr__(name: str) -> object:
        return getattr(_messages, name)


__all__ = [
    "COMPILED_KEY",
    "FOLD_MAP_KEY",
    "IR_VERSION",
    "AttributeProto",
    "FunctionProto",
    "GraphProto",
    "ModelProto",
    "NodeProto",
    "OperatorSetIdProto",
    "SparseTensorProto",
    "TensorProto",
    "TypeProto",
    "ValueInfoProto",
    "copy_fields",
    "is_compiled",
    "mark_compiled",
    "remove_fold_map",
    "require_utf8",
]

FOLD_MAP_KEY = "irc.fold_map"
"""The key of an embedded fold map in the metadata of a model."""

COMPILED_KEY = "irc.compiled"
"""The key of the mark in the metadata of a model that irc changed."""


def require_utf8(name: str, subject: str) -> str:
    """Return `name`, for which protobuf gives bytes if it is not UTF-8. Raises ModelError then."""
    if not isinstance(name, str):
        raise ModelError(f"{subject} is not UTF-8 text: {clipped(name)}")
    return name


def copy_fields(source: Message, target: Message, leave: Iterable[str]) -> None:
    """Copy every field of `source` that is set, except those in `leave`.

    Fields that this version of onnx does not know are kept, and so are strings that are not UTF-8
    (protobuf gives bytes for them, and does not take them).
    """
    left = set(leave)
    has_invalid_text = any(
        field.type == field.TYPE_STRING and isinstance(value, bytes)
        for field, value in source.ListFields()
    )
    if has_invalid_text or len(UnknownFieldSet(source)):
        target.CopyFrom(source)
        for name in left:
            target.ClearField(name)
        return
    for descriptor, value in source.ListFields():
        if descriptor.name in left:
            continue
        if isinstance(value, int | float | str | bytes):
            setattr(target, descriptor.name, value)
        elif isinstance(value, Message):
            getattr(target, descriptor.name).CopyFrom(value)
        else:
            getattr(target, descriptor.name).extend(value)


def remove_fold_map(model: ModelProto) -> None:
    """Remove an embedded fold map, which describes the model as it was when the map was made."""
    others = [entry for entry in model.metadata_props if entry.key != FOLD_MAP_KEY]
    if len(others) < len(model.metadata_props):
        del model.metadata_props[:]
        model.metadata_props.extend(others)


def is_compiled(model: ModelProto) -> bool:
    """Return whether a model bears the mark of irc's own results."""
    return any(entry.key == COMPILED_KEY for entry in model.metadata_props)


def mark_compiled(model: ModelProto) -> None:
    """Put the mark of irc's own results into the metadata.

    It names no version, so that all versions write the same.
    """
    model.metadata_props.add(key=COMPILED_KEY, value="1")
