"""`irc report`: a page that shows the changes of the passes."""

from __future__ import annotations

import argparse

from .options import (
    EPILOG,
    MODEL,
    NO_DURATIONS,
    Subparsers,
    add_data,
    add_limits,
    add_module_options,
    default_compile_options,
)
from .summary import Summary


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "report",
        help="write a page, or a drawing, that shows the changes of the passes",
        description=(
            "Run passes on MODEL and write a page that shows their changes, or a drawing of both "
            "graphs. The model is not written."
        ),
        epilog=EPILOG,
    )
    command.add_argument("model", metavar="MODEL", help=MODEL)
    command.add_argument(
        "-o",
        "--output",
        dest="report",
        metavar="REPORT.html",
        required=True,
        help="the page, or a drawing: REPORT.svg",
    )
    add_data(command)
    add_module_options(command)
    command.add_argument("--no-durations", action="store_true", help=NO_DURATIONS)
    command.add_argument("-q", "--quiet", action="store_true", help="do not print a summary")
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Compile the model without writing it, and write the page."""
    from .compile_one import compile_one

    values = vars(default_compile_options()) | vars(options)
    compile_one(argparse.Namespace(**values), Summary(None), is_saved=False)
    return 0
