"""`irc compile` of several models."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .options import LIMITS
from .summary import Summary

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ..parallel.jobs import Job, Outcome

FLAGS = (
    *("freeze_initializers", "embed_fold_map", "external_data", "time_passes", "verify_ir", "explain", "no_durations"),
    "quiet",
)
VALUES = ("passes", "fold_map_store", "verify", *LIMITS)
"""Options that hold for every model as they are."""

SINGLE = ("print_after", "diff", "inputs")
"""Options that are for one model."""


def run_many(options: argparse.Namespace) -> int:
    """Compile every model in a process of its own, and say what became of each, in the order given."""
    from time import perf_counter

    from ..parallel.jobs import make_folders, run_jobs
    from ..support.terminal import progress

    start = perf_counter()
    jobs = jobs_of(options)
    outcomes: dict[int, Outcome] = {}
    said = 0
    summary = Summary(options.json)
    with _ended_by_sigterm(), ExitStack() as files:
        make_folders(jobs)
        summary.enter(files)  # that it cannot be written is said before anything runs
        with progress("compiling", len(jobs), quiet=options.quiet) as advance:
            for index, outcome in run_jobs(jobs, options.jobs):
                outcomes[index] = outcome
                advance(outcome.model)
                while said in outcomes:
                    sys.stderr.writelines(f"{line}\n" for line in lines_of(outcomes[said]))
                    said += 1
        ordered = [outcomes[index] for index in range(len(jobs))]
        summary.write([document_of(outcome) for outcome in ordered])
    summary.print()
    failed = [outcome.model for outcome in ordered if outcome.error is not None]
    if failed:
        sys.stderr.write(f"irc: {len(failed)} of {len(ordered)} models failed: {', '.join(failed)}\n")
    elif not options.quiet:
        sys.stderr.write(f"{len(ordered)} models; {perf_counter() - start:.2f} s\n")
    return 1 if failed else 0


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """The jobs. Raises UsageError where options do not go with several models, or models not with each other."""
    from ..parallel.jobs import Job
    from ..passes import parse_pipeline
    from ..support.errors import UsageError
    from ..support.output_paths import check_apart, places_of

    parse_pipeline(options.passes)
    if "-" in options.models:
        raise UsageError("standard input can only be compiled alone")
    for name in SINGLE:
        if getattr(options, name):
            raise UsageError(f"{flag(name)} goes with one model")
    own = [flag(name) for name in FLAGS if getattr(options, name)]
    own += [f"{flag(name)}={getattr(options, name)}" for name in VALUES if getattr(options, name) is not None]
    found = places_of(options.models, options.output, options.fold_map, options.report, options.dump_ir)
    check_apart([options.json], [*options.models, *(file for places in found for file in places.files(""))])
    return [Job(places, tuple(own)) for places in found]


def flag(name: str) -> str:
    """The option that is stored as `name`."""
    return f"--{name.replace('_', '-')}"


def lines_of(outcome: Outcome) -> Iterator[str]:
    """All that was said of a model, each line with its name."""
    for line in outcome.lines:
        said = line.removeprefix("irc: ")
        yield said if said.startswith(f"{outcome.model}: ") else f"{outcome.model}: {said}"
    if outcome.error is not None and not any(line.endswith(outcome.error) for line in outcome.lines):
        yield f"{outcome.model}: {outcome.error}"


def document_of(outcome: Outcome) -> dict[str, Any]:
    """What became of a model, for machines."""
    from ..support.output_paths import text_of

    output = text_of(outcome.output) if outcome.error is None else None
    return {"model": text_of(outcome.model), "output": output, "error": outcome.error, **outcome.summary}


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM, too, ends the compiles that run."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
