"""The subcommands of `irc`, a module each: `add` describes its arguments, `run` does it and returns the exit status.

A module is imported when it is asked for, and imports what it needs when it runs: start-up is what small models take.
"""

from __future__ import annotations

import argparse
from importlib import import_module

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Protocol

    from .options import Subparsers

    class Command(Protocol):
        """A module of this folder."""

        def add(self, commands: Subparsers[argparse.ArgumentParser]) -> None:
            """Describe the arguments."""

        def run(self, options: argparse.Namespace) -> int:
            """Do it; the exit status."""


COMMANDS = ("compile", "report", "dump", "diff", "align", "bisect", "foldmap", "unfold", "passes")
"""In the order in which the help lists them."""


def command(name: str) -> Command:
    """The module of one of COMMANDS."""
    return import_module(f"{__name__}.{name}")
