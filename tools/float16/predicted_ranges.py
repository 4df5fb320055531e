"""Ranges of every value of a float32 model: on samples, or predicted without any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

import numpy as np

from ...backends.quantizers.ranges import Range, activations
from ...ir.graph import Graph, Value
from ...ir.tensor import Array, Tensor
from ...passes.float16.half_constants import mask_floor
from ...passes.float16.half_forms import is_single
from ...passes.float16.known_ranges import UNKNOWN_RANGE, KnownRange
from ...passes.float16.weight_errors import ChannelMeans, data_axes, known_means
from ...result import Result
from ...support.errors import UsageError, listed
from ..verify.inputs import Feeds
from ..verify.runner import IncrementalRun, Runner

AT_ONCE = 64
"""Values that one run returns."""

LISTED = 8
"""Most names that a message lists."""

ON_SAMPLES = "samples"
"""The origin of a range that was measured."""


def single_values(result: Result) -> dict[str, Value]:
    """Return the float32 values of the main graph that operators compute, and inputs, by name."""
    graph = result.module.graph
    made = (value for node in graph.operators() for value in node.outputs)
    found = {result.name_of(value): value for value in made if value.name and is_single(value)}
    inputs = {value.name: value for value in graph.inputs if is_single(value)}
    return inputs | found


def measured_ranges(
    result: Result, runner: Runner, batches: Sequence[Feeds]
) -> dict[Value, KnownRange]:
    """Return the ranges of all float32 values on samples, and give the module the means of data.

    Raises VerifyError if it does not run.
    """
    values = single_values(result)
    made = {name for node in runner.model.graph.node for name in node.output}
    floors = {name: mask_floor(result.module, value) for name, value in values.items()}
    ranges = {name: _Magnitudes(floor) for name, floor in floors.items()}
    axes = {result.name_of(value): axis for value, axis in data_axes(result.module)}
    means = {name: _Mean(axis) for name, axis in axes.items() if name in values}
    names = [name for node in runner.model.graph.node for name in node.output if name in values]
    for feeds in batches:
        run = IncrementalRun(runner, feeds)
        for name in sorted(values.keys() & feeds.keys()):
            ranges[name].add(feeds[name])
            if name in means:
                means[name].add(feeds[name])
        for start in range(0, len(names), AT_ONCE):
            group = names[start : start + AT_ONCE]
            for name, array in zip(group, run.compute(group), strict=True):
                ranges[name].add(array)
                if name in means:
                    means[name].add(array)
    known_means(result.module).update(
        (values[name], found)
        for name, mean in means.items()
        if (found := mean.result()) is not None
    )
    known = made | {name for feeds in batches for name in feeds}
    return {
        value: KnownRange(ranges[name].most, ON_SAMPLES, ranges[name].least)
        for name, value in values.items()
        if name in known
    }


class _Mean:
    """The mean of each channel over several arrays."""

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.total: Array = np.zeros(())
        self.count = 0

    def add(self, array: object) -> None:
        """Add the elements of an array."""
        if isinstance(array, np.ndarray) and array.ndim > self.axis and array.size:
            others = tuple(i for i in range(array.ndim) if i != self.axis)
            self.total = self.total + array.sum(axis=others, dtype=np.float64)
            self.count += array.size // array.shape[self.axis]

    def result(self) -> ChannelMeans | None:
        """Return the means, None without elements."""
        return ChannelMeans(self.axis, self.total / self.count) if self.count else None


def _ranges_of_defaults(graph: Graph) -> Iterator[tuple[str, Range]]:
    """Yield the ranges of inputs that have a default: those of their numbers."""
    for value, payload in graph.defaults.items():
        elements = payload.numpy() if isinstance(payload, Tensor) and is_single(value) else None
        if elements is not None and elements.size and np.isfinite(elements).all():
            yield value.name, (float(elements.min()), float(elements.max()))


class _Magnitudes:
    """The greatest and least magnitude of elements over several arrays, without masks.

    Masks are below `floor`. The greatest is infinite if an element is not finite, or an array is
    none of floats.
    """

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self.most, self._least = 0.0, inf

    def add(self, array: object) -> None:
        """Add the elements of an array."""
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            self.most = inf
            return
        if np.isfinite(self.floor):
            array = array[array > self.floor]
        if not array.size:
            return
        magnitudes = np.abs(array)
        found = float(magnitudes.max())
        self.most = max(self.most, found if np.isfinite(found) else inf)
        self._least = min(self._least, float(magnitudes.min()))

    @property
    def least(self) -> float:
        """The least magnitude, 0 without elements."""
        return self._least if np.isfinite(self._least) else 0.0


def predicted_ranges(
    result: Result,
    input_ranges: Mapping[str, Range] | Range | None,
    ranges: Mapping[str, Range] | None,
    sigmas: float,
) -> tuple[dict[Value, KnownRange], dict[str, Range]]:
    """Return ranges that follow from statistics, and those of the inputs.

    A value of which nothing is known is taken to exceed every range. Raises UsageError if an input
    has no range.
    """
    defaults = dict(_ranges_of_defaults(result.module.graph))
    if isinstance(input_ranges, tuple):
        asked = [value.name for value in result.module.graph.inputs if value.name not in defaults]
        input_ranges = dict.fromkeys(asked, input_ranges) if len(asked) == 1 else input_ranges
    if not isinstance(input_ranges, tuple):
        input_ranges = {**defaults, **(input_ranges or {})}
    known = activations(
        result.model, result.fold_map, input_ranges=input_ranges, ranges=ranges, sigmas=sigmas
    )
    values = single_values(result)
    for value, axis in data_axes(result.module):
        each = known.known.get(result.name_of(value))
        if each is not None and each.mean is not None and each.mean_axis == axis:
            known_means(result.module)[value] = ChannelMeans(axis, each.mean)
    inputs = [info.name for info in result.model.graph.input if info.name in values]
    lacking = [name for name in inputs if name in known.missing]
    if lacking:
        names = listed(map(repr, lacking), LISTED)
        raise UsageError(
            f"nothing is known of the range of {names}: give --inputs samples.npz (inputs= in"
            " Python), or --input-range NAME=LOW:HIGH"
        )
    found = {}
    for name, value in values.items():
        each = known.known.get(name)
        if each is None:
            found[value] = KnownRange(inf, UNKNOWN_RANGE)
        else:
            low, high = each.range
            is_masked = low < mask_floor(result.module, value)
            most = abs(high) if is_masked else max(abs(low), abs(high))
            found[value] = KnownRange(most, each.origin)
    limits = {name: known.known[name].range for name in inputs if name in known.known}
    return found, limits
