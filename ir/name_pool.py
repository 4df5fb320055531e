"""Generation of names that are not taken."""

from __future__ import annotations

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
