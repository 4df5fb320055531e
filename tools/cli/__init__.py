"""The subcommands of `irc`, a module each: `add` declares arguments, `run` returns the exit status.

A module is imported when its command runs, and imports the rest of irc inside its functions: most
of the time of a compile of a small model is start-up.
"""

from __future__ import annotations

import argparse
from importlib import import_module

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Protocol

    from .options import Subparsers

    class Command(Protocol):
        """A module of a subcommand."""

        def add(self, commands: Subparsers[argparse.ArgumentParser]) -> None:
            """Add the subcommand with its arguments."""

        def run(self, options: argparse.Namespace) -> int:
            """Run the subcommand and return the exit status."""


COMMANDS = (
    "compile",
    "inspect",
    "check",
    "report",
    "dump",
    "diff",
    "verify",
    "align",
    "bisect",
    "quantize",
    "foldmap",
    "unfold",
    "certify",
    "passes",
    "completion",
)
"""Names of the subcommands, in the order of the help text."""


def command(name: str) -> Command:
    """Return the module of one of COMMANDS."""
    return import_module(f"{__name__}.{name}")
