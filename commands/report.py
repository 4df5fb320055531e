"""`irc report`: a page that shows the changes of the passes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from .options import (
    EPILOG,
    MODEL,
    NO_DURATIONS,
    Subparsers,
    add_limits,
    add_passes,
    limits_of,
    name_of,
)
from .summary import summarize

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Any

    from ..backends.result import Result
    from ..ir.module import Module
    from ..report import Recorder


def add(commands: Subparsers[argparse.ArgumentParser]) -> None:
    """Add the subcommand with its arguments."""
    command = commands.add_parser(
        "report",
        help="write a page that shows the changes of the passes",
        description="Run passes on MODEL and write a page that shows their changes. The model is not written.",
        epilog=EPILOG,
    )
    command.add_argument("model", metavar="MODEL", help=MODEL)
    command.add_argument("-o", "--output", metavar="REPORT.html", required=True, help="the page")
    add_passes(command)
    command.add_argument("--no-durations", action="store_true", help=NO_DURATIONS)
    command.add_argument("-q", "--quiet", action="store_true", help="do not print a summary")
    add_limits(command)
    command.set_defaults(explain=False)


def run(options: argparse.Namespace) -> int:
    """Compile, and write the page."""
    from time import perf_counter

    from ..backends.compiler import compile as compile_model
    from ..backends.compiler import read
    from ..backends.onnx.external_output import check_kept
    from ..passes import PassContext, parse_pipeline
    from ..support.output_paths import check_apart

    start = perf_counter()
    pipeline = parse_pipeline(options.passes)
    check_report(options.output)
    check_apart([options.output], [options.model])
    module = read(options.model, limits_of(options))
    check_kept(module, options.output)
    recorder = recorder_of(module)
    context = PassContext([recorder])
    result = compile_model(module, pipeline, freeze_initializers=options.freeze_initializers, context=context)
    seconds = perf_counter() - start
    with reporting(options.output, options, recorder, result, seconds):
        pass
    summarize(options, result, recorder.operators, None, seconds)
    return 0


def recorder_of(module: Module) -> Recorder:
    """Return the instrument that records the changes of the passes."""
    from ..report import Recorder

    return Recorder(module)


@contextmanager
def reporting(
    path: str,
    options: argparse.Namespace,
    recorder: Recorder | None,
    result: Result,
    seconds: float,
    alignment: Sequence[Mapping[str, Any]] | None = None,
) -> Iterator[None]:
    """Write the report when the block ends well; without a recorder do nothing."""
    if recorder is None:
        yield
        return
    from ..report import collect, writing_report

    durations = not options.no_durations
    data = collect(name_of(options.model), recorder, result, seconds=seconds, durations=durations, alignment=alignment)
    with writing_report(path, data):
        yield


def check_report(report: str | None) -> None:
    """Check that a report does not go to standard output. Raises UsageError."""
    from ..support.errors import UsageError

    if report == "-":
        raise UsageError("a report needs a file, not standard output")
