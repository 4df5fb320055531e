"""ONNX's protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet


def copy_fields(source: Message, target: Message, leave: Iterable[str]) -> None:
    """Copy every field of `source` that is set, but those in `leave`; fields newer than this program are kept."""
    left = set(leave)
    if len(UnknownFieldSet(source)):
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
