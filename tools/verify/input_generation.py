"""Generation of seeded inputs of several kinds, with open dimensions at several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import (
    ModelProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from ...ir.tensor import Array
from ...support.errors import SourceError
from .inputs import (
    Feeds,
    Stimulus,
    is_known_elem_type,
    overridable_inputs,
    required_inputs,
    tensor_type,
    type_name,
)
from .integer_inputs import index_limits, unrestricted_inputs
from .needed_extents import find_extents, find_needs

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of all inputs."""
ShapeOf = Callable[[str, Feeds], Sequence[int] | None]
"""Returns the shape of a tensor of a model for some inputs, None if it is not computed."""
ErrorOn = Callable[[Feeds], str | None]
"""Returns why a model does not run on some inputs, None if it does."""

SIZES = ((2, 32), (1, 48), (1, 64), (1, 224), (1, 16), (1, 128), (1, 8), (1, 4), (1, 1))
"""Extents that open dimensions are tried at: of first axes, and of the others."""
POWERS = tuple(1 << power for power in range(8, 23))
"""Extents that are tried at last."""
MAX_EXTENT = 1 << 16
"""Limit on extents that are looked for."""
SEQUENCE_LENGTH = 3
"""Number of tensors in a generated sequence."""
MAX_ELEMENTS = 1 << 30
"""Limit on the size of a generated input."""
MAX_OPEN_ELEMENTS = 1 << 22
"""Most elements of all inputs together at extents that are tried for open dimensions.

The fixed ones may need more: then twice as much.
"""
MAX_OVERRIDDEN_BYTES = 256 << 20
"""Limit on the size of the initializers that are overridden, at eight bytes for an element."""
INTEGER_LIMIT = 8
"""Integers stay below this if nothing says how large an index may be."""
MAX_INTEGER = 40_000
"""The greatest magnitude of unrestricted integers of more than eight bits.

It is beyond int16, its square is within int32, and float16 represents it.
"""


