"""Two models side by side: every tensor that both have under one name, and what rounding can explain of the difference.

A name that a compiled model shares with its source stands for the same values, so all of them are compared, not the
results alone. Tensors are taken in chunks, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from ...frontends.onnx import from_model
from ...ir.errors import ModelError, VerifyError
from ...ir.types import TensorType
from .inputs import KINDS, Feeds, Stimulus, stimuli
from .noise import noisy
from .reference import Reference, is_tensor, wide
from .runner import Runner, tensors_of

SAMPLES = 4
"""Noisy runs."""
CHUNK = 256 << 20
"""Bytes of tensors that are held at once, of the source, its noisy runs and the other model."""
REMEMBERED = 512 << 20
"""Bytes of the source's tensors and their bounds that are kept for the next comparison."""
LARGE = 32 << 20
"""Bytes of all tensors for one set of inputs from which on fewer sets are made: three kinds at one size."""
HUGE = 256 << 20
"""Bytes from which on there are two kinds, and half the noisy runs."""
READABLE = {*("f16", "f32", "f64", "bool", "string"), *(f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64))}
"""Element types that onnxruntime gives to numpy."""
PART = " ["
"""Stands between the name of a sequence and the number of one of its tensors."""
AT_ONCE = 256
"""Tensors whose sizes are measured in one run."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of both models, for one set of inputs.

    `max_abs` and `max_rel` (to the greatest magnitude in the tensor) are the greatest differences, `cosine` and `sqnr`
    (in dB) compare the tensors as vectors; `share` is the greatest difference as a share of what rounding can do there:
    above 1 it cannot be rounding. `elements` is the number of those, `undecided` of those that say nothing, as noise
    makes or unmakes numbers there. Another shape or type is an infinite difference.
    """

    tensor: str
    inputs: str
    shape: tuple[int, ...]
    dtype: str
    max_abs: float = np.inf
    max_rel: float = np.inf
    cosine: float = 0.0
    sqnr: float = -np.inf
    share: float = np.inf
    bound: float = 0.0
    elements: int = 0
    undecided: int = 0

    @property
    def deviates(self) -> bool:
        """Whether rounding does not explain the difference."""
        return self.share > 1

    @property
    def says_nothing(self) -> bool:
        """Whether noise leaves no element to compare."""
        return 0 < self.undecided >= prod(self.shape)


@dataclass(frozen=True, slots=True)
class Deviation:
    """A tensor that rounding does not explain, and inputs that show it."""

    row: Row
    stimulus: Stimulus


def worst(rows: Sequence[Row]) -> list[Row]:
    """For every tensor the row of the inputs for which it is furthest from what rounding can do."""
    found: dict[str, Row] = {}
    for row in rows:
        if row.tensor not in found or row.share > found[row.tensor].share:
            found[row.tensor] = row
    return list(found.values())


def undecided(rows: Sequence[Row]) -> list[str]:
    """Tensors of which no inputs say anything."""
    telling = {row.tensor for row in rows if not row.says_nothing}
    return list(dict.fromkeys(row.tensor for row in rows if row.tensor not in telling))


