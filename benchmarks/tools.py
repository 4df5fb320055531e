"""The tools that the benchmarks compare, and calls in processes of their own.

A call runs in a new process, with a time limit and a memory limit. The process is a copy of a
server that has imported the tools, so that it starts in milliseconds, and nothing that one call
leaves behind reaches the next.
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

OWN = "irc"
ROOT = Path(__file__).parent.parent


def with_irc(source: Path, out: Path, *, freeze: bool = False) -> list[dict[str, Any]]:
    """Run the default pipeline of irc, and return the `sources` of the fold map."""
    import irc

    result = irc.compile(source, freeze_initializers=freeze)
    result.save(out)
    return result.fold_map.sources


def with_irc_frozen(source: Path, out: Path) -> list[dict[str, Any]]:
    return with_irc(source, out, freeze=True)


def with_onnxsim(source: Path, out: Path) -> None:
    import onnx
    import onnxsim

    onnx.save(onnxsim.simplify(onnx.load(source))[0], out)


def with_onnxslim(source: Path, out: Path) -> None:
    import onnx
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), out)


def with_onnxscript(source: Path, out: Path) -> None:
    import onnx
    import onnxscript.optimizer

    onnx.save(onnxscript.optimizer.optimize(onnx.load(source)), out)


def with_onnxoptimizer(source: Path, out: Path) -> None:
    import onnx
    import onnxoptimizer

    onnx.save(onnxoptimizer.optimize(onnx.load(source)), out)


def with_onnxruntime(source: Path, out: Path, *, level: str = "ORT_ENABLE_BASIC") -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def with_onnxruntime_extended(source: Path, out: Path) -> None:
    with_onnxruntime(source, out, level="ORT_ENABLE_EXTENDED")


Tool = Callable[[Path, Path], Any]
TOOLS: dict[str, tuple[str, Tool]] = {
    OWN: ("irc", with_irc),
    "irc frozen": ("irc", with_irc_frozen),
    "onnxsim": ("onnxsim", with_onnxsim),
    "onnxslim": ("onnxslim", with_onnxslim),
    "onnxscript": ("onnxscript", with_onnxscript),
    "onnxruntime": ("onnxruntime", with_onnxruntime),
    "onnxruntime extended": ("onnxruntime", with_onnxruntime_extended),
    "onnxoptimizer": ("onnxoptimizer", with_onnxoptimizer),
}
"""The tools by name, each with the package that it is from and the function that compiles a file to
a file.
"""

CALLS = {
    "onnxsim": "onnxsim.simplify(model)[0]",
    "onnxslim": "onnxslim.slim(model)",
    "onnxscript": "onnxscript.optimizer.optimize(model)",
    "onnxoptimizer": "onnxoptimizer.optimize(model)",
}
"""The expression that a tool is called by, where it takes and returns a model."""


def is_installed(tool: str) -> bool:
    """Return whether the package of a tool can be imported."""
    return importlib.util.find_spec(TOOLS[tool][0]) is not None


def version(tool: str) -> str:
    """Return the version of a tool; irc's ends with a digest of its modules."""
    package = TOOLS[tool][0]
    if package != OWN:
        return importlib.metadata.version(package)
    import irc

    return f"{irc.__version__}+{own_digest()}"


def own_digest() -> str:
    """Return a digest of the modules of irc."""
    import irc

    folders = ("backends", "codec", "frontends", "ir", "passes", "support")
    digest = hashlib.sha256()
    for file in sorted(
        file for folder in folders for file in (Path(irc.__path__[0]) / folder).rglob("*.py")
    ):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


class Failure(Exception):
    """A failed call; `kind` is error, crash, timeout or memory."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Return (True, result of the call) or (False, kind and text of the error)."""
    try:
        return True, function(*arguments)
    except MemoryError as error:
        return False, ("memory", str(error)[:200])
    except BaseException as error:  # a tool may raise anything, and may call sys.exit
        text = " ".join(str(error).split())
        kind = "memory" if "bad_alloc" in text or "Failed to allocate memory" in text else "error"
        return False, (kind, f"{type(error).__name__}: {text[:300]}")


def attempts(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> list[tuple[bool, Any]]:
    """Attempt several calls."""
    return [attempt(function, arguments) for arguments in calls]


def _serve(
    connection: Any, memory: int, log: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Attempt a call in this process, and send the outcome."""
    faulthandler.disable()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    connection.send(attempt(function, arguments))
    connection.close()
    os._exit(0)  # no clean-up of libraries, which may crash after the result is sent


class Child:
    """Calls in processes of their own, of at most `timeout` seconds and `memory` bytes."""

    def __init__(self, timeout: float, memory: int = 0) -> None:
        self.timeout, self.memory = timeout, memory
        self.context = multiprocessing.get_context("forkserver")
        modules = [package for package, _ in TOOLS.values() if package != "onnxscript"]
        self.context.set_forkserver_preload(["__main__", *modules, "onnxscript.optimizer"])

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(*arguments)`, computed in a new process. Raises Failure."""
        with tempfile.NamedTemporaryFile(suffix=".log") as log:
            ours, theirs = self.context.Pipe()
            process = self.context.Process(
                target=_serve, args=(theirs, self.memory, log.name, function, arguments)
            )
            process.start()
            theirs.close()
            try:
                if not ours.poll(self.timeout):
                    raise Failure("timeout", f"no result after {self.timeout:g} s")
                done, result = ours.recv()
            except (EOFError, OSError):
                process.join()
                raise Failure("crash", _crash(process.exitcode or 0, log.name)) from None
            finally:
                process.kill()
                process.join()
                ours.close()
        if not done:
            raise Failure(*result)
        return result

    def each(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the result of each call, or its Failure.

        One process makes all calls, another the ones that failed, again. Where a process crashes,
        two processes make half of the calls each; where it takes too long, each call has a process
        of its own.
        """
        if len(calls) < 2:
            return [self.alone(function, arguments) for arguments in calls]
        found: list[Any] = [None] * len(calls)
        todo = list(range(len(calls)))
        for _ in range(2):
            try:
                done = self.call(attempts, function, [calls[i] for i in todo]) if todo else []
            except Failure as failure:
                if failure.kind == "timeout":
                    again = [self.alone(function, calls[i]) for i in todo]
                else:
                    middle = (len(todo) + 1) // 2
                    halves = (todo[:middle], todo[middle:])
                    again = [
                        result
                        for half in halves
                        for result in self.each(function, [calls[i] for i in half])
                    ]
                for i, result in zip(todo, again, strict=True):
                    found[i] = result
                return found
            for i, (right, result) in zip(todo, done, strict=True):
                found[i] = result if right else Failure(*result)
            todo = [i for i in todo if isinstance(found[i], Failure)]
        return found

    def alone(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return the result of a call in a process of its own, or its Failure."""
        try:
            return self.call(function, *arguments)
        except Failure as failure:
            return failure


def _crash(code: int, log: str) -> str:
    """Return the signal or exit status of a process, and the last line that it printed."""
    name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    lines = Path(log).read_text(errors="replace").strip().splitlines()
    return f"{name}: {lines[-1][:300]}" if lines else name


if str(ROOT / "tests" / "support") not in sys.path:  # the models and the evaluator of the tests
    sys.path.insert(0, str(ROOT / "tests" / "support"))
