"""Names that nothing in a model has."""

from __future__ import annotations

from collections.abc import Collection


def numbered(name: str, taken: Collection[str]) -> str:
    """Return the first of `name`, `name_2`, `name_3`, ... that is not taken."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def underscored(name: str, taken: Collection[str]) -> str:
    """Return the first of `name`, `name_`, `name__`, ... that is not taken."""
    while name in taken:
        name += "_"
    return name
