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
    command.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help=f"{MODEL}; without -o, a new name after one MODEL is its output",
    )
    command.add_argument(
        "-j",
        "--jobs",
        metavar="N",
        type=int,
        help="compile N models at once; -1: one per core (default: 1)",
    )
    add_compile_options(command)


def run(options: argparse.Namespace) -> int:
    """Compile each model and write its output files, or none of them if it fails."""
    from ...support.errors import UsageError

    if options.jobs == 0:
        raise UsageError(
            "--jobs 0: give the number of models to compile at once, or -1 for the number of cores"
        )
    if len(options.models) == 2 and options.output is None and options.jobs is None:
        _take_output(options)
    if len(options.models) > 1:
        from .compile_many import run_many

        return run_many(options)
    from .compile_one import compile_one

    (options.model,) = options.models
    summary = Summary(options.json)
    compile_one(options, summary)
    summary.print()
    return 0


def _take_output(options: argparse.Namespace) -> None:
    """Take the second of two models as the output if it names a new file, a folder, or `-`.

    Raises UsageError if it exists: it may be a model to compile, or the output of an earlier
    compile.
    """
    from pathlib import Path

    from ...support.errors import UsageError
    from ...support.output_paths import path_to_text

    source, second = options.models
    place = Path(second)
    if second != "-" and place.exists() and not place.is_dir():
        raise UsageError(
            f"{path_to_text(second)} exists: give `-o {path_to_text(second)}` to replace it by the"
            " result, or `--jobs 1` to compile both models"
        )
    if second == "-" or place.is_dir() or place.suffix in (".onnx", ".irc"):
        options.models, options.output = [source], second
        return
    raise UsageError(
        f"{path_to_text(second)}: there is no such file;"
        f" give `-o {path_to_text(second)}` to write it"
    )
