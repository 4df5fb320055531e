"""The smallest part of two models that shows a deviation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from ..support.errors import EmitError, VerifyError
from ..support.files import replacing
from .comparison import Comparison
from .difference import Row
from .inputs import Feeds, Stimulus
from .runner import Runner, can_be_fed, tensors_of
from .subgraph import Part


@dataclass(frozen=True, slots=True)
class Reproducer:
    """What was saved: how many operators the second model has, and the row of the first tensor that they were seen to
    differ in beyond the bound of these operators alone; None where they do not.
    """

    operators: int
    row: Row | None


def save_reproducer(
    folder: Path, before: Runner, after: Runner, tensor: str, agreeing: Collection[str], stimulus: Stimulus
) -> Reproducer:
    """Write `before.onnx` and `after.onnx`, which compute `tensor`, or an earlier one that deviates already, and their
    `inputs.npz`: the nearest tensors that agree in both, or inputs of the model. What stood in other files stands in
    the models.

    Raises EmitError where the folder cannot be written, VerifyError where the source does not run.
    """
    search = _Search(before, after, stimulus)
    found = search.narrowed(search.widened(tensor, agreeing))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmitError(f"{folder}: cannot be made: {error.strerror}") from None
    for name, part, runner in zip(("before.onnx", "after.onnx"), found.parts, (before, after), strict=True):
        with replacing(folder / name) as target:
            model = _with_elements(part.model(found.declared(part)), runner.base_dir)
            target.write_bytes(model.SerializeToString(deterministic=True))
    inputs = {name for part in found.parts for name in part.inputs}
    feeds = {name: array for name, array in stimulus.feeds.items() if name in inputs}
    with replacing(folder / "inputs.npz") as target, target.open("wb") as file:
        np.savez_compressed(file, **{**feeds, **found.cut})  # type: ignore[arg-type]
    return Reproducer(len(found.parts[1].places), found.row)


@dataclass(slots=True)
class _Pair:
    """The parts of both models that compute one tensor from the `cut`, which holds values of the source."""

    parts: tuple[Part, Part]
    known: set[str]
    cut: Feeds
    row: Row | None = None
    """The first tensor that deviates, None where none does."""
    agreeing: set[str] = field(default_factory=set)
    """The tensors inside that agree within the bound of the parts."""

    @property
    def size(self) -> int:
        """How many operators there are in both."""
        return sum(len(part.places) for part in self.parts)

    def declared(self, part: Part) -> list[ValueInfoProto]:
        """The inputs of a part at the cut."""
        cut = {name: self.cut[name] for name in sorted(part.cut)}
        return [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in cut.items()
        ]


class _Search:
    """Looks for parts of two models that differ.

    Far behind a fault the bound of the whole model may be wide enough for it, so tensors that agree there tell little:
    parts are run on what the source has at their cut, and held to the bound of the part itself.
    """

    def __init__(self, before: Runner, after: Runner, stimulus: Stimulus) -> None:
        self.before = before
        self.after = after
        self.stimulus = stimulus

    def widened(self, tensor: str, agreeing: Collection[str]) -> _Pair:
        """The parts that compute a tensor from the nearest of the agreeing ones behind which they differ; each try
        leaves out twice as many as the one before, in the source's order, down to the whole models.
        """
        above = Part(self.before.model, [tensor], ()).used.intersection(agreeing) - {tensor}
        order = [name for name in tensors_of(self.before.model) if name in above]
        pair, step = self.seen(self.pair(tensor, order)), 1
        while pair.row is None and pair.cut:
            wider = self.pair(tensor, order[: max(len(order) - step, 0)])
            step *= 2
            if wider.size > pair.size:
                pair = self.seen(wider)
            elif not wider.cut:
                break
        return pair

    def narrowed(self, pair: _Pair) -> _Pair:
        """The parts that show the first tensor inside that deviates, from what agrees inside if that is enough."""
        while pair.row is not None:
            for known in (pair.agreeing | pair.known, pair.known):
                closer = self.pair(pair.row.value, known)
                if closer.size < pair.size and self.seen(closer).row is not None:
                    pair = closer
                    break
            else:
                return pair
        return pair

    def pair(self, tensor: str, known: Collection[str]) -> _Pair:
        """Both parts for a tensor; what numpy has no form for is not known. Raises VerifyError as `Runner.run`."""
        left = set(known) - {tensor}
        while True:
            parts = (Part(self.before.model, [tensor], left), Part(self.after.model, [tensor], left))
            names = sorted(parts[0].cut | parts[1].cut)
            values = self.before.run(names, self.stimulus.feeds) if names else []
            cut = {name: value for name, value in zip(names, values, strict=True) if can_be_fed(value)}
            if len(cut) == len(names):
                return _Pair(parts, left, cut)
            left.difference_update(set(names) - cut.keys())

    def seen(self, pair: _Pair) -> _Pair:
        """The pair with what it shows: nothing where one of the parts does not run alone."""
        feeds = {**self.stimulus.feeds, **pair.cut}
        models = [part.model(pair.declared(part)) for part in pair.parts]
        stimulus = Stimulus(self.stimulus.name, feeds)
        try:
            comparison = Comparison(models[0], self.before.base_dir, inputs=[stimulus])
            comparison.source.make_sure(stimulus)
            found = comparison.rows(models[1], self.after.base_dir, similarity=False, inputs=[stimulus])
            rows = [row for row, _ in found]
        except VerifyError:
            return pair
        pair.row = next((row for row in rows if row.deviates), None)
        pair.agreeing = agreeing_in(rows, stimulus)
        return pair


def agreeing_in(rows: Collection[Row], stimulus: Stimulus) -> set[str]:
    """The tensors that were seen to agree on some inputs, and deviate on none."""
    found = {row.value for row in rows if row.tensor == row.value and row.inputs == stimulus.name}
    return found - {row.value for row in rows if row.deviates or (row.says_nothing and row.inputs == stimulus.name)}


def _with_elements(model: ModelProto, base_dir: Path) -> ModelProto:
    """The model with all elements in the message."""
    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(base_dir))
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return model
