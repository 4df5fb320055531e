"""The source model of a comparison: what its tensors are for some inputs, and how far rounding can move them.

Tensors are taken in chunks, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from ..frontends.onnx import from_model
from ..ir.types import (
    MapType,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
    Type,
)
from ..support.errors import ModelError, SourceError, VerifyError
from .graph_reads import branching
from .inputs import Feeds, Stimulus
from .noise import inlined, noisy
from .noiseless import plain_name
from .overflow import Overflow
from .random_ops import drawn
from .reference import Reference, is_tensor
from .runner import NARROW, Runner, Walk, tensors_of

SAMPLES = 4
"""Noisy runs."""
SURE = 28
"""Noisy runs before something is called a deviation: among many elements that a step decides (rounding to an integer,
or to a narrower type) there are some that a few runs do not move.
"""
ROOM = 2 << 30
"""Bytes that all tensors of all these runs may have; where they have more, there are fewer, but twice the others, until
what still deviates is run alone.
"""
CHUNK = 256 << 20
"""Bytes of tensors that are held at once, of the source, its noisy runs and the other model."""
REMEMBERED = 512 << 20
"""Bytes of the source's tensors and their bounds that are kept for the next comparison."""
HUGE = 256 << 20
"""Bytes of all tensors for one set of inputs from which on there are half the noisy runs."""
AT_ONCE = 256
"""Tensors whose sizes are measured in one run."""
NUMPY = {*("f16", "f32", "f64", "bool", "str"), *(f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64))}
"""Element types that onnxruntime gives to numpy."""

Key = tuple[str, str]
"""A value, and which of its tensors: the number of one in a sequence, or its length; empty for a value that is one."""


