"""Compiling many models at once, each in a process of its own.

joblib runs the jobs, so that its back ends decide where: threads of this process, which is the default, or whatever
`joblib.parallel_config` names, as a cluster of Dask. What a job does is to have one model compiled by a process of its
own and to wait for it. So a compile can crash, or be ended for want of memory, without any other noticing, and its
output is that of a compile alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from ..passes.infra import Sequential
from ..passes.registry import default_pipeline, parse_pipeline
from ..support.errors import EmitError
from ..support.files import clean
from ..support.limits import DEFAULT_LIMITS, Limits
from ..support.output_paths import Places, places_of

GRACE = 5.0
"""Seconds that compiles have to clean up when they are interrupted, before they are ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """One model, where its files go, the further options of `irc compile`, and the folder that paths start from."""

    places: Places
    options: tuple[str, ...] = ()
    folder: str = field(default_factory=os.getcwd)

    def arguments(self) -> list[str]:
        """Those of `irc`."""
        places = self.places
        given = {
            "output": places.output,
            "fold-map": places.fold_map,
            "report": places.report,
            "dump-ir": places.dump,
        }
        files = [f"--{name}={place}" for name, place in given.items() if place is not None]
        return ["compile", "--json=-", *files, *self.options, "--", places.model]

    def files(self) -> Iterator[Path]:
        """All that may be written."""
        return self.places.files(self.folder)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one model: `error` is None, or says in a sentence why there is no output.

    `lines` is all that the compiler had to say, and `summary` what `irc compile --json` gives but the error.
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
    limits: Limits = DEFAULT_LIMITS,
) -> list[Outcome]:
    """Compile models, `jobs` at once, into the folder `outputs`, or beside them; what became of each, in order.

    With `fold_maps` a fold map of each is written to that folder. `jobs` is joblib's `n_jobs`: -1 is as many as there
    are cores, None is what `joblib.parallel_config` says, else one. `limits` hold for every model. Nothing that happens
    to one model disturbs another. Raises UsageError where two models would write one file, PassError where there are no
    such passes, and EmitError where a folder cannot be made.
    """
    pipeline = default_pipeline() if passes is None else parse_pipeline(str(passes))
    options = ("--passes", str(pipeline) or "none", *(["--freeze-initializers"] if freeze_initializers else []))
    bounds = {name: bound for name, bound in asdict(limits).items() if bound != getattr(DEFAULT_LIMITS, name)}
    bounds.pop("isolate", None)  # as every process of the command line does
    options += tuple(f"--{name.replace('_', '-')}={bound}" for name, bound in bounds.items())
    folders = [None if folder is None else str(folder) for folder in (outputs, fold_maps)]
    found = places_of([str(model) for model in models], *folders)
    return [outcome for _, outcome in sorted(run_jobs([Job(places, options) for places in found], jobs))]


