"""Records: cheap dataclasses, for kinds of objects of which a model has thousands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def record(cls: type[T]) -> type[T]: ...


@overload
def record(*, slots: bool = ...) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, eq_default=False)
def record(cls: type[T] | None = None, *, slots: bool = True) -> type[T] | Callable[[type[T]], type[T]]:
    """Make `cls` a dataclass that is compared by identity and frozen for type checkers.

    It is not frozen at run time: its construction would take four times as long.
    """
    make = dataclass(slots=slots, eq=False)
    return make if cls is None else make(cls)


def replaced(item: T, **changes: Any) -> T:
    """Return a copy of `item` with other values in some fields."""
    return replace(item, **changes)  # type: ignore[type-var]