class ReferenceModel:
    """A model that others are held to. `names` are its tensors in its order, but for the `unreadable`: those of types
    that onnxruntime gives to nobody, and those that depend on chance.
    """

    def __init__(self, model: ModelProto, base_dir: Path) -> None:
        self.model = model
        self.base_dir = base_dir
        self.runner = Runner(model, base_dir)
        self.sizes: dict[str, int] = {}
        """Bytes by name, once they are measured."""
        found = self.types
        chance = drawn(self._plain, base_dir)
        self.unreadable = [
            name for name in tensors_of(model) if name in chance or not is_readable(found.get(name, TensorType()))
        ]
        left = set(self.unreadable)
        self.names = [name for name in tensors_of(model) if name not in left]
        self.results = list(dict.fromkeys(info.name for info in model.graph.output))
        self.conditions = set(branching(model))
        self.taken: dict[str, set[bool]] = {}
        """By the condition of an If the values that it took, as far as the model was run."""
        self._sure: set[Stimulus] = set()
        self._overflows: dict[Stimulus, Overflow] = {}
        self._remembered: dict[tuple[Key, Stimulus], Reference] = {}
        self._room = REMEMBERED

    @cached_property
    def _plain(self) -> ModelProto:
        return inlined(self.model)

    @cached_property
    def types(self) -> dict[str, Type]:
        """Types of values by name, as far as they are known; two bodies may have values of one name."""
        try:
            module = from_model(self._plain, self.base_dir)
        except ModelError:
            return {}
        found: dict[str, Type] = {}
        for graph in module.graph.graphs():
            for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
                found[value.name] = _common(found.get(value.name, value.type), value.type)
        return found

    @cached_property
    def noisy(self) -> Runner:
        """The model with noise wherever it rounds: every run gives other tensors."""
        types = {name: type_ for name, type_ in self.types.items() if isinstance(type_, TensorType)}
        return Runner(noisy(self._plain, types), self.base_dir)

    def fault(self, feeds: Feeds) -> str | None:
        """Why the model does not run on some inputs, None where it does."""
        ends = [name for name in self.names if name in self.results or name not in self.runner.readers]
        try:
            self.runner.run(ends or self.names[-1:], feeds)
        except VerifyError as error:
            return str(error)
        return None

    @cached_property
    def loads(self) -> bool:
        """Whether onnxruntime takes the whole model: some have unused parts that it does not know."""
        try:
            self.runner.check_loads()
        except VerifyError:
            return False
        return True

    @property
    def size(self) -> int:
        """Bytes of all tensors, once they are measured."""
        return sum(self.sizes.values())

    def measure(self, feeds: Feeds) -> None:
        """Find the sizes of all tensors. Of those of known types the shapes are asked for, since all tensors at once
        may not fit into memory.
        """
        asked = ModelProto()
        asked.CopyFrom(self.model)
        widths = {name: bits // 8 for name in self.names if (bits := _bits(self.types.get(name))) >= 8}
        outs = [f"irc.shape.{i}" for i in range(len(widths))]
        asked.graph.node.extend(
            helper.make_node("Shape", [name], [out]) for name, out in zip(widths, outs, strict=True)
        )
        shapes = Runner(asked, self.base_dir).run(outs, feeds) if outs else []
        self.sizes = {name: prod(shape.tolist()) * widths[name] for name, shape in zip(widths, shapes, strict=True)}
        rest = [name for name in self.names if name not in self.sizes]
        for start in range(0, len(rest), AT_ONCE):
            part = rest[start : start + AT_ONCE]
            self.sizes.update(zip(part, map(bytes_of, self.runner.run(part, feeds)), strict=True))

    def noisy_runs(self, stimulus: Stimulus) -> int:
        """How many there are of a set of inputs."""
        few = SAMPLES if self.size <= HUGE else SAMPLES // 2
        return few if stimulus not in self._sure else max(2 * few, min(SURE, ROOM // max(self.size, 1)))

    def is_sure(self, stimulus: Stimulus) -> bool:
        """Whether `make_sure` was called."""
        return stimulus in self._sure

    def make_sure(self, stimulus: Stimulus) -> None:
        """From here on take more noisy runs of a set of inputs."""
        self._sure.add(stimulus)
        for key in [key for key in self._remembered if key[1] is stimulus]:
            self._room += self._remembered.pop(key).nbytes

    def chunks(self, samples: int, names: Sequence[str] | None = None) -> Iterator[list[str]]:
        """All tensors, or those of another model, in groups that fit into CHUNK bytes with so many noisy runs; one that
        does not fit stands alone. What only the other model has is taken to be as large as the largest.
        """
        group: list[str] = []
        size = 0
        greatest = max(self.sizes.values(), default=0)
        for name in self.names if names is None else names:
            count = self.sizes.get(name, greatest) * (samples + 4)
            if group and size + count > CHUNK:
                yield group
                group, size = [], 0
            group.append(name)
            size += count
        if group:
            yield group

    def overflow(self, stimulus: Stimulus) -> Overflow:
        """What overflows, as far as the model was run."""
        if stimulus not in self._overflows:
            self._overflows[stimulus] = Overflow(self._plain, self.base_dir, stimulus.feeds)
        return self._overflows[stimulus]

    def see_conditions(self, values: Feeds) -> None:
        """Note which values the conditions among some tensors take."""
        for name in self.conditions:
            if name in values and is_tensor(values[name]) and values[name].size == 1:
                self.taken.setdefault(name, set()).add(bool(values[name].item()))

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


class References:
    """Those of one set of inputs, which are asked for chunk by chunk."""

    def __init__(self, source: ReferenceModel, stimulus: Stimulus) -> None:
        self.source = source
        self.stimulus = stimulus
        self.walk = Walk(source.runner, stimulus.feeds)
        self.overflow = source.overflow(stimulus)
        self.samples = [Walk(source.noisy, stimulus.feeds) for _ in range(source.noisy_runs(stimulus))]

    def take(self, names: Sequence[str]) -> dict[Key, Reference]:
        """The next tensors; what is none is left out. Raises SourceError where the source does not run."""
        known = self.source.known(names, self.stimulus)
        if known is not None:
            return known
        plain = self._plain(self.walk.held)
        taken = self._taken(names)
        found, values = dict(zip(names, taken, strict=True)), parts(names, taken)
        self.source.see_conditions({**self.stimulus.feeds, **found})
        samples = self._noisy(names, plain | self._plain(found))
        self.overflow.see({name: value for (name, which), value in values.items() if not which})
        told = {part: self._reference(part, value, [s.get(part) for s in samples]) for part, value in values.items()}
        if told.keys() == {(name, "") for name in names}:
            self.source.remember(told, self.stimulus)
        return told

    def _taken(self, names: Sequence[str]) -> list[Any]:
        """The next tensors of the source. Raises SourceError where it does not run."""
        try:
            return self.walk.take(names)
        except VerifyError as error:
            raise SourceError(f"the source model does not run on {self.stimulus.name}: {error}") from None

    def _reference(self, part: Key, value: Any, samples: Sequence[Any]) -> Reference:
        if part[0] in self.overflow.behind:
            return Reference.unknown(value)
        reference = Reference.of(value, samples)
        return reference.where_finite() if part[0] in self.overflow.overflown else reference

    def _plain(self, values: Feeds) -> Feeds:
        """Tensors of the source that the noisy model needs, and need not compute, by their names there."""
        readers = self.source.noisy.readers
        return {plain_name(name): value for name, value in values.items() if plain_name(name) in readers}

    def _noisy(self, names: Sequence[str], plain: Feeds) -> list[dict[Key, Any]]:
        """What noise makes of the tensors, nothing where the noisy model does not run on these inputs."""
        try:
            return [parts(names, walk.take(names, plain)) for walk in self.samples]
        except VerifyError:
            self.samples = []
        return []


class Alone(References):
    """That of one tensor, which is computed from the inputs in SURE noisy runs, a few at a time."""

    def take(self, names: Sequence[str]) -> dict[Key, Reference]:
        """The tensor. Raises SourceError as `References.take`."""
        found: dict[Key, Reference] = {}
        values = parts(names, self._taken(names))
        for _ in range(0, SURE, SAMPLES):
            self.samples = [Walk(self.source.noisy, self.stimulus.feeds) for _ in range(SAMPLES)]
            samples = self._noisy(names, {})
            for part, value in values.items():
                reference = self._reference(part, value, [sample.get(part) for sample in samples])
                found[part] = reference.joined(found[part]) if part in found else reference
        return found


def parts(names: Sequence[str], values: Sequence[Any]) -> dict[Key, Any]:
    """The tensors among values; those of a sequence, and how many they are, each on its own. Maps, or sequences of
    maps, are two tensors, their keys and what stands under those, with an axis for the maps where they agree in keys.
    """
    found: dict[Key, Any] = {}
    for name, value in zip(names, values, strict=True):
        if is_tensor(value):
            found[name, ""] = value
        elif isinstance(value, dict):
            found.update(_of_maps(name, [value]))
        elif isinstance(value, list):
            found[name, "length"] = np.array(len(value))
            found.update(((name, str(i)), item) for i, item in enumerate(value) if is_tensor(item))
            found.update(_of_maps(name, [item for item in value if isinstance(item, dict)]))
    return found


def _of_maps(name: str, maps: Sequence[Mapping[Any, Any]]) -> dict[Key, Any]:
    if not maps:
        return {}
    keys = [key for one in maps for key in one]
    values = [value for one in maps for value in one.values()]
    regular = all(list(one) == list(maps[0]) for one in maps)
    shape = (len(maps), len(maps[0])) if regular else (len(keys),)
    columns = {"keys": keys, "values": values}
    return {(name, which): np.array(column, _kind(column)).reshape(shape) for which, column in columns.items()}


def _kind(items: Sequence[object]) -> Any:
    """The element type of what onnxruntime gives as objects of Python."""
    kinds = {str: object, int: np.int64, float: np.float32}
    return kinds.get(type(items[0]), object) if items else object


def is_readable(type_: Type, *, inside: bool = False) -> bool:
    """Whether onnxruntime, or a Runner, can hand out what is of a type, or stands `inside` a container."""
    if isinstance(type_, SequenceType | OptionalType):
        return is_readable(type_.element, inside=True)
    if isinstance(type_, MapType):
        return is_readable(type_.value, inside=True)
    if isinstance(type_, TensorType) and type_.dtype is not None:
        return str(type_.dtype) in NUMPY or (not inside and str(type_.dtype) in NARROW)
    return not isinstance(type_, SparseTensorType)


def bytes_of(value: object) -> int:
    """Bytes of an array, 0 of what is none."""
    return int(getattr(value, "nbytes", 0))


def _bits(type_: Type | None) -> int:
    """Bits of one element, 0 where that is not known."""
    return type_.dtype.bits if isinstance(type_, TensorType) and type_.dtype is not None else 0


def _common(first: Type, second: Type) -> Type:
    """What two types agree in."""
    if first == second:
        return first
    if not isinstance(first, TensorType) or not isinstance(second, TensorType):
        return TensorType()
    dtype = first.dtype if first.dtype == second.dtype else None
    return TensorType(dtype, first.shape if first.shape == second.shape else None)
