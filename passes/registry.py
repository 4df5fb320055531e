"""Look-up of passes by name, and the parser of pipelines written as text: `A,B{x=1},C`."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..support.errors import UsageError
from .catalog import CATALOG, DEFAULT_NAMES, check_name, nearest
from .infra import Pass, Sequential, fields_of

if TYPE_CHECKING:
    DEFAULT_PIPELINE: tuple[type[Pass], ...]
    PASSES: dict[str, type[Pass]]


def __getattr__(name: str) -> object:
    """Import the passes when `PASSES` (all, by name) or `DEFAULT_PIPELINE` (in order) is first read."""
    if name == "PASSES":
        return {each: lookup(each) for each in CATALOG}
    if name == "DEFAULT_PIPELINE":
        return tuple(map(lookup, DEFAULT_NAMES))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_ITEM = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")


def default_pipeline() -> Sequential:
    """Return the default pipeline, with default options."""
    return Sequential(lookup(name)() for name in DEFAULT_NAMES)


def lookup(name: str) -> type[Pass]:
    """Return the class of the pass with this name. Raises UsageError where there is none."""
    check_name(name)
    pass_: type[Pass] = getattr(import_module(f".{CATALOG[name]}", __package__), name)
    return pass_


def parse_pipeline(spec: str) -> Sequential:
    """Parse a pipeline like `A,B{x=1},default`; `default` means the default pipeline, `none` no pass.

    Raises UsageError where the text cannot be parsed, or names an unknown pass or option.
    """
    passes: list[Pass] = []
    position = 0
    while position < len(spec.rstrip()):
        match = _ITEM.match(spec, position)
        if match is None:
            message = f"cannot read the passes from {spec[position:]!r}: expected Name or Name{{option=value,...}}"
            raise UsageError(message)
        name, options = match.groups()
        position = match.end()
        if name == "default" and not options:
            passes.extend(default_pipeline().passes)
        elif name != "none" or options:
            passes.append(_instantiate(lookup(name), options or ""))
    return Sequential(passes)


def _instantiate(pass_: type[Pass], options: str) -> Pass:
    known = {option.name: option for option in fields_of(pass_)}
    values: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in options.split(","))):
        name, _, text = (part.strip() for part in item.partition("="))
        if name not in known:
            have = ", ".join(known) or "it has none"
            raise UsageError(f"{pass_.name} has no option {name!r}{nearest(name, known)} (options: {have})")
        values[name] = _value(pass_, name, text, type(known[name].default))
    return pass_(**values)


def _value(pass_: type[Pass], name: str, text: str, type_: type) -> object:
    if type_ is bool and text in ("true", "false"):
        return text == "true"
    try:
        if type_ is not bool:
            return type_(text)
    except ValueError:
        pass
    raise UsageError(f"{pass_.name}: option {name} takes a value of type {type_.__name__}, not {text!r}")
