"""A tensor of the source, and how far rounding can move it.

Tensors are worked through in pieces that fit into a processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeGuard

import numpy as np

from ..ir.tensor import Array

MARGIN = 4.0
"""The bound is so many times the greatest spread that was seen, at the element or on average over its channel."""
TINY = 2.0**-120
"""Below this no float32 is exact."""
TINY64 = 2.0**-1000
"""The same of float64."""
COARSE = 4096.0
"""Without noisy runs the bound is so many roundings of what a channel's numbers are on average."""
CONSTANT = 64.0
"""The same in channels that noise does not get to: what is computed from constants alone, and what is exact."""
PIECE = 1 << 16
"""Elements that are worked on at once."""

At = tuple[slice, slice, slice]
"""A piece of a tensor seen by `channels`."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The elements of a tensor; `bound` is how far rounding can move each, and `undecided` says of which noise
    makes numbers out of infinities, the reverse, or infinities of the other sign, or another integer or text; None
    where of no element. A tensor whose shape depends on the noise is not `steady`. `greatest` is that of the
    bounds. `vague` is the number of other elements that rounding can move by as much as what stands in their
    channel is on average: a sign, or zeros, would not show; or that are no finite numbers, which most faults leave
    what they are.
    """

    value: Array
    bound: Array
    undecided: Array | None
    steady: bool
    greatest: float
    vague: int = 0

    @classmethod
    def of(cls, value: Array, samples: Sequence[Any]) -> Reference:
        """`samples` are what noise made of `value`; without any the bound is a coarse one."""
        if not all(is_tensor(sample) and sample.shape == value.shape for sample in samples):
            return cls.unknown(value)
        if value.dtype.kind not in "fiubcV":
            return cls(value, np.zeros(()), _changed(value, samples), True, 0.0)
        if value.dtype.kind in "iub":
            return cls(value, np.broadcast_to(TINY, value.shape), _changed(value, samples), True, TINY)
        with np.errstate(all="ignore"):
            bound, undecided = _spread(value, samples)
            greatest, vague = _bound(value, bound, undecided, CONSTANT if samples else COARSE)
        return cls(value, bound, undecided, True, greatest, vague)

    @classmethod
    def unknown(cls, value: Array) -> Reference:
        """Nothing can be said of the elements."""
        shape = value.shape
        return cls(value, np.broadcast_to(np.inf, shape), np.broadcast_to(np.True_, shape), False, np.inf)

    def where_finite(self) -> Reference:
        """The same, of numbers alone."""
        infinite = ~np.isfinite(self.value)
        undecided = infinite if self.undecided is None else infinite | self.undecided
        return replace(self, undecided=undecided, vague=self.silent - int(np.count_nonzero(undecided)))

    def joined(self, other: Reference) -> Reference:
        """What this and that of other noisy runs say together."""
        masks = [mask for mask in (self.undecided, other.undecided) if mask is not None]
        undecided = np.asarray(np.logical_or.reduce(masks)) if masks else None
        most = self.value.size - (0 if undecided is None else int(np.count_nonzero(undecided)))
        steady, greatest = self.steady and other.steady, max(self.greatest, other.greatest)
        bound = np.maximum(self.bound, other.bound)
        return Reference(self.value, bound, undecided, steady, greatest, min(max(self.vague, other.vague), most))

    @property
    def is_number(self) -> bool:
        """Whether the elements are numbers, and no text."""
        return self.bound.shape == self.value.shape and self.value.dtype.kind in "fiubcV"

    @property
    def silent(self) -> int:
        """How many elements are undecided, or vague."""
        return self.vague + (0 if self.undecided is None else int(np.count_nonzero(self.undecided)))

    @property
    def nbytes(self) -> int:
        """Bytes of it all."""
        return self.value.nbytes + self.bound.nbytes + (0 if self.undecided is None else self.undecided.nbytes)


def _changed(value: Array, samples: Sequence[Array]) -> Array | None:
    """Which integers, or words, noise changes, None where no one."""
    changed = [sample != value for sample in samples if not np.array_equal(sample, value)]
    return np.asarray(np.logical_or.reduce(changed)) if changed else None


