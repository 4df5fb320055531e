"""Records and values: cheap dataclasses, for kinds of objects of which a model has thousands.

A dataclass imports `inspect` and compiles every method that it is given, which takes a tenth of a
small compile. So the classes here share their methods, and only the constructor is compiled for
each.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, dataclass_transform, overload

T = TypeVar("T")
D = TypeVar("D")


class Factory(Generic[D]):
    """A default that is made anew for each record."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], D]) -> None:
        self.make: Final = make


def field(*, default_factory: Callable[[], D]) -> D:
    """Declare `default_factory()` as the default of a field: a new list, dict or set for each
    record.
    """
    return Factory(default_factory)  # type: ignore[return-value]


@overload
def record(cls: type[T]) -> type[T]: ...


@overload
def record(*, slots: bool = ..., frozen: bool = ...) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def record(
    cls: type[T] | None = None, *, slots: bool = True, frozen: bool = True
) -> type[T] | Callable[[type[T]], type[T]]:
    """Give `cls` a constructor, `__match_args__` and a repr, as a dataclass has them. It is
    compared by identity.

    With `slots` its objects have these fields and no others. It is frozen for type checkers if
    `frozen`, not at run time: its construction would take four times as long.
    """

    def make(declared: type[T]) -> type[T]:
        return _declare(declared, slots=slots, assign="self.{0} = {0}")

    return make if cls is None else make(cls)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make `cls` a record that is frozen, compared by the values of its fields, and can
    be a key.
    """
    made: Any = _declare(cls, slots=True, assign="_set_{0}(self, {0})")
    names = made.__match_args__
    contents: Callable[[Any], Any] = attrgetter(*names) if names else type

    def equals(self: object, other: object) -> bool:
        return contents(self) == contents(other) if other.__class__ is made else NotImplemented

    made.__eq__, made.__hash__ = equals, lambda self: hash(contents(self))
    made.__setattr__ = made.__delattr__ = _refuse
    made.__reduce__ = lambda self: (made, tuple(getattr(self, name) for name in names))
    return made  # type: ignore[no-any-return]


def replaced(item: T, **changes: Any) -> T:
    """Return a copy of `item` with other values in some fields."""
    return type(item)(**contents_of(item) | changes)


def contents_of(item: object) -> dict[str, Any]:
    """Return the fields of a record or value, in order, by name."""
    names: tuple[str, ...] = type(item).__match_args__  # type: ignore[attr-defined]
    return {name: getattr(item, name) for name in names}


def _declare(cls: type[T], *, slots: bool, assign: str) -> type[T]:
    """Return `cls` with the methods of a record, as a new class if it has `slots`.

    `assign` sets a field.
    """
    body = vars(cls)
    own = [
        name
        for name, kind in body.get("__annotations__", {}).items()
        if not kind.startswith("ClassVar")
    ]
    inherited = [name for base in cls.__bases__ for name in getattr(base, "__match_args__", ())]
    defaults = {
        name: default
        for base in cls.__bases__
        for name, default in getattr(base, "_defaults", {}).items()
    }
    for name in own:
        defaults.pop(name, None)
    defaults |= {name: body[name] for name in own if name in body}
    shared = {"__match_args__": tuple(dict.fromkeys(inherited + own)), "_defaults": defaults}
    made: Any = cls
    metaclass: Any = type(cls)
    if slots:
        kept = {
            key: item
            for key, item in body.items()
            if key not in own and key not in ("__dict__", "__weakref__")
        }
        kept["__slots__"] = tuple(name for name in own if name not in inherited)
        made = metaclass(cls.__name__, cls.__bases__, kept | shared)
        made.__qualname__ = cls.__qualname__
    else:
        for key, item in shared.items():
            setattr(made, key, item)
    made.__init__ = _constructor(made, assign)
    if "__repr__" not in body:
        made.__repr__ = _repr
    return made  # type: ignore[no-any-return]


def _constructor(made: type, assign: str) -> Callable[..., None]:
    """Compile the constructor of `made`, whose fields `assign` sets."""
    names, defaults = made.__match_args__, made._defaults  # type: ignore[attr-defined]
    known = {f"_default_{name}": default for name, default in defaults.items()}
    if "_set_" in assign:
        known |= {f"_set_{name}": getattr(made, name).__set__ for name in names}
    parameters = [f"{name}=_default_{name}" if name in defaults else name for name in names]
    lines = [
        f"if {name} is _default_{name}: {name} = _default_{name}.make()"
        for name, default in defaults.items()
        if isinstance(default, Factory)
    ]
    lines += [assign.format(name) for name in names] or ["pass"]
    made_by: dict[str, Any] = {}
    exec(f"def __init__(self, {', '.join(parameters)}):\n " + "\n ".join(lines), known, made_by)
    return made_by["__init__"]  # type: ignore[no-any-return]


def _refuse(self: object, name: str, *_: object) -> None:
    raise AttributeError(f"{type(self).__name__} is frozen: its field {name!r} cannot be changed")


def _repr(self: Any) -> str:
    contents = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__name__}({contents})"
