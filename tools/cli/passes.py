"""`irc passes`: list the passes and their options."""

from __future__ import annotations

import argparse
import sys

from .options import Subparsers, document_head, json_text


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "passes", help="list the passes and their options", description="List the passes and their options."
    )
    command.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the default pipeline and all passes."""
    from ...passes.catalog import CATALOG, DEFAULT, describe, describe_entry_point, format_option, plugin_passes

    found = [(name, describe(name)) for name in sorted(CATALOG)]
    found += [(name, describe_entry_point(point)) for name, point in sorted(plugin_passes().items())]
    if options.json:
        passes = [{"name": name, **description} for name, description in found]
        sys.stdout.write(json_text({**document_head("passes"), "default": DEFAULT, "passes": passes}))
        return 0
    sys.stdout.write(f"default pipeline: {DEFAULT}\n")
    for name, each in found:
        sys.stdout.write(f"\n{name}\n    {each['summary']}\n")
        for option, default in each["options"].items():
            sys.stdout.write(f"    {option}={format_option(default)}\n")
        if "package" in each:
            sys.stdout.write(f"    of {each['package']}\n")
    return 0
