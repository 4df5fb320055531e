"""Generation of names that are not taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class NamePool:
    """A set of taken names, and a source of free ones. Amortized O(1) for each name."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._suffixes: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """Take and return the first free name of `hint`, `hint.1`, `hint.2`, ..."""
        name, taken = hint, self._taken
        if hint in taken:
            suffix = self._suffixes.get(hint, 0) + 1
            while (name := f"{hint}.{suffix}") in taken:
                suffix += 1
            self._suffixes[hint] = suffix
        taken.add(name)
        return name


class NodeNames:
    """The names of nodes with counts, and unique names for nodes that passes make or change."""

    def __init__(self, names: Iterable[str]) -> None:
        self._counts = Counter(names)
        self._pool = NamePool(["", *self._counts])

    def is_unique(self, name: str) -> bool:
        """Return whether exactly one node has the name."""
        return bool(name) and self._counts[name] == 1

    def unique(self, name: str, hint: str) -> str:
        """Return `name` if one node alone has it, else a fresh name of it or of `hint`."""
        return name if self.is_unique(name) else self._pool.fresh(name or hint)
