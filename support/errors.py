"""The exceptions of irc.

IRError                 everything irc raises on purpose: one clear sentence
├── ModelError          a model file cannot be read, or breaks ONNX's own rules
├── ParseError          IR text does not parse (line, caret, expected token)
├── VerifyError         a module breaks an invariant of the IR, or does not compute the same
│   ├── SourceError     the reference model of a comparison does not run
│   └── InputsError     a file of inputs cannot be read
├── PassError           an unknown pass or option, or a pass that failed
├── EmitError           a module cannot be written as ONNX
└── FoldMapError        a fold map cannot be read or does not fit
"""

from __future__ import annotations

from difflib import get_close_matches

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST_NAME = 200


def clipped(name: object) -> str:
    """Return a name for a message: quoted, on one line, and cut to LONGEST_NAME characters."""
    text = repr(name)
    return (
        text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}... ({len(text)} characters)"
    )


def listed(texts: Iterable[str], most: int) -> str:
    """Return the first texts, `most` of them, separated by commas, and the number of the others."""
    found = list(texts)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the known name most similar to `name`, None if none is as similar as `cutoff`."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean ...?" for the end of a message, empty if no known name is near."""
    near = nearest(name, known)
    return "" if near is None else f"; did you mean {near}?"


def describe_error(error: BaseException) -> str:
    """Return the message for one of the EXPECTED errors, safe for a terminal."""
    if isinstance(error, RecursionError):
        return "the model is nested deeper than can be followed (--max-nesting)"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    has_lines = isinstance(error, ParseError | VerifyError) and not isinstance(error, SourceError)
    return visible(str(error), keep="\n\t" if has_lines else "")


def visible(text: str, keep: str = "") -> str:
    r"""Escape characters of `text` that a terminal could obey.

    These do not print, and become `\u{1b}` and the like. Characters in `keep` stay, and so do
    surrogate escapes, which stand for bytes of file names.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep or "\udc80" <= char <= "\udcff"
        else f"\\u{{{ord(char):x}}}"
        for char in text
    )


class IRError(Exception):
    """Base of all errors that irc raises on purpose."""


class ModelError(IRError):
    """A model file cannot be read, or breaks a rule that ONNX itself makes."""


class ParseError(IRError):
    """IR text does not parse.

    The message holds the place, the offending line, a caret under the column and the expected
    token.
    """


class VerifyError(IRError):
    """A module breaks one or more invariants of the IR; the message has one line for each."""


class SourceError(VerifyError):
    """The reference model itself does not run: the compiled module is not judged."""


class InputsError(VerifyError):
    """A file of inputs cannot be read, or has none: no model is at fault. The message names it."""


class PassError(IRError):
    """A pass failed."""


class UsageError(PassError):
    """A pass or option is unknown, or options contradict each other."""


class EmitError(IRError):
    """A module cannot be expressed as an ONNX model."""


class FoldMapError(IRError):
    """A fold map cannot be read, or does not belong to the model."""


EXPECTED = (IRError, RecursionError, MemoryError, OSError)
"""Errors that a command reports in a sentence.

OSError comes from files beside the model, such as Python's modules.
"""
