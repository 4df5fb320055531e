"""Numeric verification of a compile: after every pass, or at its end, the module is run beside its source."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from onnx import ModelProto

from ..backends.result import emit
from ..codec.streaming import materialize
from ..codec.traversal import external_tensors
from ..ir.module import Module
from ..passes.infra import Pass
from ..support.errors import EmitError, SourceError, VerifyError
from .comparison import Comparison, Deviation
from .difference import Row, measures, silent_results, undecided, undecided_share
from .inputs import Stimulus
from .reproducer import Reproducer, agreeing_in, save_reproducer
from .runner import Runner

WHEN = ("each", "end")


@dataclass(slots=True)
class Verdict:
    """What was compared after one pass: rounding explains all of it, but for what says nothing."""

    pass_: str
    tensors: int
    inputs: int
    greatest: float
    """The greatest difference, as a share of what rounding can do."""
    silent: int = 0
    """Of how many of the tensors nothing can be said."""
    silent_results: tuple[str, ...] = ()
    """Results of the model of which nothing can be said."""
    results: int = 0
    """How many results the model has."""
    undecided: float = 0.0
    """Of which share of all elements, for all inputs, nothing can be said."""


@dataclass(slots=True)
class Failure:
    """Where a comparison failed: at a tensor that deviates, or at a model that cannot be compared, which has None in
    place of the tensor and of all that is said of it.
    """

    pass_: str
    message: str
    tensor: str | None = None
    """The first, in the source's order, that rounding does not explain."""
    inputs: str | None = None
    """The name of the first inputs that show it."""
    max_abs: float | None = None
    share: float | None = None
    """The greatest difference, as a share of what rounding can do."""
    elements: int | None = None
    """How many are beyond it."""
    reproducer: str | None = None
    """The folder that has the models which show it, None where there is none."""


