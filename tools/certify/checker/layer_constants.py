"""Constants of layers: exact in float64, and as stored: floats, or integers and scales.

A DequantizeLinear of constants is whole * scale, where `whole` is an integer without its zero
point. Its roundings:

- A weight times exact factors keeps its integers up to the sign: whole' * e = exact for one e of
  each scale, and the stored scale is the rounding of e. Then |whole' * scale - exact| <= |whole'| *
  ulp(scale) / 2.
- A bias has the integers that are nearest to the exact numbers at its scale, so it is off by half a
  scale at most. The scale is the rounding of the source's times the magnitude of the factor, so
  steps get no coarser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .lines import FORMATS, SLACK, is_rounding, vanishes
from .program import Array, Datum, Misrounded, Operation, Unproved

MAX_BLOCK = 1 << 15
"""Most elements that are computed at once, unless a row has more."""


@dataclass(frozen=True, eq=False, slots=True)
class Numbers:
    """The elements of a constant. `widened` makes them as they are before any rounding.

    `stored` are the floats of the file, or the scales of a DequantizeLinear: then each element is
    that of `whole` times the scale at the place that `places` has for it. `is_rounded` says that
    the elements are `stored`.
    """

    widened: Callable[[], Array]
    stored: Array
    whole: Array | None = None
    places: Array | None = None
    is_rounded: bool = False

    @property
    def exact(self) -> Array:
        """The elements before any rounding, which are made anew where they are many."""
        return self.widened()

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of the elements."""
        found: tuple[int, ...] = (self.stored if self.whole is None else self.whole).shape
        return found

    def map(self, change: Callable[[Array], Array]) -> Numbers:
        """Return the numbers with their elements put in another order."""
        if self.whole is None or self.places is None:
            made = change(self.stored)
            return Numbers(lambda: change(self.exact), made, is_rounded=self.is_rounded)
        parts = self.stored, change(self.whole), change(self.places)
        return Numbers(lambda: change(self.exact), *parts)

    def zero_rows(self) -> Array:
        """Return where all elements at a position of the first axis are zero."""
        elements = self.stored if self.is_rounded else self.exact
        rest = tuple(range(1, elements.ndim))
        found = np.asarray(~elements[(slice(None), *[slice(1)] * len(rest))].any(axis=rest))
        if found.any():  # few begin with a zero
            found[found] = ~elements[found].any(axis=rest)
        return found

    def is_scaled(self, given: Numbers, factors: Array) -> bool:
        """Return whether all elements are `given` times the factor of their row, rounded.

        Rows are taken along the first axis, a few at a time: they stay in the processor's cache.
        False may mean that a row has no normal number.
        """
        if not self.is_rounded or not given.is_rounded or self.stored.dtype.kind != "f":
            return False
        wide = factors.reshape(-1, *[1] * (self.stored.ndim - 1))
        rest = tuple(range(1, wide.ndim))
        least = 2.0 ** FORMATS[self.stored.dtype.name][1]
        step = max(1, MAX_BLOCK * len(factors) // max(1, self.stored.size))
        for start in range(0, len(factors), step):
            rows = slice(start, start + step)
            exact = given.stored[rows].astype(np.float64) * wide[rows]
            made = exact.astype(self.stored.dtype)
            greatest = np.abs(made).max(axis=rest, initial=0.0)
            if not ((least <= greatest) & (greatest < np.inf)).all():
                return False
            if not np.array_equal(made, self.stored[rows]):
                return False
        return True

    def check(self, name: str, exact: Array, reach: Array | None = None) -> None:
        """Prove that elements, called `name`, are rounded from `exact`.

        The magnitudes that it was computed from are `reach`, by default its own.
        """
        if self.whole is None or self.places is None:
            stored = self.stored
            if exact.shape != stored.shape:
                exact, stored = np.broadcast_arrays(exact, stored)
            if not is_rounding(stored, exact, reach):
                raise Misrounded(
                    f"the {name} is not the rounded product or sum of the source's numbers"
                )
            return
        used = self.whole != 0
        if exact.shape != self.whole.shape or exact[~used].any():
            raise Unproved(f"an integer of the {name} is zero where the number is not")
        ratio, places = exact[used] / self.whole[used], self.places[used]
        numbers, is_used = np.zeros(self.stored.size), np.zeros(self.stored.size, bool)
        numbers[places], is_used[places] = ratio, True
        if not (np.abs(ratio - numbers[places]) <= SLACK * np.abs(ratio)).all():
            raise Unproved(
                f"the integers of the {name} are not the source's up to one factor for each scale"
            )
        if vanishes(numbers[is_used], self.stored.dtype).any():
            raise Unproved(f"a scale of the {name} is below the normal numbers of its type")
        if not is_rounding(self.stored[is_used], numbers[is_used], np.abs(numbers[is_used])):
            raise Misrounded(
                f"a scale of the {name} is not the rounded product of the"
                " source's scale and the factors"
            )
        self._check_finite()

    def check_sum(self, exact: Array, reach: Array, given: Numbers | None, factor: Array) -> None:
        """Prove the same of a bias, whose scales are those of `given` times |`factor`|."""
        if self.whole is None or self.places is None:
            self.check("bias", exact, reach)
            return
        if (
            given is None
            or given.places is None
            or not self.whole.shape == given.places.shape == exact.shape
        ):
            raise Unproved("the bias of the source is not of integers, or has other extents")
        steps, old = self.stored[self.places], given.stored[given.places].astype(np.float64)
        wanted = old * np.where(factor == 0, 1.0, np.abs(factor))
        if not is_rounding(steps, wanted, wanted):
            raise Misrounded(
                "a scale of the bias is not the rounded product of the"
                " source's scale and the factors"
            )
        step = np.abs(steps.astype(np.float64))
        if not (
            np.abs(self.whole * steps.astype(np.float64) - exact)
            <= (0.5 + SLACK) * step + SLACK * reach
        ).all():
            raise Unproved("an integer of the bias is not the nearest one")
        self._check_finite()

    def _check_finite(self) -> None:
        assert self.whole is not None and self.places is not None
        made = (self.whole * self.stored[self.places].astype(np.float64)).astype(self.stored.dtype)
        if not np.isfinite(made.astype(np.float64)).all():
            raise Unproved("an integer times its scale overflows")


def numbers_of(value: Datum | None) -> Numbers | None:
    """Return a constant float operand, also behind a Transpose; None for others."""
    if value is None:
        return None
    stored = value.stored
    if stored is not None:
        if not value.is_float:
            return None
        return Numbers(lambda: stored.exact, stored.array, is_rounded=not stored.is_unrounded)
    operation = value.producer
    if operation is None or operation.domain:
        return None
    if operation.kind == "DequantizeLinear":
        return _dequantized(operation)
    inner = numbers_of(operation.operand(0)) if operation.kind == "Transpose" else None
    perm = operation.attributes.get("perm")
    return None if inner is None else inner.map(lambda array: array.transpose(perm))


def _dequantized(operation: Operation) -> Numbers | None:
    """Return the constant of a DequantizeLinear, None unless all operands are and fit."""
    integers, scale, point = (operation.operand(i) for i in range(3))
    if (
        integers is None
        or integers.stored is None
        or scale is None
        or scale.stored is None
        or not scale.is_float
    ):
        return None
    if (point is not None and point.stored is None) or operation.attributes.get("output_dtype"):
        return None
    extents, scales = integers.stored.array.shape, scale.stored.array
    places = scale_places(operation, extents, scales.shape)
    if places is None:
        return None
    whole = integers.stored.array.astype(np.float64)
    if point is not None and point.stored is not None:
        if point.stored.array.size != scales.size or point.kind != integers.kind:
            return None
        whole = whole - point.stored.array.reshape(-1).astype(np.float64)[places]
    exact = whole * scale.stored.exact.reshape(-1)[places]
    return Numbers(lambda: exact, scales.reshape(-1), whole, places)


def scale_places(
    operation: Operation, extents: tuple[int, ...], scales: tuple[int, ...]
) -> Array | None:
    """Return for each element the place of its scale, None if their shapes do not fit."""
    rank, count = len(extents), int(np.prod(scales))
    places = np.arange(count)
    axis = int(operation.attributes.get("axis", 1))
    block = int(operation.attributes.get("block_size", 0))
    axis += rank if axis < 0 else 0
    if block:
        if len(scales) != rank or not 0 <= axis < rank:
            return None
        cut = (*[slice(None)] * axis, slice(extents[axis]))
        places = np.repeat(places.reshape(scales), block, axis)[cut]
        return places if places.shape == extents else None
    if count == 1:
        return np.zeros(extents, np.int64)
    if len(scales) != 1 or not 0 <= axis < rank or extents[axis] != count:
        return None
    return np.broadcast_to(
        places.reshape([count if i == axis else 1 for i in range(rank)]), extents
    )
