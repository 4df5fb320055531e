"""`irc compile`: run passes on models and write them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .options import EPILOG, MODEL, Subparsers, add_compile_options
from .summary import Summary

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from pathlib import Path


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
        help=f"{MODEL}; without -o, a name after one MODEL is its output: a new one, or a result",
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
    # `irc compile in.onnx out.onnx`, as with cp: neither option says where results go.
    is_open = options.output is None and options.jobs is None and not options.in_place
    if len(options.models) == 2 and is_open:
        _take_output(options)
    if len(options.models) > 2 and is_open:
        _check_there(options.models)
    if len(options.models) > 1:
        from .compile_many import run_many

        return run_many(options)
    from .compile_one import compile_one

    (options.model,) = options.models
    compile_one(options, Summary(options.json, is_printed=True))
    return 0


def _check_there(models: Sequence[str]) -> None:
    """Raise UsageError for a missing file, whose name may be meant as the output."""
    from pathlib import Path

    from ...support.errors import UsageError
    from ...support.output_paths import path_to_text

    for model in models:
        if model != "-" and not Path(model).exists():
            raise UsageError(
                f"{path_to_text(model)}: there is no such file; several models go to a folder"
                " (-o FOLDER), or beside themselves (--jobs 1)"
            )


def _take_output(options: argparse.Namespace) -> None:
    """Take the second of two models as the output if nothing is lost by it.

    Raises UsageError if it may be a model to compile.
    """
    from pathlib import Path

    from ...support.errors import UsageError
    from ...support.output_paths import is_folder, path_to_text

    source, second = options.models
    place = Path(second)
    # Nothing is lost: there is nothing yet, or a folder that takes results.
    is_new = second == "-" or is_folder(second) or not place.exists()
    if is_new or _is_replaceable(place, Path(source)):
        options.models, options.output = [source], second
        return
    name = path_to_text(second)
    raise UsageError(
        f"{name} exists, and does not come from irc: give `-o {name}` to replace it by the result,"
        " or `--jobs 1` to compile both models"
    )


def _is_replaceable(path: Path, source: Path) -> bool:
    """Return whether a file may be replaced without `-o`.

    A result of irc may, a copy of `source`, and a file that is not a model. Files that have the
    name of a model are taken for models, but for empty ones.
    """
    from filecmp import cmp

    from ...frontends.onnx.marks import is_model, is_result
    from ...support.errors import ModelError
    from ...support.output_paths import MODELS

    try:
        if not path.stat().st_size or is_result(path):
            return True
        if source.is_file() and cmp(path, source, shallow=False):
            return True
        return path.suffix not in MODELS and not is_model(path)
    except (OSError, ModelError):
        return False