def _ones_along_border(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Return ones at the first and last index of an axis after the channels, else zeros."""
    array = np.zeros(shape)
    for axis in range(2, len(shape)):
        for end in (slice(0, 1), slice(-1, None)):
            array[(slice(None),) * axis + (end,)] = 1.0
    return array if len(shape) > 2 else np.ones(shape)


KINDS: dict[str, Callable[[np.random.Generator, Sequence[int]], Array]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "wide": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 2, shape),
    "equal": lambda rng, shape: np.ones(shape),
    "zero": lambda rng, shape: np.zeros(shape),
    "negative": lambda rng, shape: -np.abs(rng.standard_normal(shape)) - 0.1,
    "positive": lambda rng, shape: np.abs(rng.standard_normal(shape)) + 1.1,
    "border": _ones_along_border,
}
"""Kinds of floating-point inputs; those that show most faults come first."""


def stimuli(
    model: ModelProto,
    error_on: ErrorOn,
    shape_of: ShapeOf,
    *,
    seed: int = 0,
    kinds: Sequence[str] = tuple(KINDS),
    sizes: int = 2,
) -> Iterator[Stimulus]:
    """Yield inputs of every kind on which the model runs, at up to `sizes` sizes.

    Each open dimension gets another extent; if the model does not run so, all get the same. If it
    runs at none of SIZES, extents that its operators need are tried, then powers of two. Extents
    with which the inputs are very large are left out.

    Raises SourceError if the model runs on none of them.
    """
    infos = required_inputs(model)
    most = max(MAX_OPEN_ELEMENTS, 2 * min(_elements(shapes) for shapes in shapes_at(infos, 1, 1)))
    drawing = _Drawing(model, error_on, kinds, seed)
    num_sizes = 0
    tried: set[Shapes] = set()
    for size in chain(SIZES, _needed_sizes(model, drawing, shape_of, most)):
        for shapes in shapes_at(infos, *size):
            if shapes in tried or _elements(shapes) > most:
                continue
            tried.add(shapes)
            runs = False
            for stimulus in drawing.draw_all(shapes):
                runs = True
                yield stimulus
            if runs:
                num_sizes += 1
                break
        if num_sizes == sizes:
            return
    if not num_sizes:
        raise SourceError(
            "the source model runs on no generated inputs"
            f" (give some with --inputs): {drawing.first_error}"
        )


def _needed_sizes(
    model: ModelProto, drawing: _Drawing, shape_of: ShapeOf, most: int
) -> Iterator[tuple[int, int]]:
    """Yield extents of open first and other axes that operators need, then powers of two.

    There are none if the model has run at others.
    """
    if drawing.has_run or not has_open_dimensions(model):
        return
    infos = required_inputs(model)

    def shapes_of(size: tuple[int, int]) -> Shapes | None:
        with suppress(SourceError):  # too large
            shapes = shapes_at(infos, *size)[-1]
            return shapes if _elements(shapes) <= most else None
        return None

    def shape_at(name: str, first: int, other: int) -> Sequence[int] | None:
        shapes = shapes_of((first, other))
        return None if shapes is None else shape_of(name, drawing.feeds(drawing.kinds[0], shapes))

    first, other = find_extents(list(find_needs(model)), shape_at, MAX_EXTENT)
    yield from ((2 * first, other), (first, other), (2 * first, 2 * other))
    for extent in POWERS:
        for size in ((1, extent), (extent, 32), (extent, extent)):
            if drawing.has_run:
                return
            if shapes_of(size) is not None:
                yield size


def _elements(shapes: Shapes) -> int:
    """Return the number of elements of all inputs."""
    return sum(map(prod, shapes))


class _Drawing:
    """Draws the stimuli of all kinds for given shapes.

    Unrestricted integers take their whole range, until the model runs only with small ones.
    """

    def __init__(
        self, model: ModelProto, error_on: ErrorOn, kinds: Sequence[str], seed: int
    ) -> None:
        self.infos = required_inputs(model)
        self.error_on = error_on
        self.kinds = kinds
        self.seed = seed
        self.small: dict[str, int | None] = {
            **{i.name: INTEGER_LIMIT for i in self.infos},
            **index_limits(model),
        }
        self.limits = {**self.small, **dict.fromkeys(unrestricted_inputs(model))}
        self.first_error = ""
        self.has_run = False
        """Whether the model ran on any inputs."""

    def draw_all(self, shapes: Shapes) -> Iterator[Stimulus]:
        """Yield a stimulus of each kind on which the model runs."""
        text = ",".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
        for kind in self.kinds:
            feeds = self.feeds(kind, shapes, self.limits)
            error = self.error_on(feeds)
            is_large = self.limits != self.small and takes_full_range(kind, self.kinds)
            if error is not None and is_large:
                feeds = self.feeds(kind, shapes)
                if self.error_on(feeds) is None:
                    self.limits, error = self.small, None
            if error is None:
                self.has_run = True
                yield Stimulus(f"{kind} {text}", feeds)
            else:
                self.first_error = self.first_error or error

    def feeds(
        self, kind: str, shapes: Shapes, limits: Mapping[str, int | None] | None = None
    ) -> Feeds:
        """Return inputs of a kind; unrestricted integers are small by default."""
        generator = InputGenerator(kind, self.kinds, self.seed)
        limits = limits or self.small
        return {
            info.name: generator.next_value(info.type, shape, limits[info.name])
            for info, shape in zip(self.infos, shapes, strict=True)
        }


def takes_full_range(kind: str, kinds: Sequence[str]) -> bool:
    """Return whether unrestricted integers take their whole range in one of several kinds."""
    # Of any choice of kinds one should: "normal" does if there is no "wide".
    return kind in ("wide", "negative") or (kind == "normal" and "wide" not in kinds)


class InputGenerator:
    """A generator of the inputs of one stimulus, asked for one after the other.

    Booleans and integers vary with `variant`, the place of the kind among those that are not all
    zero.
    """

    def __init__(self, kind: str, kinds: Sequence[str], seed: int) -> None:
        self.kind = kind
        others = [other for other in kinds if other != "zero"]
        self.variant = 0 if kind == "zero" else others.index(kind)
        self.seed = seed
        self.full_range = takes_full_range(kind, kinds)
        self.rng = np.random.default_rng(seed)
        self.num_inputs = 0
        self.num_single_booleans = 0

    def next_value(self, type_: TypeProto, shape: Sequence[int], limit: int | None) -> Any:
        """Return the next input of a type; optional ones are given."""
        if type_.HasField("optional_type"):
            return self.next_value(type_.optional_type.elem_type, shape, limit)
        if type_.HasField("sequence_type"):
            item = type_.sequence_type.elem_type
            return [self.next_value(item, shape, limit) for _ in range(SEQUENCE_LENGTH)]
        return self.next(type_.tensor_type.elem_type, shape, limit)

    def next(self, elem_type: int, shape: Sequence[int], limit: int | None) -> Array:
        """Return the next input.

        Integers are in [0, limit); without a limit they are unrestricted.
        """
        self.num_inputs += 1
        if elem_type == TensorProto.STRING:
            return np.full(shape, "a", object)
        dtype = helper.tensor_dtype_to_np_dtype(elem_type)
        if dtype == np.bool_:
            return np.zeros(shape, bool) if self.kind == "zero" else self.booleans(shape)
        if dtype.kind in "iu":
            if limit is None and self.full_range:
                return self.full_range_integers(shape, dtype)
            end = min(limit or INTEGER_LIMIT, int(np.iinfo(dtype).max) + 1)
            return self.integers(shape, end).astype(dtype)
        return np.asarray(KINDS[self.kind](self.rng, shape)).astype(dtype)

    def booleans(self, shape: Sequence[int]) -> Array:
        """Return booleans; each takes both values, since odd variants reverse the one before.

        Single booleans are numbered, so that two of them take all four pairs of values in four
        variants.
        """
        pair, odd = divmod(self.variant, 2)
        if prod(shape) == 1:
            self.num_single_booleans += 1
            return np.full(shape, bool(odd) == (pair == self.num_single_booleans))
        return np.asarray(self._rng_of(pair).integers(0, 2, shape) != odd)

    def integers(self, shape: Sequence[int], end: int) -> Array:
        """Return integers in [0, end). A single one differs in every variant."""
        if self.kind in ("zero", "equal"):
            return np.full(shape, self.kind == "equal")
        if prod(shape) == 1:
            return np.asarray((self._rng_of(0).integers(0, end, shape) + self.variant) % end)
        return np.asarray(self._rng_of(self.variant).integers(0, end, shape))

    def full_range_integers(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return integers of all eight bits, or of several decades if the type is wider.

        Several integers include both ends of the range. The negative kind has no others, if the
        type is signed.
        """
        rng, info = self._rng_of(self.variant), np.iinfo(dtype)
        low, high = max(int(info.min), -MAX_INTEGER), min(int(info.max), MAX_INTEGER)
        high = -1 if self.kind == "negative" and low < 0 else high
        if dtype.itemsize == 1:
            array = np.asarray(rng.integers(low, high + 1, shape))
        else:
            magnitudes = np.asarray(float(max(-low, high)) ** rng.uniform(0, 1, shape)) - (high > 0)
            possible = [sign for sign, occurs in ((-1, low < 0), (1, high > 0)) if occurs]
            signs = rng.choice(possible, shape)
            array = np.asarray(np.clip(np.trunc(magnitudes) * signs, low, high))
        if array.size > 1:
            array.flat[0], array.flat[-1] = low, high
        return array.astype(dtype)

    def _rng_of(self, variant: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.num_inputs, variant])


