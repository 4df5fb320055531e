"""Two models side by side: every tensor that both have under one name, and what rounding can explain of the difference.

A name that a compiled model shares with its source stands for the same values, so all of them are compared, not the
results alone. Tensors are taken in chunks, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from ...frontends.onnx import from_model
from ...ir.errors import ModelError, SourceError, VerifyError
from ...ir.types import TensorType
from .difference import Row, pair
from .inputs import KINDS, Feeds, Stimulus, interface_fault, stimuli
from .noise import inlined, noisy
from .overflow import Overflow
from .reference import Reference, is_tensor
from .runner import Runner, Walk, tensors_of

SAMPLES = 4
"""Noisy runs."""
SURE = 28
"""Noisy runs before something is called a deviation: among many elements that a step decides (rounding to an integer,
or to a narrower type) there are some that a few runs do not move.
"""
ROOM = 2 << 30
"""Bytes that all tensors of all these runs may have; where they have more, there are fewer, but twice the others."""
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
Key = tuple[str, str]
"""A value, and which of its tensors: the number of one in a sequence, or its length; empty for a value that is one."""
AT_ONCE = 256
"""Tensors whose sizes are measured in one run."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A tensor that rounding does not explain, and inputs that show it."""

    row: Row
    stimulus: Stimulus


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

        Raises SourceError where the source does not run, on every set of the user's inputs.
        """
        self.source = source
        self.base_dir = base_dir or Path()
        self.advance = advance
        self.runner = Runner(source, self.base_dir)
        plain = inlined(source)
        self.types = self._types(plain)
        self.names = [name for name in tensors_of(source) if self.is_readable(name)]
        self.results = [info.name for info in source.graph.output]
        self.readable = [name for name in self.results if self.is_readable(name)]
        for stimulus in inputs:
            fault = self._fault(stimulus.feeds)
            if fault is not None:
                raise SourceError(f"the source model does not run on {stimulus.name}: {fault}")
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
        self._sure: set[Stimulus] = set()
        self.noisy = Runner(noisy(plain, self.types), self.base_dir)
        self._remembered: dict[tuple[Key, Stimulus], Reference] = {}
        self._overflows: dict[Stimulus, Overflow] = {}
        self._room = REMEMBERED

    def _fault(self, feeds: Feeds) -> str | None:
        """Why the source does not run on some inputs."""
        try:
            self.runner.run(self.readable, feeds)
        except VerifyError as error:
            return str(error)
        return None

    def _measure(self) -> dict[str, int]:
        """Bytes of every tensor of the source, for the largest inputs: of those of known types the shapes are asked
        for, since all tensors at once may not fit into memory.
        """
        largest = max(self.inputs, key=lambda stimulus: sum(map(_bytes, stimulus.feeds.values())))
        asked = ModelProto()
        asked.CopyFrom(self.source)
        widths = {name: bits // 8 for name in self.names if (bits := _bits(self.types.get(name)))}
        outs = [f"irc.shape.{i}" for i in range(len(widths))]
        asked.graph.node.extend(
            helper.make_node("Shape", [name], [out]) for name, out in zip(widths, outs, strict=True)
        )
        shapes = Runner(asked, self.base_dir).run(outs, largest.feeds) if outs else []
        found = {name: prod(shape.tolist()) * widths[name] for name, shape in zip(widths, shapes, strict=True)}
        rest = [name for name in self.names if name not in found]
        for start in range(0, len(rest), AT_ONCE):
            part = rest[start : start + AT_ONCE]
            found.update(zip(part, map(_bytes, self.runner.run(part, largest.feeds)), strict=True))
        return found

    def _types(self, model: ModelProto) -> dict[str, TensorType]:
        """Types of values by name, as far as they are known; two bodies may have values of one name."""
        try:
            module = from_model(model, self.base_dir)
        except ModelError:
            return {}
        found: dict[str, TensorType] = {}
        for graph in module.graph.graphs():
            for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
                type_ = value.type if isinstance(value.type, TensorType) else TensorType()
                found[value.name] = _common(found.get(value.name, type_), type_)
        return found

    def is_readable(self, name: str) -> bool:
        """Whether onnxruntime can hand out the elements: numpy does not have every type."""
        type_ = self.types.get(name)
        return type_ is None or type_.dtype is None or str(type_.dtype) in READABLE

    def rows(
        self,
        other: ModelProto,
        base_dir: Path | None = None,
        *,
        similarity: bool = True,
        inputs: Sequence[Stimulus] | None = None,
    ) -> Iterator[tuple[Row, Stimulus]]:
        """A row for every tensor in both models and every set of inputs, or those given, for each set in the source's
        order; without `similarity` cosine and SQNR are left out.

        Raises VerifyError where the other model does not run, or has another interface, SourceError where the source
        does not run.
        """
        fault = interface_fault(self.source, other)
        if fault is not None:
            raise VerifyError(fault)
        runner = Runner(other, base_dir or self.base_dir)
        there = set(tensors_of(other))
        for stimulus in self.inputs if inputs is None else inputs:
            source, walk = _Source(self, stimulus), Walk(runner, stimulus.feeds)
            if self.advance is not None:
                self.advance(stimulus.name)
            for chunk in self.chunks(self.noisy_runs(stimulus)):
                references = source.take(chunk)
                names = [name for name in chunk if name in there]
                if not names:
                    continue
                found = parts(names, walk.take(names))
                wanted = {part: reference for part, reference in references.items() if part[0] in there}
                for part in {**wanted, **found}:
                    reference, label = wanted.get(part), f"{part[0]} [{part[1]}]" if part[1] else part[0]
                    row = pair(label, stimulus.name, reference, found.get(part), similarity=similarity)
                    yield replace(row, value=part[0]), stimulus

    def noisy_runs(self, stimulus: Stimulus) -> int:
        """How many there are of a set of inputs."""
        if stimulus not in self._sure:
            return self.samples
        return max(2 * self.samples, min(SURE, ROOM // max(sum(self.sizes.values()), 1)))

    def make_sure(self, stimulus: Stimulus) -> None:
        """From here on take more noisy runs of a set of inputs."""
        self._sure.add(stimulus)
        for key in [key for key in self._remembered if key[1] is stimulus]:
            self._room += self._remembered.pop(key).nbytes

    def chunks(self, samples: int) -> Iterator[list[str]]:
        """All tensors of the source in groups that fit into CHUNK bytes with so many noisy runs; one that does not fit
        stands alone.
        """
        group: list[str] = []
        size = 0
        for name in self.names:
            count = self.sizes.get(name, 0) * (samples + 4)
            if group and size + count > CHUNK:
                yield group
                group, size = [], 0
            group.append(name)
            size += count
        if group:
            yield group

    def overflow(self, stimulus: Stimulus) -> Overflow:
        """What overflows in the source, as far as it was run."""
        if stimulus not in self._overflows:
            self._overflows[stimulus] = Overflow(self.source, self.base_dir, stimulus.feeds)
        return self._overflows[stimulus]

    def known(self, names: Sequence[str], stimulus: Stimulus) -> dict[Key, Reference] | None:
        """What is remembered of tensors, None where that is not all."""
        found = {(name, ""): self._remembered.get(((name, ""), stimulus)) for name in names}
        references = {part: reference for part, reference in found.items() if reference is not None}
        return references if len(references) == len(found) else None

    def remember(self, found: Mapping[Key, Reference], stimulus: Stimulus) -> None:
        """Keep references where there is room."""
        size = sum(reference.nbytes for reference in found.values())
        if size <= self._room:
            self._room -= size
            self._remembered.update(((part, stimulus), reference) for part, reference in found.items())

    def deviation(
        self, other: ModelProto, base_dir: Path | None = None, *, similarity: bool = False
    ) -> tuple[Deviation | None, list[Row]]:
        """The first tensor, in the source's order, that rounding does not explain, and all rows. Inputs that seem to
        show one are run with more noise first.

        Raises VerifyError as `rows`.
        """
        found: dict[Stimulus, list[Row]] = {stimulus: [] for stimulus in self.inputs}
        for row, stimulus in self.rows(other, base_dir, similarity=similarity):
            found[stimulus].append(row)
        while (first := self._first(found)) is not None and first.stimulus not in self._sure:
            self.make_sure(first.stimulus)
            again = self.rows(other, base_dir, similarity=similarity, inputs=[first.stimulus])
            found[first.stimulus] = [row for row, _ in again]
        return first, [row for rows in found.values() for row in rows]

    def _first(self, found: Mapping[Stimulus, Sequence[Row]]) -> Deviation | None:
        """The first deviation in the source's order, for the first inputs that show it."""
        deviating: dict[Key, Deviation] = {}
        for stimulus, rows in found.items():
            for row in rows:
                if row.deviates:
                    deviating.setdefault(row.key, Deviation(row, stimulus))
        order = {name: i for i, name in enumerate(tensors_of(self.source))}
        first = min(deviating, key=lambda key: order[key[0]], default=None)
        return None if first is None else deviating[first]


