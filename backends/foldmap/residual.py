"""What a multiplication lost: how far the quotient is from the original, in places of the element type, two bits each.

`w * factor`, rounded once, divided by `factor` in float64 and rounded, is w or one of its two neighbours, but where the
product is subnormal or the factor zero. So w is kept as the distance of its bits from those of the quotient, which is
-1, 0 or 1, and elements for which that does not do are kept themselves.
"""

from __future__ import annotations

import numpy as np

from ...ir.payload import scratch
from ...ir.tensor import Array, aligned, scaled
from ...ir.types import DType


class Residual:
    """Takes blocks of an original, with what became of them, in their order."""

    def __init__(self, dtype: DType, rank: int, factor: Array) -> None:
        """`factor` is a float64 array that is broadcast against the tensor, which has `rank` axes."""
        self.dtype, self.factor = dtype, aligned(factor, rank)
        self.inverse = inverse_of(self.factor)
        self._start = self._seen = 0
        self._packed: list[Array] = []
        self._far: list[Array] = []
        self._values: list[Array] = []

    def add(self, original: Array, made: Array) -> None:
        """The next block of both, along the first axis."""
        inverse = self.inverse
        if inverse.ndim and len(inverse) > 1:
            inverse = inverse[self._start : self._start + len(made)]
        wanted = bits_of(original)
        distance = bits_of(scaled(made, inverse, self.dtype))
        np.subtract(wanted, distance, out=distance)
        if distance.size and (distance.max() > 1 or distance.min() < -1):
            far = np.flatnonzero((distance > 1) | (distance < -1))
            self._far.append(far + self._seen)
            self._values.append(wanted.reshape(-1)[far])
            distance.reshape(-1)[far] = 0
        self._packed.append(packed(distance))
        self._start += len(made) if made.ndim else 0
        self._seen += made.size

    def arrays(self) -> dict[str, Array] | None:
        """`factor` and `residual`, and where they are needed `exceptions`, flat indices, and their `values`, as bits;
        None where the elements themselves are shorter.
        """
        residual = np.concatenate(self._packed) if self._packed else np.empty(0, np.uint8)
        found = {"factor": np.asarray(self.factor, np.float64), "residual": residual}
        if self._far:
            found["exceptions"] = np.concatenate(self._far).astype(np.int64)
            found["values"] = np.concatenate(self._values)
        size = self._seen * self.dtype.bits // 8
        return found if sum(array.nbytes for array in found.values()) <= size else None


def inverse_of(factor: Array) -> Array:
    """1 / factor in float64."""
    with np.errstate(all="ignore"):
        inverse: Array = 1.0 / np.asarray(factor, np.float64)
    return inverse


def restored(made: Array, factor: Array, residual: Array, dtype: DType) -> Array:
    """The bits of the original, flat, but for its exceptions.

    Raises ValueError where the arrays do not fit each other.
    """
    near = bits_of(scaled(made, inverse_of(factor), dtype))
    bits: Array = (near + unpacked(residual, near.shape).astype(near.dtype)).reshape(-1)
    return bits


def bits_of(array: Array) -> Array:
    """The bits of floating numbers as signed integers of their width."""
    return np.ascontiguousarray(array).view(f"i{array.itemsize}").reshape(array.shape)


def packed(distance: Array) -> Array:
    """-1, 0 and 1 as two bits each, four to a byte from its low end; each row, along the first axis, starts a byte."""
    rows = distance.reshape(distance.shape[0] if distance.ndim else 1, -1)
    columns = rows.shape[1]
    codes = scratch((rows.shape[0], -(-columns // 4) * 4), np.dtype(np.uint8))
    np.bitwise_and(rows, 3, out=codes[:, :columns], casting="unsafe")
    codes[:, columns:] = 0
    words = codes.view("<u4")
    moved = scratch(words.shape, words.dtype)
    for places in (6, 12):  # codes join in pairs, and the pairs in the low byte
        words |= np.right_shift(words, places, out=moved)
    low: Array = words.astype(np.uint8)
    return low.reshape(-1)


def unpacked(codes: Array, shape: tuple[int, ...]) -> Array:
    """int8 of `shape`. Raises ValueError where there are not as many codes."""
    rows = shape[0] if shape else 1
    found = (codes.reshape(rows, -1, 1) >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(rows, -1)
    columns = int(np.prod(shape[1:], dtype=np.int64))
    signed: Array = (found[:, :columns] << 6).view(np.int8) >> 6
    return signed.reshape(shape)
