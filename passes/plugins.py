"""Passes of other packages: `module:Class`, or entry points of the group `irc.passes`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from ..support.errors import PassError, UsageError
from .catalog import DEFINED, check_name, plugin_passes
from .infra import Pass


def load_own(name: str) -> type[Pass]:
    """Return the class of a user's pass.

    It is given as `module:Class`, `file.py:Class`, an entry point, or an imported class. Raises
    UsageError if there is none, and PassError if its module fails.
    """
    if ":" in name:
        module_name, _, class_name = name.rpartition(":")
        with _seeing_folder():
            return _checked(name, _imported(name, module_name), class_name)
    if name in DEFINED:
        module_name, _, class_name = DEFINED[name].rpartition(":")
        return _checked(name, _imported(name, module_name), class_name)
    point = plugin_passes().get(name)
    if point is None:
        check_name(name)
        raise UsageError(f"there is no pass {name!r}")
    return _checked(name, _imported(name, point.module), point.attr)


def _imported(name: str, module_name: str) -> object:
    """Import a module, or run a file that ends with `.py`."""
    if module_name.endswith(".py"):
        return _run_file(name, Path(module_name))
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"pass {name!r}: there is no module {module_name!r}; install its package, or"
                f" write ./{module_name.replace('.', '/')}.py:Class"
            ) from None
        detail = f"pass {name!r}: module {module_name} needs {error.name!r}, which is not installed"
        raise PassError(detail) from error
    except Exception as error:
        detail = f"pass {name!r}: module {module_name} fails: {type(error).__name__}: {error}"
        raise PassError(detail) from error


@contextmanager
def _seeing_folder() -> Iterator[None]:
    """Let modules of the working folder be imported, after all that are installed."""
    folder = os.getcwd()
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _run_file(name: str, path: Path) -> object:
    """Return the module of a file, which runs once."""
    from importlib.util import module_from_spec, spec_from_file_location

    key = str(path.resolve())
    if key in sys.modules:
        return sys.modules[key]
    if not path.is_file():
        raise UsageError(f"pass {name!r}: there is no file {str(path)!r}")
    spec = spec_from_file_location(key, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[key] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[key]
        detail = f"pass {name!r}: {path} fails: {type(error).__name__}: {error}"
        raise PassError(detail) from error
    return module


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
        f"pass {name!r}: {path} is not a subclass of irc.passes.Pass (it has:"
        f" {', '.join(here) or 'none'})"
    )