def run_jobs(jobs: Sequence[Job], n_jobs: int | None = None) -> Iterator[tuple[int, Outcome]]:
    """What became of each job, with its index, as they end.

    Where the iterator is closed or interrupted, so are the compiles that run in this process. Raises EmitError where a
    folder cannot be made.
    """
    with warnings.catch_warnings(action="ignore"):  # of back ends that cannot work here
        from joblib import Parallel, delayed

    make_folders(jobs)
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
    """The compilers (`irc.parallel.fork_server`) that were started in this process for one run.

    It goes with every job; in another process, as a cluster's worker, it arrives empty, and lasts for that job.
    """

    def __init__(self, *, lasting: bool = True) -> None:
        self._lasting = lasting
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[str]] = []
        self._busy: dict[subprocess.Popen[str], Job] = {}
        self._ended = False

    def __reduce__(self) -> tuple[Callable[[], Compiles], tuple[()]]:
        return _passing, ()

    def run(self, job: Job) -> Outcome:
        """Compile one model."""
        start = perf_counter()
        places = job.places
        try:
            compiler = self._take(job)
        except OSError as reason:
            return Outcome(places.model, places.output, f"irc cannot be started: {reason.strerror}", 0.0)
        if compiler is None:
            return Outcome(places.model, places.output, "interrupted", 0.0)
        status, out, err = _ask(compiler, job)
        if status < 0:
            sweep(job)
        with self._lock:
            self._busy.pop(compiler, None)
            over = self._ended or not self._lasting
            if not over:
                self._idle.append(compiler)
        if over:
            _close(compiler)
        lines = tuple(err.splitlines())
        error, summary = _error(status, lines, places.model), {}
        try:
            summary = json.loads(out)
            del summary["error"]  # which is the outcome's own, without the name of the model
        except (ValueError, KeyError):
            error = error or "irc said what is no summary"
        return Outcome(places.model, places.output, error, perf_counter() - start, lines, summary)

    def _take(self, job: Job) -> subprocess.Popen[str] | None:
        """A compiler for `job`, in a process group of its own: an interrupt reaches it once, through `end`."""
        with self._lock:
            if self._ended:
                return None
            while self._idle:
                compiler = self._idle.pop()
                if compiler.poll() is None:
                    break
                _close(compiler)
            else:
                compiler = subprocess.Popen(
                    [sys.executable, "-P", "-m", "irc.parallel.fork_server"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    encoding="ascii",
                    env={**os.environ, "PYTHONIOENCODING": "utf-8:surrogateescape"},
                    process_group=0,
                )
            self._busy[compiler] = job
            return compiler

    def end(self) -> None:
        """Start nothing more, and end what runs; nothing half written is left."""
        with self._lock:
            self._ended = True
            busy = dict(self._busy)
            compilers = [*self._idle, *busy]
        for compiler in busy:
            _signal(compiler, signal.SIGINT)
        deadline = monotonic() + GRACE
        for compiler in compilers:
            _close_input(compiler)
        for compiler in compilers:
            try:
                compiler.wait(max(0.0, deadline - monotonic()))
            except subprocess.TimeoutExpired:
                _signal(compiler, signal.SIGKILL)
                compiler.wait()
                _await_copy(compiler)
            if compiler in busy:
                sweep(busy[compiler])
            else:
                _close(compiler)


def _passing() -> Compiles:
    return Compiles(lasting=False)


def _ask(compiler: subprocess.Popen[str], job: Job) -> tuple[int, str, str]:
    """What a compiler answers; where it ends instead, its own exit status."""
    assert compiler.stdin is not None and compiler.stdout is not None
    try:
        compiler.stdin.write(json.dumps({"arguments": job.arguments(), "folder": job.folder}) + "\n")
        compiler.stdin.flush()
        answer = json.loads(compiler.stdout.readline())
    except (OSError, ValueError):
        return compiler.wait() or 1, "", ""
    return answer["status"], answer["out"], answer["err"]


def _signal(compiler: subprocess.Popen[str], number: signal.Signals) -> None:
    """To the compiler and its copy."""
    with suppress(ProcessLookupError):
        os.killpg(compiler.pid, number)


def _await_copy(compiler: subprocess.Popen[str]) -> None:
    """Wait until the copy of a compiler that was killed is gone, too, and its locks with it."""
    deadline = monotonic() + 1
    with suppress(OSError):
        while monotonic() < deadline:
            os.killpg(compiler.pid, 0)
            sleep(0.01)


def _close_input(compiler: subprocess.Popen[str]) -> None:
    assert compiler.stdin is not None
    with suppress(OSError):
        compiler.stdin.close()


def _close(compiler: subprocess.Popen[str]) -> None:
    """Of one that has ended, or is about to."""
    _close_input(compiler)
    assert compiler.stdout is not None
    compiler.stdout.close()
    compiler.wait()


def sweep(job: Job) -> None:
    """Remove the temporary files that a process which was ended left beside its outputs."""
    for path in job.files():
        clean(path)


def make_folders(jobs: Iterable[Job]) -> None:
    """Make the folders that outputs go to. Raises EmitError."""
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
        return f"ended by {_name(-status)}" + (", as where memory runs out" if -status == signal.SIGKILL else "")
    last = lines[-1] if lines else f"exit status {status}"
    return last.removeprefix("irc: ").removeprefix(f"{model}: ")


def _name(number: int) -> str:
    """A signal's name; those between SIGRTMIN and SIGRTMAX, and those of other systems, have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
