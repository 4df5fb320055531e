"""`irc passes`: list the passes and their options."""

from __future__ import annotations

import argparse
import sys

from .options import Subparsers


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    commands.add_parser(
        "passes", help="list the passes and their options", description="List the passes and their options."
    )


def run(options: argparse.Namespace) -> int:
    """Print the default pipeline and all passes."""
    from ..passes.catalog import CATALOG, DEFAULT, describe, format_option

    sys.stdout.write(f"default pipeline: {DEFAULT}\n")
    for name in sorted(CATALOG):
        summary, defaults = describe(name)
        sys.stdout.write(f"\n{name}\n    {summary}\n")
        for option, default in defaults.items():
            sys.stdout.write(f"    {option}={format_option(default)}\n")
    return 0
