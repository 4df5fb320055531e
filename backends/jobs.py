"""Compiling many models at once, each in a process of its own.

joblib runs the jobs, so that its back ends decide where: threads of this process, which is the default, or whatever
`joblib.parallel_config` names, as a cluster of Dask. What a job does is to start the compiler on one model and to wait
for it. So a compile can crash, or be ended for want of memory, without any other noticing, and its output is that of a
compile alone.
"""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from ..ir.errors import EmitError
from ..passes.infra import Sequential
from ..passes.registry import default_pipeline, parse_pipeline
from .places import Places, places_of

GRACE = 5.0
"""Seconds that compiles have to clean up when they are interrupted, before they are ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """One model, where its files go, the further options of `irc compile`, and the folder that paths start from."""

    places: Places
    options: tuple[str, ...] = ()
    folder: str = field(default_factory=os.getcwd)

    def command(self) -> list[str]:
        """The command line; nothing is imported from the working folder."""
        places = self.places
        given = {"--fold-map": places.fold_map, "--report": places.report, "--dump-ir": places.dump}
        files = [item for name, place in given.items() if place is not None for item in (name, place)]
        compile_ = [sys.executable, "-P", "-m", "irc", "compile", "--json", "-", "-o", places.output]
        return [*compile_, *files, *self.options, "--", places.model]

    def files(self) -> Iterator[Path]:
        """All that may be written."""
        return self.places.files(self.folder)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one model: `error` is None, or says in a sentence why there is no output.

    `lines` is all that the compiler had to say, and `summary` what `irc compile --json` gives.
    """

    model: str
    output: str
    error: str | None
    seconds: float
    lines: tuple[str, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)


def compile_many(
    models: Iterable[str | Path],
    outputs: str | Path | None = None,
    *,
    passes: str | Sequential | None = None,
    freeze_initializers: bool = False,
    fold_maps: str | Path | None = None,
    jobs: int | None = None,
) -> list[Outcome]:
    """Compile models, `jobs` at once, into the folder `outputs`, or beside them; what became of each, in order.

    With `fold_maps` a fold map of each is written to that folder. `jobs` is joblib's `n_jobs`: -1 is as many as there
    are cores, None is what `joblib.parallel_config` says, else one. Nothing that happens to one model disturbs another.
    Raises UsageError where two models would write one file, PassError where there are no such passes, and EmitError
    where a folder cannot be made.
    """
    pipeline = default_pipeline() if passes is None else parse_pipeline(str(passes))
    options = ("--passes", str(pipeline) or "none", *(["--freeze-initializers"] if freeze_initializers else []))
    folders = [None if folder is None else str(folder) for folder in (outputs, fold_maps)]
    found = places_of([str(model) for model in models], *folders)
    return [outcome for _, outcome in sorted(run_jobs([Job(places, options) for places in found], jobs))]


def run_jobs(jobs: Sequence[Job], n_jobs: int | None = None) -> Iterator[tuple[int, Outcome]]:
    """What became of each job, with its index, as they end.

    Where the iterator is closed or interrupted, so are the compiles that run in this process. Raises EmitError where a
    folder cannot be made.
    """
    from joblib import Parallel, delayed

    _make_folders(jobs)
    compiles = Compiles()
    parallel = Parallel(n_jobs, prefer="threads", batch_size=1, return_as="generator_unordered")
    ended = parallel(delayed(_run)(compiles, index, job) for index, job in enumerate(jobs))
    try:
        yield from ended
    finally:
        compiles.end()
        with warnings.catch_warnings(action="ignore"):  # that jobs are given up is what is meant
            ended.close()


def _run(compiles: Compiles, index: int, job: Job) -> tuple[int, Outcome]:
    return index, compiles.run(job)


class Compiles:
    """The compiler's processes that were started in this process for one run.

    It goes with every job; in another process, as a cluster's worker, it arrives empty.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[subprocess.Popen[str], Job] = {}
        self._ended = False

    def __reduce__(self) -> tuple[type[Compiles], tuple[()]]:
        return Compiles, ()

    def run(self, job: Job) -> Outcome:
        """Compile one model."""
        start = perf_counter()
        places = job.places
        try:
            process = self._start(job)
        except OSError as reason:
            return Outcome(places.model, places.output, f"irc cannot be started: {reason.strerror}", 0.0)
        if process is None:
            return Outcome(places.model, places.output, "interrupted", 0.0)
        out, err = process.communicate()
        with self._lock:
            self._running.pop(process, None)
        if process.returncode < 0:
            sweep(job)
        lines = tuple(err.splitlines())
        error, summary = _error(process.returncode, lines, places.model), {}
        if error is None:
            try:
                summary = json.loads(out)
            except ValueError:
                error = "irc said what is no summary"
        return Outcome(places.model, places.output, error, perf_counter() - start, lines, summary)

    def _start(self, job: Job) -> subprocess.Popen[str] | None:
        """A process in a group of its own, so that an interrupt from the terminal reaches it once, through `end`."""
        with self._lock:
            if self._ended:
                return None
            process = subprocess.Popen(
                job.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="surrogateescape",
                cwd=job.folder,
                env={**os.environ, "PYTHONIOENCODING": "utf-8:surrogateescape"},
                process_group=0,
            )
            self._running[process] = job
            return process

    def end(self) -> None:
        """Start nothing more, and end what runs; nothing half written is left."""
        with self._lock:
            self._ended = True
            running = dict(self._running)
        for process in running:
            process.send_signal(signal.SIGINT)
        deadline = monotonic() + GRACE
        for process, job in running.items():
            try:
                process.wait(max(0.0, deadline - monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            sweep(job)


def sweep(job: Job) -> None:
    """Remove the temporary files that a process which was ended left beside its outputs."""
    for path in job.files():
        for left in path.parent.glob(f".{glob.escape(path.name[:64])}.*.tmp"):
            with suppress(OSError):
                left.unlink()


def _make_folders(jobs: Iterable[Job]) -> None:
    for folder in dict.fromkeys(path.parent for job in jobs for path in job.files()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmitError(f"{folder}: the folder cannot be made: {error.strerror}") from None


def _error(status: int, lines: Sequence[str], model: str) -> str | None:
    """Why there is no output, or None."""
    if status == 0:
        return None
    if status < 0:
        name = signal.Signals(-status).name
        return f"ended by {name}" + (", as where memory runs out" if name == "SIGKILL" else "")
    last = lines[-1] if lines else f"exit status {status}"
    return last.removeprefix("irc: ").removeprefix(f"{model}: ")
