"""Look-up of passes by name, and the parser of pipelines written as text: `A,B{x=1},C`."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..support.errors import UsageError, did_you_mean
from .catalog import CATALOG
from .infra import Pass, Passes, Repeat, Sequential, fields_of, steps_of
from .pipelines import DEFAULT
from .plugins import load_own

if TYPE_CHECKING:
    DEFAULT_PIPELINE: tuple[Pass, ...]
    PASSES: dict[str, type[Pass]]


def __getattr__(name: str) -> object:
    """Import the passes when `PASSES` or `DEFAULT_PIPELINE` is first read."""
    if name == "PASSES":
        return {each: lookup(each) for each in CATALOG}
    if name == "DEFAULT_PIPELINE":
        return default_pipeline().flat
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_FILE = r"[^\s,:{}()*]+\.py:[A-Za-z_][\w.]*"
_NAME = r"[A-Za-z_][\w.-]*(?::[A-Za-z_][\w.]*)?"
_ITEM = re.compile(rf"\s*({_FILE}|{_NAME})\s*(?:\{{([^{{}}]*)\}})?\s*(?:,|$)")
_REPEAT = re.compile(r"\s*\(([^()]*)\)\s*\*\s*(?:,|$)")


def default_pipeline() -> Sequential:
    """Return the default pipeline."""
    return parse_pipeline(DEFAULT)


def pipeline_of(passes: str | Passes | None) -> Sequential:
    """Return the pipeline of a text, a Sequential or passes; None stands for the default.

    Raises UsageError.
    """
    if passes is None:
        return default_pipeline()
    if not isinstance(passes, str):
        return Sequential(steps_of(passes))
    if not passes.strip():
        raise UsageError("name a pass, `default`, or `none`")
    return parse_pipeline(passes)


def lookup(name: str) -> type[Pass]:
    """Return the class of the pass with this name, or of one of another package.

    Raises UsageError if there is none.
    """
    if name not in CATALOG:
        return load_own(name)
    pass_: type[Pass] = getattr(import_module(f".{CATALOG[name]}", __package__), name)
    return pass_


def parse_pipeline(spec: str) -> Sequential:
    """Parse a pipeline like `A,(B{x=1},C)*,default`.

    A pass of another package is `module:Class{x=1}`, that of a file `./file.py:Class{x=1}`, or the
    name of one of its entry points in the group `irc.passes`. `(...)*` repeats passes until nothing
    changes, `default` means the default pipeline, `none` no pass. Raises UsageError if the text
    cannot be parsed, or names an unknown pass or option.
    """
    passes: list[Pass | Repeat] = []
    position = 0
    while position < len(spec.rstrip()):
        repeat = _REPEAT.match(spec, position)
        if repeat is not None:
            passes.append(Repeat(parse_pipeline(repeat[1]).flat))
            position = repeat.end()
            continue
        match = _ITEM.match(spec, position)
        if match is None:
            forms = "Name, module:Class, file.py:Class or Name{option=value,...}"
            raise UsageError(f"cannot read the passes from {spec[position:]!r}: expected {forms}")
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
            raise UsageError(
                f"{pass_.name} has no option {name!r}{did_you_mean(name, known)} (options: {have})"
            )
        values[name] = _value(pass_, name, text, type(known[name].default))
    try:
        return pass_(**values)
    except TypeError as error:
        detail = f"{pass_.name} cannot be made of {options or 'no options'}: {error}"
        raise UsageError(detail) from None


def _value(pass_: type[Pass], name: str, text: str, type_: type) -> object:
    if type_ is bool and text in ("true", "false"):
        return text == "true"
    try:
        if type_ is not bool:
            return type_(text)
    except ValueError:
        pass
    detail = f"{pass_.name}: option {name} takes a value of type {type_.__name__}, not {text!r}"
    raise UsageError(detail)
