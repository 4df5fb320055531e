"""The operands that `Rewriter.make` takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .graph import Value
from .tensor import Array

Number = bool | int | float | Array | np.generic | Sequence[bool] | Sequence[int] | Sequence[float]
"""A scalar or an array that stands for a constant operand."""

Operands = Sequence[Value | Number | None]
"""Values, and numbers that become constants."""
