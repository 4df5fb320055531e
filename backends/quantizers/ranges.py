"""Ranges of activations without data.

Statistics of BatchNormalization are propagated through the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto

from ...ir.graph import Value, is_constant
from ...ir.module import Module
from ...ir.tensor import Array
from ...ir.types import F16, DType, Shape, TensorType, dtype_of
from ...passes.affine.records.source_affines import values_of
from ...passes.data_free.moments import Moments
from ...passes.data_free.statistic_ranges import propagate
from ...passes.data_free.value_ranges import Origin, ValueRange, value_ranges
from ...passes.inline_functions import InlineFunctions
from ...support.errors import UsageError, listed, nearest
from ...support.hooks import provided
from ..foldmap.fold_map import FoldMap
from .folded import check_belongs

Range = tuple[float, float]
"""Minimum and maximum of a tensor."""

SIGMAS = 6.0
"""Standard deviations on each side of the mean that a range covers."""

LISTED = 5
"""Most names that a message lists."""


@dataclass(frozen=True, slots=True, eq=False)
class Activation:
    """The range of a value, and its mean per channel along `mean_axis` if that is known.

    `low` and `high` are float64: [C] along `axis`, or [] for the whole value if `axis` is None.
    `origin` is given, statistic, propagated, bound or guess (`value_ranges.Origin`).
    """

    low: Array
    high: Array
    axis: int | None = None
    mean: Array | None = None
    mean_axis: int | None = None
    origin: str = Origin.GIVEN.value

    @property
    def range(self) -> Range:
        """The range of the whole tensor."""
        return float(self.low.min()), float(self.high.max())


@dataclass(frozen=True, slots=True, eq=False)
class Activations:
    """The floating-point activations of a model's main graph, in the model's order.

    `known` has the activations with a range, `missing` the others; `shapes` and `dtypes` have all.
    """

    known: dict[str, Activation]
    missing: tuple[str, ...]
    shapes: dict[str, Shape]
    dtypes: dict[str, DType]
    inputs: Collection[str] = ()
    """The graph inputs among them."""

    def scale_dtype(self, name: str) -> np.dtype[Any]:
        """Return the type that the scale of an activation has in ONNX."""
        return np.dtype(np.float16 if self.dtypes.get(name) is F16 else np.float32)

    @property
    def guessed(self) -> tuple[str, ...]:
        """The activations whose range follows from operands that are taken to be independent."""
        origins = (Origin.PROPAGATED.value, Origin.GUESS.value)
        return tuple(name for name, known in self.known.items() if known.origin in origins)

    def require(self, wanted: Collection[str]) -> None:
        """Raise UsageError unless every tensor of `wanted` has a range."""
        lacking = [name for name in self.missing if name in wanted]
        if lacking:
            inputs = [name for name in lacking if name in self.inputs]
            kind, option = ("input", "input-range") if inputs else ("value", "range")
            name = (inputs or lacking)[0]
            more = "" if len(lacking) == 1 else f", of which {len(lacking)} lack one"
            raise UsageError(
                f"give the range of {kind} {name!r}{more}: --{option} {name}=LOW:HIGH"
                f" ({option.replace('-', '_')}s= in Python)"
            )


def activations(
    model: ModelProto,
    fold_map: FoldMap,
    *,
    input_ranges: Mapping[str, Range] | Range | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
) -> Activations:
    """Return the ranges of all floating-point activations of the main graph. O(nodes).

    A tensor with a statistic ranges from mean - `sigmas` * std to mean + `sigmas` * std in each
    channel; ranges of other tensors are derived from these. `input_ranges` are the ranges of graph
    inputs, which have no statistic; with one input the range alone will do. `ranges` override the
    range of any tensor. Raises FoldMapError if the map does not describe the model, UsageError for
    an invalid range and for a name that is not in the model.
    """
    if not (np.isfinite(sigmas) and sigmas > 0):
        raise UsageError(f"sigmas must be positive, not {sigmas}")
    check_belongs(model, fold_map)
    module: Module = provided("from_model")(model)
    names = {value.name for value in values_of(module.graph)}
    if module.functions:
        module = InlineFunctions()(module)  # results of calls keep their names
    values = {
        value.name: value
        for value in values_of(module.graph)
        if value.name in names and _is_activation(value)
    }
    inputs = {value.name for value in module.graph.inputs if value.name in values}
    given = {
        **_checked(input_ranges, inputs, "floating-point graph input"),
        **_checked(ranges, values, "floating-point value"),
    }
    stored = ((value, fold_map.statistic(name)) for name, value in values.items())
    statistics = {value: known for value, known in stored if known is not None}
    bounds = {values[name]: known for name, known in fold_map.bounds().items() if name in values}
    means = propagate(module, {**bounds, **statistics}, sigmas=sigmas)
    by_value = {values[name]: known for name, known in given.items()}
    ranges_by_value = value_ranges(module, statistics, by_value, sigmas=sigmas, bounds=bounds)
    found = {
        name: _activation(ranges_by_value.get(value), means.get(value))
        for name, value in values.items()
    }
    known = {name: activation for name, activation in found.items() if activation is not None}
    shapes = {
        name: value.type.shape
        for name, value in values.items()
        if isinstance(value.type, TensorType)
    }
    dtypes = {
        name: dtype for name, value in values.items() if (dtype := dtype_of(value.type)) is not None
    }
    missing = tuple(name for name in found if name not in known)
    return Activations(known, missing, shapes, dtypes, inputs)


def _activation(found: ValueRange | None, moments: Moments | None) -> Activation | None:
    if found is None:
        return None
    mean, mean_axis = (
        (None, None) if moments is None or not moments.has_mean else (moments.mean, moments.axis)
    )
    low, high, axis = found.moments.low, found.moments.high, found.moments.axis
    if axis is None or found.origin is Origin.GIVEN:
        low, high, axis = np.asarray(low.min()), np.asarray(high.max()), None
    return Activation(low, high, axis, mean, mean_axis, found.origin.value)


def _is_activation(value: Value) -> bool:
    """Return whether the value has a name and floating-point elements, and is not a constant."""
    if not value.name or is_constant(value):
        return False
    dtype = dtype_of(value.type) if isinstance(value.type, TensorType) else None
    return dtype is not None and dtype.is_float


def _checked(
    ranges: Mapping[str, Range] | Range | None, names: Collection[str], kind: str
) -> dict[str, Range]:
    found: dict[str, Range] = {}
    if isinstance(ranges, tuple) and len(ranges) == 2 and len(names) == 1:
        ranges = {next(iter(names)): ranges}
    if not isinstance(ranges, Mapping | None):
        raise UsageError(
            f"ranges are given by name: write {{{next(iter(names), 'x')!r}: (low, high)}}"
        )
    for name, (low, high) in (ranges or {}).items():
        if name not in names:
            near = nearest(name, names, cutoff=0.6)
            known = listed(map(repr, sorted(names)), LISTED) or "none"
            hint = f"did you mean {near!r}?" if near is not None else f"it has {known}"
            raise UsageError(f"{name!r} is not a {kind} of the model's main graph ({hint})")
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise UsageError(f"({low}, {high}) is not a valid range for {name!r}")
        found[name] = (float(low), float(high))
    return found
