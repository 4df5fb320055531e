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
    from ..passes import DEFAULT_PIPELINE, PASSES
    from ..passes.infra import fields_of, format_option

    sys.stdout.write(f"default pipeline: {','.join(pass_.name for pass_ in DEFAULT_PIPELINE)}\n")
    for name, pass_ in sorted(PASSES.items()):
        text = (pass_.__doc__ or "").strip().split("\n")[0]
        sys.stdout.write(f"\n{name}\n    {text}\n")
        for option in fields_of(pass_):
            sys.stdout.write(f"    {option.name}={format_option(option.default)}\n")
    return 0
