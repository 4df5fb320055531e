"""`irc passes`: list the passes and their options."""

from __future__ import annotations

import argparse
import sys

from .options import Subparsers, json_text


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "passes", help="list the passes and their options", description="List the passes and their options."
    )
    command.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the default pipeline and all passes."""
    from ..passes.catalog import CATALOG, DEFAULT, describe, format_option, plugin_passes

    if options.json:
        passes = [
            dict(zip(("name", "summary", "options"), (name, *describe(name)), strict=True)) for name in sorted(CATALOG)
        ]
        sys.stdout.write(json_text({"format": "irc.passes", "version": 1, "default": DEFAULT, "passes": passes}))
        return 0
    sys.stdout.write(f"default pipeline: {DEFAULT}\n")
    for name in sorted(CATALOG):
        summary, defaults = describe(name)
        sys.stdout.write(f"\n{name}\n    {summary}\n")
        for option, default in defaults.items():
            sys.stdout.write(f"    {option}={format_option(default)}\n")
    for name, point in sorted(plugin_passes().items()):
        sys.stdout.write(f"\n{name}\n    of {point.value}\n")
    return 0
