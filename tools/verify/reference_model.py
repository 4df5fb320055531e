"""The source model of a comparison: the values of its tensors, and how far rounding can move them.

Tensors are computed in chunks, so that memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from ...frontends.onnx import from_model
from ...ir.types import DType, TensorType, Type
from ...support.errors import ModelError, SourceError, VerifyError
from .inputs import Feeds, Stimulus, arrays_of
from .monte_carlo import inline_functions, noisy_model
from .onnx_graph import conditionals, random_tensors, tensor_names
from .overflow import OverflowTracker
from .reference_tensor import ReferenceTensor
from .run_budget import NOISY_RUNS, Work, work_of
from .runner import CAST_TYPES, IncrementalRun, Runner, is_readable
from .tensor_blocks import is_tensor
from .ties import noise_free_name
from .tolerance import Tolerance

CONFIRMING_RUNS = 28
"""Noisy runs before a deviation is reported.

Where a step function decides elements, such as a rounding to integers, a few runs leave some
elements in place that rounding moves.
"""
CONFIRMING_BYTES = 2 << 30
"""Limit on the size of all tensors of all confirming runs.

A larger model gets fewer of them, at least twice those before; tensors that still deviate are then
run in isolation.
"""
CHUNK_BYTES = 256 << 20
"""Size of the tensors held at once, of the source, its noisy runs and the other model."""
CACHE_BYTES = 512 << 20
"""Size of the reference tensors that are kept for the next comparison."""
MEASURED_AT_ONCE = 256
"""Number of tensors of unknown type whose sizes are measured in one run."""
ISOLATED_AT_ONCE = 4
"""Number of noisy runs of a single tensor whose results are held at once."""

TensorKey = tuple[str, str]
"""A value and one of its tensors: an index, "length", "keys" or "values"; empty for a tensor."""


class ReferenceModel:
    """The model that others are compared with.

    `names` are its tensors in its order, without the `unreadable` ones: tensors of types that
    onnxruntime does not return, and tensors that depend on random operators. With a `narrow` type
    float32 results may be off by the rounding to that type.
    """

    def __init__(self, model: ModelProto, base_dir: Path, narrow: DType | None = None) -> None:
        self.model = model
        self.narrow = narrow
        self.base_dir = base_dir
        self.runner = Runner(model, base_dir)
        self.shapes: dict[str, tuple[int, ...]] = {}
        """The shapes of inputs and of tensors of known type in the last run of `error_on`."""
        self.sizes: dict[str, int] = {}
        """Bytes of each tensor in the runs of `error_on`: the largest of each."""
        self.noisy_runs = NOISY_RUNS
        """Number of noisy runs that a stimulus gets first."""
        self.tolerance: Tolerance | None = None
        """The tolerance that takes the place of bounds from noisy runs, which are then not made."""
        self._has_run_whole = False
        """Whether `error_on` ran all operators."""
        self.runs_before = 0.0
        """Number of runs of `error_on` before its memory was freed."""
        self._inlined = inline_functions(model)
        types = self._types = value_types(self._inlined, base_dir)
        random, names = random_tensors(self._inlined, base_dir), tensor_names(model)
        self.unreadable = [
            name
            for name in names
            if name in random or not is_readable(types.get(name, TensorType()))
        ]
        unreadable = set(self.unreadable)
        self.names = [name for name in names if name not in unreadable]
        self.results = list(dict.fromkeys(info.name for info in model.graph.output))
        self.conditions = set(conditionals(model))
        self.taken: dict[str, set[bool]] = {}
        """The values that the conditions of Ifs had so far, by name."""
        self.unmeasured: dict[str, str] = {}
        """Why the effect of rounding on a tensor could not be measured, by its name."""
        self.confirming: set[Stimulus] = set()
        """The stimuli that `confirm` was called for."""
        self._overflows: dict[Stimulus, OverflowTracker] = {}
        self._cache: dict[tuple[TensorKey, Stimulus], ReferenceTensor] = {}
        self._cache_room = CACHE_BYTES

    @cached_property
    def noisy(self) -> Runner:
        """Runner of the model with noise wherever it rounds; every run returns other values."""
        types = {
            name: type_ for name, type_ in self._types.items() if isinstance(type_, TensorType)
        }
        return Runner(noisy_model(self._inlined, types, self.narrow), self.base_dir)

    def error_on(self, feeds: Feeds) -> str | None:
        """Return why the model does not run on some inputs, or None and measure its tensors.

        Tensors of a known element type return only their shapes, since all at once may not fit into
        memory.
        """
        widths = self._widths
        self.shapes = {name: arrays_of(value)[0].shape for name, value in feeds.items()}
        if not self.names:
            return None
        rest = [name for name in self.names if name not in widths]
        starts = range(0, max(len(rest), 1), MEASURED_AT_ONCE)
        groups = [rest[i : i + MEASURED_AT_ONCE] for i in starts]
        outs = [f"irc.shape.{i}" for i in range(len(widths))]
        try:
            for names in groups:
                values = self._measuring.run([*outs, *names], feeds)
                shapes = [tuple(shape.tolist()) for shape in values[: len(outs)]]
                self.shapes.update(zip(widths, shapes, strict=False))
                sizes = dict(zip(names, map(bytes_of, values[len(outs) :]), strict=True))
                if outs:
                    sizes |= {name: prod(self.shapes[name]) * widths[name] for name in widths}
                for name, size in sizes.items():
                    self.sizes[name] = max(self.sizes.get(name, 0), size)
                outs = []
        except VerifyError as error:
            return str(error)
        num_nodes = len(self._measuring.model.graph.node)
        self._has_run_whole = len(groups) == 1 and len(self._measuring.places) == num_nodes
        return None

    @cached_property
    def _widths(self) -> dict[str, int]:
        """The bytes of an element of each tensor whose element type is known."""
        return {
            name: bits // 8 for name in self.names if (bits := _bits(self._types.get(name))) >= 8
        }

    @cached_property
    def _measuring(self) -> Runner:
        """Runner of the model with the shapes of its tensors."""
        with_shapes = ModelProto()
        with_shapes.CopyFrom(self.model)
        with_shapes.graph.node.extend(
            helper.make_node("Shape", [name], [f"irc.shape.{i}"])
            for i, name in enumerate(self._widths)
        )
        return Runner(with_shapes, self.base_dir)

    def free_measuring(self) -> None:
        """Free the memory that `error_on` takes from call to call."""
        self.runs_before += self._measuring.runs
        del self._measuring

    @property
    def runs(self) -> tuple[float, float]:
        """Number of runs so far: of the model, and of the noisy model."""
        return self.runs_before + self._measuring.runs + self.runner.runs, self.noisy.runs

    @cached_property
    def loads(self) -> bool:
        """Whether onnxruntime loads the whole model; it may refuse parts that no tensor needs."""
        if self._has_run_whole:
            return True
        try:
            self.runner.check_loads()
        except VerifyError:
            return False
        return True

    @property
    def size(self) -> int:
        """Bytes of all tensors, after `error_on`."""
        return sum(self.sizes.values())

    @property
    def work(self) -> Work:
        """The work of one run on the last inputs of `error_on`."""
        return work_of(self.model, self.shapes)

    def num_noisy_runs(self, stimulus: Stimulus) -> int:
        """Return how many noisy runs a stimulus gets."""
        if self.tolerance is not None:
            return 0
        if stimulus not in self.confirming:
            return self.noisy_runs
        return max(2 * self.noisy_runs, min(CONFIRMING_RUNS, CONFIRMING_BYTES // max(self.size, 1)))

    def confirm(self, stimulus: Stimulus) -> None:
        """Make more noisy runs of a stimulus from here on."""
        self.confirming.add(stimulus)
        for key in [key for key in self._cache if key[1] is stimulus]:
            self._cache_room += self._cache.pop(key).nbytes

    def chunks(self, num_samples: int, names: Sequence[str] | None = None) -> Iterator[list[str]]:
        """Yield all tensors, or `names`, in groups that take CHUNK_BYTES with `num_samples` runs.

        A larger tensor is a group of its own. Tensors that only the other model has count as the
        largest one.
        """
        group: list[str] = []
        size = 0
        largest = max(self.sizes.values(), default=0)
        for name in self.names if names is None else names:
            num_bytes = self.sizes.get(name, largest) * (num_samples + 4)
            if group and size + num_bytes > CHUNK_BYTES:
                yield group
                group, size = [], 0
            group.append(name)
            size += num_bytes
        if group:
            yield group

    def overflow(self, stimulus: Stimulus) -> OverflowTracker:
        """Return the tracker of the tensors that overflow for a stimulus."""
        if stimulus not in self._overflows:
            self._overflows[stimulus] = OverflowTracker(
                self._inlined, self.base_dir, stimulus.feeds
            )
        return self._overflows[stimulus]

    def note_conditions(self, values: Feeds) -> None:
        """Note the values of those tensors that are conditions of Ifs."""
        for name in self.conditions:
            value = values.get(name)
            if is_tensor(value) and value.size == 1:
                self.taken.setdefault(name, set()).add(bool(value.item()))

    def cached(
        self, names: Sequence[str], stimulus: Stimulus
    ) -> dict[TensorKey, ReferenceTensor] | None:
        """Return the cached references of tensors, None if one is missing."""
        keys = [(name, "") for name in names]
        if any((key, stimulus) not in self._cache for key in keys):
            return None
        return {key: self._cache[key, stimulus] for key in keys}

    def cache(self, references: Mapping[TensorKey, ReferenceTensor], stimulus: Stimulus) -> None:
        """Cache references if there is room."""
        added = {
            (k, stimulus): reference
            for k, reference in references.items()
            if (k, stimulus) not in self._cache
        }
        size = sum(reference.nbytes for reference in added.values())
        if size <= self._cache_room:
            self._cache_room -= size
            self._cache.update(added)


class ReferenceRun:
    """A run of the source and its noisy model on one stimulus, chunk by chunk."""

    def __init__(self, source: ReferenceModel, stimulus: Stimulus) -> None:
        self.source = source
        self.stimulus = stimulus
        self.run = IncrementalRun(source.runner, stimulus.feeds)
        self.overflow = source.overflow(stimulus)
        self.noisy_runs = self._start_noisy_runs(source.num_noisy_runs(stimulus))

    def compute(
        self, names: Sequence[str], shared: Sequence[str]
    ) -> dict[TensorKey, ReferenceTensor]:
        """Return the tensors among the next values that the other model has, too (`shared`).

        Raises SourceError if the source does not run.
        """
        cached = self.source.cached(shared, self.stimulus) if shared else None
        if cached is not None:
            return cached
        before = self._feeds_of_noisy(self.run.held)
        values = self._run_source(names)
        found, tensors = dict(zip(names, values, strict=True)), split_values(names, values)
        self.source.note_conditions({**self.stimulus.feeds, **found})
        samples: list[dict[TensorKey, Any]] = []
        if shared:
            # Tensors that are still read are returned, too, so that none runs twice.
            held = [name for name in names if name in self.run.held and name not in shared]
            samples = self._sample([*shared, *held], before | self._feeds_of_noisy(found))
        self.overflow.update({name: value for (name, part), value in tensors.items() if not part})
        wanted = set(shared)
        references = {
            key: self._reference(key[0], value, [sample.get(key) for sample in samples])
            for key, value in tensors.items()
            if key[0] in wanted
        }
        if references.keys() == {(name, "") for name in shared}:
            self.source.cache(references, self.stimulus)
        return references

    def _start_noisy_runs(self, count: int) -> list[IncrementalRun]:
        return [IncrementalRun(self.source.noisy, self.stimulus.feeds) for _ in range(count)]

    def _run_source(self, names: Sequence[str]) -> list[Any]:
        try:
            return self.run.compute(names)
        except VerifyError as error:
            raise SourceError(
                f"the source model does not run on {self.stimulus.name}: {error}"
            ) from None

    def _reference(self, name: str, value: Any, samples: Sequence[Any]) -> ReferenceTensor:
        if self.source.tolerance is not None:
            return self.source.tolerance.reference(value)
        if name in self.overflow.dependent:
            return ReferenceTensor.unknown(value)
        reference = ReferenceTensor.from_noisy_runs(value, samples)
        return reference.without_infinities() if name in self.overflow.overflown else reference

    def _feeds_of_noisy(self, values: Feeds) -> Feeds:
        """Return the values without noise that the noisy model would else compute."""
        readers = self.source.noisy.readers
        renamed = {noise_free_name(name): value for name, value in values.items()}
        return {name: value for name, value in renamed.items() if name in readers}

    def _sample(self, names: Sequence[str], noise_free: Feeds) -> list[dict[TensorKey, Any]]:
        """Return the tensors of each noisy run; some cannot be computed with noise."""
        try:
            return [split_values(names, run.compute(names, noise_free)) for run in self.noisy_runs]
        except VerifyError:
            return self._sample_one_by_one(names, noise_free)

    def _sample_one_by_one(
        self, names: Sequence[str], noise_free: Feeds
    ) -> list[dict[TensorKey, Any]]:
        """Return the result of `_sample`, and note in the source why tensors cannot be computed."""
        samples: list[dict[TensorKey, Any]] = [{} for _ in self.noisy_runs]
        index, unmeasured = self.source.runner.index, self.source.unmeasured
        for name in names:
            place = index.producers.get(name)
            operands = index.reads[place] if place else []
            reason = next((unmeasured[read] for read in operands if read in unmeasured), "")
            try:
                for sample, run in zip(samples, [] if reason else self.noisy_runs, strict=False):
                    sample.update(split_values([name], run.compute([name], noise_free)))
            except VerifyError as error:
                reason = str(error)
            if reason:
                unmeasured.setdefault(name, reason)
        return samples


class IsolatedReferenceRun(ReferenceRun):
    """A run for a single tensor with all CONFIRMING_RUNS from the inputs on, a few held at once."""

    def compute(
        self, names: Sequence[str], shared: Sequence[str]
    ) -> dict[TensorKey, ReferenceTensor]:
        """Return the tensor. Raises SourceError as `ReferenceRun.compute`."""
        found: dict[TensorKey, ReferenceTensor] = {}
        tensors = split_values(names, self._run_source(names))
        for _ in range(0, CONFIRMING_RUNS, ISOLATED_AT_ONCE):
            self.noisy_runs = self._start_noisy_runs(ISOLATED_AT_ONCE)
            samples = self._sample(names, {})
            for key, value in tensors.items():
                reference = self._reference(key[0], value, [sample.get(key) for sample in samples])
                found[key] = reference.merge(found[key]) if key in found else reference
        return found


def value_types(model: ModelProto, base_dir: Path) -> dict[str, Type]:
    """Return the known types of values by name, the common part for a name in two bodies."""
    try:
        module = from_model(model, base_dir)
    except ModelError:
        return {}
    found: dict[str, Type] = {}
    for graph in module.graph.graphs():
        for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
            found[value.name] = _common_type(found.get(value.name, value.type), value.type)
    return found


def split_values(names: Sequence[str], values: Sequence[Any]) -> dict[TensorKey, Any]:
    """Return the tensors that values consist of.

    A sequence is split into its tensors and its length. A map, or a sequence of maps, becomes two
    tensors, keys and values, with an axis for the maps if all have the same keys.
    """
    found: dict[TensorKey, Any] = {}
    for name, value in zip(names, values, strict=True):
        if is_tensor(value):
            found[name, ""] = value
        elif isinstance(value, dict):
            found.update(_split_maps(name, [value]))
        elif isinstance(value, list):
            found[name, "length"] = np.array(len(value))
            found.update(((name, str(i)), item) for i, item in enumerate(value) if is_tensor(item))
            found.update(_split_maps(name, [item for item in value if isinstance(item, dict)]))
    return found


def _split_maps(name: str, maps: Sequence[Mapping[Any, Any]]) -> dict[TensorKey, Any]:
    if not maps:
        return {}
    columns = {
        "keys": [key for one in maps for key in one],
        "values": [v for one in maps for v in one.values()],
    }
    have_same_keys = all(list(one) == list(maps[0]) for one in maps)
    shape = (len(maps), len(maps[0])) if have_same_keys else (len(columns["keys"]),)
    return {
        (name, part): np.array(items, _dtype_of(items)).reshape(shape)
        for part, items in columns.items()
    }


def _dtype_of(items: Sequence[object]) -> Any:
    """Return the numpy type for items that onnxruntime returns as Python objects."""
    dtypes = {str: object, int: np.int64, float: np.float32}
    return dtypes.get(type(items[0]), object) if items else object


def bytes_of(value: object) -> int:
    """Return the size of an array, and 0 for anything else."""
    return int(getattr(value, "nbytes", 0))


def _bits(type_: Type | None) -> int:
    """Return the bits of one element, 0 if unknown or if Shape may refuse the type."""
    dtype = type_.dtype if isinstance(type_, TensorType) else None
    return 0 if dtype is None or str(dtype) in CAST_TYPES else dtype.bits


def _common_type(first: Type, second: Type) -> Type:
    """Return the common part of two types."""
    if first == second:
        return first
    if not isinstance(first, TensorType) or not isinstance(second, TensorType):
        return TensorType()
    dtype = first.dtype if first.dtype == second.dtype else None
    return TensorType(dtype, first.shape if first.shape == second.shape else None)
