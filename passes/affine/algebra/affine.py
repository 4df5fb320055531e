"""Channel affines, and the operations on them that rules need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from ....ir.record import Record
from ....ir.tensor import Array, all_finite

MAX_EXTENT = 1 << 24
"""Channels that an affine may have: more than any layer has, and little enough to compute with."""

CANCELLATION = 2.0**-10
"""Two shifts are merged unless their sum is below this share of the larger, and cancels."""

_ONE, _ZERO = np.ones(()), np.zeros(())


def _is_constant(vector: Array) -> bool:
    """Return whether a vector has elements and all of them are equal."""
    return bool(vector.size and vector[0] == vector[-1] and (vector == vector[0]).all())


class Stage(Record):
    """One affine of a chain: float64 `scale` and `shift`, [C] or [].

    A BatchNormalization keeps its `mean` and `beta`, because (x - mean) * scale + beta does not
    cancel if scale * x + shift would. `origins` are the imported nodes that the stage comes from.
    """

    scale: Array
    shift: Array
    mean: Array | None = None
    beta: Array | None = None
    origins: tuple[int, ...] = ()

    def apply(self, x: Array) -> Array:
        """Return the affine of float64 `x`, whose last axis has the channels."""
        if self.mean is not None and self.beta is not None:
            return np.asarray((x - self.mean) * self.scale + self.beta)
        return np.asarray(x * self.scale + self.shift)

    def arrays(self) -> tuple[Array, ...]:
        """Return all numbers of the stage."""
        return tuple(
            [part for part in (self.scale, self.shift, self.mean, self.beta) if part is not None]
        )

    def map(self, function: Callable[[Array], Array]) -> Stage:
        """Return the stage with `function` applied to every vector of it.

        Scalars stand for any channel and stay.
        """

        def mapped(array: Array | None) -> Array | None:
            return array if array is None or array.ndim == 0 else function(array)

        scale, shift = mapped(self.scale), mapped(self.shift)
        assert scale is not None and shift is not None
        return Stage(scale, shift, mapped(self.mean), mapped(self.beta), self.origins)

    def unshifted(self) -> Stage:
        """Return the scale alone."""
        return Stage(self.scale, np.zeros_like(self.scale), origins=self.origins)

    def rescaled_data(self, factor: float) -> Stage:
        """Return the stage A' with factor * A'(x) = A(factor * x), where A is this one."""
        mean = None if self.mean is None else self.mean / factor
        beta = None if self.beta is None else self.beta / factor
        return Stage(self.scale, self.shift / factor, mean, beta, self.origins)


class Affine(Record, dict=True):
    """A chain of stages along `axis` of a value, counted from the left; None is any axis.

    An affine without an axis is uniform: the same for all elements.

    `scale` and `shift` belong to the whole chain: float64 of shape [C], or [] if `axis` is None.
    Between a reshape that splits the channels and one that merges them again they lie on several
    axes, from `axis` on, with `extents` whose product is C; elsewhere `extents` is empty.
    """

    axis: int | None
    stages: tuple[Stage, ...]
    extents: tuple[int, ...] = ()

    @cached_property
    def scale(self) -> Array:
        """Return the scale of the whole chain."""
        return self._numbers[0]

    @cached_property
    def shift(self) -> Array:
        """Return the shift of the whole chain, its value at zero."""
        return self._numbers[1]

    @cached_property
    def _numbers(self) -> tuple[Array, Array]:
        scale, shift = _ONE, _ZERO
        for stage in self.stages:
            if scale is _ONE:
                scale = stage.scale
            else:
                with np.errstate(all="ignore"):
                    scale = np.asarray(scale * stage.scale)
            shift = stage.apply(shift)
        if self.axis is not None and scale.shape != shift.shape:
            scale, shift = np.broadcast_arrays(scale, shift)
        return scale, shift

    @staticmethod
    def of(axis: int | None, stages: Sequence[Stage], extents: tuple[int, ...] = ()) -> Affine:
        """Return the affine of these stages, uniform if all its vectors are constant."""
        vectors = [array for stage in stages for array in stage.arrays() if array.ndim]
        if all(map(_is_constant, vectors)):
            return Affine(None, tuple(stage.map(lambda array: array[0]) for stage in stages))
        found = Affine(axis, tuple(stages), extents)
        if len(stages) > 1 and _is_constant(found.scale) and _is_constant(found.shift):
            return Affine(None, (Stage(found.scale[0], found.shift[0], origins=found.origins),))
        return found

    @staticmethod
    def of_each(stages: Sequence[tuple[int | None, Stage]]) -> list[Affine]:
        """Return `of` for each stage alone.

        Affines with the same number of channels are computed together.
        """
        alike: dict[tuple[int, bool], list[int]] = {}
        for i, (axis, stage) in enumerate(stages):
            shapes = {array.shape for array in stage.arrays()}
            shape = shapes.pop()
            # All vectors of one length: they become the rows of matrices.
            if axis is not None and not shapes and len(shape) == 1 and shape[0]:
                alike.setdefault((shape[0], stage.mean is not None), []).append(i)
        found: dict[int, Affine] = {}
        for positions in alike.values():
            found.update(zip(positions, _together([stages[i] for i in positions]), strict=True))
        return [
            found[i] if i in found else Affine.of(axis, [stage])
            for i, (axis, stage) in enumerate(stages)
        ]

    @staticmethod
    def joined(axis: int | None, scale: Array, shift: Array, origins: Sequence[int] = ()) -> Affine:
        """Return the affine of these numbers, in one stage."""
        return Affine.of(axis, [Stage(scale, shift, origins=tuple(origins))])

    def vectors(self) -> list[Array]:
        """Return all numbers per channel, which are the vectors of its stages."""
        return [array for stage in self.stages for array in stage.arrays() if array.ndim]

    @property
    def channels(self) -> int | None:
        """Number of channels, None for a uniform affine."""
        return None if self.axis is None else int(self.scale.shape[0])

    @cached_property
    def origins(self) -> tuple[int, ...]:
        """Return the imported nodes that the affine comes from."""
        return tuple(origin for stage in self.stages for origin in stage.origins)

    @cached_property
    def has_shift(self) -> bool:
        """Whether the shift of any channel is not zero."""
        return bool(np.count_nonzero(self.shift))

    @cached_property
    def has_scale(self) -> bool:
        """Whether the scale of any channel is not one."""
        return bool(np.count_nonzero(self.scale != 1))

    @cached_property
    def is_finite(self) -> bool:
        """Whether every number is."""
        return all_finite(self.scale) and all_finite(self.shift)

    def apply(self, x: Array) -> Array:
        """Return the affine of float64 `x`, whose last axis has the channels, stage by stage."""
        for stage in self.stages:
            x = stage.apply(x)
        return x

    def apply_along(self, x: Array) -> Array:
        """Return the affine of `x` along its axis `axis` in float64.

        An extent of 1 there is broadcast.
        """
        x = x.astype(np.float64)
        if self.axis is None:
            return self.apply(x)
        return np.ascontiguousarray(
            np.moveaxis(self.apply(np.moveaxis(x, self.axis, -1)), -1, self.axis)
        )

    def at(self, axis: int) -> Affine:
        """Return the same numbers along another axis."""
        return self if self.axis is None else Affine(axis, self.stages, self.extents)

    def map(
        self, axis: int, function: Callable[[Array], Array], extents: tuple[int, ...] = ()
    ) -> Affine:
        """Return the affine along `axis` with `function` applied to every vector."""
        if self.axis is None:
            return self
        return Affine.of(axis, [stage.map(function) for stage in self.stages], extents)

    def permuted(self, perm: Sequence[int]) -> Affine | None:
        """Return the affine of x for this affine of y, where axis i of y is axis perm[i] of x.

        Returns None if the axes of the channels are no longer beside each other.
        """
        if self.axis is None:
            return self
        count = len(self.extents) or 1
        if self.axis + count > len(perm):
            return None
        positions = [perm[self.axis + i] for i in range(count)]
        first = min(positions)
        if max(positions) - first + 1 != count:
            return None
        order = sorted(range(count), key=positions.__getitem__)
        if not self.extents:
            return Affine(first, self.stages)
        extents = tuple(self.extents[i] for i in order)
        return self.map(
            first, lambda array: array.reshape(self.extents).transpose(order).reshape(-1), extents
        )

    def scattered(self, axis: int, extent: int, index: Array) -> Affine:
        """Return the affine of `extent` channels: this one at `index`, the identity elsewhere."""

        def scatter(array: Array, neutral: float) -> Array:
            full = np.full(extent, neutral)
            full[index] = array
            return full

        def stage(old: Stage) -> Stage:
            mean = None if old.mean is None else scatter(old.mean, 0.0)
            beta = None if old.beta is None else scatter(old.beta, 0.0)
            return Stage(scatter(old.scale, 1.0), scatter(old.shift, 0.0), mean, beta, old.origins)

        return Affine.of(axis, [stage(old) for old in self.stages])

    def only_scale(self) -> Affine:
        """Return the affine without its shift."""
        return self._only_scale if self.has_shift else self

    @cached_property
    def _only_scale(self) -> Affine:
        return Affine.of(self.axis, [stage.unshifted() for stage in self.stages], self.extents)

    def only_shift(self) -> Affine:
        """Return the shift as an affine, to be applied after `only_scale`."""
        return self.shifting(self.shift)

    def shift_before(self) -> Affine:
        """Return shift / scale, to be applied before `only_scale`; 0 for a shift of 0."""
        with np.errstate(all="ignore"):
            return self.shifting(np.where(self.shift == 0, 0.0, self.shift / self.scale))

    def shifting(self, shift: Array) -> Affine:
        """Return the addition of `shift` with the axis and origins of this affine."""
        return Affine.joined(self.axis, np.ones_like(shift), shift, self.origins)

    def rescaled_data(self, factor: float) -> Affine:
        """Return the affine A' with factor * A'(x) = A(factor * x), where A is this one."""
        return Affine(
            self.axis, tuple(stage.rescaled_data(factor) for stage in self.stages), self.extents
        )

    def equals(self, other: Affine) -> bool:
        """Return whether both are the same function."""
        same = self.axis == other.axis and self.scale.shape == other.scale.shape
        if not same:
            return False
        return bool((self.scale == other.scale).all() and (self.shift == other.shift).all())


def _together(stages: Sequence[tuple[int | None, Stage]]) -> Iterator[Affine]:
    """Yield the affines of stages whose vectors all have the same length."""
    every = zip(*(stage.arrays() for _, stage in stages), strict=True)
    scale, *others = (np.array(arrays) for arrays in every)
    constant = np.logical_and.reduce(
        [(array == array[:, :1]).all(axis=1) for array in (scale, *others)]
    )
    mean, beta = others[1:] if len(others) > 1 else (None, None)
    shift = Stage(scale, others[0], mean, beta).apply(_ZERO)
    has_scale, has_shift = (scale != 1).any(axis=1), (shift != 0).any(axis=1)
    finite = (np.isfinite(scale) & np.isfinite(shift)).all(axis=1)
    flags = zip(
        constant.tolist(), has_scale.tolist(), has_shift.tolist(), finite.tolist(), strict=True
    )
    for (axis, stage), row, (is_constant, *known) in zip(stages, shift, flags, strict=True):
        if is_constant:
            yield Affine.of(axis, [stage])
            continue
        affine = Affine(axis, (stage,))
        affine.__dict__.update(zip(("has_scale", "has_shift", "is_finite"), known, strict=True))
        affine.__dict__.update(scale=stage.scale, shift=row)
        yield affine
