"""Records and values: cheap dataclasses, for kinds of objects of which a model has thousands.

A dataclass compiles every method that it is given, which takes most of the time of a small compile. So the classes here
share their methods, and only the constructor is made for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def record(cls: type[T]) -> type[T]: ...


@overload
def record(*, slots: bool = ..., frozen: bool = ...) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, eq_default=False)
def record(
    cls: type[T] | None = None, *, slots: bool = True, frozen: bool = True
) -> type[T] | Callable[[type[T]], type[T]]:
    """Make `cls` a dataclass that is compared by identity, and frozen for type checkers if `frozen`.

    It is not frozen at run time: its construction would take four times as long.
    """

    def make(made: type[T]) -> type[T]:
        made.__repr__ = _repr  # type: ignore[method-assign]
        return dataclass(slots=slots, eq=False, repr=False)(made)

    return make if cls is None else make(cls)


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Make `cls` a dataclass that is frozen, compared by the values of its fields, and can be a key."""
    made: Any = dataclass(frozen=True, slots=True, eq=False, repr=False)(cls)
    names = [field.name for field in fields(made)]
    contents: Callable[[Any], Any] = attrgetter(*names) if names else type

    def equals(self: object, other: object) -> bool:
        return contents(self) == contents(other) if other.__class__ is made else NotImplemented

    made.__eq__, made.__hash__, made.__repr__ = equals, lambda self: hash(contents(self)), _repr
    return made  # type: ignore[no-any-return]


def _repr(self: Any) -> str:
    contents = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
    return f"{type(self).__name__}({contents})"


def replaced(item: T, **changes: Any) -> T:
    """Return a copy of `item` with other values in some fields."""
    return replace(item, **changes)  # type: ignore[type-var]
