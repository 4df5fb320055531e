"""Run jobs on worker processes: a job that crashes, or runs out of memory, fails alone.

joblib decides where the jobs run: in threads of this process by default, or as
`joblib.parallel_config` says, for example on a cluster of Dask. Each thread gives its jobs to a
worker process of its own, which loky starts, and replaces it when it dies. One pool of several
workers would break as a whole with each of them: it would lose all jobs that run, and not tell
which one crashed.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import current_process
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryFile
from time import monotonic, perf_counter
from typing import Generic, Protocol, TypeVar, cast

from .errors import UsageError
from .isolation import describe_exit
from .streams import Messages

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

GRACE = 5.0
"""Seconds that interrupted jobs have to clean up before they are killed."""

ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
}
"""Environment of workers, unless it is set.

No modules come from the working folder. There is no thread for every core: sums of floats would
depend on their number. glibc returns the memory of a job when it is freed.
"""


class Job(Protocol[T_co]):
    """Work for one worker process. It is pickled, and so is its result."""

    def run(self) -> T_co:
        """Do the work, in the worker, which keeps the standard streams for `JobResult.log`."""

    def clean_up(self) -> None:
        """Remove the files that a killed `run` left. Runs on the machine of the worker."""


@dataclass(frozen=True, slots=True)
class JobResult(Generic[T]):
    """Result of the job at `index`: `value` or `error`, and all that it printed.

    `error` is the reason why there is no value.
    """

    index: int
    value: T | None
    error: str | None
    log: str
    seconds: float


def run_jobs(jobs: Sequence[Job[T]], n_jobs: int | None = None) -> Iterator[JobResult[T]]:
    """Run `jobs`, `n_jobs` at once (joblib's parameter), and yield their results as they end.

    Jobs that still run in this process when the iterator is closed or interrupted are interrupted
    too. Raises UsageError where a process cannot signal a group of processes, as on Windows.
    """
    if not hasattr(os, "killpg"):
        raise UsageError("several models at once need a POSIX system: compile one after another")
    # joblib takes 54 ms to import, which workers do without; it warns of backends that cannot work
    # here.
    with warnings.catch_warnings(action="ignore"):
        from joblib import Parallel, delayed

    workers = WorkerPool()
    parallel = Parallel(n_jobs, prefer="threads", batch_size=1, return_as="generator_unordered")
    results = parallel(delayed(workers.run)(index, job) for index, job in enumerate(jobs))
    try:
        yield from results
    finally:
        workers.end()
        with warnings.catch_warnings(action="ignore"):  # joblib warns of jobs that are given up
            results.close()


class WorkerPool:
    """Worker processes of this process, one for each thread that runs jobs.

    A pickled pool arrives empty, as on a cluster, and keeps no worker beyond its job: nobody there
    would end it.
    """

    def __init__(self, *, lasting: bool = True) -> None:
        self._lasting = lasting
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, Job[object]] = {}
        self._ended = False

    def __reduce__(self) -> tuple[Callable[[], WorkerPool], tuple[()]]:
        return partial(WorkerPool, lasting=False), ()

    def run(self, index: int, job: Job[T]) -> JobResult[T]:
        """Run `job` on an idle worker, or a new one."""
        start = perf_counter()
        try:
            worker = self._take(job)
        except OSError as reason:
            return JobResult(index, None, f"irc cannot be started: {reason.strerror}", "", 0.0)
        if worker is None:
            return JobResult(index, None, "interrupted", "", 0.0)
        value, error = None, None
        try:
            value = worker.run(job)
        except (EOFError, OSError):
            worker.wait(None)
            with self._lock:  # another thread that starts a worker would take the exit status
                error = describe_exit(worker.exit_code())
            if not worker.is_ready:
                error = f"irc cannot be started: {error}"
            job.clean_up()
        log = worker.read_log()
        with self._lock:
            self._busy.pop(worker, None)
            kept = self._lasting and not self._ended and error is None
            if kept:
                self._idle.append(worker)
        if not kept:
            worker.close()
        return JobResult(index, value, error, log, perf_counter() - start)

    def _take(self, job: Job[object]) -> _Worker | None:
        with self._lock:
            if self._ended:
                return None
            while self._idle:
                worker = self._idle.pop()
                if not worker.wait(0.0):
                    break
                worker.close()  # it died between two jobs: no job is to blame
            else:
                worker = _Worker()
            self._busy[worker] = job
            return worker

    def end(self) -> None:
        """Start nothing more, interrupt the jobs that run, and kill those that outlast GRACE."""
        with self._lock:
            self._ended = True
            idle, busy = self._idle, dict(self._busy)
        for worker in idle:
            worker.close()
        for worker in busy:
            worker.send_signal(signal.SIGINT)
        deadline = monotonic() + GRACE
        for worker, job in busy.items():
            if not worker.wait(max(0.0, deadline - monotonic())):
                worker.send_signal(signal.SIGKILL)
                worker.wait(1.0)
            job.clean_up()


class _Worker:
    """A worker process and the pipe to it. Raises OSError if no process can be started."""

    def __init__(self) -> None:
        # joblib takes 54 ms to import. Workers import this file, and do without joblib.
        from joblib.externals.loky.backend import get_context

        self.is_ready = False
        self._log = TemporaryFile()  # noqa: SIM115 - closed by `close`
        context = get_context("loky")
        self._pipe, pipe = context.Pipe()
        # the form in which a process inherits a file
        log = Connection(os.dup(self._log.fileno()), readable=False)
        self.process = context.Process(target=_serve, args=(pipe, log), daemon=True)
        with _starting():
            self.process.start()
        pipe.close()
        log.close()

    def run(self, job: Job[T]) -> T:
        """Return the result of `job`. Raises EOFError or OSError if the process ends before."""
        if not self.is_ready:
            self.is_ready = self._pipe.recv()
        self._pipe.send(job)
        return cast("T", self._pipe.recv())

    def read_log(self) -> str:
        """Return all that was printed since the last call."""
        self._log.seek(0)
        text = self._log.read().decode(errors="surrogateescape")
        self._log.seek(0)  # the process shares this position
        self._log.truncate()
        return text

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and those that it started."""
        for send in (os.killpg, os.kill):  # it has no group of its own before it is ready
            with suppress(ProcessLookupError):
                send(self.process.pid, number)

    def wait(self, timeout: float | None) -> bool:
        """Return whether the process ends within `timeout` seconds."""
        return bool(wait([self.process.sentinel], timeout))

    def exit_code(self) -> int | None:
        """Return the exit status, or the negative number of the signal that ended the process."""
        self.process.join()
        return cast("int | None", self.process.exitcode)

    def close(self) -> None:
        """Let the process end: it does so when its pipe is closed."""
        self._pipe.close()
        self._log.close()


@contextmanager
def _starting() -> Iterator[None]:
    """Start a worker in ENVIRONMENT, with imports that cannot be interrupted.

    A daemonic process may start one, too.
    """
    absent = [name for name in ENVIRONMENT if name not in os.environ]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    daemonic = current_process().daemon
    try:
        os.environ.update({name: ENVIRONMENT[name] for name in absent})
        # Dask's workers are daemonic, and multiprocessing lets those start no process
        current_process().daemon = False
        yield
    finally:
        current_process().daemon = daemonic
        for name in absent:
            del os.environ[name]
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _serve(pipe: Connection, log: Connection) -> None:
    """Run jobs from `pipe` until it is closed.

    Between jobs, an interrupt ends the process at once.
    """
    os.setpgid(0, 0)  # an interrupt of the terminal comes once, through `WorkerPool.end`
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = Messages(
        os.fdopen(2, "wb"), "utf-8", "surrogateescape", line_buffering=True
    )
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    pipe.send(True)
    with suppress(EOFError):
        while True:
            job = pipe.recv()  # which imports all that the job needs
            gc.freeze()  # so that only the objects of this job are searched for garbage after it
            signal.signal(signal.SIGINT, signal.default_int_handler)
            result = job.run()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            sys.stderr.flush()
            pipe.send(result)
            del job, result
            gc.collect()