@dataclass(slots=True)
class VerifyNumerics:
    """An instrument that runs the module beside its source after every pass that changed it.

    `inputs` are the user's; without any they are made from `seed`. A deviation raises VerifyError that names the pass
    and the first tensor that rounding does not explain, and leaves in `reproducer`, where that is given, the smallest
    models that show it; `failure` has the same as data. With `when` = end only `finish` compares, and what stands in
    front of a pass that changes the function. `rebased` is the last such pass, since which modules are compared with
    what it left. `frozen` says that callers need not be able to override initializers, as behind FreezeInitializers.
    `advance` is told of every set of inputs that was compared.
    """

    inputs: Sequence[Stimulus] = ()
    seed: int = 0
    when: str = "each"
    reproducer: Path | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    rebased: str = ""
    frozen: bool = False
    advance: Callable[[str], None] | None = None
    failure: Failure | None = None
    _comparison: Comparison | None = None
    _done: list[str] = field(default_factory=list)
    """The passes since what others are compared with."""
    _changed: bool = False
    """Whether one of these changed anything."""
    _rows: Sequence[Row] = ()
    _agreed: bytes = b""

    def before(self, pass_: Pass, module: Module) -> None:
        """Run the source, once. At the end there is nothing to hold to it behind a pass that changes the function: what
        stands in front of one is compared here. Raises VerifyError.
        """
        self.comparison(module)
        if self.when == "end" and self._changed and not pass_.preserves:
            self.compare(module, ",".join(self._done))

    def after(self, pass_: Pass, module: Module, changed: bool) -> None:
        """Compare. Raises VerifyError.

        Behind a pass that changes the function, what it left is what others are compared with.
        """
        self._done.append(str(pass_))
        self._changed |= changed
        if pass_.freezes:
            self.frozen = self.comparison(module).frozen = True
        if changed and not pass_.preserves:
            try:
                self._comparison, self._agreed = self._against(emit(module).model, module.base_dir), b""
            except VerifyError as error:  # of what the pass left
                raise self._failed(Failure(str(pass_), str(error))) from None
            self.rebased, self._done, self._changed = str(pass_), [], False
        elif changed and self.when == "each":
            self.compare(module, str(pass_))

    def finish(self, module: Module, model: ModelProto, base_dir: Path | None = None) -> None:
        """Compare what became of the module: the model as it was written, its external data below `base_dir` (that of
        the module where it is not given). Raises VerifyError.
        """
        self.comparison(module)
        passes = ",".join(self._done) if self.when == "end" else "the backend"
        self.hold(model, passes or "the backend", base_dir or module.base_dir)

    def comparison(self, module: Module) -> Comparison:
        """What the module is held to: its source, or what it is now where it came from text. Raises SourceError."""
        if self._comparison is None:
            source = materialize(module.source) if isinstance(module.source, ModelProto) else emit(module).model
            try:
                self._comparison = self._against(source, module.base_dir)
            except VerifyError as error:
                raise SourceError(str(error)) from None
        return self._comparison

    def _against(self, source: ModelProto, base_dir: Path) -> Comparison:
        return Comparison(
            source, base_dir, inputs=self.inputs, seed=self.seed, advance=self.advance, frozen=self.frozen
        )

    def compare(self, module: Module, name: str) -> None:
        """Emit the module and compare. Raises VerifyError."""
        self.comparison(module)
        self.hold(emit(module).model, name, module.base_dir)

    def hold(self, model: ModelProto, name: str, base_dir: Path) -> None:
        """Compare a model, unless it is the very one that agreed last. Raises VerifyError, SourceError as `rows`."""
        assert self._comparison is not None
        digest = _digest(model, base_dir)
        if digest == self._agreed and self.verdicts:
            self.verdicts.append(replace(self.verdicts[-1], pass_=name))
            return
        try:
            deviation, rows = self._comparison.deviation(model, base_dir)
        except SourceError:
            raise
        except VerifyError as error:
            raise self._failed(Failure(name, str(error))) from None
        if deviation is not None:
            raise self._failed(self.describe(name, deviation, rows, model, base_dir))
        self._rows = rows
        greatest = max((row.share for row in rows), default=0.0)
        tensors = len({row.key for row in rows})
        silent, results = len(undecided(rows)), self._comparison.source.results
        mute = silent_results(rows, results)
        inputs = len(self._comparison.inputs_of(model))
        share = undecided_share(rows)
        self.verdicts.append(Verdict(name, tensors, inputs, greatest, silent, mute, len(results), share))
        self._agreed = digest

    def measures(self) -> list[dict[str, Any]]:
        """What was found last, for a report."""
        return measures(self._rows)

    @property
    def silent(self) -> list[str]:
        """Tensors of which the last comparison says nothing."""
        return undecided(self._rows)

    def warnings(self) -> list[str]:
        """That nothing can be said of the model, or of the branches of an If: `Comparison.warnings`."""
        return self._comparison.warnings(self._rows) if self._comparison is not None and self.verdicts else []

    def lines(self) -> list[str]:
        """What was compared, a line for each pass."""
        lines = [
            f"verified {v.pass_}: {v.tensors} tensors, {v.inputs} inputs, off by at most {v.greatest:.2g} of the bound"
            + (f", {v.undecided:.2g} of the elements undecided" if v.undecided else "")
            for v in self.verdicts
        ]
        if silent := self.silent:
            lines.append(f"nothing can be said of {', '.join(silent[:5])}{', ...' if len(silent) > 5 else ''}")
        if self.rebased:
            lines.append(f"{self.rebased} changes the function: what follows was compared with its result")
        return lines

    def _failed(self, failure: Failure) -> VerifyError:
        self.failure = failure
        return VerifyError(f"{failure.pass_}: {failure.message}")

    def describe(
        self, name: str, deviation: Deviation, rows: Sequence[Row], model: ModelProto, base_dir: Path
    ) -> Failure:
        """The tensor that deviates behind the pass `name`, how far it is off, and where the models that show it are."""
        row = deviation.row
        failure = Failure(name, "", row.tensor, row.inputs, row.max_abs, row.share, row.elements)
        failure.message, saved = self._described(deviation, rows, model, base_dir)
        failure.reproducer = str(self.reproducer) if saved else None
        return failure

    def _described(
        self, deviation: Deviation, rows: Sequence[Row], model: ModelProto, base_dir: Path
    ) -> tuple[str, bool]:
        """What is said of a deviation, and whether models that show it were saved."""
        row = deviation.row
        text = (
            f"tensor {row.tensor!r} is off by {row.max_abs:.3g}, {row.share:.3g} times what rounding can do, "
            f"in {row.elements} elements for inputs {row.inputs!r}"
        )
        if self.reproducer is None:
            return text, False
        try:
            made = self.reproduce(deviation, rows, Runner(model, base_dir), self.reproducer)
        except (EmitError, VerifyError) as error:
            return f"{text}; the models that show it cannot be saved: {error}", False
        text += f"; {self.reproducer} has the {made.operators} operators that"
        if made.row is None:
            return f"{text} compute it, which alone do not show it", True
        if made.row.key == row.key:
            return f"{text} show it", True
        first = f"tensor {made.row.tensor!r} is off by {made.row.max_abs:.3g}, {made.row.share:.3g} times"
        return f"{text} show where it begins: {first} what rounding can do in them", True

    def reproduce(self, deviation: Deviation, rows: Sequence[Row], other: Runner, folder: Path) -> Reproducer:
        """Save the smallest models that show a deviation."""
        assert self._comparison is not None
        source = self._comparison.source.runner
        agreeing = agreeing_in(rows, deviation.stimulus)
        return save_reproducer(folder, source, other, deviation.row.value, agreeing, deviation.stimulus)


def _digest(model: ModelProto, base_dir: Path) -> bytes:
    """What is equal for equal models; external data in other folders may be other data."""
    digest = blake2b(model.SerializeToString(deterministic=True))
    if next(external_tensors(model), None) is not None:
        digest.update(os.fsencode(base_dir.resolve()))
    return digest.digest()
