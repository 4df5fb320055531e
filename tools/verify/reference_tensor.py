"""A tensor of the source model, and how far rounding can move each of its elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...ir.tensor import Array
from .tensor_blocks import blocks, channel_rms, channel_view, is_tensor, widen

MARGIN = 4.0
"""The bound as a multiple of the spread: the greatest at the element, or the channel's RMS."""
TINY = 2.0**-120
"""Differences below this are never accused in float32 and narrower types."""
TINY64 = 2.0**-1000
"""Differences below this are never accused in float64."""
ROUNDINGS_OF_CONSTANTS = 64.0
"""The bound in roundings for channels without noise: constant ones, and exact ones."""


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceTensor:
    """A tensor of the source model, and how far rounding can move it."""

    value: Array
    bound: Array
    """How far rounding can move each element."""
    undecided: Array | None
    """Mask of elements that cannot be compared; None if there are none.

    Noise makes them finite or infinite, flips the sign of an infinity, or changes an integer or a
    text.
    """
    has_stable_shape: bool
    """Whether noise leaves the shape as it is."""
    max_bound: float
    num_vague: int = 0
    """Number of other elements for which a fault would not show.

    They are not finite, or rounding can move them by the root mean square of their channel: another
    sign, or a zero in their place, would be within the bound.
    """

    @classmethod
    def from_noisy_runs(cls, value: Array, samples: Sequence[Any]) -> ReferenceTensor:
        """Bound the rounding errors of `value` by its spread over noisy runs.

        A sample of another shape, or without a tensor, leaves it unknown; so do no samples.
        """
        shape, kind = value.shape, value.dtype.kind
        if not samples or not all(is_tensor(each) and each.shape == shape for each in samples):
            return cls.unknown(value)
        if kind not in "fiubcV":
            return cls(value, np.zeros(()), _changed(value, samples), True, 0.0)
        if kind in "iub":
            bound = np.broadcast_to(TINY, shape)
            return cls(value, bound, _changed(value, samples), True, TINY)
        with np.errstate(all="ignore"):
            spread, undecided = _measure_spread(value, samples)
            max_bound, num_vague = _widen_to_bound(value, spread, undecided)
        return cls(value, spread, undecided, True, max_bound, num_vague)

    @classmethod
    def unknown(cls, value: Array) -> ReferenceTensor:
        """Return a reference that leaves all elements undecided."""
        bound = np.broadcast_to(np.inf, value.shape)
        return cls(value, bound, np.broadcast_to(np.True_, value.shape), False, np.inf)

    def without_infinities(self) -> ReferenceTensor:
        """Return the reference with NaN and infinity undecided."""
        infinite = ~np.isfinite(self.value)
        undecided = infinite if self.undecided is None else infinite | self.undecided
        num_vague = self.num_undecided - _count(undecided)
        return replace(self, undecided=undecided, num_vague=num_vague)

    def merge(self, other: ReferenceTensor) -> ReferenceTensor:
        """Return the reference for the noisy runs of both."""
        masks = [mask for mask in (self.undecided, other.undecided) if mask is not None]
        undecided = np.asarray(np.logical_or.reduce(masks)) if masks else None
        decided = self.value.size - _count(undecided)
        return ReferenceTensor(
            self.value,
            np.maximum(self.bound, other.bound),
            undecided,
            self.has_stable_shape and other.has_stable_shape,
            max(self.max_bound, other.max_bound),
            min(max(self.num_vague, other.num_vague), decided),
        )

    @property
    def is_numeric(self) -> bool:
        """Whether the elements are numbers, not texts."""
        return self.bound.shape == self.value.shape and self.value.dtype.kind in "fiubcV"

    @property
    def num_undecided(self) -> int:
        """Number of elements that are undecided or vague."""
        return self.num_vague + _count(self.undecided)

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        mask = 0 if self.undecided is None else self.undecided.nbytes
        return self.value.nbytes + self.bound.nbytes + mask


def _count(mask: Array | None) -> int:
    """Return the number of elements in a mask."""
    return 0 if mask is None else int(np.count_nonzero(mask))


def _changed(value: Array, samples: Sequence[Array]) -> Array | None:
    """Return which integers or texts noise changes; None if it changes none."""
    changed = [sample != value for sample in samples if not np.array_equal(sample, value)]
    return np.asarray(np.logical_or.reduce(changed)) if changed else None


def _measure_spread(value: Array, samples: Sequence[Array]) -> tuple[Array, Array | None]:
    """Return how far noise moves each number, and a mask of those that it makes (in)finite."""
    source, others = channel_view(value), [channel_view(sample) for sample in samples]
    spread = np.zeros(value.shape, np.float64 if value.dtype.itemsize >= 8 else np.float32)
    spread_view, undecided = channel_view(spread), None
    for at in blocks(source.shape):
        exact, greatest = widen(source[at]), spread_view[at]
        for other in others:
            moved = widen(other[at])
            difference = np.abs(moved - exact)
            if np.isfinite(difference.max(initial=0)):
                np.maximum(greatest, difference, out=greatest)
                continue
            both_finite = np.isfinite(exact) & np.isfinite(moved)
            np.fmax(greatest, np.where(both_finite, difference, 0), out=greatest)
            changed = ~both_finite & (moved != exact) & ~(np.isnan(moved) & np.isnan(exact))
            if changed.any():
                undecided = np.zeros(value.shape, bool) if undecided is None else undecided
                channel_view(undecided)[at] |= changed
    return spread, undecided


def _widen_to_bound(value: Array, spread: Array, undecided: Array | None) -> tuple[float, int]:
    """Turn the spread into the bound in place; return its maximum and the number of vague elements.

    The bound is MARGIN times the spread of the element or the root mean square of its channel's
    spreads: a few noisy runs may move a single element hardly at all. Channels that do not spread
    get ROUNDINGS_OF_CONSTANTS roundings of their root mean square.
    """
    source, bounds = channel_view(value), channel_view(spread)
    excluded = None if undecided is None else channel_view(undecided)
    spread_rms = channel_rms(bounds).astype(spread.dtype)
    value_rms = channel_rms(source).astype(spread.dtype)
    without_noise = ~(spread_rms > 0)
    unit = {2: 2.0**-8, 4: 2.0**-24, 8: 2.0**-53}.get(value.dtype.itemsize, 2.0**-24)
    constant = unit * value_rms * ROUNDINGS_OF_CONSTANTS
    tiny = TINY if value.dtype.itemsize < 8 else TINY64
    max_bound, num_vague = 0.0, 0
    for at in blocks(bounds.shape):
        bound, here = bounds[at], without_noise[at[1]]
        np.maximum(bound, spread_rms[at[1], None], out=bound)
        bound *= MARGIN
        if here.any():
            np.copyto(bound, constant[at[1], None], where=here[:, None])
        exact = bound == 0
        bound += tiny
        vague = (bound >= value_rms[at[1], None]) & ~(exact & (value_rms[at[1], None] == 0))
        vague |= ~np.isfinite(widen(source[at]))
        num_vague += int(np.count_nonzero(vague if excluded is None else vague & ~excluded[at]))
        max_bound = max(max_bound, float(bound.max(initial=0)))
    return max_bound, num_vague
