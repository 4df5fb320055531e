"""The reader of files of IR text."""

from __future__ import annotations

from pathlib import Path

from ..ir.module import Module
from ..ir.text.parser import parse
from ..ir.verifier import verify
from ..support.errors import ModelError, VerifyError
from ..support.limits import DEFAULT_LIMITS, Limits


def load_text(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> Module:
    """Parse the IR text in the file at `path`.

    Raises ModelError if the file cannot be read, exceeds `limits` or is not valid IR, ParseError if it does not parse.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{path}: this is not IR text; the name of an ONNX file must not end with .irc") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    module = parse(text, name=str(path), limits=limits)
    try:
        verify(module)
    except VerifyError as error:
        raise ModelError(f"{path}: {str(error).splitlines()[0]}") from None
    return module
