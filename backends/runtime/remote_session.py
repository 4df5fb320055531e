"""Sessions of onnxruntime in another process: some of its kernels crash, which must not end irc."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from threading import RLock
from typing import IO, Any

from ...support.extras import needing
from ...support.isolation import Worker, WorkerDiedError
from .messages import Array
from .wire import decode, encode, enlarge_pipe, read_message, write_message

SERVER = "irc.backends.runtime.session_server"
"""The module whose `main` answers."""

ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "NVIDIA_TF32_OVERRIDE": "0",
}
"""Environment of the process: glibc keeps the memory that a run frees for the next one.

Otherwise the kernel clears it again, page by page. Other C libraries read no such variables.
NVIDIA's libraries multiply float32 in float32, not in TF32.
"""

chosen: ContextVar[dict[str, list[str]] | None] = ContextVar("chosen", default=None)
"""What `session_options` says of new sessions: paths of libraries, and names of providers."""

with needing("verify"):
    if find_spec("onnxruntime") is None:
        raise ModuleNotFoundError(name="onnxruntime")


LOADING_SECONDS = 600
"""Processor time that loading a model may take.

A model of 736 nodes takes 0.2 s. onnxruntime loads some models without end, such as functions that
it takes to call themselves, because it does not tell overloads apart.
"""

OUT_OF_TIME = getattr(signal, "SIGXCPU", 0)
"""The signal that ends the process then, if the system has it."""


class RuntimeFailedError(Exception):
    """onnxruntime refuses a model or its inputs. The message is onnxruntime's."""


class _Runtime:
    """The process of all sessions. One is started for each process that asks, and after a crash."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.closed: list[int] = []
        """Sessions that are no longer needed; the next request says so."""
        self._numbers = count()
        self._owner = 0
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        """The process, which need not have been started. A forked process gets its own."""
        if self._worker is None or self._owner != os.getpid():
            self._worker, self._owner = Worker(SERVER, ENVIRONMENT), os.getpid()
            self.lock, self.closed = RLock(), []
        return self._worker

    def start(self) -> None:
        """Start the process if it does not run: it is ready when the first model is."""
        with suppress(WorkerDiedError):  # which the first request raises
            if self.worker.process is None:
                atexit.register(self.close)
                stdin = self.worker.start().stdin
                assert stdin is not None
                enlarge_pipe(stdin)

    def close(self) -> None:
        """End the process, unless it is another's."""
        if self._owner == os.getpid():
            atexit.unregister(self.close)
            self.worker.close()

    def next_number(self) -> int:
        """Return a number that no session has."""
        return next(self._numbers)

    def ask(
        self, request: dict[str, Any], arrays: Sequence[Array], model: bytes = b""
    ) -> tuple[Any, list[Array]]:
        """Return the answer to a request. Raises RuntimeFailedError and WorkerDiedError."""
        worker = self.worker
        with self.lock:
            self.start()
            closed, self.closed = self.closed, []

            def talk(
                requests: IO[bytes], answers: IO[bytes]
            ) -> tuple[Any, list[Array], bytes] | None:
                write_message(requests, {**request, "closed": closed}, arrays, model)
                return read_message(answers)

            answer, found, _ = worker.exchange(talk)
        if "error" in answer:
            raise RuntimeFailedError(answer["error"])
        return answer, found


runtime = _Runtime()
"""The process of this one."""


class RemoteSession:
    """A session of onnxruntime in the process of all sessions, by default without optimizations.

    `inputs` and `overridable` are the names of its inputs, `output_types` the types of its results
    in onnxruntime's words. Raises RuntimeFailedError if onnxruntime refuses the model,
    WorkerDiedError if it crashes.
    """

    def __init__(
        self,
        model: bytes,
        base_dir: Path | None = None,
        *,
        threads: int = 0,
        reuse: bool = True,
        optimize: bool = False,
    ) -> None:
        folder = None if base_dir is None else str(base_dir.resolve())
        self.number = runtime.next_number()
        request: dict[str, Any] = {"number": self.number, "folder": folder, "threads": threads}
        request |= {"reuse": reuse, "options": chosen.get() or {}}
        request["optimize"] = self.optimize = optimize
        self.seconds = 0.0
        """How long the last run took, without the transport of its inputs and results."""
        try:
            answer, _ = runtime.ask({**request, "seconds": LOADING_SECONDS}, (), model)
        except WorkerDiedError as error:
            end = f"took more than {LOADING_SECONDS} s" if error.signal == OUT_OF_TIME else error
            raise WorkerDiedError(f"{end} while loading the model", error.signal) from None
        self._process = runtime.worker.process
        self.inputs: list[str] = answer["inputs"]
        self.overridable: list[str] = answer["overridable"]
        self.output_types: list[str] = answer["outputs"]

    def __del__(self) -> None:
        """Let the process free the session."""
        runtime.closed.append(self.number)

    @property
    def is_open(self) -> bool:
        """Whether the process that has the session still runs."""
        return self._process is runtime.worker.process

    def run(self, feeds: Mapping[str, tuple[Any, int]]) -> list[Any]:
        """Return the results for inputs.

        Each input has its element type in ONNX, or 0 if numpy has the type. Raises
        RuntimeFailedError if onnxruntime refuses them, WorkerDiedError if it crashes.
        """
        arrays: list[Array] = []
        texts = {
            name: (encode(value, arrays), elem_type) for name, (value, elem_type) in feeds.items()
        }
        request = {"number": self.number, "feeds": texts, "shrink": not self.optimize}
        answer, found = runtime.ask(request, arrays)
        self.seconds = answer["seconds"]
        return [decode(text, found) for text in answer["values"]]
