"""Comparison of a model with its source: every tensor that both have, held to the rounding bound.

A compiled model uses a name of its source only for the same value, so not only the results are
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from onnx import ModelProto

from ...ir.types import DType
from ...support.errors import SourceError, VerifyError
from ..report.graph_boxes import model_drawing
from ..report.notebook import frame, table
from .difference import TensorDifference, compare_parts, undecided_results, undecided_value
from .input_generation import has_open_dimensions, overriding_stimuli, stimuli
from .inputs import (
    Stimulus,
    arrays_of,
    interface_mismatch,
    is_boolean,
    overridable_inputs,
    required_inputs,
)
from .onnx_graph import BRANCHES, conditionals, tensor_names
from .reference_model import (
    CONFIRMING_RUNS,
    IsolatedReferenceRun,
    ReferenceModel,
    ReferenceRun,
    split_values,
)
from .run_budget import affordable_runs, choose, choose_thorough
from .runner import IncrementalRun, Runner
from .tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Deviation:
    """A difference that rounding does not explain, and the stimulus that shows it."""

    difference: TensorDifference
    stimulus: Stimulus


class Comparison:
    """A source model with stimuli, values and rounding bounds, that models are compared with.

    `inputs` are the user's stimuli; without any they are generated, as many as the `budget` says.
    `advance` is called with the name of every stimulus. With `frozen`, other models may lack
    overridable initializers.
    """

    def __init__(
        self,
        source: ModelProto,
        base_dir: Path | None = None,
        *,
        inputs: Sequence[Stimulus] = (),
        seed: int = 0,
        advance: Callable[[str], None] | None = None,
        frozen: bool = False,
        thorough: bool = False,
        tolerance: Tolerance | None = None,
        narrow: DType | None = None,
    ) -> None:
        """Run the source on `inputs` or on generated stimuli; `thorough` leaves out fewer of these.

        Differences are held to the `tolerance`, by default to the bound on rounding, to the
        `narrow` type if there is one.

        Raises SourceError if it fails on one of `inputs`, or on all generated stimuli.
        """
        self.source = ReferenceModel(source, base_dir or Path(), narrow)
        self.source.tolerance = tolerance
        self.advance = advance
        self.frozen = frozen
        self.thorough = thorough
        self.left_out: tuple[str, ...] = ()
        """The runs left out to save time: kinds of inputs, and a second size of open dimensions."""
        self.runs_of_others = 0.0
        """Number of runs of models that were compared with the source."""
        self.inputs = self._check_given(inputs) if inputs else self._generate(seed)
        self.inputs += tuple(
            overriding_stimuli(
                source, self.source.base_dir, self.inputs[0], self.source.error_on, seed=seed
            )
        )
        self.source.free_measuring()

    def _check_given(self, inputs: Sequence[Stimulus]) -> tuple[Stimulus, ...]:
        for stimulus in inputs:
            error = self.source.error_on(stimulus.feeds)
            if error is not None:
                raise SourceError(f"the source model does not run on {stimulus.name}: {error}")
        if self.thorough:
            self.source.noisy_runs = choose_thorough(self.source.size).noisy_runs
        else:
            self.source.noisy_runs = affordable_runs(self.source.work, len(inputs))
        return tuple(inputs)

    def _generate(self, seed: int) -> tuple[Stimulus, ...]:
        """Generate the stimuli that the budget has, after a run on the first one."""
        source = self.source
        next(stimuli(source.model, source.error_on, source.runner.shape_of, seed=seed))
        is_open = has_open_dimensions(source.model)
        if self.thorough:
            budget = choose_thorough(source.size)
        else:
            budget = choose(
                source.work,
                is_open=is_open,
                overrides=bool(overridable_inputs(source.model)),
                has_booleans=any(is_boolean(info) for info in required_inputs(source.model)),
            )
        source.noisy_runs, self.left_out = budget.noisy_runs, budget.left_out(is_open=is_open)
        runs = source.error_on, source.runner.shape_of
        return tuple(
            stimuli(source.model, *runs, seed=seed, kinds=budget.kinds, sizes=budget.sizes)
        )

    def __repr__(self) -> str:
        return (
            f"<Comparison with {self.source.model.graph.name!r} on"
            f" {len(self.inputs)} sets of inputs>"
        )

    def _repr_html_(self) -> str:
        """Return the sets of inputs and the graph of the source for a notebook."""
        rows: list[tuple[str, str]] = []
        for stimulus in self.inputs:
            shapes = {name: arrays_of(value)[0].shape for name, value in stimulus.feeds.items()}
            text = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            rows.append((stimulus.name, text))
        drawing = model_drawing(self.source.model)
        return frame(repr(self), table(("inputs", "shapes"), rows), drawing)

    def check_interface(self, other: ModelProto, base_dir: Path) -> None:
        """Raise VerifyError if the interfaces differ, or onnxruntime does not load `other`."""
        mismatch = interface_mismatch(self.source.model, other, frozen=self.frozen)
        if mismatch is not None:
            raise VerifyError(mismatch)
        if self.source.loads:
            Runner(other, base_dir).check_loads()

    @property
    def budget(self) -> dict[str, Any]:
        """What the models are run on, for documents in JSON."""
        return {
            "thorough": self.thorough,
            "inputs": [stimulus.name for stimulus in self.inputs],
            "noisy_runs": 0 if self.source.tolerance is not None else self.source.noisy_runs,
            "left_out": list(self.left_out),
        }

    def inputs_of(self, other: ModelProto) -> list[Stimulus]:
        """Return the stimuli whose inputs the other model has."""
        lost = {info.name for info in overridable_inputs(self.source.model)}
        lost -= {info.name for info in overridable_inputs(other)}
        return [stimulus for stimulus in self.inputs if lost.isdisjoint(stimulus.feeds)]

    def warnings(
        self, differences: Sequence[TensorDifference], model: ModelProto | None = None
    ) -> list[str]:
        """Return warnings of incomparable results, and of branches that no stimulus takes.

        `model` has the names of the Ifs, if the user gave another model than the source.
        """
        found: list[str] = []
        results = self.source.results
        if not self.source.names and self.source.unreadable:
            found.append(
                "there is nothing to compare: all tensors depend on random operators or have types"
                " that onnxruntime does not return"
            )
        elif results and len(undecided_results(differences, results)) == len(results):
            found.append(
                "verification is inconclusive: no result of the model can"
                " be compared on these inputs"
            )
        if unmeasured := self.source.unmeasured:
            name, others = next(iter(unmeasured)), len(unmeasured) - 1
            subject = f"{name!r} and {others} more tensors" if others else repr(name)
            found.append(
                f"the effect of rounding on {subject} could not be measured, so"
                f" {'they are' if others else 'it is'} undecided (--rtol and --atol need no such"
                f" bound): {unmeasured[name]}"
            )
        for condition, labels in conditionals(model or self.source.model).items():
            for branch, value in zip(BRANCHES, (True, False), strict=True):
                if value not in self.source.taken.get(condition, (True, False)):
                    found += [
                        f"no inputs take the {branch} of the If {label!r}: it was not compared"
                        for label in labels
                    ]
        return found

    def differences(
        self,
        other: ModelProto,
        base_dir: Path | None = None,
        *,
        similarity: bool = True,
        inputs: Sequence[Stimulus] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[TensorDifference, Stimulus]]:
        """Yield the difference of every tensor in both models, by stimulus and source order.

        Args:
            other: The model to compare.
            base_dir: The folder of its external data; by default the source's.
            similarity: Whether cosine and SQNR are computed.
            inputs: The stimuli; by default all that the other model takes.
            names: Names in the other model by those in the source; by default tensors of equal
                names are compared.

        Raises:
            VerifyError: The other model does not run, or has another interface.
            SourceError: The source does not run.

        """
        base_dir = base_dir or self.source.base_dir
        if inputs is None:
            self.check_interface(other, base_dir)
        runner = Runner(other, base_dir)
        names = {name: name for name in tensor_names(other)} if names is None else names
        for stimulus in self.inputs_of(other) if inputs is None else inputs:
            if self.advance is not None:
                self.advance(stimulus.name)
            reference_run = ReferenceRun(self.source, stimulus)
            run = IncrementalRun(runner, stimulus.feeds)
            for chunk in self.source.chunks(self.source.num_noisy_runs(stimulus)):
                compared = _compare_chunk(chunk, names, reference_run, run, similarity=similarity)
                for difference in compared:
                    yield difference, stimulus
                self.runs_of_others, runner.runs = self.runs_of_others + runner.runs, 0.0
            for name in self.source.unreadable:
                if name in names:
                    yield undecided_value(name, stimulus.name), stimulus

    def deviation(
        self,
        other: ModelProto,
        base_dir: Path | None = None,
        *,
        similarity: bool = False,
        names: Mapping[str, str] | None = None,
        reused: Callable[[Iterable[TensorDifference]], set[str]] | None = None,
    ) -> tuple[Deviation | None, list[TensorDifference]]:
        """Return the first deviation in the source's order, if there is one, and all differences.

        A stimulus that seems to show a deviation is run with more noise first. If a large model
        gets few noisy runs, the tensor is then run in isolation. Arguments and errors are as of
        `differences`; `reused` returns tensors of which the differences show that they are compared
        with others: these are not accused.
        """
        found: dict[Stimulus, list[TensorDifference]] = {stimulus: [] for stimulus in self.inputs}
        for difference, stimulus in self.differences(
            other, base_dir, similarity=similarity, names=names
        ):
            found[stimulus].append(difference)
        isolated: set[tuple[Stimulus, str]] = set()
        while True:
            others = set() if reused is None else reused(chain.from_iterable(found.values()))
            first = self._first_deviation(found, others)
            if first is None or self.source.tolerance is not None:
                break
            stimulus, name = first.stimulus, first.difference.value
            if stimulus not in self.source.confirming:
                self.source.confirm(stimulus)
                pairs = self.differences(
                    other, base_dir, similarity=similarity, inputs=[stimulus], names=names
                )
                found[stimulus] = [difference for difference, _ in pairs]
                continue
            is_confirmed = self.source.num_noisy_runs(stimulus) >= CONFIRMING_RUNS
            if is_confirmed or (stimulus, name) in isolated:
                break
            isolated.add((stimulus, name))
            there = {name: name if names is None else names[name]}
            runner = Runner(other, base_dir or self.source.base_dir)
            runs = (
                IsolatedReferenceRun(self.source, stimulus),
                IncrementalRun(runner, stimulus.feeds),
            )
            again = _compare_chunk([name], there, *runs, similarity=similarity)
            confirmed = {difference.key: difference for difference in again}
            found[stimulus] = [confirmed.get(each.key, each) for each in found[stimulus]]
        return first, [difference for differences in found.values() for difference in differences]

    def _first_deviation(
        self, found: Mapping[Stimulus, Sequence[TensorDifference]], others: Collection[str]
    ) -> Deviation | None:
        """Return the first deviation, but for `others`, for the first stimulus that shows it."""
        order = {name: i for i, name in enumerate(tensor_names(self.source.model))}
        deviations = [
            Deviation(difference, stimulus)
            for stimulus, differences in found.items()
            for difference in differences
            if difference.deviates and difference.value not in others
        ]
        return min(deviations, key=lambda each: order[each.difference.value], default=None)


def _compare_chunk(
    chunk: Sequence[str],
    names: Mapping[str, str],
    reference_run: ReferenceRun,
    run: IncrementalRun,
    *,
    similarity: bool,
) -> Iterator[TensorDifference]:
    """Yield the differences of the next tensors that have a name in the other model."""
    shared = [name for name in chunk if name in names]
    references = reference_run.compute(chunk, shared)
    if not shared:
        return
    asked = list(dict.fromkeys(names[name] for name in shared))
    inputs = reference_run.stimulus.name
    try:
        values = dict(zip(asked, run.compute(asked), strict=True))
    except VerifyError as error:
        raise VerifyError(f"{error} (for inputs {inputs!r})") from None
    found = split_values(shared, [values[names[name]] for name in shared])
    for key in {**references, **found}:
        name, part = key
        label = f"{name} [{part}]" if part else name
        difference = compare_parts(
            label, inputs, references.get(key), found.get(key), similarity=similarity
        )
        yield replace(difference, value=name)
