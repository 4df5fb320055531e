"""Make text from a model safe to show on a page."""

from __future__ import annotations

MAX_TEXT = 1_000
"""Characters of a text that are kept."""

_SPANS = (
    (0, 0x1F),
    (0x7F, 0x9F),
    (0x61C, 0x61C),
    (0x200E, 0x200F),
    (0x2028, 0x202E),
    (0x2066, 0x2069),
)
INVISIBLE = {code: f"\\u{{{code:x}}}" for first, last in _SPANS for code in range(first, last + 1)}
"""Escapes of invisible characters and of those that reorder the text around them."""


def short(text: str, limit: int = MAX_TEXT) -> str:
    r"""Return `text`, cut after `limit` characters, INVISIBLE ones as escapes: `\u{202e}`."""
    return (text if len(text) <= limit else f"{text[:limit]}…").translate(INVISIBLE)
