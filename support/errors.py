"""The exceptions of irc.

IRError                 everything irc raises on purpose: one clear sentence
├── ModelError          a model file cannot be read, or breaks ONNX's own rules
├── ParseError          IR text does not parse (line, caret, what was expected)
├── VerifyError         a module breaks an invariant of the IR, or does not compute the same
│   └── SourceError     what a module is compared with does not run itself
├── PassError           an unknown pass or option, or a pass that failed
├── EmitError           a module cannot be written as ONNX
└── FoldMapError        a fold map cannot be read or does not fit
"""

LONGEST_NAME = 200


def clipped(name: object) -> str:
    """A name as it stands in a sentence: in quotes, on one line, and cut where it is too long to be read."""
    text = repr(name)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}... ({len(text)} characters)"


def describe_error(error: BaseException) -> str:
    """Return the sentence that a user reads of one of the EXPECTED errors; it may go to a terminal."""
    if isinstance(error, RecursionError):
        return "the model is nested deeper than can be followed (--max-nesting)"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    has_lines = isinstance(error, ParseError | VerifyError) and not isinstance(error, SourceError)
    return visible(str(error), keep="\n\t" if has_lines else "")


def visible(text: str, keep: str = "") -> str:
    r"""`text` as it may go to a terminal, which obeys some characters: `\u{1b}` for one that does not print.

    Those in `keep` stay, as do bytes of file names that are no text.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep or "\udc80" <= char <= "\udcff" else f"\\u{{{ord(char):x}}}"
        for char in text
    )


class IRError(Exception):
    """Base of all errors that irc raises on purpose."""


class ModelError(IRError):
    """A model file cannot be read, or breaks a rule that ONNX itself makes."""


class ParseError(IRError):
    """IR text does not parse.

    The message holds the place, the offending line, a caret under the column and what was expected there.
    """


class VerifyError(IRError):
    """A module breaks one or more invariants of the IR; the message has one line for each."""


class SourceError(VerifyError):
    """What a module is compared with does not run itself: nothing is said of the module."""


class PassError(IRError):
    """A pass failed."""


class UsageError(PassError):
    """A pass or option is unknown, or options contradict each other."""


class EmitError(IRError):
    """A module cannot be expressed as an ONNX model."""


class FoldMapError(IRError):
    """A fold map cannot be read, or does not belong to the model."""


EXPECTED = (IRError, RecursionError, MemoryError, OSError)
"""Errors that a command reports in a sentence; an OSError is one of files beside the model, as Python's modules."""
