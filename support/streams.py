"""Standard streams of a process: messages that may be lost, and output that may not."""

from __future__ import annotations

import io
import sys
from contextlib import suppress

from .files import writing


class Messages(io.TextIOWrapper):
    """A stream for messages: a failed write is ignored."""

    def write(self, text: str) -> int:
        """Write `text`, and return its length even if that fails."""
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Write the buffer, as far as that is possible."""
        with suppress(OSError):
            super().flush()


class Output(io.TextIOWrapper):
    """A stream for results: a failed write raises EmitError, a closed pipe BrokenPipeError."""

    def write(self, text: str) -> int:
        """Write `text`. Raises EmitError."""
        with writing("standard output"):
            return super().write(text)

    def flush(self) -> None:
        """Write the buffer. Raises EmitError."""
        with writing("standard output"):
            super().flush()


def install_streams() -> None:
    """Make `sys.stderr` a `Messages` and `sys.stdout` an `Output`."""
    for name, kind in (("stderr", Messages), ("stdout", Output)):
        old = getattr(sys, name)
        if isinstance(old, io.TextIOWrapper):
            new = kind(
                old.buffer,
                old.encoding,
                old.errors,
                line_buffering=old.line_buffering or kind is Messages,
                write_through=old.write_through,
            )
            setattr(sys, name, new)