def _spread(value: Array, samples: Sequence[Array]) -> tuple[Array, Array | None]:
    """How far noise moves numbers at most, and which ones it makes or unmakes."""
    source, others = channels(value), [channels(sample) for sample in samples]
    spread = np.zeros(value.shape, np.float64 if value.dtype.itemsize >= 8 else np.float32)
    wave, undecided = channels(spread), None
    for at in pieces(source.shape):
        exact, most = wide(source[at]), wave[at]
        for other in others:
            moved = wide(other[at])
            difference = np.abs(moved - exact)
            if np.isfinite(difference.max(initial=0)):
                np.maximum(most, difference, out=most)
                continue
            finite, still = np.isfinite(exact), np.isfinite(moved)
            np.fmax(most, np.where(finite & still, difference, 0), out=most)
            changed = ~(finite & still) & (moved != exact) & ~(np.isnan(moved) & np.isnan(exact))
            if changed.any():
                undecided = np.zeros(value.shape, bool) if undecided is None else undecided
                channels(undecided)[at] |= changed
    return spread, undecided


def _bound(value: Array, spread: Array, undecided: Array | None, roundings: float) -> tuple[float, int]:
    """Make of the spread the bound, in its place, and give the greatest, and how many are vague, and not undecided;
    `roundings` are what channels that do not spread may be off by.
    """
    source, wave = channels(value), channels(spread)
    known = None if undecided is None else channels(undecided)
    average, size = averages(wave).astype(spread.dtype), averages(source).astype(spread.dtype)
    quiet = ~(average > 0)
    unit = {2: 2.0**-8, 4: 2.0**-24, 8: 2.0**-53}.get(value.dtype.itemsize, 2.0**-24)
    constant = unit * size * roundings
    tiny = TINY if value.dtype.itemsize < 8 else TINY64
    greatest, vague = 0.0, 0
    for at in pieces(wave.shape):
        most, here = wave[at], quiet[at[1]]
        np.maximum(most, average[at[1], None], out=most)
        most *= MARGIN
        if here.any():
            np.copyto(most, constant[at[1], None], where=here[:, None])
        exact = most == 0
        most += tiny
        unclear = (most >= size[at[1], None]) & ~(exact & (size[at[1], None] == 0))
        unclear |= ~np.isfinite(wide(source[at]))
        vague += int(np.count_nonzero(unclear if known is None else unclear & ~known[at]))
        greatest = max(greatest, float(most.max(initial=0)))
    return greatest, vague


def averages(array: Array) -> Array:
    """The root mean square of the finite numbers of each channel, of three axes; the sizes of channels may be very
    different.
    """
    peaks = _peaks(array)
    squares = np.zeros(array.shape[1])
    for at in pieces(array.shape):
        piece = _finite_magnitudes(array[at])
        scaled = piece if peaks is None else piece / peaks[at[1], None]
        squares[at[1]] += np.square(scaled, dtype=np.float64).sum(axis=(0, 2))
    average = np.sqrt(squares / max(array.shape[0] * array.shape[2], 1))
    return np.asarray(average if peaks is None else average * peaks)


def _peaks(array: Array) -> Array | None:
    """The greatest magnitude of a finite number in each channel, 1 where all are zeros; None where float64 holds the
    squares of all numbers.
    """
    if array.dtype != np.float64:
        return None
    peaks = np.zeros(array.shape[1])
    for at in pieces(array.shape):
        np.maximum(peaks[at[1]], _finite_magnitudes(array[at]).max(axis=(0, 2), initial=0), out=peaks[at[1]])
    return np.where(peaks > 0, peaks, 1.0)


def _finite_magnitudes(piece: Array) -> Array:
    """Magnitudes, zeros for what is no number."""
    found = np.abs(wide(piece))
    return found if np.isfinite(found.max(initial=0)) else np.where(np.isfinite(found), found, 0)


def channels(array: Array) -> Array:
    """The same elements with three axes, of which the second are the channels; what has none has one."""
    shape = array.shape
    return array.reshape((shape[0], shape[1], prod(shape[2:])) if len(shape) > 1 else (1, 1, array.size))


def pieces(shape: Sequence[int]) -> Iterator[At]:
    """Slices that divide a tensor of three axes into pieces of about PIECE elements."""
    first, second, third = shape
    steps = (max(PIECE // max(second * third, 1), 1), max(PIECE // max(third, 1), 1), PIECE)
    for i in range(0, first, steps[0]):
        for j in range(0, second, steps[1]):
            for k in range(0, third, steps[2]):
                yield slice(i, i + steps[0]), slice(j, j + steps[1]), slice(k, k + steps[2])


def is_tensor(value: object) -> TypeGuard[Array]:
    """Whether a result of onnxruntime is a tensor, and no sequence, map or absent optional."""
    return isinstance(value, np.ndarray)


def wide(array: Array) -> Array:
    """In an element type in which differences lose nothing that matters: float32 of the narrow ones, float64 of
    integers.
    """
    if array.dtype.kind == "c" or array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype.kind in "fV" else np.float64)
