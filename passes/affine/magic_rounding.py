"""Two sums in a row that round: a number that dwarfs the data is added, and subtracted again.

x + 1.5 * 2**23 - 1.5 * 2**23 is x rounded to an integer in float32. Exporters write that where an operator for rounding
is missing. As an affine it would be the identity, and the rounding would be lost.
"""

from __future__ import annotations

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node
from ...ir.ops import AFFINE_KINDS
from ...ir.provenance import Refused
from ...ir.tensor import Array, finfo
from ...ir.types import dtype_of

SUMS = ("add", "sub", "sum")
"""Kinds of affines that add a constant."""


def check_not_rounding(node: Node, constant: Array, evaluator: ConstantEvaluator) -> None:
    """Refuse a sum with `constant` that, with its neighbour, rounds the data: no affine moves into or past it."""
    dtype = dtype_of(node.output.type)
    if dtype is None or not dtype.is_float or not constant.size:
        return
    # between this and its double are whole numbers alone
    whole = 2.0 ** finfo(dtype).nmant
    if not whole <= np.abs(constant).max() < np.inf:
        return
    own = _summand(node, evaluator)
    if own is None:
        return
    data = next((value for value in node.inputs if value is not None and not evaluator.is_constant(value)), None)
    before = data.node if data is not None else None
    for other in (before, *node.output.users):
        theirs = None if other is None else _summand(other, evaluator)
        if theirs is not None and theirs.shape == own.shape and (np.abs(own + theirs) <= np.abs(own) / 2).any():
            assert other is not None
            raise Refused(
                "unsupported_op", f"{node.description}: with {other.description} it rounds the data to whole numbers"
            )


def _summand(node: Node, evaluator: ConstantEvaluator) -> Array | None:
    """Return the constant that a sum adds to its data in float64, None where it is no sum of data and a constant."""
    if AFFINE_KINDS.get(node.op) not in SUMS or len(node.inputs) != 2:
        return None
    left, right = (evaluator.array(value) if value is not None else None for value in node.inputs)
    if (left is None) is (right is None) or (node.op == "subtract" and right is None):
        return None
    constant = right if right is not None else left
    assert constant is not None
    wide = constant.astype(np.float64)
    return -wide if node.op == "subtract" else wide
