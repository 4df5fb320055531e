"""Two sums in a row that round: a number that dwarfs the data is added, and subtracted again.

x + 1.5 * 2**23 - 1.5 * 2**23 is x rounded to an integer in float32. Exporters write that if an
operator for rounding is missing. As an affine it would be the identity, and the rounding would be
lost.
"""

from __future__ import annotations

import numpy as np

from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Node
from ....ir.ops import op_info
from ....ir.provenance import Refused
from ....ir.tensor import Array, finfo
from ....ir.types import DType, dtype_of

SUMS = ("add", "sub", "sum")
"""Kinds of affines that add a constant."""


def check_not_rounding(node: Node, constant: Array, evaluator: ConstantEvaluator) -> None:
    """Refuse a sum that rounds the data together with its neighbour."""
    if not _leaves_whole_numbers(constant, dtype_of(node.output.type)):
        return
    own = _summand(node, evaluator)
    if own is None:
        return
    values = [value for value in node.inputs if value is not None]
    data = [value for value in values if not evaluator.is_constant(value)]
    producers = [value.node for value in data[:1] if value.node is not None]
    for other in (*producers, *node.output.users):
        theirs = _summand(other, evaluator)
        if theirs is None or theirs.shape != own.shape:
            continue
        # The sum of both is small beside each: together they add nothing.
        if (np.abs(own + theirs) <= np.abs(own) / 2).any():
            detail = f"with {other.description} it rounds the data to whole numbers"
            raise Refused("unsupported_op", f"{node.description}: {detail}")


def _leaves_whole_numbers(constant: Array, dtype: DType | None) -> bool:
    """Return whether `dtype` has only integers from a constant to its double."""
    if dtype is None or not dtype.is_float or not constant.size:
        return False
    return bool(2.0 ** finfo(dtype).nmant <= np.abs(constant).max() < np.inf)


def _summand(node: Node, evaluator: ConstantEvaluator) -> Array | None:
    """Return the constant that a sum adds to its data, None for other operators."""
    info = op_info(node.op)
    form = None if info is None else info.affine
    if form is None or form.kind not in SUMS or len(node.inputs) != 2:
        return None
    arrays = [evaluator.array(value) for value in node.inputs]
    pairs = zip((form.first, form.second), arrays, strict=True)
    found = [
        make(array.astype(np.float64))
        for make, array in pairs
        if make is not None and array is not None
    ]
    if len(found) != 1:
        return None
    scale, shift = found[0]
    return shift if (scale == 1).all() else None
