"""A tensor of the source, and how far rounding can move it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from ...ir.tensor import Array

MARGIN = 4.0
"""The bound is so many times the greatest spread that was seen, at the element or on average over its channel."""
TINY = 2.0**-120
"""Below this no float32 is exact."""
COARSE = 4096.0
"""Without noisy runs the bound is so many roundings of what a channel's numbers are on average."""
CONSTANT = 64.0
"""The same in channels that noise does not get to: what is computed from constants alone, and what is exact."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The elements of a tensor; `bound` is how far rounding can move each, and `undecided` says of which noise
    makes numbers out of infinities, or the reverse, or another integer. A tensor whose shape depends on the noise is
    not `steady`.
    """

    value: Array
    bound: Array
    undecided: Array
    steady: bool

    @classmethod
    def of(cls, value: Array, samples: Sequence[Any]) -> Reference:
        """`samples` are what noise made of `value`; without any the bound is a coarse one."""
        if value.dtype.kind not in "fiubcV":
            return cls(value, np.zeros(()), np.zeros((), bool), True)
        exact = wide(value)
        if not all(is_tensor(sample) and sample.shape == value.shape for sample in samples):
            return cls(value, np.full(value.shape, np.inf), np.ones(value.shape, bool), False)
        finite = np.isfinite(exact)
        undecided = np.zeros(value.shape, bool)
        spread = np.zeros(value.shape, exact.real.dtype)
        with np.errstate(all="ignore"):
            for sample in samples:
                moved = wide(sample)
                undecided |= np.isfinite(moved) != finite
                spread = np.fmax(spread, np.where(finite & np.isfinite(moved), np.abs(moved - exact), 0))
        if value.dtype.kind not in "fcV":
            return cls(value, np.full(value.shape, TINY), undecided | (spread > 0), True)
        unit = {2: 2.0**-8, 4: 2.0**-24, 8: 2.0**-53}.get(value.dtype.itemsize, 2.0**-24)
        average = _average(spread)
        still = unit * _average(np.where(finite, np.abs(exact), 0)) * (CONSTANT if samples else COARSE)
        bound = np.where(average > 0, MARGIN * np.maximum(spread, average), still)
        return cls(value, bound + TINY, undecided, True)

    @property
    def is_number(self) -> bool:
        """Whether the elements are numbers, and no text."""
        return self.bound.shape == self.value.shape and self.value.dtype.kind in "fiubcV"

    @property
    def nbytes(self) -> int:
        """Bytes of it all."""
        return self.value.nbytes + self.bound.nbytes + self.undecided.nbytes


def _average(spread: Array) -> Array:
    """The root mean square over each channel, whose sizes may be very different, or over all of what has none."""
    axes = tuple(axis for axis in range(spread.ndim) if axis != 1) if spread.ndim > 1 else None
    if not spread.size:
        return spread
    squares = np.square(spread, dtype=np.float64).mean(axis=axes, keepdims=True)
    return np.asarray(np.sqrt(squares), spread.dtype)


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
