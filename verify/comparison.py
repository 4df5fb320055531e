"""Two models side by side: every tensor that both have, and what rounding can explain of the difference.

A name that a compiled model shares with its source stands for the same values, so all of them are compared, not the
results alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from ..support.errors import SourceError, VerifyError
from .difference import Row, nothing_said, pair, silent_results
from .graph_reads import BRANCHES, branching
from .input_values import KINDS
from .inputs import Stimulus, interface_fault, overridable_inputs, overriding, stimuli
from .reference_model import HUGE, SURE, Alone, Key, ReferenceModel, References, bytes_of, parts
from .runner import Runner, Walk, tensors_of

LARGE = 32 << 20
"""Bytes of all tensors for one set of inputs from which on fewer sets are made: three kinds at one size, and two from
HUGE on.
"""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A tensor that rounding does not explain, and inputs that show it."""

    row: Row
    stimulus: Stimulus


class Comparison:
    """A source model, its inputs, and what rounding can do to each of its tensors on them: what others are held to.

    `inputs` are the user's; without any they are made (`stimuli`), fewer for a model with large tensors. `advance` is
    told of every set of inputs that was compared. With `frozen` others may lack the inputs that callers need not give,
    and then are not given any.
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
    ) -> None:
        """Raises SourceError where the source does not run, on every set of the user's inputs."""
        self.source = ReferenceModel(source, base_dir or Path())
        self.advance = advance
        self.frozen = frozen
        self.inputs = self._given(inputs) if inputs else self._made(seed)
        self.inputs += tuple(overriding(source, self.source.base_dir, self.inputs[0], self.source.fault, seed=seed))

    def _given(self, inputs: Sequence[Stimulus]) -> tuple[Stimulus, ...]:
        for stimulus in inputs:
            fault = self.source.fault(stimulus.feeds)
            if fault is not None:
                raise SourceError(f"the source model does not run on {stimulus.name}: {fault}")
        self.source.measure(_largest(inputs).feeds)
        return tuple(inputs)

    def _made(self, seed: int) -> tuple[Stimulus, ...]:
        """As many kinds and sizes as the tensors are small, which the first set tells."""
        source = self.source
        first = next(stimuli(source.model, source.fault, seed=seed))
        source.measure(first.feeds)
        if source.size > LARGE:
            kinds = ["normal", "wide", "equal"] if source.size <= HUGE else ["normal", "equal"]
            return tuple(stimuli(source.model, source.fault, seed=seed, kinds=kinds, sizes=1))
        inputs = tuple(stimuli(source.model, source.fault, seed=seed, kinds=list(KINDS)))
        source.measure(_largest(inputs).feeds)
        return inputs

    def check_interface(self, other: ModelProto, base_dir: Path) -> None:
        """Raises VerifyError where the other model has another interface, or is none for onnxruntime."""
        fault = interface_fault(self.source.model, other, frozen=self.frozen)
        if fault is not None:
            raise VerifyError(fault)
        if self.source.loads:
            Runner(other, base_dir).check_loads()

    def inputs_of(self, other: ModelProto) -> list[Stimulus]:
        """Those sets of inputs that the other model takes all of."""
        lost = {info.name for info in overridable_inputs(self.source.model)}
        lost -= {info.name for info in overridable_inputs(other)}
        return [stimulus for stimulus in self.inputs if lost.isdisjoint(stimulus.feeds)]

    def warnings(self, rows: Sequence[Row], model: ModelProto | None = None) -> list[str]:
        """That rows say nothing of any result, and which branches of the main graph no inputs take; `model` has the
        names of the Ifs, where the source is not what the user gave.
        """
        results = self.source.results
        silent = results and len(silent_results(rows, results)) == len(results)
        found = ["verification can say nothing of any result of the model: its inputs do not tell"] if silent else []
        for condition, labels in branching(model or self.source.model).items():
            for branch, value in zip(BRANCHES, (True, False), strict=True):
                if value not in self.source.taken.get(condition, (True, False)):
                    found += [
                        f"no inputs take the {branch} of the If {label!r}: it was not compared" for label in labels
                    ]
        return found

    def rows(
        self,
        other: ModelProto,
        base_dir: Path | None = None,
        *,
        similarity: bool = True,
        inputs: Sequence[Stimulus] | None = None,
        counterparts: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[Row, Stimulus]]:
        """A row for every tensor in both models and every set of inputs, or those given, for each set in the source's
        order; without `similarity` cosine and SQNR are left out. `counterparts` are names in the other model by those
        in the source, all that are equal where they are not given.

        Raises VerifyError where the other model does not run, or has another interface, SourceError where the source
        does not run.
        """
        base_dir = base_dir or self.source.base_dir
        if inputs is None:
            self.check_interface(other, base_dir)
        runner = Runner(other, base_dir)
        there = {name: name for name in tensors_of(other)} if counterparts is None else counterparts
        for stimulus in self.inputs_of(other) if inputs is None else inputs:
            if self.advance is not None:
                self.advance(stimulus.name)
            references, walk = References(self.source, stimulus), Walk(runner, stimulus.feeds)
            for chunk in self.source.chunks(self.source.noisy_runs(stimulus)):
                for row in _compare(chunk, there, references, walk, similarity=similarity):
                    yield row, stimulus
            for name in self.source.unreadable:
                if name in there:
                    yield nothing_said(name, stimulus.name), stimulus

    def deviation(
        self,
        other: ModelProto,
        base_dir: Path | None = None,
        *,
        similarity: bool = False,
        counterparts: Mapping[str, str] | None = None,
    ) -> tuple[Deviation | None, list[Row]]:
        """The first tensor, in the source's order, that rounding does not explain, and all rows. Inputs that seem to
        show one are run with more noise first, and where there is little room, the tensor alone with all of it.

        Raises VerifyError as `rows`.
        """
        found: dict[Stimulus, list[Row]] = {stimulus: [] for stimulus in self.inputs}
        for row, stimulus in self.rows(other, base_dir, similarity=similarity, counterparts=counterparts):
            found[stimulus].append(row)
        alone: set[tuple[Stimulus, str]] = set()
        while (first := self._first(found)) is not None:
            stimulus, name = first.stimulus, first.row.value
            if not self.source.is_sure(stimulus):
                self.source.make_sure(stimulus)
                inputs = [stimulus]
                again = self.rows(other, base_dir, similarity=similarity, inputs=inputs, counterparts=counterparts)
                found[stimulus] = [row for row, _ in again]
            elif (stimulus, name) not in alone and self.source.noisy_runs(stimulus) < SURE:
                alone.add((stimulus, name))
                there = {name: name if counterparts is None else counterparts[name]}
                walk = Walk(Runner(other, base_dir or self.source.base_dir), stimulus.feeds)
                rows = _compare([name], there, Alone(self.source, stimulus), walk, similarity=similarity)
                known = {row.key: row for row in rows}
                found[stimulus] = [known.get(row.key, row) for row in found[stimulus]]
            else:
                break
        return first, [row for rows in found.values() for row in rows]

    def _first(self, found: Mapping[Stimulus, Sequence[Row]]) -> Deviation | None:
        """The first deviation in the source's order, for the first inputs that show it."""
        deviating: dict[Key, Deviation] = {}
        for stimulus, rows in found.items():
            for row in rows:
                if row.deviates:
                    deviating.setdefault(row.key, Deviation(row, stimulus))
        order = {name: i for i, name in enumerate(tensors_of(self.source.model))}
        first = min(deviating, key=lambda key: order[key[0]], default=None)
        return None if first is None else deviating[first]


def _compare(
    names: Sequence[str], there: Mapping[str, str], references: References, walk: Walk, *, similarity: bool
) -> Iterator[Row]:
    """The rows of the next tensors, of which the other model has those that are `there`, under the names there."""
    known = references.take(names)
    shared = [name for name in names if name in there]
    if not shared:
        return
    asked = list(dict.fromkeys(there[name] for name in shared))
    try:
        values = dict(zip(asked, walk.take(asked), strict=True))
    except VerifyError as error:
        raise VerifyError(f"{error} (for inputs {references.stimulus.name!r})") from None
    found = parts(shared, [values[there[name]] for name in shared])
    wanted = {part: reference for part, reference in known.items() if part[0] in there}
    for part in {**wanted, **found}:
        reference, label = wanted.get(part), f"{part[0]} [{part[1]}]" if part[1] else part[0]
        row = pair(label, references.stimulus.name, reference, found.get(part), similarity=similarity)
        yield replace(row, value=part[0])


def _largest(inputs: Sequence[Stimulus]) -> Stimulus:
    return max(inputs, key=lambda stimulus: sum(map(bytes_of, stimulus.feeds.values())))
