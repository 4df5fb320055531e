"""Numeric verification of a compile: the module runs beside its source."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from onnx import ModelProto

from ...frontends.onnx.codec.streaming import materialize
from ...frontends.onnx.codec.traversal import external_tensors
from ...ir.module import Module
from ...passes.infra import Pass
from ...result import emit
from ...support.errors import EmitError, SourceError, UsageError, VerifyError
from .comparison import Comparison, Deviation
from .difference import (
    TensorDifference,
    report_rows,
    undecided_results,
    undecided_share,
    undecided_tensors,
)
from .inputs import Stimulus
from .reproducer import agreeing_tensors, save_reproducer
from .runner import Runner
from .tolerance import Tolerance, limit_name


@dataclass(slots=True)
class Verdict:
    """The outcome of a comparison without deviation. `irc compile --json` has these fields."""

    pass_: str
    tensors: int
    inputs: int
    greatest: float
    """The greatest ratio of a difference to its rounding bound."""
    silent: int = 0
    """Number of tensors that are undecided for every stimulus."""
    silent_results: tuple[str, ...] = ()
    """The results of the model among these."""
    results: int = 0
    """Number of results that the model has."""
    undecided: float = 0.0
    """The share of all elements, over all stimuli, that are undecided."""


@dataclass(slots=True)
class Failure:
    """A failed comparison. `irc compile --json` has these fields.

    If the model cannot be compared at all, everything from `tensor` on is None.
    """

    pass_: str
    message: str
    tensor: str | None = None
    """The first tensor, in the source's order, that rounding does not explain."""
    inputs: str | None = None
    """Name of the first stimulus that shows it."""
    max_abs: float | None = None
    share: float | None = None
    """The greatest ratio of a difference to its rounding bound."""
    elements: int | None = None
    """Number of elements beyond their bound."""
    reproducer: str | None = None
    """The folder with the models that show it, or None."""


