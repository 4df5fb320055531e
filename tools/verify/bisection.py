"""Bisection of a compile: the first application of a rule after which the model is wrong.

It works as LLVM's -opt-bisect-limit does.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from ...backends.onnx.saving import save_model
from ...ir.module import Module
from ...passes.infra import Pass, PassContext, Sequential
from ...result import emit
from ...support.errors import SourceError, UsageError, VerifyError
from .numeric_verify import VerifyNumerics

Load = Callable[[], Module]
Judge = Callable[[ModelProto, Path], str | None]
"""Takes a model and the folder of its external data.

Returns a description of its fault, None if it has none.
"""

NO_COMMAND = (126, 127)
"""Exit statuses of a shell that cannot execute or find a command: no verdict on the model."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first step of a pipeline after which a model is wrong.

    `rule` and `where` are empty if the pass does not count its steps, and `pass_` too if the source
    model is wrong.
    """

    pass_: str
    rule: str
    where: str
    """Label of the node at which the rule was applied."""

    step: int
    """Number of the application, from 1."""

    steps: int
    """Applications in the whole pipeline."""

    wrong: str
    """Description of the fault."""

    def __str__(self) -> str:
        if not self.pass_:
            return self.wrong
        if not self.rule:
            return f"{self.pass_}: {self.wrong}"
        step = f"step {self.step} of {self.steps} ({self.rule} at {self.where})"
        return f"{self.pass_}, {step}: {self.wrong}"


class _StepCounts:
    """An instrument that records each run of a pass, and the number of steps after it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.counts: list[int] = []

    def before(self, pass_: Pass, module: Module) -> None:
        """Do nothing."""

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Record the pass and the number of steps."""
        self.names.append(str(pass_))
        self.counts.append(module.debug_counter.count)


def judge_numerically(verify: VerifyNumerics, source: Module) -> Judge:
    """Return a judge that compares models with `source`."""
    verify.comparison(source)

    def judge(model: ModelProto, base_dir: Path) -> str | None:
        try:
            verify.check(model, "", base_dir)
        except SourceError:
            raise
        except VerifyError as error:
            return str(error).removeprefix(": ")
        return None

    return judge


def judge_by_command(command: str) -> Judge:
    """Return a judge that runs a shell command, with the path of the model in place of `{}`.

    A model is wrong if the command fails. The judge raises UsageError if the shell cannot run the
    command.
    """

    def judge(model: ModelProto, base_dir: Path) -> str | None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            save_model(model, path, base_dir)
            asked = command.replace("{}", shlex.quote(str(path)))
            done = subprocess.run(asked, shell=True, check=False)
        if done.returncode in NO_COMMAND:
            raise UsageError(
                f"--command: {command!r} cannot be run: the shell returns status {done.returncode}"
            )
        if done.returncode == 0:
            return None
        return f"the command fails with status {done.returncode}"

    return judge


def bisect(
    load: Load, pipeline: Sequential, judge: Judge, advance: Callable[[str], None] | None = None
) -> Culprit | None:
    """Return the first step after which `judge` finds a fault, or None if it never finds one.

    `load` reads the model for each of the O(log runs of passes + log steps) tries. If the model
    goes from right to wrong at several steps, one of these is found. `advance` is called with the
    verdict of every try.
    """

    def wrong_after(
        runs: int | None, limit: int | None = None, counts: _StepCounts | None = None
    ) -> str | None:
        module = _run(load, pipeline, runs, limit, counts)
        wrong = judge(emit(module).model, module.base_dir)
        if advance is not None:
            advance("right" if wrong is None else "wrong")
        return wrong

    steps = _StepCounts()
    wrong = wrong_after(None, counts=steps)
    if wrong is None:
        return None
    total = steps.counts[-1] if steps.counts else 0
    if wrong_after(0) is not None:
        return Culprit("", "", "", 0, total, "the source model is wrong already")
    # Passes first, then the steps of one pass: the order of steps does not depend on the limit, so
    # step n is the same in every try.
    low, high, wrong = _first_wrong(0, len(steps.names), wrong, wrong_after)
    culprit = steps.names[high - 1]
    before = steps.counts[low - 1] if low else 0
    after = steps.counts[high - 1]
    if after == before or wrong_after(high, before) is not None:
        return Culprit(culprit, "", "", 0, total, wrong)
    _, step, wrong = _first_wrong(before, after, wrong, lambda limit: wrong_after(high, limit))
    rule, where = _run(load, pipeline, high, step).debug_counter.last
    return Culprit(culprit, rule, where, step, total, wrong)


def _first_wrong(
    low: int, high: int, wrong: str, wrong_after: Callable[[int], str | None]
) -> tuple[int, int, str]:
    """Bisect between `low`, which is right, and the `wrong` `high` until they are adjacent."""
    while high - low > 1:
        middle = (low + high) // 2
        found = wrong_after(middle)
        if found is None:
            low = middle
        else:
            high, wrong = middle, found
    return low, high, wrong


def _run(
    load: Load,
    pipeline: Sequential,
    runs: int | None,
    limit: int | None,
    counts: _StepCounts | None = None,
) -> Module:
    module = load()
    module.debug_counter.limit = limit
    pipeline(module, PassContext([] if counts is None else [counts], runs=runs))
    return module