def overriding_stimuli(
    model: ModelProto, base_dir: Path, first: Stimulus, error_on: ErrorOn, *, seed: int = 0
) -> Iterator[Stimulus]:
    """Yield the stimulus `first` with other values for initializers that callers may override.

    Only floating-point ones change if the model does not run with all changed. Yield nothing if the
    user overrides some, or if they take more than MAX_OVERRIDDEN_BYTES.
    """
    names = {info.name for info in overridable_inputs(model)}
    tensors = [tensor for tensor in model.graph.initializer if tensor.name in names]
    size = sum(prod(tensor.dims) * 8 for tensor in tensors)
    is_by_user = not names.isdisjoint(first.feeds)
    if not tensors or is_by_user or size > MAX_OVERRIDDEN_BYTES:
        return
    rng = np.random.default_rng(seed)
    arrays = {tensor.name: numpy_helper.to_array(tensor, str(base_dir)) for tensor in tensors}
    changed = {name: _similar_values(rng, array) for name, array in arrays.items()}
    floating = {name: array for name, array in changed.items() if array.dtype.kind in "fV"}
    for others in (changed, floating):
        feeds = {**first.feeds, **others}
        if others and error_on(feeds) is None:
            yield Stimulus(f"{first.name}, other initializers", feeds)
            return


