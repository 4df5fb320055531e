"""What stands in a message's `raw_data` for elements that are elsewhere: in a file, or not computed yet.

A placeholder starts with bytes drawn at random for the process, so that no model can contain one. It names its payload
as long as somebody holds the payload.
"""

from __future__ import annotations

import os
import weakref
from itertools import count

from ...ir.payload import Payload

TOKEN = os.urandom(16)
LENGTH = len(TOKEN) + 8

_payloads: weakref.WeakValueDictionary[bytes, Payload] = weakref.WeakValueDictionary()
_numbers = count()


def placeholder(payload: Payload) -> bytes:
    """The bytes that stand for `payload`, which the caller has to hold."""
    name = TOKEN + next(_numbers).to_bytes(8, "little")
    _payloads[name] = payload
    return name


def held(raw_data: bytes) -> Payload | None:
    """What `raw_data` stands for; None where it is the elements themselves."""
    return _payloads[raw_data] if len(raw_data) == LENGTH and raw_data.startswith(TOKEN) else None


def any_held() -> bool:
    """Whether there is any placeholder."""
    return bool(_payloads)
