"""`irc passes`: the passes and their options."""

from __future__ import annotations

import argparse
import sys

from .options import Subparsers


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Describe the arguments."""
    commands.add_parser("passes", help="list the passes and their options", description="List the passes.")


def run(options: argparse.Namespace) -> int:
    """Print them."""
    from ..passes.catalog import CATALOG, DEFAULT_NAMES, format_option

    sys.stdout.write(f"default pipeline: {','.join(DEFAULT_NAMES)}\n")
    for name, (_module, summary, defaults) in sorted(CATALOG.items()):
        sys.stdout.write(f"\n{name}\n    {summary}\n")
        for option, default in defaults.items():
            sys.stdout.write(f"    {option}={format_option(default)}\n")
    return 0
