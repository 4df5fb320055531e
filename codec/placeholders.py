"""What stands in a message's `raw_data` for elements that are elsewhere: in a file, or not computed yet.

A placeholder starts with bytes drawn at random for the process, so that no model can contain one. It names its payload
as long as somebody holds the payload.
"""

from __future__ import annotations

import os
import weakref
from itertools import count

from ..ir.payload import Payload
from ..support.errors import ModelError

TOKEN = os.urandom(16)
LENGTH = len(TOKEN) + 8

_payloads: weakref.WeakValueDictionary[bytes, Payload] = weakref.WeakValueDictionary()
_numbers = count()
_made: list[int] = []
"""The number of the first placeholder."""


def placeholder(payload: Payload) -> bytes:
    """The bytes that stand for `payload`, which the caller has to hold."""
    number = next(_numbers)
    if not _made:
        _made.append(number)
    name = TOKEN + number.to_bytes(8, "little")
    _payloads[name] = payload
    return name


def held(raw_data: bytes) -> Payload | None:
    """What `raw_data` stands for; None where it is the elements themselves.

    Raises ModelError where nobody holds that any more.
    """
    if not is_placeholder(raw_data):
        return None
    payload = _payloads.get(raw_data)
    if payload is None:
        raise ModelError("the module that these elements belong to is gone: keep it, or save the model first")
    return payload


def is_placeholder(raw_data: bytes) -> bool:
    """Whether `raw_data` stands for something, be it that nobody holds that any more."""
    return len(raw_data) == LENGTH and raw_data.startswith(TOKEN)


def any_held() -> bool:
    """Whether a placeholder was ever made."""
    return bool(_made)


def any_in(data: bytes) -> bool:
    """Whether a placeholder stands in a serialized message."""
    return bool(_made) and TOKEN in data
