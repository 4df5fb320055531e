"""The lines of a fold map: JSON, one for every entry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring as quoted
from typing import Any

encoded = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode  # without indentation it runs in C


class Lines(list[str]):
    """The items of a list in a document, as JSON: a map that is only written needs not to be in memory as a whole."""

    def parsed(self) -> list[Any]:
        """The items themselves."""
        return [json.loads(line) for line in self]


def lines_of(data: Mapping[str, Any]) -> Iterator[str]:
    """A document as JSON: a line for each of its fields, and for each item of a list."""
    separator = "{\n"
    for key, value in data.items():
        yield f"{separator}{quoted(key)}: "
        separator = ",\n"
        if isinstance(value, list) and value:
            between = "[\n "
            for item in value if isinstance(value, Lines) else map(encoded, value):
                yield f"{between}{item}"
                between = ",\n "
            yield "\n]"
        else:
            yield encoded(value)
    yield "\n}\n"


__all__ = ["Lines", "encoded", "lines_of", "quoted"]
