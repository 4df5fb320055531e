"""Readers of model formats: each makes an `irc.ir.Module`. `load` chooses by the file's name."""

from __future__ import annotations

from pathlib import Path

from ..ir.module import Module
from ..support.limits import DEFAULT_LIMITS, Limits


def load(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> Module:
    """Read `path` into a module: IR text where the name ends in `.irc`, an ONNX model else; `-` is standard input.

    Raises ModelError where the file cannot be read, is no model or one larger than `limits`, ParseError where IR
    text does not parse.
    """
    if str(path).endswith(".irc"):
        from .text import load_text

        return load_text(path, limits)
    from .onnx import load as load_onnx

    return load_onnx(path, limits)


__all__ = ["load"]
