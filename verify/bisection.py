"""Which application of which rule makes a compile wrong: as LLVM's opt-bisect-limit does it."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from ..backends.onnx.saving import save_model
from ..backends.result import emit
from ..ir.module import Module
from ..passes.infra import Pass, PassContext, Sequential
from ..support.errors import SourceError, UsageError, VerifyError
from .numeric_verify import VerifyNumerics

Load = Callable[[], Module]
Judge = Callable[[ModelProto, Path], str | None]
"""What is wrong with a model, whose external data stand below the folder; None where nothing is."""

CANNOT_RUN = (126, 127)
"""What a shell ends with where a command is no program, or is not there: that says nothing of a model."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first step of a pipeline behind which a model is wrong.

    `pass_` is the pass, and `rule` the rule that was applied `where`, as number `step` of `steps` in all; both are
    empty where the pass does not count its steps. `wrong` is what is wrong then.
    """

    pass_: str
    rule: str
    where: str
    step: int
    steps: int
    wrong: str

    def __str__(self) -> str:
        if not self.pass_:
            return self.wrong
        step = f", step {self.step} of {self.steps} ({self.rule} at {self.where})" if self.rule else ""
        return f"{self.pass_}{step}: {self.wrong}"


class _Stop:
    """An instrument that ends a pipeline behind a number of passes, and remembers them."""

    def __init__(self) -> None:
        self.counts: list[tuple[str, int]] = []

    def before(self, pass_: Pass, module: Module) -> None:
        """Nothing."""

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """How many steps were taken so far."""
        self.counts.append((str(pass_), module.debug_counter.count))


def judge_numbers(verify: VerifyNumerics, source: Module) -> Judge:
    """What `verify` says of a model, held to `source`."""
    verify.comparison(source)

    def judge(model: ModelProto, base_dir: Path) -> str | None:
        try:
            verify.hold(model, "", base_dir)
        except SourceError:
            raise
        except VerifyError as error:
            return str(error).removeprefix(": ")
        return None

    return judge


def judge_command(command: str) -> Judge:
    """What a shell command says of a model, whose path takes the place of `{}` in it: it fails where that is wrong.

    What is returned raises UsageError where the shell cannot run the command.
    """

    def judge(model: ModelProto, base_dir: Path) -> str | None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            save_model(model, path, base_dir)
            done = subprocess.run(command.replace("{}", shlex.quote(str(path))), shell=True, check=False)
        if done.returncode in CANNOT_RUN:
            raise UsageError(f"--command: {command!r} cannot be run: the shell gives status {done.returncode}")
        return f"the command fails with status {done.returncode}" if done.returncode else None

    return judge


def bisect(
    load: Load, pipeline: Sequential, judge: Judge, advance: Callable[[str], None] | None = None
) -> Culprit | None:
    """The first step behind which `judge` finds something wrong, None where it finds nothing at the end.

    `load` reads the model anew for each try, of which there are as many as the number of steps has binary digits, and
    as that of passes has. Steps are taken in one order whatever the limit, so that the wrong begins at one of them: a
    pipeline that goes wrong and right again is judged by where it went wrong for good. `advance` is told of every try.
    """

    def told(model: ModelProto, base_dir: Path) -> str | None:
        found = judge(model, base_dir)
        if advance is not None:
            advance("right" if found is None else "wrong")
        return found

    stop = _Stop()
    wrong = _judged(load, pipeline, told, len(pipeline.passes), None, stop)
    if wrong is None:
        return None
    total = stop.counts[-1][1] if stop.counts else 0
    low, high = 0, len(pipeline.passes)  # right behind `low` passes, wrong behind `high`
    if _judged(load, pipeline, told, 0, None, None) is not None:
        return Culprit("", "", "", 0, total, "the source model is wrong already")
    while high - low > 1:
        middle = (low + high) // 2
        found = _judged(load, pipeline, told, middle, None, None)
        low, high, wrong = (middle, high, wrong) if found is None else (low, middle, found)
    guilty = str(pipeline.passes[high - 1])
    before = stop.counts[low - 1][1] if low else 0
    after = stop.counts[high - 1][1]
    if after == before or _judged(load, pipeline, told, high, before, None) is not None:
        return Culprit(guilty, "", "", 0, total, wrong)
    while after - before > 1:
        middle = (before + after) // 2
        found = _judged(load, pipeline, told, high, middle, None)
        before, after, wrong = (middle, after, wrong) if found is None else (before, middle, found)
    module = _run(load, pipeline, high, after, None)
    rule, where = module.debug_counter.last
    return Culprit(guilty, rule, where, after, total, wrong)


def _run(load: Load, pipeline: Sequential, passes: int, limit: int | None, stop: _Stop | None) -> Module:
    module = load()
    module.debug_counter.limit = limit
    Sequential(pipeline.passes[:passes])(module, PassContext([] if stop is None else [stop]))
    return module


def _judged(
    load: Load, pipeline: Sequential, judge: Judge, passes: int, limit: int | None, stop: _Stop | None
) -> str | None:
    module = _run(load, pipeline, passes, limit, stop)
    return judge(emit(module).model, module.base_dir)