@dataclass(slots=True)
class VerifyNumerics:
    """An instrument that runs the module beside its source after every pass that changed it.

    A deviation raises VerifyError, with the pass and the first tensor that rounding does not
    explain. After a pass that changes the function by design, its result takes the place of the
    source.
    """

    inputs: Sequence[Stimulus] = ()
    """The user's stimuli; without any they are generated from `seed`."""
    seed: int = 0
    when: str = "each"
    """With "end", compare in `finish`, and before a pass that changes the function."""
    reproducer: Path | None = None
    """The folder that gets the smallest models that show a deviation."""
    verdicts: list[Verdict] = field(default_factory=list)
    rebased: str = ""
    """The last pass that changed the function, with whose result later modules are compared."""
    thorough: bool = False
    """Whether large models are run on more inputs than the default budget has."""
    frozen: bool = False
    """Whether models may lack overridable initializers, as after FreezeInitializers."""
    tolerance: Tolerance | None = None
    """The tolerance that differences are held to, by default the bound on rounding."""
    advance: Callable[[str], None] | None = None
    """Called with the name of every stimulus that is compared."""
    failure: Failure | None = None
    _comparison: Comparison | None = None
    _passes: list[str] = field(default_factory=list)
    """The passes that changed the module since the one that others are compared with."""
    _differences: Sequence[TensorDifference] = ()
    _agreed: bytes = b""
    """Digest of the last model that agreed."""

    def __post_init__(self) -> None:
        """Raise UsageError for a model in the place of inputs."""
        if isinstance(self.inputs, Module | ModelProto):
            raise UsageError(
                "VerifyNumerics takes inputs, and no model: it compares"
                " the module that passes run on"
            )

    def before(self, pass_: Pass, module: Module) -> None:
        """Run the source, once. Raises VerifyError.

        With `when` "end", the module is compared before a pass that changes the function, the last
        chance to do so.
        """
        self.comparison(module)
        if self.when == "end" and self._passes and not pass_.preserves:
            self.compare(module, ",".join(self._passes))

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Compare the module. Raises VerifyError."""
        if changed:
            self._passes.append(str(pass_))
        if pass_.freezes:
            self.frozen = self.comparison(module).frozen = True
        if changed and not pass_.preserves:
            try:
                self._comparison = self._start(emit(module).model, module.base_dir)
                self._agreed = b""
            except VerifyError as error:  # the result of the pass does not run
                raise self._fail(Failure(str(pass_), str(error))) from None
            self.rebased, self._passes = str(pass_), []
        elif changed and self.when == "each":
            self.compare(module, str(pass_))

    def finish(self, module: Module, model: ModelProto, base_dir: Path | None = None) -> None:
        """Compare the model written for a module; `base_dir` has its external data.

        Raises VerifyError.
        """
        self.comparison(module)
        passes = ",".join(self._passes) if self.when == "end" else ""
        self.check(model, passes or "the written model", base_dir or module.base_dir)

    def comparison(self, module: Module) -> Comparison:
        """Return the comparison with the module's source, or with a module that came from text.

        Raises SourceError if the source does not run.
        """
        if self._comparison is None:
            is_read = isinstance(module.source, ModelProto)
            source = materialize(module.source) if is_read else emit(module).model
            try:
                self._comparison = self._start(source, module.base_dir)
            except VerifyError as error:
                raise SourceError(str(error)) from None
        return self._comparison

    def _start(self, source: ModelProto, base_dir: Path) -> Comparison:
        return Comparison(
            source,
            base_dir,
            inputs=self.inputs,
            seed=self.seed,
            advance=self.advance,
            frozen=self.frozen,
            thorough=self.thorough,
            tolerance=self.tolerance,
        )

    def compare(self, module: Module, name: str) -> None:
        """Emit the module and compare it. Raises VerifyError."""
        self.comparison(module)
        self.check(emit(module).model, name, module.base_dir)

    def check(self, model: ModelProto, name: str, base_dir: Path) -> None:
        """Compare the model that the pass `name` made, unless it equals the last that agreed.

        Raises VerifyError if it deviates or does not run, SourceError if the source does not run.
        """
        assert self._comparison is not None
        digest = _digest(model, base_dir)
        if digest == self._agreed and self.verdicts:
            self.verdicts.append(replace(self.verdicts[-1], pass_=name))
            return
        try:
            deviation, differences = self._comparison.deviation(model, base_dir)
        except SourceError:
            raise
        except VerifyError as error:
            raise self._fail(Failure(name, str(error))) from None
        if deviation is not None:
            raise self._fail(self._describe(name, deviation, differences, model, base_dir))
        self._differences = differences
        self._agreed = digest
        results = self._comparison.source.results
        self.verdicts.append(
            Verdict(
                name,
                tensors=len({difference.key for difference in differences}),
                inputs=len(self._comparison.inputs_of(model)),
                greatest=max((difference.share for difference in differences), default=0.0),
                silent=len(self.undecided),
                silent_results=undecided_results(differences, results),
                results=len(results),
                undecided=undecided_share(differences),
            )
        )

    def report_rows(self) -> list[dict[str, Any]]:
        """Return the differences of the last comparison for a report."""
        return report_rows(self._differences)

    @property
    def undecided(self) -> list[str]:
        """Tensors that the last comparison left undecided."""
        return undecided_tensors(self._differences)

    @property
    def budget(self) -> dict[str, Any] | None:
        """What the models were run on, None if none was."""
        return None if self._comparison is None else self._comparison.budget

    def warnings(self) -> list[str]:
        """Return the warnings of `Comparison.warnings`."""
        if self._comparison is None or not self.verdicts:
            return []
        return self._comparison.warnings(self._differences)

    def lines(self) -> list[str]:
        """Return a summary of the comparisons, a line for each pass."""
        limit = "bound" if self.tolerance is None else "tolerance"
        lines = [
            f"verified {v.pass_}: {v.tensors} tensors, {v.inputs} inputs, "
            f"largest difference {100 * v.greatest:.2g} % of the {limit}"
            + (f", {v.undecided:.2g} of the elements undecided" if v.undecided else "")
            for v in self.verdicts
        ]
        if self._comparison is not None and (left_out := self._comparison.left_out):
            lines.append(f"not run on: {', '.join(left_out)} (--verify=thorough does)")
        if undecided := self.undecided:
            more = ", ..." if len(undecided) > 5 else ""
            lines.append(f"undecided: {', '.join(undecided[:5])}{more}")
        if self.rebased:
            lines.append(
                f"{self.rebased} changes the function: later passes were compared with its result"
            )
        return lines

    def _fail(self, failure: Failure) -> VerifyError:
        self.failure = failure
        return VerifyError(f"{failure.pass_}: {failure.message}")

    def _describe(
        self,
        name: str,
        deviation: Deviation,
        differences: Sequence[TensorDifference],
        model: ModelProto,
        base_dir: Path,
    ) -> Failure:
        """Return the failure for a deviation after the pass `name`, with models that show it."""
        assert self._comparison is not None
        found = deviation.difference
        failure = Failure(
            name, "", found.tensor, found.inputs, found.max_abs, found.share, found.elements
        )
        failure.message = (
            f"tensor {found.tensor!r} {found.sentence(f'its {limit_name(self.tolerance)}')}, "
            f"in {found.elements} elements for inputs {found.inputs!r}"
        )
        if self.reproducer is None:
            return failure
        before, after = self._comparison.source.runner, Runner(model, base_dir)
        stimulus = deviation.stimulus
        shown = (found.value, agreeing_tensors(differences, stimulus), stimulus)
        try:
            saved = save_reproducer(self.reproducer, before, after, *shown, self.tolerance)
        except (EmitError, VerifyError) as error:
            failure.message += f"; the models that show it cannot be saved: {error}"
            return failure
        failure.reproducer = str(self.reproducer)
        failure.message += f"; {self.reproducer} has the {saved.operators} operators that"
        first = saved.difference
        if first is None:
            failure.message += " compute it, but do not show it by themselves"
        elif first.key == found.key:
            failure.message += " show it"
        else:
            failure.message += (
                f" show where it begins: tensor {first.tensor!r} is off by {first.max_abs:.3g}, "
                f"{first.share:.3g} times its {limit_name(self.tolerance)} in them"
            )
        return failure


def _digest(model: ModelProto, base_dir: Path) -> bytes:
    """Return a digest that is equal for equal models; it covers the folder of external data."""
    digest = blake2b(model.SerializeToString(deterministic=True))
    if next(external_tensors(model), None) is not None:
        digest.update(os.fsencode(base_dir.resolve()))
    return digest.digest()
