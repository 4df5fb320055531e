"""Two models side by side: every tensor that both have under one name, and what rounding can explain of the difference.

A name that a compiled model shares with its source stands for the same values, so all of them are compared, not the
results alone. Tensors are taken in chunks, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
        self.results = [info.name for info in source.graph.output]
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
            self.runner.run(self.results, feeds)
        except VerifyError as error:
            return str(error)
        return None

    def _measure(self) -> dict[str, int]:
        """Bytes of every tensor of the source, for the largest inputs."""
        largest = max(self.inputs, key=lambda stimulus: sum(map(_bytes, stimulus.feeds.values())))
        names = tensors_of(self.source)
        sizes: dict[str, int] = {}
        for start in range(0, len(names), AT_ONCE):
            part = names[start : start + AT_ONCE]
            sizes.update(zip(part, map(_bytes, self.runner.run(part, largest.feeds)), strict=True))
        return sizes

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
        """A row for every tensor in both models and every set of inputs, chunk by chunk in the source's order; without
        `similarity` cosine and SQNR are left out.

        Raises VerifyError where the other model does not run, or lacks a result.
        """
        runner = Runner(other, base_dir or self.base_dir)
        there = set(tensors_of(other)) | {info.name for info in (*other.graph.output, *other.graph.input)}
        missing = [name for name in self.results if name not in there]
        if missing:
            raise VerifyError(f"the result {missing[0]!r} is missing")
        runnable = set(tensors_of(other))
        for chunk in self.chunks():
            names = [name for name in chunk if name in runnable]
            for stimulus in self.inputs if names else ():
                references = self.references(chunk, stimulus)
                if self.advance is not None:
                    self.advance(stimulus.name)
                for name, found in zip(names, runner.run(names, stimulus.feeds), strict=True):
                    reference = references.get(name)
                    if reference is not None and is_tensor(found):
                        yield compare(name, stimulus.name, reference, found, similarity=similarity), stimulus

    def chunks(self) -> Iterator[list[str]]:
        """All tensors of the source in groups that fit into CHUNK bytes; one that does not fit stands alone."""
        group: list[str] = []
        size = 0
        for name in tensors_of(self.source):
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
        values = self.runner.run(names, stimulus.feeds)
        samples = [self.noisy.run(names, stimulus.feeds) for _ in range(self.samples)] if self.noisy is not None else []
        found: dict[str, Reference] = {}
        for i, name in enumerate(names):
            if is_tensor(values[i]):
                found[name] = Reference.of(values[i], [sample[i] for sample in samples])
        size = sum(reference.nbytes for reference in found.values())
        if len(found) == len(names) and size <= self._room:
            self._room -= size
            self._remembered.update(((name, stimulus.name), reference) for name, reference in found.items())
        return found

    def deviation(self, other: ModelProto, base_dir: Path | None = None) -> tuple[Deviation | None, list[Row]]:
        """The first tensor, in the source's order, that rounding does not explain, and all rows.

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
