"""Two models side by side: every tensor that both have under one name, and what rounding can explain of the difference.

A name that a compiled model shares with its source stands for the same values, so all of them are compared, not the
results alone. Tensors are taken in chunks, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, ValueInfoProto

from ...frontends.onnx import from_model
from ...ir.errors import ModelError, VerifyError
from ...ir.tensor import Array
from ...ir.types import TensorType
from .inputs import Feeds, Stimulus, stimuli
from .noise import noisy

SAMPLES = 4
"""Noisy runs."""
MARGIN = 4.0
"""The bound is so many times the greatest spread that was seen, at the element or on average over the tensor."""
CHUNK = 256 << 20
"""Bytes of tensors that are held at once, of one model and one set of inputs."""
AT_ONCE = 256
"""Tensors whose sizes are measured in one run."""
TINY = 2.0**-120
"""Below this no float32 is exact."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of both models, for one set of inputs.

    `max_abs` and `max_rel` (to the greatest magnitude in the tensor) are the greatest differences, `cosine` and `sqnr`
    (in dB) compare the tensors as vectors; `share` is the greatest difference as a share of what rounding can do there:
    above 1 it cannot be rounding. `elements` is the number of those, `undecided` of those that say nothing, as they are
    neither finite nor steady.
    """

    tensor: str
    inputs: str
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    max_rel: float
    cosine: float
    sqnr: float
    share: float
    bound: float
    elements: int
    undecided: int

    @property
    def deviates(self) -> bool:
        """Whether rounding does not explain the difference."""
        return self.share > 1


@dataclass(frozen=True, slots=True)
class Deviation:
    """A tensor that rounding does not explain: the first in the order of the model."""

    row: Row
    stimulus: Stimulus


class Runner:
    """Runs a model for any of its tensors, on onnxruntime without graph optimisations.

    The session of the tensors asked for last is kept.
    """

    def __init__(self, model: ModelProto, base_dir: Path) -> None:
        self.model = model
        self.base_dir = base_dir
        self._names: tuple[str, ...] = ()
        self._session: onnxruntime.InferenceSession | None = None

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        """The named tensors. Raises VerifyError where onnxruntime refuses the model, or fails."""
        if self._session is None or self._names != tuple(names):
            asked = ModelProto()
            asked.CopyFrom(self.model)
            del asked.graph.output[:]
            asked.graph.output.extend(ValueInfoProto(name=name) for name in names)
            self._names, self._session = tuple(names), new_session(asked, self.base_dir)
        wanted = {entry.name for entry in self._session.get_inputs()}
        try:
            results: list[Any] = self._session.run(None, {k: array for k, array in feeds.items() if k in wanted})
        except Exception as error:  # onnxruntime raises its own types, and RuntimeError
            raise VerifyError(f"onnxruntime cannot run the model: {first_line(error)}") from None
        return results


def new_session(model: ModelProto, base_dir: Path) -> onnxruntime.InferenceSession:
    """A session without graph optimisations. Raises VerifyError where onnxruntime refuses the model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(base_dir.resolve()))
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        raise VerifyError(f"onnxruntime cannot load the model: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """The first line of a message, shortened."""
    return str(error).strip().split("\n")[0][:300]


def tensors_of(model: ModelProto) -> list[str]:
    """Names of the results of nodes of the main graph, constants left out, in the model's order."""
    return [name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name]


class Comparison:
    """A source model, its inputs, and what rounding can do to each of its tensors on them: what others are held to."""

    def __init__(
        self,
        source: ModelProto,
        base_dir: Path | None = None,
        *,
        inputs: Sequence[Stimulus] = (),
        seed: int = 0,
        samples: int = SAMPLES,
    ) -> None:
        """`inputs` are the user's; without any they are made (`stimuli`).

        Raises VerifyError where the source does not run.
        """
        self.source = source
        self.base_dir = base_dir or Path()
        self.samples = samples
        self.runner = Runner(source, self.base_dir)
        self.results = [info.name for info in source.graph.output]
        self.inputs = tuple(inputs) or tuple(stimuli(source, self._runs, seed=seed))
        self.noisy = self._noisy()
        self._sizes: dict[str, int] = {}

    def _runs(self, feeds: Feeds) -> bool:
        try:
            self.runner.run(self.results, feeds)
        except VerifyError:
            return False
        return True

    def _noisy(self) -> Runner | None:
        """The source with noise, None where onnxruntime does not take it."""
        try:
            module = from_model(self.source, self.base_dir)
        except ModelError:
            return None
        types = {value.name: value.type for value in module.graph.inputs}
        types.update((value.name, value.type) for node in module.graph for value in node.outputs)
        tensors = {name: type_ for name, type_ in types.items() if isinstance(type_, TensorType)}
        runner = Runner(noisy(self.source, tensors), self.base_dir)
        try:
            runner.run(self.results, self.inputs[0].feeds)
        except VerifyError:
            return None
        return runner

    def rows(
        self, other: ModelProto, base_dir: Path | None = None, *, similarity: bool = True
    ) -> Iterator[tuple[Row, Stimulus]]:
        """A row for every tensor in both models and every set of inputs, in the source's order.

        Raises VerifyError where the other model does not run, or has other results.
        """
        runner = Runner(other, base_dir or self.base_dir)
        there = set(tensors_of(other)) | {info.name for info in other.graph.output}
        missing = [name for name in self.results if name not in there and name not in self._inputs_of(other)]
        if missing:
            raise VerifyError(f"the result {missing[0]!r} is missing")
        common = [name for name in tensors_of(self.source) if name in there]
        for chunk in self.chunks(common):
            for stimulus in self.inputs:
                yield from self._chunk(runner, chunk, stimulus, similarity)

    @staticmethod
    def _inputs_of(model: ModelProto) -> set[str]:
        return {info.name for info in model.graph.input}

    def chunks(self, names: Sequence[str]) -> Iterator[list[str]]:
        """The names in groups whose tensors fit into CHUNK bytes together; a tensor that does not fit stands alone."""
        if not self._sizes:
            self._sizes = self._measure()
        group: list[str] = []
        size = 0
        for name in names:
            count = self._sizes.get(name, 0) * (self.samples + 2)
            if group and size + count > CHUNK:
                yield group
                group, size = [], 0
            group.append(name)
            size += count
        if group:
            yield group

    def _measure(self) -> dict[str, int]:
        """Bytes of every tensor of the source, for the largest inputs."""
        largest = max(self.inputs, key=lambda stimulus: sum(map(_bytes, stimulus.feeds.values())))
        names = tensors_of(self.source)
        sizes: dict[str, int] = {}
        for start in range(0, len(names), AT_ONCE):
            part = names[start : start + AT_ONCE]
            sizes.update(zip(part, map(_bytes, self.runner.run(part, largest.feeds)), strict=True))
        return sizes

    def _chunk(
        self, runner: Runner, names: list[str], stimulus: Stimulus, similarity: bool
    ) -> Iterator[tuple[Row, Stimulus]]:
        wanted = self.runner.run(names, stimulus.feeds)
        found = runner.run(names, stimulus.feeds)
        samples = [self.noisy.run(names, stimulus.feeds) for _ in range(self.samples)] if self.noisy else []
        for i, name in enumerate(names):
            moved = [sample[i] for sample in samples]
            row = compare(name, stimulus.name, wanted[i], found[i], moved, similarity=similarity)
            if row is not None:
                yield row, stimulus

    def deviation(self, other: ModelProto, base_dir: Path | None = None) -> tuple[Deviation | None, list[Row]]:
        """The first tensor, in the source's order, that rounding does not explain, and all rows up to there.

        Raises VerifyError as `rows`.
        """
        rows: list[Row] = []
        worst: dict[str, Deviation] = {}
        for row, stimulus in self.rows(other, base_dir, similarity=False):
            rows.append(row)
            if row.deviates:
                worst.setdefault(row.tensor, Deviation(row, stimulus))
        first = next((worst[name] for name in tensors_of(self.source) if name in worst), None)
        return first, rows


def _bytes(value: Any) -> int:
    return int(getattr(value, "nbytes", 0))


def compare(
    name: str, inputs: str, want: Any, found: Any, samples: Iterable[Any], *, similarity: bool = True
) -> Row | None:
    """The row of one tensor, None for what is no tensor. `samples` are what noise made of `want`; without `similarity`
    cosine and SQNR are left out.
    """
    if not isinstance(want, np.ndarray) or not isinstance(found, np.ndarray):
        return None
    same = want.shape == found.shape and want.dtype == found.dtype
    moved = [sample for sample in samples if isinstance(sample, np.ndarray)]
    steady = all(sample.shape == want.shape for sample in moved)
    if not same:
        share = np.inf if steady else 0.0
        return Row(name, inputs, want.shape, str(want.dtype), np.inf, np.inf, 0.0, -np.inf, share, 0.0, want.size, 0)
    if want.dtype == object or want.dtype.kind in "SU":
        wrong = int((want != found).sum())
        return Row(
            name,
            inputs,
            want.shape,
            "string",
            float(wrong > 0),
            0.0,
            1.0,
            np.inf,
            np.inf * wrong if wrong else 0.0,
            0.0,
            wrong,
            0,
        )
    a, b = wide(want), wide(found)
    if moved:
        spread, undecided = _spread(a, [wide(sample) for sample in moved] if steady else [])
    else:
        spread, undecided = _coarse(a, want.dtype), np.zeros(a.shape, bool)
    spread += TINY
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        difference = np.where(finite, np.abs(a - b), np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.inf))
    decided = difference[~undecided]
    limit = spread[~undecided]
    if not steady:
        decided, limit = decided[:0], limit[:0]
    shares = np.where(decided == 0, 0.0, decided / np.where(limit == 0, 1.0, limit))
    shares = np.where((limit == 0) & (decided > 0), np.inf, shares)
    greatest = float(np.abs(a[finite]).max(initial=0))
    max_abs = float(decided.max(initial=0))
    return Row(
        name,
        inputs,
        want.shape,
        str(want.dtype),
        max_abs,
        max_abs / greatest if greatest else (0.0 if not max_abs else np.inf),
        _cosine(a[finite], b[finite]) if similarity else np.nan,
        _sqnr(a[finite], b[finite]) if similarity else np.nan,
        float(shares.max(initial=0)),
        float(limit.max(initial=0)),
        int((shares > 1).sum()),
        int(undecided.sum()) if steady else want.size,
    )


