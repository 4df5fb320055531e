"""`irc compile`: run passes on models and write them."""

from __future__ import annotations

import argparse

from .options import EPILOG, MODEL, Subparsers, add_compile_options
from .summary import Summary


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "compile",
        help="run passes on models and write them",
        description="Run passes on each MODEL and write it.",
        epilog=f"{EPILOG} With several models OUT, MAP.json, REPORT.html and DIR are folders.",
    )
    command.add_argument("models", metavar="MODEL", nargs="+", help=MODEL)
    command.add_argument(
        "-j", "--jobs", metavar="N", type=int, default=1, help="compile N models at once; -1: one per core (default: 1)"
    )
    add_compile_options(command)


def run(options: argparse.Namespace) -> int:
    """Compile each model and write its output files, or none of them if it fails."""
    from ..support.errors import UsageError

    if options.jobs == 0:
        raise UsageError("--jobs 0: give the number of models to compile at once, or -1 for the number of cores")
    if len(options.models) > 1:
        from .compile_many import run_many

        return run_many(options)
    from .compile_one import compile_one

    (options.model,) = options.models
    summary = Summary(options.json)
    compile_one(options, summary)
    summary.print()
    return 0