def _similar_values(rng: np.random.Generator, array: Array) -> Array:
    """Return values of the same signs and similar magnitudes: a variance stays a variance."""
    if array.dtype.kind == "b":
        return ~array
    if array.dtype.kind in "iu":
        return np.asarray(array + 1, array.dtype)
    if array.dtype.kind not in "fV":
        return array
    values = array.astype(np.float64)
    small = rng.uniform(0, 0.125, array.shape)
    similar = values * rng.uniform(0.5, 1.5, array.shape)
    return np.asarray(np.where(values == 0, small, similar)).astype(array.dtype)


def shapes_at(infos: Sequence[ValueInfoProto], first: int, other: int) -> list[Shapes]:
    """Return shapes of inputs with open dimensions filled in: distinct extents, and equal ones.

    Open first axes are `first`. Other symbols, and axes without one, are `other`, twice that, and
    so on, so that height and width cannot be mixed up; in the second alternative all are `other`.

    Raises SourceError if an input has no tensors, an unknown element type, or is too large.
    """
    for info in infos:
        tensor = tensor_type(info)
        if tensor is None:
            raise SourceError(
                f"the input {info.name!r} has no tensors: it can be neither generated nor given"
            )
        if not is_known_elem_type(tensor.elem_type):
            raise SourceError(
                f"the input {info.name!r} is {type_name(info)}, which is not known: "
                "it can be neither generated nor given"
            )
    equal = tuple(_fill_shape(info, {}, first, other) for info in infos)
    for info, shape in zip(infos, equal, strict=True):
        if prod(shape) > MAX_ELEMENTS:
            raise SourceError(
                f"the input {info.name!r} has more than {MAX_ELEMENTS} elements, too many to"
                " generate: give it with --inputs"
            )
    extents = _distinct_extents(infos, first, other)
    distinct = tuple(_fill_shape(info, extents, first, other) for info in infos)
    return [equal] if any(prod(shape) > MAX_ELEMENTS for shape in distinct) else [distinct, equal]


def _distinct_extents(
    infos: Sequence[ValueInfoProto], first: int, other: int
) -> dict[str | int, int]:
    """Return the extents of open dimensions by their symbol, or by their axis if they have none."""
    extents: dict[str | int, int] = {}
    multiples = count(1)
    for info in infos:
        for i, dim in enumerate(_dims(info)):
            if _is_open(dim) and (dim.dim_param or i) not in extents:
                extents[dim.dim_param or i] = other * next(multiples) if i else first
    return extents


def has_open_dimensions(model: ModelProto) -> bool:
    """Return whether callers choose an extent of an input."""
    return any(_is_open(dim) for info in required_inputs(model) for dim in _dims(info))


def _dims(info: ValueInfoProto) -> Sequence[TensorShapeProto.Dimension]:
    """Return the declared dimensions of the tensors of an input."""
    tensor = tensor_type(info)
    return () if tensor is None else tensor.shape.dim


def _is_open(dim: TensorShapeProto.Dimension) -> bool:
    """Return whether callers choose the extent.

    They do not choose an extent of 0, as of a cache that begins empty.
    """
    return not dim.HasField("dim_value") or dim.dim_value < 0


def _fill_shape(
    info: ValueInfoProto, extents: Mapping[str | int, int], first: int, other: int
) -> tuple[int, ...]:
    shape: list[int] = []
    for i, dim in enumerate(_dims(info)):
        if _is_open(dim):
            shape.append(extents.get(dim.dim_param or i, other if i else first))
        else:
            shape.append(dim.dim_value)
    return tuple(shape)
