"""ONNX's protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from .protos import ModelProto

METADATA_KEY = "irc.fold_map"
"""Key of a model's metadata under which its fold map may stand."""


def copy_fields(source: Message, target: Message, leave: Iterable[str]) -> None:
    """Copy every field of `source` that is set, but those in `leave`; fields newer than this program are kept, and so
    are strings that are no UTF-8, of which protobuf gives bytes.
    """
    left = set(leave)
    if len(UnknownFieldSet(source)) or any(
        field.type == field.TYPE_STRING and isinstance(value, bytes) for field, value in source.ListFields()
    ):
        target.CopyFrom(source)
        for name in left:
            target.ClearField(name)
        return
    for descriptor, value in source.ListFields():
        if descriptor.name in left:
            continue
        if descriptor.type != descriptor.TYPE_MESSAGE and not isinstance(value, int | float | str | bytes):
            getattr(target, descriptor.name).extend(value)
        elif descriptor.type != descriptor.TYPE_MESSAGE:
            setattr(target, descriptor.name, value)
        elif isinstance(value, Message):
            getattr(target, descriptor.name).CopyFrom(value)
        else:
            getattr(target, descriptor.name).extend(value)


def forget_fold_map(model: ModelProto) -> None:
    """A fold map in the metadata is that of the model it was made for."""
    others = [entry for entry in model.metadata_props if entry.key != METADATA_KEY]
    if len(others) < len(model.metadata_props):
        del model.metadata_props[:]
        model.metadata_props.extend(others)
