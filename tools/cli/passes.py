"""`irc passes`: list the passes and their options."""

from __future__ import annotations

import argparse
import sys

from .options import Subparsers, document_head, json_text


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "passes",
        help="list the passes and their options",
        description="List the passes and their options.",
    )
    command.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the default pipeline and all passes."""
    from ...passes.catalog import (
        CATALOG,
        describe,
        describe_entry_point,
        format_option,
        plugin_passes,
    )
    from ...passes.pipelines import DEFAULT, DEFAULT_STAGES

    found = [(name, describe(name)) for name in sorted(CATALOG)]
    found += [
        (name, describe_entry_point(point)) for name, point in sorted(plugin_passes().items())
    ]
    if options.json:
        passes = [{"name": name, **description} for name, description in found]
        stages = [
            {**stage._asdict(), "steps": [step._asdict() for step in stage.steps]}
            for stage in DEFAULT_STAGES
        ]
        document = {
            **document_head("passes"),
            "default": DEFAULT,
            "stages": stages,
            "passes": passes,
        }
        sys.stdout.write(json_text(document))
        return 0
    sys.stdout.write(f"default pipeline: {DEFAULT}\n")
    for stage in DEFAULT_STAGES:
        sys.stdout.write(f"\n{stage.purpose}, repeated until nothing changes\n")
        for step in stage.steps:
            sys.stdout.write(f"    {step}: {step.reason}\n")
    for name, each in found:
        sys.stdout.write(f"\n{name}\n    {each['summary']}\n")
        for option, default in each["options"].items():
            sys.stdout.write(f"    {option}={format_option(default)}\n")
        if "package" in each:
            sys.stdout.write(f"    of {each['package']}\n")
    return 0
