"""A tolerance of the user, in the place of the bound on rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir.tensor import Array
from .reference_tensor import ReferenceTensor
from .tensor_blocks import max_magnitude, widen

SMALLEST = 2.0**-1074
"""The bound of elements that have to be equal: the smallest number of float64."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A difference |a - b| may be up to atol + rtol |a|, at each element of the source's tensor a.

    NaN equals NaN, and infinities have to be equal. No element is undecided.
    """

    rtol: float = 0.0
    atol: float = 0.0

    def __str__(self) -> str:
        return f"|a - b| <= {self.atol:g} + {self.rtol:g} |a|"

    def reference(self, value: Array) -> ReferenceTensor:
        """Return `value` with the tolerance as its bound."""
        if value.dtype.kind not in "fiubcV":
            return ReferenceTensor(value, np.zeros(()), None, True, 0.0)
        with np.errstate(all="ignore"):
            magnitude = np.abs(widen(value)).astype(np.float64)
            bound = np.where(np.isfinite(magnitude), self.atol + self.rtol * magnitude, SMALLEST)
        np.maximum(bound, SMALLEST, out=bound)
        return ReferenceTensor(value, bound, None, True, max_magnitude(bound))


def limit_name(tolerance: Tolerance | None) -> str:
    """Return the name of the limit that differences are held to."""
    return "rounding bound" if tolerance is None else "tolerance"
