"""The head of a certificate: its format, and the digests by which it names models and content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the Python of onnx takes long to import, and a compile needs none of it
    from onnx import ModelProto

FORMAT = "irc-certificate"

VERSION = 1
"""The version of a certificate with all steps of the proof."""

RECORDED = 2
"""The version of one with the records of a compile, for which `irc certify` finds the steps."""

MARK = "irc.compiled"
"""The key in the metadata of a model that bears irc's mark, which a certificate does not see."""


def digest_of_model(model: ModelProto) -> str:
    """Return the SHA-256 of a model without irc's mark, external data included."""
    others = [entry for entry in model.metadata_props if entry.key != MARK]
    if len(others) < len(model.metadata_props):
        bare = type(model)()
        bare.CopyFrom(model)
        del bare.metadata_props[:]
        bare.metadata_props.extend(others)
        model = bare
    return sha256(model.SerializeToString(deterministic=True)).hexdigest()


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
