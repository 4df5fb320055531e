"""Compile several models at once: `irc compile A B` and `irc.compile_many`."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from traceback import format_exception_only, print_exc
from types import FrameType
from typing import Any

from ...passes.infra import Passes
from ...passes.registry import parse_pipeline, pipeline_of
from ...support.errors import EXPECTED, UsageError, describe_error, visible
from ...support.files import make_folder, remove_stale_files
from ...support.jobs import JobResult, run_jobs
from ...support.limits import DEFAULT_LIMITS, Limits
from ...support.output_paths import OutputPaths, assign_output_paths, check_apart, path_to_text
from .compile_one import compile_one
from .options import (
    GC_THRESHOLDS,
    LIMITS,
    default_compile_options,
    document_head,
    session_options_of,
)
from .size_table import model_rows, table_lines
from .summary import Summary, wants_table

SINGLE = (
    "certificate",
    "data",
    "keep",
    "input_shape",
    "print_after",
    "diff",
    "inputs",
    "debug_rules",
)
"""Options of `irc compile` that go with one model only."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one compile: `error` is None, or says in a sentence why there is no output.

    `lines` is all that was printed, as warnings; `summary` is the document of `irc compile --json`
    without its format, version and error.
    """

    model: str
    output: str
    error: str | None
    seconds: float
    lines: tuple[str, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)
    explanation: tuple[str, ...] = ()
    """The lines of --explain, which go to standard output."""


@dataclass(frozen=True, slots=True)
class CompileJob:
    """A model to compile, its output files, and the folder that relative paths start from."""

    options: argparse.Namespace
    places: OutputPaths
    folder: str = field(default_factory=os.getcwd)

    def run(self) -> tuple[str | None, dict[str, Any], tuple[str, ...]]:
        """Compile in this process; return the error, the summary, the lines of --explain."""
        gc.set_threshold(*GC_THRESHOLDS)
        os.chdir(self.folder)
        summary = Summary(None)
        summary.is_wanted = True
        error = None
        try:
            with session_options_of(self.options):
                compile_one(self.options, summary)
        except EXPECTED as reason:
            error = describe_error(reason)
        except Exception as reason:
            print_exc()
            error = format_exception_only(reason)[-1].strip()
        left_out = {
            "error",
            *document_head("compile"),
        }  # the outcome has the error without the name of the model
        document = {
            key: item for key, item in dict(summary.document or {}).items() if key not in left_out
        }
        return error, document, summary.explanation

    def clean_up(self) -> None:
        """Remove the temporary files that a killed compile left beside its outputs."""
        for path in self.places.files(self.folder):
            remove_stale_files(path)

    def outcome(
        self, result: JobResult[tuple[str | None, dict[str, Any], tuple[str, ...]]]
    ) -> Outcome:
        """Return the outcome for the result of this job."""
        error, summary, explanation = result.value or (result.error, {}, ())
        if error is not None:
            error = error.removeprefix(f"{self.places.model}: ")
        lines = tuple(result.log.splitlines())
        return Outcome(
            self.places.model,
            self.places.output,
            error,
            result.seconds,
            lines,
            summary,
            explanation,
        )


def compile_many(
    models: str | Path | Iterable[str | Path],
    outputs: str | Path | None = None,
    *,
    passes: str | Passes | None = None,
    freeze_initializers: bool = False,
    in_place: bool = False,
    fold_maps: str | Path | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> list[Outcome]:
    """Compile `models` into the folder `outputs`, or beside them; return the outcomes in order.

    A model that fails, or crashes its process, does not disturb the others.

    Args:
        models: Paths of files and folders.
        outputs: The folder for the results; None writes them beside the models.
        passes: A Sequential, a list of passes or their text; None is the default pipeline.
        freeze_initializers: Make initializers that are graph inputs constants first.
        in_place: Without `outputs`, let the results replace the models.
        fold_maps: The folder for the fold maps; None writes none.
        jobs: joblib's `n_jobs`, the number of models that are compiled at once. -1 is the number of
            cores; None is the value of `joblib.parallel_config`, or 1.
        progress: Show the models that are done on standard error, if that is a terminal or a
            notebook; None shows them in a notebook only.
        limits: The limits for reading each model.

    Raises:
        UsageError: A path is invalid, or two models would be written to one file.
        PassError: A pass is unknown.
        EmitError: A folder cannot be made.
    """
    from .terminal import in_notebook
    from .terminal import progress as show_progress

    paths = [models] if isinstance(models, str | Path) else list(models)
    for path in paths:
        if not isinstance(path, str | Path):
            raise UsageError(
                f"{type(path).__name__} is not a path of a model: irc.compile"
                " takes models that are in memory"
            )
    options = default_compile_options()
    options.passes = pipeline_of(passes).spec or "none"
    options.freeze_initializers = freeze_initializers
    options.in_place = in_place
    for name in LIMITS:
        setattr(options, name, getattr(limits, name))
    folders = [None if folder is None else str(folder) for folder in (outputs, fold_maps)]
    names = [str(path) for path in paths]
    found = _jobs(options, assign_output_paths(names, *folders, in_place=in_place))
    make_folders(found)
    outcomes: dict[int, Outcome] = {}
    wanted = in_notebook() if progress is None else progress
    with show_progress("compiling", len(found), quiet=not wanted) as advance:
        for result in run_jobs(found, jobs):
            outcome = outcomes[result.index] = found[result.index].outcome(result)
            advance(outcome.model)
    return [outcomes[index] for index in range(len(found))]


def run_many(options: argparse.Namespace) -> int:
    """Compile the models of `irc compile`, and print the outcomes in the order of the arguments."""
    from .terminal import progress

    start = perf_counter()
    jobs = jobs_of(options)
    outcomes: dict[int, Outcome] = {}
    printed = 0
    summary = Summary(options.json)
    with _ended_by_sigterm(), ExitStack() as files:
        options.made_folders = make_folders(jobs)
        summary.enter(files)  # an error of this file is known before anything runs
        with progress("compiling", len(jobs), quiet=options.quiet) as advance:
            for result in run_jobs(jobs, options.jobs or 1):
                outcome = outcomes[result.index] = jobs[result.index].outcome(result)
                advance(outcome.model)
                while printed in outcomes:
                    sys.stderr.writelines(f"{line}\n" for line in lines_of(outcomes[printed]))
                    printed += 1
        ordered = [outcomes[index] for index in range(len(jobs))]
        summary.write([document_of(outcome) for outcome in ordered])
    if wants_table(options):
        rows = model_rows([(outcome.model, outcome.summary) for outcome in ordered])
        sys.stderr.writelines(f"{visible(line)}\n" for line in table_lines(rows))
    if options.json == "-":
        sys.stderr.writelines(map("{}\n".format, _explanations(ordered)))
    else:
        summary.explanation = tuple(_explanations(ordered))
    summary.print()
    failed = [outcome.model for outcome in ordered if outcome.error is not None]
    if failed:
        sys.stderr.write(
            f"irc: {len(failed)} of {len(ordered)} models failed: {', '.join(failed)}\n"
        )
    elif not options.quiet:
        sys.stderr.write(f"{len(ordered)} models; {perf_counter() - start:.2f} s\n")
    return 1 if failed else 0


def jobs_of(options: argparse.Namespace) -> list[CompileJob]:
    """Return the jobs. Raises UsageError for options that do not go with several models."""
    parse_pipeline(options.passes)
    if "-" in options.models:
        raise UsageError("standard input can only be compiled alone")
    for name in SINGLE:
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} goes with one model")
    found = assign_output_paths(
        options.models,
        options.output,
        options.fold_map,
        options.report,
        options.dump_ir,
        in_place=options.in_place,
    )
    check_apart(
        [options.json], [*options.models, *(file for places in found for file in places.files(""))]
    )
    return _jobs(options, found)


def _jobs(options: argparse.Namespace, found: Sequence[OutputPaths]) -> list[CompileJob]:
    return [
        CompileJob(
            argparse.Namespace(
                **{**vars(options), **vars(paths), "models": [], "json": None, "table": False}
            ),
            paths,
        )
        for paths in found
    ]


def make_folders(jobs: Iterable[CompileJob]) -> list[Path]:
    """Make the folders of all outputs, and return the new ones, inner before outer ones.

    Raises EmitError.
    """
    folders = dict.fromkeys(path.parent for job in jobs for path in job.places.files(job.folder))
    made = [new for folder in folders for new in make_folder(folder)]
    return sorted(made, key=lambda folder: len(folder.parts), reverse=True)


def lines_of(outcome: Outcome) -> Iterator[str]:
    """Yield all that is printed of a model, each line with its name."""
    for line in (*outcome.lines, *(outcome.error or "").splitlines()):
        yield f"{outcome.model}: {line.removeprefix(f'{outcome.model}: ')}"


def _explanations(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield the lines of --explain, each with the name of its model."""
    for outcome in outcomes:
        for line in outcome.explanation:
            yield f"{outcome.model}: {line}"


def document_of(outcome: Outcome) -> dict[str, Any]:
    """Return the entry of `--json` for a model."""
    output = path_to_text(outcome.output) if outcome.error is None else None
    where = {"model": path_to_text(outcome.model), "output": output, "error": outcome.error}
    return {**document_head("compile"), **where, **outcome.summary}


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the compiles, as an interrupt does."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
