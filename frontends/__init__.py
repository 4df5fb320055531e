"""Readers of model formats, each of which returns an `irc.ir.Module`. `load` chooses one by the name of the file."""

from __future__ import annotations

from pathlib import Path

from ..ir.module import Module
from ..support.limits import DEFAULT_LIMITS, Limits


def load(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> Module:
    """Read `path` into a module: IR text if the name ends in `.irc`, else an ONNX model; `-` is standard input.

    Raises ModelError if the file cannot be read, is not a model, or exceeds `limits`; ParseError if IR text does not
    parse.
    """
    if str(path).endswith(".irc"):
        from .text import load_text

        return load_text(path, limits)
    from .onnx import load as load_onnx

    return load_onnx(path, limits)


__all__ = ["load"]
