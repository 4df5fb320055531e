"""Whole numbers that a model divides in floats, and rounds to whole numbers again.

    ceil(cast(n) / 3 / 5)

Each operator rounds. With n = 45 the quotients are 15 and 3, but 45 * float32(1/15) is more than 3,
and its Ceil is 4: a size that is wrong by one. Data that merely pass Floor have no such exact
numbers, and may differ by a rounding.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Node
from ....ir.provenance import Refused
from ....ir.tensor import Array
from ....ir.types import dtype_of

SEARCHED = 16
"""Operators before and after one that are searched."""

_ARITHMETIC = ("add", "subtract", "multiply", "divide", "negative", "minimum", "maximum", "clip")
_MOVES = ("identity", "reshape", "expand_dims", "squeeze", "concatenate")
_PASSED = frozenset((*_ARITHMETIC, *_MOVES, "cast"))
"""Operators between a Cast of integers and a rounding."""

_ROUNDS = ("floor", "ceil", "round", "image.resize")


def check_not_quotient(
    node: Node,
    evaluator: ConstantEvaluator,
    *,
    scale: Array | float = 1.0,
    shift: Array | float = 0.0,
) -> None:
    """Refuse an affine of whole numbers, if its result is rounded to whole numbers again.

    Products by powers of 2 and sums of whole numbers are exact: they are not refused.
    """
    # The data of most affines are those of a layer: the first question ends it.
    if not _is_of_integers(node, evaluator) or _is_exact(scale, shift) or not _is_rounded(node):
        return
    detail = "computes whole numbers from whole numbers, which another rounding would change"
    raise Refused("unsupported_op", f"{node.description} {detail}")


def _is_exact(scale: Array | float, shift: Array | float) -> bool:
    return bool(np.all(np.abs(np.frexp(scale)[0]) == 0.5) and np.all(shift == np.rint(shift)))


def _is_of_integers(node: Node, evaluator: ConstantEvaluator) -> bool:
    """Return whether the data are a Cast of integers that hold sizes, with arithmetic between."""
    for _ in range(SEARCHED):
        if not _reads_passed(node):
            return False
        data = [value for value in node.inputs if value is not None]
        varying = [value for value in data if value.node is None or value.node.op != "constant"]
        if len(varying) > 1:
            varying = [value for value in varying if not evaluator.is_constant(value)]
        if len(varying) != 1 or varying[0].node is None or varying[0].node.op not in _PASSED:
            return False
        node = varying[0].node
        if node.op == "cast" and node.inputs[0] is not None:
            dtype = dtype_of(node.inputs[0].type)
            if dtype is not None and not dtype.is_float:
                return dtype.kind in ("int", "uint") and dtype.bits >= 32
    return False


def _reads_passed(node: Node) -> bool:
    """Return whether `node` reads a Cast, arithmetic, or an operator that moves elements."""
    for value in node.inputs:
        if value is not None and value.node is not None and value.node.op in _PASSED:
            return True
    return False


def _is_rounded(node: Node) -> bool:
    """Return whether arithmetic alone is between `node` and a reader that rounds."""
    queue, seen = [node], {node}
    for each in queue:
        for reader in islice(each.output.users, SEARCHED):
            if reader.op in _ROUNDS:
                return True
            dtype = dtype_of(reader.output.type) if reader.op == "cast" else None
            if dtype is not None and dtype.kind in ("int", "uint"):
                return True
            if reader.op in _PASSED and reader not in seen and len(seen) < SEARCHED:
                seen.add(reader)
                queue.append(reader)
    return False
