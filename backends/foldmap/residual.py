"""Exact restoration of a multiplied weight: its rounding error takes two bits an element.

Let w be the original, m = w * factor rounded once, and q = m / factor computed in float64 and
rounded. Then q is w or one of its two neighbours, unless m is subnormal or the factor is zero. The
residual is the distance of the bits of w from the bits of q: -1, 0 or 1. Elements at a larger
distance (exceptions) are stored themselves.
"""

from __future__ import annotations

import numpy as np

from ...ir.payload import scratch
from ...ir.tensor import Array, expand_rank, scaled
from ...ir.types import DType


class ResidualEncoder:
    """Encodes a weight block by block, from its original and its multiplied elements."""

    def __init__(self, dtype: DType, rank: int, factor: Array) -> None:
        """Prepare for a tensor of `rank` axes; the float64 `factor` is broadcast against it."""
        self.dtype, self.factor = dtype, expand_rank(factor, rank)
        self.inverse = reciprocal(self.factor)
        self._start = self._seen = 0
        self._packed: list[Array] = []
        self._far: list[Array] = []
        self._values: list[Array] = []

    def add(self, original: Array, made: Array) -> None:
        """Encode the next block of both, along the first axis."""
        inverse = self.inverse
        if inverse.ndim and len(inverse) > 1:
            inverse = inverse[self._start : self._start + len(made)]
        wanted = float_bits(original)
        distance = float_bits(scaled(made, inverse, self.dtype))
        np.subtract(wanted, distance, out=distance)
        if distance.size and (distance.max() > 1 or distance.min() < -1):
            far = np.flatnonzero((distance > 1) | (distance < -1))
            self._far.append(far + self._seen)
            self._values.append(wanted.reshape(-1)[far])
            distance.reshape(-1)[far] = 0
        self._packed.append(pack(distance))
        self._start += len(made) if made.ndim else 0
        self._seen += made.size

    def arrays(self) -> dict[str, Array] | None:
        """Return `factor` and `residual`, and of the exceptions flat indices and bits.

        The latter two are `exceptions` and `values`. Returns None if these take more bytes than the
        elements themselves.
        """
        residual = np.concatenate(self._packed) if self._packed else np.empty(0, np.uint8)
        found = {"factor": np.asarray(self.factor, np.float64), "residual": residual}
        if self._far:
            found["exceptions"] = np.concatenate(self._far).astype(np.int64)
            found["values"] = np.concatenate(self._values)
        size = self._seen * self.dtype.bits // 8
        return found if sum(array.nbytes for array in found.values()) <= size else None


def reciprocal(factor: Array) -> Array:
    """Return 1 / factor in float64."""
    with np.errstate(all="ignore"):
        inverse: Array = 1.0 / np.asarray(factor, np.float64)
    return inverse


def decode_residual(made: Array, factor: Array, residual: Array, dtype: DType) -> Array:
    """Return the bits of the original, flat, except for its exceptions.

    Raises ValueError if the shapes do not match.
    """
    near = float_bits(scaled(made, reciprocal(factor), dtype))
    bits: Array = (near + unpack(residual, near.shape).astype(near.dtype)).reshape(-1)
    return bits


def float_bits(array: Array) -> Array:
    """Return the bits of floating-point numbers as signed integers of the same width."""
    return np.ascontiguousarray(array).view(f"i{array.itemsize}").reshape(array.shape)


def pack(distance: Array) -> Array:
    """Pack -1, 0, 1 into two bits each, four to a byte from its low end.

    Each row of the first axis starts a byte.
    """
    rows = distance.reshape(distance.shape[0] if distance.ndim else 1, -1)
    columns = rows.shape[1]
    codes = scratch((rows.shape[0], -(-columns // 4) * 4), np.dtype(np.uint8))
    np.bitwise_and(rows, 3, out=codes[:, :columns], casting="unsafe")
    codes[:, columns:] = 0
    words = codes.view("<u4")
    moved = scratch(words.shape, words.dtype)
    # A word holds the codes a, b, c, d in its four bytes. The first shift joins a with b and c with
    # d, the second joins both pairs; only the low byte is kept, so the bits that overlap above it
    # do not matter.
    for places in (6, 12):
        words |= np.right_shift(words, places, out=moved)
    low: Array = words.astype(np.uint8)
    return low.reshape(-1)


def unpack(codes: Array, shape: tuple[int, ...]) -> Array:
    """Undo `pack`: return int8 of `shape`; raise ValueError if there are not that many codes."""
    rows = shape[0] if shape else 1
    found = (codes.reshape(rows, -1, 1) >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(rows, -1)
    columns = int(np.prod(shape[1:], dtype=np.int64))
    signed: Array = (found[:, :columns] << 6).view(np.int8) >> 6
    return signed.reshape(shape)
