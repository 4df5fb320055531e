"""Fresh names."""

from __future__ import annotations

from collections.abc import Iterable


class NamePool:
    """Gives out names that were not taken before: a hint itself, or `hint.1`, `hint.2`, ... Amortised O(1)."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._suffixes: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """A name made from `hint` that is free, and taken from now on."""
        name, taken = hint, self._taken
        if hint in taken:
            suffix = self._suffixes.get(hint, 0) + 1
            while (name := f"{hint}.{suffix}") in taken:
                suffix += 1
            self._suffixes[hint] = suffix
        taken.add(name)
        return name
