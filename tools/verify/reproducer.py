"""Extraction of the smallest subgraphs of two models that show a deviation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import ModelProto, helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from ...support.errors import EmitError, VerifyError
from ...support.files import replacing
from .comparison import Comparison
from .difference import TensorDifference
from .inputs import Feeds, Stimulus
from .onnx_graph import Subgraph, tensor_names
from .runner import Runner, can_be_fed
from .tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Reproducer:
    """Saved models: the number of operators of the second one, and a difference they show.

    `difference` is the first one beyond the rounding bound of these operators alone, None if there
    is none.
    """

    operators: int
    difference: TensorDifference | None


def save_reproducer(
    folder: Path,
    before: Runner,
    after: Runner,
    tensor: str,
    agreeing: Collection[str],
    stimulus: Stimulus,
    tolerance: Tolerance | None = None,
) -> Reproducer:
    """Write `before.onnx` and `after.onnx`, which compute a deviating tensor, and `inputs.npz`.

    They begin at the nearest tensors that agree in both models, or at the inputs. External data is
    stored in them.

    Raises EmitError if the folder cannot be written, VerifyError if the source does not run.
    """
    search = _Search(before, after, stimulus, tolerance)
    found = search.narrow(search.widen(tensor, agreeing))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmitError(f"{folder}: cannot be made: {error.strerror}") from None
    for name, subgraph, runner in zip(
        ("before.onnx", "after.onnx"), found.subgraphs, (before, after), strict=True
    ):
        with replacing(folder / name) as target:
            model = _embed_external_data(found.extract(subgraph), runner.base_dir)
            target.write_bytes(model.SerializeToString(deterministic=True))
    inputs = {name for subgraph in found.subgraphs for name in subgraph.inputs}
    feeds: Feeds = {}
    for name in inputs.intersection(stimulus.feeds):
        value = stimulus.feeds[name]
        if isinstance(value, list):
            feeds |= {f"{name}.{i}": item for i, item in enumerate(value)}
        else:
            feeds[name] = value
    with replacing(folder / "inputs.npz") as target, target.open("wb") as file:
        np.savez_compressed(file, **{**feeds, **found.cut})
    return Reproducer(len(found.subgraphs[1].places), found.difference)


@dataclass(slots=True)
class _Candidate:
    """Subgraphs of both models that compute one tensor from values of the source at the `cut`."""

    subgraphs: tuple[Subgraph, Subgraph]
    known: set[str]
    cut: Feeds
    difference: TensorDifference | None = None
    """The difference of the first tensor that deviates, or None."""
    agreeing: set[str] = field(default_factory=set)
    """The inner tensors that agree within the rounding bound of the subgraphs."""

    @property
    def size(self) -> int:
        """Number of operators in both."""
        return sum(len(subgraph.places) for subgraph in self.subgraphs)

    def extract(self, subgraph: Subgraph) -> ModelProto:
        """Return one of the subgraphs as a model."""
        cut = {name: self.cut[name] for name in sorted(subgraph.cut)}
        infos = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape
            )
            for name, each in cut.items()
        ]
        return subgraph.extract(infos)


class _Search:
    """A search for small subgraphs of two models that differ.

    Far from the inputs the rounding bound of the whole model may hide a fault, so that agreement
    there proves little. Subgraphs are run on the source's values at their cut, and compared within
    their own bound.
    """

    def __init__(
        self, before: Runner, after: Runner, stimulus: Stimulus, tolerance: Tolerance | None
    ) -> None:
        self.tolerance = tolerance
        self.before = before
        self.after = after
        self.stimulus = stimulus

    def widen(self, tensor: str, agreeing: Collection[str]) -> _Candidate:
        """Return subgraphs that compute a tensor and differ, cut at the nearest agreeing tensors.

        Each step leaves out twice as many of these as the one before, in the source's order, up to
        the whole models.
        """
        above = Subgraph(self.before.model, [tensor], ()).used.intersection(agreeing) - {tensor}
        order = [name for name in tensor_names(self.before.model) if name in above]
        candidate, step = self.compare(self.cut_at(tensor, order)), 1
        while candidate.difference is None and candidate.cut:
            wider = self.cut_at(tensor, order[: max(len(order) - step, 0)])
            step *= 2
            if wider.size > candidate.size:
                candidate = self.compare(wider)
            elif not wider.cut:
                break
        return candidate

    def narrow(self, candidate: _Candidate) -> _Candidate:
        """Return subgraphs for the first inner tensor that deviates, cut at agreeing ones."""
        while candidate.difference is not None:
            for known in (candidate.agreeing | candidate.known, candidate.known):
                closer = self.cut_at(candidate.difference.value, known)
                if closer.size < candidate.size and self.compare(closer).difference is not None:
                    candidate = closer
                    break
            else:
                return candidate
        return candidate

    def cut_at(self, tensor: str, known: Collection[str]) -> _Candidate:
        """Return the subgraphs that compute a tensor from known ones; unfeedable ones are computed.

        Raises VerifyError as `Runner.run`.
        """
        left = set(known) - {tensor}
        while True:
            first = Subgraph(self.before.model, [tensor], left)
            second = Subgraph(self.after.model, [tensor], left)
            names = sorted(first.cut | second.cut)
            values = self.before.run(names, self.stimulus.feeds) if names else []
            pairs = zip(names, values, strict=True)
            cut = {name: value for name, value in pairs if can_be_fed(value)}
            if len(cut) == len(names):
                return _Candidate((first, second), left, cut)
            left.difference_update(set(names) - cut.keys())

    def compare(self, candidate: _Candidate) -> _Candidate:
        """Compare the subgraphs, and note the result unless one of them does not run alone."""
        first, second = map(candidate.extract, candidate.subgraphs)
        stimulus = Stimulus(self.stimulus.name, {**self.stimulus.feeds, **candidate.cut})
        try:
            comparison = Comparison(
                first, self.before.base_dir, inputs=[stimulus], tolerance=self.tolerance
            )
            comparison.source.confirm(stimulus)
            pairs = comparison.differences(
                second, self.after.base_dir, similarity=False, inputs=[stimulus]
            )
            differences = [difference for difference, _ in pairs]
        except VerifyError:
            return candidate
        deviations = (difference for difference in differences if difference.deviates)
        candidate.difference = next(deviations, None)
        candidate.agreeing = agreeing_tensors(differences, stimulus)
        return candidate


def agreeing_tensors(differences: Collection[TensorDifference], stimulus: Stimulus) -> set[str]:
    """Return the tensors that agree for one stimulus, and deviate for none."""
    here = [one for one in differences if one.inputs == stimulus.name]
    compared = {one.value for one in here if one.tensor == one.value}
    deviating = {one.value for one in differences if one.deviates}
    undecided = {one.value for one in here if one.is_undecided}
    return compared - deviating - undecided


def _embed_external_data(model: ModelProto, base_dir: Path) -> ModelProto:
    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(base_dir))
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return model