class _Source:
    """What the tensors of the source are for one set of inputs, and how far rounding can move them."""

    def __init__(self, comparison: Comparison, stimulus: Stimulus) -> None:
        self.comparison = comparison
        self.stimulus = stimulus
        self.walk = Walk(comparison.runner, stimulus.feeds)
        self.overflow = comparison.overflow(stimulus)
        self.samples = [Walk(comparison.noisy, stimulus.feeds) for _ in range(comparison.noisy_runs(stimulus))]

    def take(self, names: Sequence[str]) -> dict[Key, Reference]:
        """The next tensors; what is none is left out."""
        known = self.comparison.known(names, self.stimulus)
        if known is not None:
            return known
        try:
            values = parts(names, self.walk.take(names))
        except VerifyError as error:
            raise SourceError(f"the source model does not run on {self.stimulus.name}: {error}") from None
        samples = self._noisy(names)
        self.overflow.see({name: value for (name, which), value in values.items() if not which})
        found = {part: self._reference(part, value, [s.get(part) for s in samples]) for part, value in values.items()}
        if found.keys() == {(name, "") for name in names}:
            self.comparison.remember(found, self.stimulus)
        return found

    def _reference(self, part: Key, value: Any, samples: Sequence[Any]) -> Reference:
        if part[0] in self.overflow.behind:
            return Reference.unknown(value)
        reference = Reference.of(value, samples)
        return reference.where_finite() if part[0] in self.overflow.overflown else reference

    def _noisy(self, names: Sequence[str]) -> list[dict[Key, Any]]:
        """What noise makes of the tensors; nothing where the noisy model does not run on these inputs."""
        try:
            return [parts(names, walk.take(names)) for walk in self.samples]
        except VerifyError:
            self.samples = []
        return []


def _common(first: TensorType, second: TensorType) -> TensorType:
    """What two types agree in."""
    dtype = first.dtype if first.dtype == second.dtype else None
    return TensorType(dtype, first.shape if first.shape == second.shape else None)


def _bytes(value: Any) -> int:
    return int(getattr(value, "nbytes", 0))


def _bits(type_: TensorType | None) -> int:
    """Bits of one element, 0 where that is not known."""
    return type_.dtype.bits if type_ is not None and type_.dtype is not None else 0


def parts(names: Sequence[str], values: Sequence[Any]) -> dict[Key, Any]:
    """The tensors among values; those of a sequence, and how many they are, each on its own."""
    found: dict[Key, Any] = {}
    for name, value in zip(names, values, strict=True):
        if is_tensor(value):
            found[name, ""] = value
        elif isinstance(value, list):
            found[name, "length"] = np.array(len(value))
            found.update(((name, str(i)), item) for i, item in enumerate(value) if is_tensor(item))
    return found
