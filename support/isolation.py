"""Work of compiled code in other processes.

It may crash, run forever or take all memory, and its caller goes on.

`run_in_fork` runs one function on one text, in milliseconds; it needs a process without threads.
`Worker` starts a new interpreter, in half a second, and answers many requests; any process may have
one. Both work within `limit_resources`, but for the exchanges of a Worker that state no seconds.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Timer
from typing import IO, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import subprocess

T = TypeVar("T")

MEMORY, MEMORY_TIMES = 2 << 30, 64
"""Memory for the work beside its process: bytes, and a multiple of its content."""

WALL = 10
"""Seconds of waiting for each second of processor time: other processes may take the processors."""

SAFE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Environment of a Worker: its address space is limited, so it starts no thread for every core."""

BOOT = "import sys; sys.path[:] = sys.argv[2:]; __import__(sys.argv[1], fromlist=['main']).main()"

_LENGTH = struct.Struct("<Q")


class WorkerDiedError(Exception):
    """The process of a Worker ended before its answer, or could not be started.

    The message says how. `signal` is the number of the signal that ended it, 0 if none did.
    """

    def __init__(self, message: str, signal: int = 0) -> None:
        super().__init__(message)
        self.signal = signal


def limit_resources(seconds: int, content_bytes: int) -> None:
    """Limit this process to `seconds` more of processor time, and limit its memory.

    The memory is in proportion to its content. Has no effect on systems without such limits.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)
        _limit(resource.RLIMIT_CORE, 0)
        with open("/proc/self/statm") as sizes:  # Linux only
            pages = int(sizes.read().split()[0])
        _limit(
            resource.RLIMIT_AS,
            pages * resource.getpagesize() + MEMORY + MEMORY_TIMES * content_bytes,
        )


@contextmanager
def limited_time(seconds: int) -> Iterator[None]:
    """Let SIGXCPU end this process if the block takes `seconds` of processor time.

    Has no effect on systems without such limits.
    """
    try:
        import resource
    except ImportError:
        yield
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    bound = int(used.ru_utime + used.ru_stime) + 1 + seconds
    _limit(resource.RLIMIT_CPU, bound if soft == resource.RLIM_INFINITY else min(bound, soft))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _limit(resource_id: int, bound: int) -> None:
    """Set the soft limit, which the process may raise again, to `bound` or to the hard limit."""
    import resource

    _, hard = resource.getrlimit(resource_id)
    resource.setrlimit(
        resource_id, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard)
    )


def run_in_fork(work: Callable[[bytes], bytes], content: bytes, seconds: int) -> bytes | None:
    """Return `work(content)`, None if it fails, crashes, or takes too much time or memory."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads: the child needs none
        child = os.fork()
    if not child:
        _work(work, content, seconds, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        result = stream.read()
    _, status = os.waitpid(child, 0)
    return None if status else result


def _work(work: Callable[[bytes], bytes], content: bytes, seconds: int, writing: int) -> None:
    """Write the result to the pipe, and end the process. Runs in the child."""
    try:
        faulthandler.disable()
        limit_resources(seconds, len(content))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        result = work(content)
        with os.fdopen(writing, "wb") as stream:
            stream.write(result)
        os._exit(0)
    finally:
        os._exit(1)


class Worker:
    """A process that answers requests by the `main` of a module. It starts with the first request.

    After a crash the next request starts a new process. `crashes` counts them. `environment` has
    defaults of variables.
    """

    def __init__(self, module: str, environment: Mapping[str, str] = SAFE) -> None:
        self.module = module
        self.environment = environment
        self.crashes = 0
        self.process: subprocess.Popen[bytes] | None = None
        """The process that was started, until it crashes or `close` ends it."""

    def ask(self, request: bytes, seconds: int) -> bytes:
        """Return the answer of `serve` to a request, which may take `seconds` of processor time.

        Raises WorkerDiedError.
        """

        def talk(requests: IO[bytes], answers: IO[bytes]) -> bytes | None:
            _send(requests, _LENGTH.pack(seconds) + request)
            return _receive(answers)

        return self.exchange(talk, seconds)

    def exchange(self, talk: Callable[[IO[bytes], IO[bytes]], T | None], seconds: int = 0) -> T:
        """Write to the process and return its answer, both by `talk`.

        `talk` returns None or raises OSError if the process has ended. Without `seconds` the answer
        may take any time. Raises WorkerDiedError.
        """
        process = self.start()
        assert process.stdin is not None and process.stdout is not None
        late = _kill_later(process, seconds) if seconds else None
        try:
            answer = talk(process.stdin, process.stdout)
        except OSError:
            answer = None
        except BaseException:  # an interrupt: an answer would be taken for the next request's
            self.close()
            raise
        finally:
            if late is not None:
                late.cancel()
        if answer is None:
            self.crashes += 1
            code = process.wait()
            self.close()
            raise WorkerDiedError(_describe_end(code, seconds), max(-code, 0))
        return answer

    def start(self) -> subprocess.Popen[bytes]:
        """Return the process, started if it does not run. Raises WorkerDiedError."""
        if self.process is None:
            self.process = self._start()
        return self.process

    def _start(self) -> subprocess.Popen[bytes]:
        # Both take 10 ms to import, 5 % of a small compile. Only --verify and constants that
        # onnxruntime computes start a process.
        import subprocess
        from multiprocessing.spawn import get_executable

        path = [entry for entry in sys.path if entry]  # not the working folder
        command = [get_executable(), "-P", "-c", BOOT, self.module, *path]
        try:
            return subprocess.Popen(
                list(map(os.fsdecode, command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**self.environment, **os.environ},
            )
        except OSError as error:
            self.crashes += 1
            raise WorkerDiedError(f"irc cannot be started: {error.strerror}") from None

    def close(self) -> None:
        """End the process at once."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):  # output was buffered for a process that is gone
                if stream is not None:
                    stream.close()


def _kill_later(process: subprocess.Popen[bytes], seconds: int) -> Timer:
    late = Timer(WALL * (seconds + 1), process.kill)
    late.daemon = True
    late.start()
    return late


def answer_stream() -> IO[bytes]:
    """Prepare this process for a Worker, and return the stream of answers.

    Anything else that it prints is discarded.
    """
    faulthandler.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def serve(answer: Callable[[bytes], bytes]) -> None:
    """Answer the requests of a Worker until it closes the pipe."""
    results = answer_stream()
    while (request := _receive(sys.stdin.buffer)) is not None:
        (seconds,) = _LENGTH.unpack_from(request)
        limit_resources(seconds, len(request))
        _send(results, answer(request[_LENGTH.size :]))


def _send(stream: IO[bytes], content: bytes) -> None:
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """Return the next content of a stream, None at its end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    return content if len(content) == length else None


def _describe_end(code: int, seconds: int) -> str:
    """Return how a process ended that should have answered within `seconds`."""
    if seconds and os.name == "posix" and -code == signal.SIGXCPU:
        return f"took more than {seconds} s"
    if seconds and os.name == "posix" and -code == signal.SIGKILL:
        return "took too much time or memory"
    return describe_exit(code)


def describe_exit(code: int | None) -> str:
    """Return how a process ended, by its exit status or the negative number of a signal."""
    if code is None or code >= 0:
        return f"its process ended with exit status {code}"
    number = -code
    try:
        name = signal.Signals(number).name
    except ValueError:  # those between SIGRTMIN and SIGRTMAX have none
        name = f"signal {number}"
    return f"ended by {name}" + (", as if memory runs out" if number == signal.SIGKILL else "")
