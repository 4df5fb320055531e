"""What rooms below ask of rooms above them: the face of the package says where it is, and the first
call imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_homes: dict[str, str] = {}


def provide(homes: Mapping[str, str]) -> None:
    """Say where what is asked for is: `module:name` of the package, by the name under which it is
    asked for.
    """
    _homes.update(homes)


def provided(name: str) -> Any:
    """Return what is provided under a name. Its module is imported now."""
    module, _, attribute = _homes[name].partition(":")
    return getattr(import_module(module), attribute)
