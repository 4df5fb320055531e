"""`irc dump`: the IR text of a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from .options import MODEL, Subparsers, add_limits, add_passes, read_module


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser("dump", help="print the IR of a model", description="Print the IR text of MODEL.")
    command.add_argument("model", metavar="MODEL", help=MODEL)
    add_passes(command, default="none")
    command.add_argument("--diff", action="store_true", help="print the changes of each pass as a unified diff")
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Print the IR text, or the diffs of the passes."""
    from ..ir.text.printer import to_text
    from ..passes import DiffIR, FreezeInitializers, PassContext, parse_pipeline
    from ..support.terminal import write_diff, write_ir

    def write(lines: Iterable[str]) -> None:
        write_diff(lines, sys.stdout)

    pipeline = parse_pipeline(options.passes)
    module = read_module(options.model, options)
    context = PassContext([DiffIR(write)] if options.diff else [])
    if options.freeze_initializers:
        FreezeInitializers()(module, context)
    pipeline(module, context)
    if not options.diff:
        write_ir(to_text(module), sys.stdout)
    return 0