def _spread(exact: Array, samples: Sequence[Array]) -> tuple[Array, Array]:
    """How far rounding may move each element, and which elements are no guide: where noise makes or unmakes numbers."""
    undecided = np.zeros(exact.shape, bool)
    spread = np.zeros(exact.shape)
    finite = np.isfinite(exact)
    with np.errstate(all="ignore"):
        for sample in samples:
            undecided |= np.isfinite(sample) != finite
            spread = np.maximum(spread, np.where(finite & np.isfinite(sample), np.abs(sample - exact), 0.0))
        mean = float(np.sqrt(np.mean(np.square(spread)))) if spread.size else 0.0
    return MARGIN * np.maximum(spread, mean), undecided


def _coarse(exact: Array, dtype: np.dtype[Any]) -> Array:
    """Without noisy runs: 4096 roundings of the greatest number in the tensor."""
    unit = 2.0**-24 if dtype == np.float32 else 2.0**-53 if dtype == np.float64 else 2.0**-8
    unit = unit if dtype.kind in "fcV" else 0.0
    greatest = np.abs(exact[np.isfinite(exact)]).max(initial=0)
    return np.full(exact.shape, 4096 * unit * greatest)


def wide(array: Array) -> Array:
    """In float64, or complex128."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _cosine(a: Array, b: Array) -> float:
    with np.errstate(all="ignore"):
        unit = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
        return float(np.abs(np.vdot(a, b)) / unit) if unit else float(np.array_equal(a, b))


def _sqnr(a: Array, b: Array) -> float:
    with np.errstate(all="ignore"):
        noise = float(np.sum(np.square(np.abs(a - b))))
        signal = float(np.sum(np.square(np.abs(a))))
    if noise == 0:
        return np.inf
    return float(10 * np.log10(signal / noise)) if signal else -np.inf
