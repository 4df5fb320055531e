"""The price list of constant evaluation: neither one Expand nor a thousand of them can exhaust memory or time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from .tensor import Array

WORK = 16
"""All evaluations together may cost so many times the bound on one result."""

KEEPING = 8
"""Cost of a byte that is kept in memory; a byte that is read costs 1."""

PRODUCTS_PER_BYTE = 16
"""Products of a matrix product that take about as long as reading a byte."""

READINGS = 256
"""Each payload of the model pays for so many readings of itself; a constant that a rewrite made does not."""

AFFINE = 256
"""Cost of each number of an affine, which is kept in float64 with the results that are computed from it."""

FREE = 1024
"""Numbers of an affine that cost nothing: nodes are counted elsewhere."""


class Budget:
    """The work that evaluations may still do, in bytes read."""

    def __init__(self, max_bytes: int) -> None:
        """Begin with `WORK` times `max_bytes`, the bound on one result."""
        self.max_bytes = max_bytes
        self._left = WORK * max_bytes

    def renew(self) -> None:
        """Begin anew."""
        self._left = WORK * self.max_bytes

    def add_payload(self, array: Array) -> None:
        """Add the readings that a payload of the model pays for."""
        self._left += array.nbytes * READINGS

    def pay_affine(self, count: int) -> bool:
        """Pay for an affine of `count` numbers, and return whether there was enough left.

        Many may read one payload, which pays for a few of them; a parameter of its own pays for itself.
        """
        return count <= FREE or self._pay(AFFINE * count)

    def pay_evaluation(self, op: str, arrays: Sequence[Array | None]) -> bool:
        """Pay for an evaluation of `op` that reads `arrays`, and return whether there was enough left."""
        given = [array for array in arrays if array is not None]
        cost = sum(array.nbytes for array in given)
        if op == "matmul" and len(given) == 2 and all(array.ndim for array in given):
            a, b = given
            batch = max(min(prod(a.shape[:-2]), prod(b.shape[:-2])), 1)
            cost += a.size * b.size // max(a.shape[-1], 1) // batch // PRODUCTS_PER_BYTE
        return self._pay(cost)

    def pay_result(self, array: Array, inputs: Sequence[Array | None]) -> None:
        """Pay for the bytes that a result keeps in memory beside `inputs`, of which it may be a view."""
        if any(given is not None and np.may_share_memory(array, given) for given in inputs):
            return
        low, high = np.lib.array_utils.byte_bounds(array)
        self._left -= KEEPING * int(high - low)

    def _pay(self, cost: int) -> bool:
        if cost > self._left:
            return False
        self._left -= cost
        return True
