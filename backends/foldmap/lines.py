"""The lines of a fold map: JSON, one for every entry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring as quoted
from typing import Any

encoded = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode  # without indentation it runs in C


class Lines:
    """The items of a list in a document, as JSON. They are made when they are read, once: a map that is only written
    is never in memory as a whole.
    """

    def __init__(self, items: Iterable[str]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def parsed(self) -> list[Any]:
        """The items themselves."""
        return [json.loads(line) for line in self]


def lines_of(fields: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """A document of these fields as JSON: a line for each, and for each item of a list."""
    separator = "{\n"
    for key, value in fields:
        yield f"{separator}{quoted(key)}: "
        separator = ",\n"
        if not isinstance(value, list | Lines):
            yield encoded(value)
            continue
        between = "[\n "
        for item in value if isinstance(value, Lines) else map(encoded, value):
            yield f"{between}{item}"
            between = ",\n "
        yield "[]" if between[0] == "[" else "\n]"
    yield "\n}\n"


__all__ = ["Lines", "encoded", "lines_of", "quoted"]
