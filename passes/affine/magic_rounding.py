"""Two sums in a row that round: a number that dwarfs the data is added, and subtracted again.

x + 1.5 * 2**23 - 1.5 * 2**23 is x rounded to an integer in float32. Exporters write that where an operator for rounding
is missing. As an affine it would be the identity, and the rounding would be lost.
"""

from __future__ import annotations

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node
from ...ir.ops import AFFINE_KINDS, OPS
from ...ir.provenance import Refused
from ...ir.tensor import Array, finfo
from ...ir.types import DType, dtype_of

SUMS = ("add", "sub", "sum")
"""Kinds of affines that add a constant."""


def check_not_rounding(node: Node, constant: Array, evaluator: ConstantEvaluator) -> None:
    """Refuse a sum with `constant` that, with its neighbour, rounds the data: no affine moves into or past it."""
    own = _summand(node, evaluator) if _leaves_whole_numbers(constant, dtype_of(node.output.type)) else None
    if own is None:
        return
    data = [value for value in node.inputs if value is not None and not evaluator.is_constant(value)]
    producers = [value.node for value in data[:1] if value.node is not None]
    for other in (*producers, *node.output.users):
        theirs = _summand(other, evaluator)
        if theirs is not None and theirs.shape == own.shape and (np.abs(own + theirs) <= np.abs(own) / 2).any():
            raise Refused(
                "unsupported_op", f"{node.description}: with {other.description} it rounds the data to whole numbers"
            )


def _leaves_whole_numbers(constant: Array, dtype: DType | None) -> bool:
    """Return whether a constant is so large that between it and its double `dtype` has whole numbers alone."""
    if dtype is None or not dtype.is_float or not constant.size:
        return False
    return bool(2.0 ** finfo(dtype).nmant <= np.abs(constant).max() < np.inf)


def _summand(node: Node, evaluator: ConstantEvaluator) -> Array | None:
    """Return the constant that a sum adds to its data in float64, None where it is no sum of data and a constant."""
    if AFFINE_KINDS.get(node.op) not in SUMS or len(node.inputs) != 2:
        return None
    left, right = (evaluator.array(value) for value in node.inputs)
    form = OPS[node.op].affine
    if form is None or (left is None) is (right is None):
        return None
    make, constant = (form.second, right) if left is None else (form.first, left)
    if make is None or constant is None:
        return None
    scale, shift = make(constant.astype(np.float64))
    return shift if (scale == 1).all() else None
