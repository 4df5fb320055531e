"""Exports of a package that are imported when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of `package`.

    `homes` lists the names that each submodule defines; the submodules themselves stand under the
    empty name.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get_export(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return (
            getattr(import_module(f".{home}", package), name)
            if home
            else import_module(f".{name}", package)
        )

    def list_exports() -> list[str]:
        return sorted(home_of)

    return get_export, list_exports
