"""A file layer that fails where it is told, and compiles in processes that meet with it.

As a program, it stands ready and forks a compile for each request, so that hundreds of them take
seconds.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DONE, FAILED, DONE_NEVERTHELESS, CRASHED, INTERRUPTED = 0, 1, 3, 70, 130
"""Exit statuses: no fault was met; an error of irc; in spite of the fault; another error; an
interrupt.
"""

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT}
FULL = "full"
"""From then on no space is left: nothing is made and nothing written, but files can be removed and
renamed.
"""


@dataclass(frozen=True)
class Compile:
    """A compile, and the accident at event `at` of the file layer: a signal, an errno, or FULL."""

    source: str
    output: str
    fold_map: str | None = None
    store: str = "npz"
    passes: str | None = None
    at: int = 0
    fault: str = "kill"
    report: str = os.devnull
    """Gets the error."""


class Layer:
    """Stands between a process and its files, and counts what it does with them."""

    def __init__(self, at: int, fault: str) -> None:
        self.at, self.fault, self.count = at, fault, 0
        self.lock = threading.Lock()

    @property
    def met(self) -> bool:
        return 0 < self.at <= self.count

    def event(self, name: str, *, takes_space: bool = False) -> None:
        """Raises OSError where the operation `name` fails."""
        with self.lock:
            self.count += 1
            now = self.count == self.at
        if self.fault in SIGNALS:
            if now:
                os.kill(os.getpid(), SIGNALS[self.fault])
        elif self.fault == FULL:
            if self.met and takes_space:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif now:
            number = getattr(errno, self.fault)
            raise OSError(number, os.strerror(number))

    def install(self) -> None:
        for module, name in (
            *((os, name) for name in ("replace", "unlink", "listdir", "preadv", "ftruncate")),
            *((os, name) for name in ("mkdir", "write", "copy_file_range", "sendfile")),
            (fcntl, "flock"),
        ):
            space = name in ("mkdir", "write", "copy_file_range", "sendfile")
            setattr(module, name, self.around(name, getattr(module, name), space))
        os_open, io_open = os.open, io.open

        def opened(path: Any, flags: int, *arguments: Any) -> int:
            self.event("open", takes_space=bool(flags & os.O_CREAT))
            return os_open(path, flags, *arguments)

        def stream(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            self.event("open", takes_space="w" in mode)
            if mode not in ("wb", "w+b"):
                return io_open(file, mode, *arguments, **named)
            raw = Raw(self, file, mode.replace("b", ""))
            return io.BufferedWriter(raw) if mode == "wb" else io.BufferedRandom(raw)

        os.open = opened
        builtins.open = io.open = stream  # type: ignore[assignment]

    def around(
        self, name: str, function: Callable[..., Any], takes_space: bool
    ) -> Callable[..., Any]:
        def failing(*arguments: Any, **named: Any) -> Any:
            self.event(name, takes_space=takes_space)
            return function(*arguments, **named)

        return failing


class Raw(io.FileIO):
    """A file of which half of a block may be written, and an error known only when it is closed."""

    def __init__(self, layer: Layer, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self.layer = layer

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        half = super().write(view[: len(view) // 2])
        self.layer.event("write", takes_space=True)
        return half + super().write(view[half:])

    def close(self) -> None:
        was_open = not self.closed
        super().close()
        if was_open:
            self.layer.event("close", takes_space=True)


def lower_thresholds(threshold: int = 256) -> None:
    """Let small models be large ones."""
    import irc.frontends.onnx
    import irc.passes.fold_constant

    irc.frontends.onnx.LARGE_FILE = 0
    irc.frontends.onnx.LARGE_PAYLOAD = threshold
    irc.passes.fold_constant.LAZY = threshold


def perform(wanted: Compile) -> int:
    """Compile in this process, which is of no other use any more."""
    import irc

    layer = Layer(wanted.at, wanted.fault)
    error: BaseException | None = None
    status = DONE
    try:
        layer.install()
        result = irc.compile(wanted.source, wanted.passes)
        result.save(
            wanted.output,
            fold_map=wanted.fold_map,
            fold_map_store=wanted.store,
            in_place=True,
        )
    except irc.IRError as caught:
        status, error = FAILED, caught
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BaseException as caught:
        status, error = CRASHED, caught
    met, layer.at = layer.met, 0
    if error is not None:
        text = str(error) if status == FAILED else "".join(traceback.format_exception(error))
        Path(wanted.report).write_text(text)
    return DONE_NEVERTHELESS if status == DONE and met else status


class Compiler:
    """The program, from outside."""

    def __init__(self, example: Path) -> None:
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, __file__, str(example)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, wanted: Compile) -> int:
        """The id of the process."""
        pid: int = self.ask(start=asdict(wanted))
        return pid

    def wait(self, pid: int, seconds: float = 60.0) -> int | None:
        """The exit status, negative for a signal (SIGSTOP too); None after so many seconds."""
        status: int | None = self.ask(wait=pid, seconds=seconds)
        return status

    def run(self, wanted: Compile) -> int:
        status = self.wait(self.start(wanted))
        assert status is not None, f"it hangs: {wanted}"
        return status


@contextmanager
def compiler(example: Path) -> Iterator[Compiler]:
    ready = Compiler(example)
    try:
        yield ready
    finally:
        assert ready.process.stdin is not None and ready.process.stdout is not None
        ready.process.stdin.close()
        ready.process.wait()
        ready.process.stdout.close()


def serve(example: str) -> None:
    """Answer requests, when `example` was compiled once and everything is imported.

    Python's files are no subject.
    """
    import filecmp

    import irc
    from onnx import numpy_helper, shape_inference

    assert filecmp and numpy_helper and shape_inference
    lower_thresholds()
    with tempfile.TemporaryDirectory() as folder:
        irc.compile(example).save(f"{folder}/o.onnx", fold_map=f"{folder}/o.json")
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            answer: int | None = os.fork()
            if not answer:
                os._exit(perform(Compile(**request["start"])))
        else:
            answer = ended(request["wait"], request["seconds"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def ended(pid: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        if found:
            return -signal.SIGSTOP if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.0005)


if __name__ == "__main__":
    serve(sys.argv[1])
