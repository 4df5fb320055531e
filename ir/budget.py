"""A budget for constant evaluation: neither one Expand nor a thousand exhaust memory or time.

Costs are in bytes: a byte that is read costs 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from .tensor import Array

WORK = 16
"""The budget of all evaluations together, as a multiple of the bound on one result."""

KEEPING = 8
"""Cost of a byte of a result that is kept in memory."""

PRODUCTS_PER_BYTE = 16
"""Multiplications of a matrix product that take about as long as reading a byte."""

READINGS = 256
"""Readings of itself that a payload of the source adds to the budget; other constants add none."""

AFFINE = 256
"""Cost of each number of an affine, which is kept in float64 with results computed from it."""

FREE = 1024
"""Largest affine, in numbers, that costs nothing: the limit on nodes bounds their count."""


class Budget:
    """The cost that evaluations may still incur, in bytes read."""

    def __init__(self, max_bytes: int) -> None:
        """Start with `WORK` times `max_bytes`, the bound on one result."""
        self.max_bytes = max_bytes
        self._left = WORK * max_bytes

    def renew(self) -> None:
        """Restore the full budget."""
        self._left = WORK * self.max_bytes

    def add_payload(self, array: Array) -> None:
        """Add `READINGS` readings of a payload of the source model."""
        self._left += array.nbytes * READINGS

    def pay_sparse(self, stored: int, dense: int, *, is_source: bool) -> bool:
        """Pay for all elements of a sparse payload, and return whether the budget was sufficient.

        A payload of the source model adds readings of the bytes that it has `stored`: it may stand
        for far more.
        """
        if dense > self.max_bytes:
            return False
        self._left += stored * READINGS if is_source else 0
        return self._pay(KEEPING * dense)

    def pay_affine(self, count: int) -> bool:
        """Pay for an affine of `count` numbers, and return whether the budget was sufficient.

        Many affines may read one payload, whose `READINGS` cover only a few of them.
        """
        return count <= FREE or self._pay(AFFINE * count)

    def pay_evaluation(self, op: str, arrays: Sequence[Array | None]) -> bool:
        """Pay for an evaluation of `op` that reads `arrays`; return whether there was enough."""
        given = [array for array in arrays if array is not None]
        cost = sum(array.nbytes for array in given)
        if op == "matmul" and len(given) == 2 and all(array.ndim for array in given):
            a, b = given
            batch = max(min(prod(a.shape[:-2]), prod(b.shape[:-2])), 1)
            cost += a.size * b.size // max(a.shape[-1], 1) // batch // PRODUCTS_PER_BYTE
        return self._pay(cost)

    def pay_kept(self, count: int) -> bool:
        """Pay for `count` bytes of a result that is kept; return whether there was enough."""
        return self._pay(KEEPING * count)

    def pay_result(self, array: Array, inputs: Sequence[Array | None]) -> None:
        """Pay for the bytes that a result keeps in memory; a view of `inputs` keeps none."""
        for given in inputs:
            if given is not None and np.may_share_memory(array, given):
                return
        kept = array.nbytes
        # it may be a view of a larger array, or of a smaller one that was broadcast
        if not array.flags.c_contiguous:
            low, high = np.lib.array_utils.byte_bounds(array)
            kept = int(high - low)
        self._left -= KEEPING * kept

    def _pay(self, cost: int) -> bool:
        if cost > self._left:
            return False
        self._left -= cost
        return True
