"""Services that rooms below ask of rooms above them.

The face of the package says where each is, and the first call imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_homes: dict[str, str] = {}


def provide(homes: Mapping[str, str]) -> None:
    """Say where each service is: `module:name` of the package, by the name of the service."""
    _homes.update(homes)


def provided(name: str) -> Any:
    """Return the service of a name. Its module is imported now."""
    module, _, attribute = _homes[name].partition(":")
    return getattr(import_module(module), attribute)
