"""The units of rotary embedding, written out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Node, Value
from ....ir.matching import other_operand, reader_of, result_of
from ....ir.pattern import op, value
from ....ir.provenance import Declined
from .unit import Unit

ROTARY = "rotary embedding"

MOST_READERS = 6
"""Most readers of a value among which the products of an embedding are looked for."""

_X = value("x")
_HALF = op(("strided_slice", "split"), _X, ..., result=None)
_TURNED = op("concatenate", op("negative", _HALF), _HALF) | op(
    "concatenate", _HALF, op("negative", _HALF)
)
_HALF_ROTATED = op("add", op("multiply", _X, value()), op("multiply", _TURNED, value()))
"""x * cos + concat(-x2, x1) * sin, where x1 and x2 are the halves of x."""


def rotary_at(anchor: Node, constants: ConstantEvaluator) -> Unit:
    """Return the unit of a rotary embedding around the Neg or Sub in it.

    Raises Declined if there is none.
    """
    nodes = _half_rotated(anchor) if anchor.op == "negative" else _rotated_pairs(anchor, constants)
    return Unit(ROTARY, nodes)


def _half_rotated(negative: Node) -> frozenset[Node]:
    """Return the operators of x * cos + concat(-x2, x1) * sin, with the halves of x."""
    total = reader_of(reader_of(reader_of(negative, "concatenate"), "multiply"), "add")
    nodes = _HALF_ROTATED.bind(total).nodes
    if negative not in nodes:
        raise Declined("it is a part of another product")
    return frozenset(nodes)


def _rotated_pairs(difference: Node, constants: ConstantEvaluator) -> frozenset[Node]:
    """Return the operators of x1 * cos - x2 * sin beside x2 * cos + x1 * sin."""
    left, right = (result_of(difference.operand(i), "multiply") for i in (0, 1))
    for (x1, cos), (x2, sin) in itertools.product(_orders(left), _orders(right)):
        for total, one, two in _sums(x1, sin, left, constants) if x1 is not x2 else ():
            if _multiplies(two, x2, cos, constants):
                return frozenset((difference, left, right, one, two, total))
    raise Declined("no sum of the same products is beside it")


def _orders(product: Node) -> Iterator[tuple[Value, Value]]:
    """Yield the two operands of a product in both orders."""
    yield product["lhs"], product["rhs"]
    yield product["rhs"], product["lhs"]


def _multiplies(product: Node, x: Value, factor: Value, constants: ConstantEvaluator) -> bool:
    """Return whether a product multiplies `x` by the numbers of `factor`."""
    return any(a is x and _is_same(b, factor, constants) for a, b in _orders(product))


def _sums(
    x1: Value, sin: Value, known: Node, constants: ConstantEvaluator
) -> Iterator[tuple[Node, Node, Node]]:
    """Yield the sums of x1 * sin and another product, with both products."""
    for one in x1.users if len(x1.users) <= MOST_READERS else ():
        if one is known or one.op != "multiply" or one.graph is not known.graph:
            continue
        with suppress(Declined):
            total = reader_of(one, "add")
            two = result_of(other_operand(total, one.output), "multiply")
            if two is not one and _multiplies(one, x1, sin, constants):
                yield total, one, two


def _is_same(a: Value, b: Value, constants: ConstantEvaluator) -> bool:
    """Return whether two values are one, or constants of the same numbers."""
    if a is b:
        return True
    if not (constants.is_constant(a) and constants.is_constant(b)):
        return False
    found, other = constants.array(a), constants.array(b)
    return found is not None and other is not None and np.array_equal(found, other)
