"""Passes of other packages: `module:Class`, or entry points of the group `irc.passes`."""

from __future__ import annotations

from importlib import import_module

from ..support.errors import PassError, UsageError
from .catalog import DEFINED, check_name, plugin_passes
from .infra import Pass


def load_own(name: str) -> type[Pass]:
    """Return the class of a user's pass: `module:Class`, an entry point, or an imported class.

    Raises UsageError if there is none, and PassError if its module fails.
    """
    if ":" in name:
        module_name, _, class_name = name.partition(":")
        return _checked(name, _imported(name, module_name), class_name)
    if name in DEFINED:
        module_name, _, class_name = DEFINED[name].partition(":")
        return _checked(name, _imported(name, module_name), class_name)
    point = plugin_passes().get(name)
    if point is None:
        check_name(name)
        raise UsageError(f"there is no pass {name!r}")
    return _checked(name, _imported(name, point.module), point.attr)


def _imported(name: str, module_name: str) -> object:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"pass {name!r}: there is no module {module_name!r}; install its package, or set"
                " PYTHONPATH"
            ) from None
        detail = f"pass {name!r}: module {module_name} needs {error.name!r}, which is not installed"
        raise PassError(detail) from error
    except Exception as error:
        detail = f"pass {name!r}: module {module_name} fails: {type(error).__name__}: {error}"
        raise PassError(detail) from error


def _checked(name: str, module: object, path: str) -> type[Pass]:
    found = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Pass):
        return found
    here = sorted(
        key
        for key, item in vars(module).items()
        if isinstance(item, type)
        and issubclass(item, Pass)
        and item.__module__ == getattr(module, "__name__", "")
    )
    raise UsageError(
        f"pass {name!r}: {path} is no subclass of irc.passes.Pass (it has:"
        f" {', '.join(here) or 'none'})"
    )
