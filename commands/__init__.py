"""The subcommands of `irc`, a module each: `add` describes its arguments, `run` does it and returns the exit status.

A module imports what it needs when it runs, so that `irc --help` imports nothing heavy.
"""

from __future__ import annotations

import argparse

from . import align, bisect, compile, diff, dump, foldmap, passes, report, unfold  # noqa: A004
from .options import Subparsers

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Protocol

    class Command(Protocol):
        """A module of this folder."""

        def add(self, commands: Subparsers[argparse.ArgumentParser]) -> None:
            """Describe the arguments."""

        def run(self, options: argparse.Namespace) -> int:
            """Do it; the exit status."""


COMMANDS: dict[str, Command] = {
    "compile": compile,
    "report": report,
    "dump": dump,
    "diff": diff,
    "align": align,
    "bisect": bisect,
    "foldmap": foldmap,
    "unfold": unfold,
    "passes": passes,
}
"""By name, in the order in which the help lists them."""
