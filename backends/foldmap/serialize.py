"""A fold map as JSON: one line for each field of the document, and for each entry of a list."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...support.errors import FoldMapError, clipped
from .arrays import ArrayStore
from .npz import NpzWriter

FORMAT = "irc.fold_map"
VERSION = "3.0"
"""The version of maps with exponents: other readers would take scaled values for those of the
source.
"""

WITH_BRANCHES = "2.0"
"""The version of other maps with branches: readers of version 1 would take their layers for others.
"""

WITHOUT_BRANCHES = "1.2"
"""The version of all other maps."""

STORES = ("npz", "inline")

Fields = Iterable[tuple[str, object]]
"""The fields of a document in order.

A list may be an iterator: it is written entry by entry, never held as a whole.
"""

# runs in C as long as nothing is indented
encode = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


def check_version(data: Mapping[str, Any]) -> None:
    """Raise FoldMapError unless `data` is a fold map of a major version that is known here."""
    if data.get("format") != FORMAT:
        raise FoldMapError("this is not a fold map")
    known = [version.split(".")[0] for version in (WITHOUT_BRANCHES, WITH_BRANCHES, VERSION)]
    if str(data.get("version", "")).split(".")[0] not in known:
        version = clipped(data.get("version"))
        raise FoldMapError(
            f"fold map version {version} is not supported: this irc reads version {VERSION}"
        )


def document_lines(fields: Fields) -> Iterator[str]:
    """Yield the pieces of the JSON text of a document, with a final newline."""
    separator = "{\n"
    for key, value in fields:
        yield f"{separator}{encode(key)}: "
        separator = ",\n"
        if not isinstance(value, list | Iterator):
            yield from _pieces(value)
            continue
        before = "[\n "
        for entry in value:
            yield f"{before}{encode(entry)}"
            before = ",\n "
        yield "\n]" if before[0] == "," else "[]"
    yield "\n}\n"


def _pieces(value: object) -> Iterator[str]:
    """Yield the text that `encode` returns, of a large object some members at a time."""
    members = value.values() if isinstance(value, dict) else ()
    if not isinstance(value, dict) or not any(isinstance(member, dict) for member in members):
        yield encode(value)
        return
    before = "{"
    for key, member in value.items():
        yield f"{before}{encode(key)}: "
        before = ", "
        if not isinstance(member, dict) or len(member) <= TOGETHER:
            yield encode(member)
            continue
        items = list(member.items())
        for i in range(0, len(items), TOGETHER):
            yield ("{" if not i else ", ") + encode(dict(items[i : i + TOGETHER]))[1:-1]
        yield "}"
    yield "}"


TOGETHER = 512
"""Members of an object whose text is in memory at once."""


def with_store(
    fields: Fields, arrays: ArrayStore, npz: NpzWriter | None
) -> Iterator[tuple[str, object]]:
    """Yield `fields`, then `tensor_store`: inline, or `npz`, which gets the members it lacks."""
    yield from fields
    if npz is None:
        yield "tensor_store", {"kind": "inline", "arrays": arrays.to_text()}
    else:
        arrays.write_npz(npz)
        yield "tensor_store", npz.finish()


def write_document(
    path: Path, fields: Fields, arrays: ArrayStore, npz: NpzWriter | None = None
) -> None:
    """Write a document of `fields` to `path`; its `arrays` go into it, or to `npz` if given."""
    with path.open("wb") as stream:
        lines = document_lines(with_store(fields, arrays, npz))
        # the name of a file may hold bytes that are not UTF-8
        stream.writelines(line.encode(errors="backslashreplace") for line in lines)


def check_store(store: str) -> None:
    """Raise FoldMapError unless `store` is one of STORES."""
    if store not in STORES:
        raise FoldMapError(f"unknown array store {store!r}: choose one of {', '.join(STORES)}")