def measures(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The worst row of every tensor, as a report takes it: `bound` is what rounding can do where that is least met."""
    return [
        {
            "tensor": row.tensor,
            "max_abs": row.max_abs,
            "max_rel": row.max_rel,
            "sqnr": row.sqnr,
            "bound": row.max_abs / row.share if 0 < row.share < np.inf else row.bound,
        }
        for row in worst(rows)
    ]


class Comparison:
    """A source model, its inputs, and what rounding can do to each of its tensors on them: what others are held to."""

    def __init__(
        self,
        source: ModelProto,
        base_dir: Path | None = None,
        *,
        inputs: Sequence[Stimulus] = (),
        seed: int = 0,
        advance: Callable[[str], None] | None = None,
    ) -> None:
        """`inputs` are the user's; without any they are made (`stimuli`), fewer for a model with large tensors.
        `advance` is told of every set of inputs that was compared.

        Raises VerifyError where the source does not run.
        """
        self.source = source
        self.base_dir = base_dir or Path()
        self.advance = advance
        self.runner = Runner(source, self.base_dir)
        self.types = self._types()
        self.names = [name for name in tensors_of(source) if self.is_readable(name)]
        self.results = [info.name for info in source.graph.output]
        self.readable = [name for name in self.results if self.is_readable(name)]
        self.inputs = tuple(inputs) or (next(stimuli(source, self._fault, seed=seed)),)
        self.sizes = self._measure()
        if not inputs:
            size = sum(self.sizes.values())
            kinds = (
                list(KINDS) if size <= LARGE else ["normal", "wide", "equal"] if size <= HUGE else ["normal", "equal"]
            )
            self.inputs = tuple(stimuli(source, self._fault, seed=seed, kinds=kinds, sizes=2 if size <= LARGE else 1))
            self.sizes = self._measure() if size <= LARGE else self.sizes
        self.samples = SAMPLES if sum(self.sizes.values()) <= HUGE else SAMPLES // 2
        self.noisy = self._noisy()
        self._remembered: dict[tuple[str, str], Reference] = {}
        self._room = REMEMBERED

    def _fault(self, feeds: Feeds) -> str | None:
        """Why the source does not run on some inputs."""
        try:
            self.runner.run(self.readable, feeds)
        except VerifyError as error:
            return str(error)
        return None

    def _measure(self) -> dict[str, int]:
        """Bytes of every tensor of the source, for the largest inputs."""
        largest = max(self.inputs, key=lambda stimulus: sum(map(_bytes, stimulus.feeds.values())))
        names = self.names
        sizes: dict[str, int] = {}
        for start in range(0, len(names), AT_ONCE):
            part = names[start : start + AT_ONCE]
            sizes.update(zip(part, map(_bytes, self.runner.run(part, largest.feeds)), strict=True))
        return sizes

    def _noisy(self) -> Runner | None:
        """The source with noise, None where onnxruntime does not take it."""
        runner = Runner(noisy(self.source, self.types), self.base_dir)
        try:
            runner.run(self.readable, self.inputs[0].feeds)
        except VerifyError:
            return None
        return runner

    def _types(self) -> dict[str, TensorType]:
        """Types of the values of the main graph, as far as they are known."""
        try:
            module = from_model(self.source, self.base_dir)
        except ModelError:
            return {}
        values = [*module.graph.inputs, *(value for node in module.graph for value in node.outputs)]
        return {value.name: value.type for value in values if isinstance(value.type, TensorType)}

    def is_readable(self, name: str) -> bool:
        """Whether onnxruntime can hand out the elements: numpy does not have every type."""
        type_ = self.types.get(name)
        return type_ is None or type_.dtype is None or str(type_.dtype) in READABLE

    def rows(
        self, other: ModelProto, base_dir: Path | None = None, *, similarity: bool = True
    ) -> Iterator[tuple[Row, Stimulus]]:
        """A row for every tensor in both models and every set of inputs, chunk by chunk in the source's order; without
        `similarity` cosine and SQNR are left out.

        Raises VerifyError where the other model does not run, or lacks a result.
        """
        runner = Runner(other, base_dir or self.base_dir)
        there = set(tensors_of(other))
        missing = [name for name in self.results if name not in there]
        if missing:
            raise VerifyError(f"the result {missing[0]!r} is missing")
        for chunk in self.chunks():
            names = [name for name in chunk if name in there]
            for stimulus in self.inputs if names else ():
                references = self.references(chunk, stimulus)
                if self.advance is not None:
                    self.advance(stimulus.name)
                found = parts(names, runner.run(names, stimulus.feeds))
                wanted = {part: reference for part, reference in references.items() if origin(part) in names}
                for part in {**wanted, **found}:
                    row = pair(part, stimulus.name, wanted.get(part), found.get(part), similarity=similarity)
                    yield row, stimulus

    def chunks(self) -> Iterator[list[str]]:
        """All tensors of the source in groups that fit into CHUNK bytes; one that does not fit stands alone."""
        group: list[str] = []
        size = 0
        for name in self.names:
            count = self.sizes.get(name, 0) * (self.samples + 4)
            if group and size + count > CHUNK:
                yield group
                group, size = [], 0
            group.append(name)
            size += count
        if group:
            yield group

    def references(self, names: Sequence[str], stimulus: Stimulus) -> dict[str, Reference]:
        """What the tensors are, and how far rounding can move them; what is no tensor is left out."""
        known = {name: self._remembered.get((name, stimulus.name)) for name in names}
        if all(reference is not None for reference in known.values()):
            return {name: reference for name, reference in known.items() if reference is not None}
        values = parts(names, self.runner.run(names, stimulus.feeds))
        samples = self._samples(names, stimulus.feeds)
        found = {part: Reference.of(value, [sample.get(part) for sample in samples]) for part, value in values.items()}
        size = sum(reference.nbytes for reference in found.values())
        if found.keys() == set(names) and size <= self._room:
            self._room -= size
            self._remembered.update(((name, stimulus.name), reference) for name, reference in found.items())
        return found

    def _samples(self, names: Sequence[str], feeds: Feeds) -> list[dict[str, Any]]:
        """What noise makes of the tensors; nothing where the noisy model does not run on these inputs."""
        try:
            runs = [self.noisy.run(names, feeds) for _ in range(self.samples)] if self.noisy is not None else []
        except VerifyError:
            return []
        return [parts(names, run) for run in runs]

    def deviation(self, other: ModelProto, base_dir: Path | None = None) -> tuple[Deviation | None, list[Row]]:
        """The first tensor, in the source's order, that rounding does not explain, and all rows.

        Raises VerifyError as `rows`.
        """
        rows: list[Row] = []
        deviating: dict[str, Deviation] = {}
        for row, stimulus in self.rows(other, base_dir, similarity=False):
            rows.append(row)
            if row.deviates:
                deviating.setdefault(row.tensor, Deviation(row, stimulus))
        order = {name: i for i, name in enumerate(tensors_of(self.source))}
        first = min(deviating, key=lambda part: order[origin(part)], default=None)
        return None if first is None else deviating[first], rows


def _bytes(value: Any) -> int:
    return int(getattr(value, "nbytes", 0))


def parts(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """The tensors among values by name; those of a sequence, and how many they are, each under its own."""
    found: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if is_tensor(value):
            found[name] = value
        elif isinstance(value, list):
            found[f"{name}{PART}length]"] = np.array(len(value))
            found.update((f"{name}{PART}{i}]", item) for i, item in enumerate(value) if is_tensor(item))
    return found


def origin(part: str) -> str:
    """The value that a part belongs to."""
    return part.partition(PART)[0]


def pair(name: str, inputs: str, reference: Reference | None, found: Any, *, similarity: bool) -> Row:
    """The row of one tensor, which one of the models may lack: sequences may be of other lengths."""
    if reference is None:
        return Row(name, inputs, found.shape, str(found.dtype), elements=found.size)
    if found is None:
        shape, dtype = reference.value.shape, str(reference.value.dtype)
        return Row(name, inputs, shape, dtype, elements=reference.value.size, share=np.inf if reference.steady else 0.0)
    return compare(name, inputs, reference, found, similarity=similarity)


def compare(name: str, inputs: str, reference: Reference, found: Any, *, similarity: bool = True) -> Row:
    """The row of one tensor."""
    want = reference.value
    shape, dtype = want.shape, str(want.dtype)
    if want.shape != found.shape or want.dtype != found.dtype:
        if not reference.steady:
            return Row(name, inputs, shape, dtype, share=0.0, undecided=want.size)
        return Row(name, inputs, shape, dtype, elements=want.size)
    if not reference.is_number:
        wrong = int((want != found).sum())
        if wrong:
            return Row(name, inputs, shape, dtype, elements=wrong)
        return Row(name, inputs, shape, dtype, 0.0, 0.0, 1.0, np.inf, 0.0)
    a, b = wide(want), wide(found)
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.where(same | reference.undecided, 0.0, np.where(finite, np.abs(a - b), np.inf))
        shares = difference / reference.bound
    max_abs, greatest = float(difference.max(initial=0)), float(np.abs(a[finite]).max(initial=0))
    return Row(
        name,
        inputs,
        shape,
        dtype,
        max_abs,
        max_abs / greatest if greatest else np.inf * max_abs if max_abs else 0.0,
        _cosine(a[finite], b[finite]) if similarity else np.nan,
        _sqnr(a[finite], b[finite]) if similarity else np.nan,
        float(shares.max(initial=0)),
        float(reference.bound.max(initial=0)),
        int((shares > 1).sum()),
        int(reference.undecided.sum()),
    )


def _cosine(a: Any, b: Any) -> float:
    with np.errstate(all="ignore"):
        unit = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
        return float(np.abs(np.vdot(a, b)) / unit) if unit else float(np.array_equal(a, b))


def _sqnr(a: Any, b: Any) -> float:
    with np.errstate(all="ignore"):
        noise = float(np.sum(np.square(np.abs(a - b))))
        signal = float(np.sum(np.square(np.abs(a))))
    if noise == 0:
        return np.inf
    return float(10 * np.log10(signal / noise)) if signal else -np.inf
