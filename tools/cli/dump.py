"""`irc dump`: the IR text of a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from .options import (
    MODEL,
    Subparsers,
    add_in_place,
    add_limits,
    add_module_options,
    complete_outputs,
    data_file,
    read_module,
)


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "dump",
        help="print the IR of a model, or write it with its constants",
        description=(
            "Print the IR text of MODEL, or write it to OUT.irc, with the larger constants in"
            " OUT.npz. The other commands read OUT.irc as a model."
        ),
    )
    command.add_argument("model", metavar="MODEL", help=MODEL)
    command.add_argument(
        "-o", "--output", metavar="OUT.irc", help="write the text (default: standard output)"
    )
    command.add_argument(
        "--data",
        metavar="DATA.npz",
        help="write the constants that the text names by digest (default: OUT.npz)",
    )
    add_in_place(command)
    add_module_options(command, default="none")
    command.add_argument(
        "--diff", action="store_true", help="print the changes of each pass as a unified diff"
    )
    add_limits(command)


def run(options: argparse.Namespace) -> int:
    """Print the IR text, or the diffs of the passes."""
    from pathlib import Path

    from ...backends.text_output import save_text
    from ...ir.text.printer import to_text
    from ...passes import DiffIR, FreezeInitializers, PassContext, parse_pipeline
    from ...support.errors import UsageError
    from ...support.files import FileTransaction
    from ...support.output_paths import DUMP, arrays_path, check_apart, check_replaced, is_text
    from .terminal import write_diff, write_ir

    def write(lines: Iterable[str]) -> None:
        write_diff(lines, sys.stdout)

    complete_outputs(options, options.model, output=DUMP, data=".npz")
    output = None if options.output in (None, "-") else options.output
    if options.data is not None and output is None:
        raise UsageError(
            "--data names the file with the constants of a text that is written: give -o OUT.irc"
        )
    if output is not None and options.diff:
        raise UsageError("--diff prints to standard output: give it without -o")
    if output is not None and not is_text(output):
        raise UsageError(f"{output}: -o writes IR text: give it a name that ends with .irc")
    data = None if output is None else options.data or str(arrays_path(Path(output)))
    if data is not None and not data.endswith(".npz"):
        raise UsageError(f"{data}: --data takes the name of a file that ends with .npz")
    check_replaced(output, options.model, in_place=options.in_place)
    constants = data_file(options.model)
    check_apart([output], [constants])
    check_apart([data], [options.model, None if options.in_place else constants, output])
    options.data = None  # of MODEL, if it is IR text, it is the file beside it
    pipeline = parse_pipeline(options.passes)
    module = read_module(options.model, options)
    context = PassContext([DiffIR(write)] if options.diff else [])
    if options.freeze_initializers:
        FreezeInitializers()(module, context)
    pipeline(module, context)
    if output is not None and data is not None:
        with FileTransaction(output, data) as files:
            save_text(module, Path(output), files, Path(data), in_place=options.in_place)
    elif not options.diff:
        write_ir(to_text(module), sys.stdout)
    return 0
