"""A table whose rows are made when they are first looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import TypeVar

Row = TypeVar("Row")


class LazyTable(MutableMapping[str, Row]):
    """The rows of `names`, each made by `make` when it is first looked up.

    `make` may import the module that has the row.
    """

    def __init__(self, names: Iterable[str], make: Callable[[str], Row]) -> None:
        self._names = dict.fromkeys(names)
        self._make = make
        self._rows: dict[str, Row] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Row:
        found = self._rows.get(name)
        if found is None:
            if name not in self._names:
                raise KeyError(name)
            found = self._rows[name] = self._make(name)
        return found

    def __setitem__(self, name: str, row: Row) -> None:
        self._names[name] = None
        self._rows[name] = row

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._rows.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
