"""`irc diff`: the IR of two models side by side."""

from __future__ import annotations

import argparse
import sys

from .options import MODEL, Subparsers, add_limits, check_once, read_module


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "diff",
        help="compare the IR of two models",
        description=(
            "Exit with 0 if A and B are the same up to names and order. Else print the differences"
            " of their operator counts and IR texts, and exit with 1."
        ),
    )
    command.add_argument("first", metavar="A", help=MODEL)
    command.add_argument("second", metavar="B")
    command.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Compare the modules and print the differences."""
    from ...ir.structural_diff import diff_lines, operator_changes, structural_digest
    from ...support.errors import visible
    from .terminal import write_diff

    check_once(options.first, options.second)
    first, second = (read_module(path, options) for path in (options.first, options.second))
    if structural_digest(first) == structural_digest(second):
        if not options.quiet:
            sys.stdout.write(
                "the same but for names\n" if str(first) != str(second) else "the same\n"
            )
        return 0
    if not options.quiet:
        changes = operator_changes(first, second)
        sys.stdout.writelines(f"{count:+d} {visible(op)}\n" for op, count in changes.items())
        write_diff(diff_lines(first, second, (options.first, options.second)), sys.stdout)
    return 1
