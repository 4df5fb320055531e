"""The units of attention: scores with their scale, the mask that is added to them, and rotary embedding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value
from ...ir.matching import other_operand, reader_of, result_of
from ...ir.ops.inference import number_of
from ...ir.ops.row import Constants
from ...ir.pattern import op, value
from ...ir.provenance import Declined

SCORES = "product of queries and keys"
ROTARY = "rotary embedding"

MOST_BETWEEN = 6
"""Operators between the scores and their Softmax."""

MOST_MOVES = 2
"""Transposes between a scale and the product of queries and keys."""

_MASKING = frozenset(("add", "subtract", "where", "maximum", "minimum", "clip", "cast", "identity", "reshape"))
"""Operators that mask scores, or bring them into the form of the mask."""

_X = value("x")
_HALF = op(("strided_slice", "split"), _X, ..., result=None)
_TURNED = op("concatenate", op("negative", _HALF), _HALF) | op("concatenate", _HALF, op("negative", _HALF))
_HALF_ROTATED = op("add", op("multiply", _X, value()), op("multiply", _TURNED, value()))
"""x * cos + concat(-x2, x1) * sin, where x1 and x2 are the halves of x."""

Number = Callable[[Value | None], float | None]
"""The number that a constant of one element holds, None where a value is something else."""


def scores_of(matmul: Node, number: Number, constants: ConstantEvaluator) -> frozenset[Node]:
    """Return a MatMul of two computed operands that a Softmax reads, with the scales beside it.

    Raises Declined where one of these is missing.
    """
    # A runtime has the scale as a number of its attention, or of the product: of its operands or its result.
    if any(constants.is_constant(matmul.operand(i)) for i in (0, 1)):
        raise Declined("an operand is constant")
    nodes = {matmul}
    for i in (0, 1):
        nodes |= _scale_before(matmul.operand(i), matmul, number)
    reader = matmul.output.sole_user()
    if reader is not None and reader.graph is matmul.graph and _is_scale(reader, number):
        nodes.add(reader)
    if len(nodes) == 1 or not _is_for_softmax(matmul):
        raise Declined("there is no scale, or no Softmax")
    return frozenset(nodes)


def _is_scale(node: Node, number: Number) -> bool:
    """Return whether a node multiplies or divides by one number other than 1."""
    if node.op not in ("multiply", "divide") or len(node.inputs) != 2:
        return False
    found = [number(value) for value in node.inputs]
    factor = found[1] if found[1] is not None or node.op == "divide" else found[0]
    return factor is not None and factor != 1.0


def _scale_before(value: Value, reader: Node, number: Number) -> set[Node]:
    """Return the scale of an operand with the transposes after it, nothing where there is none."""
    passed: set[Node] = set()
    for _ in range(MOST_MOVES + 1):
        node = value.node
        if node is None or node.graph is not reader.graph or value.sole_user() is not reader:
            return set()
        passed.add(node)
        if node.op != "transpose":
            return passed if _is_scale(node, number) else set()
        value, reader = node.operand(), node
    return set()


def _is_for_softmax(matmul: Node) -> bool:
    """Return whether a Softmax reads the result of a MatMul, scaled and masked."""
    node = matmul
    with suppress(Declined):
        for _ in range(MOST_BETWEEN):
            node = reader_of(node, *_MASKING, "multiply", "divide", "nn.softmax")
            if node.op == "nn.softmax":
                return True
    return False


def is_of_mask(unsqueeze: Node, constants: Constants) -> bool:
    """Return whether an Unsqueeze begins (1 - mask) * number, which is added to scores, as BERT has it."""
    try:
        inverted = reader_of(unsqueeze, "cast", "subtract")
        if inverted.op == "cast":
            inverted = reader_of(inverted, "subtract")
        product = reader_of(inverted, "multiply")
    except Declined:
        return False
    is_inverse = number_of(inverted, 0, constants, 0.0) == 1.0
    is_scaled = any(number_of(product, i, constants, 0.0) is not None for i in (0, 1))
    readers = product.output.users
    return is_inverse and is_scaled and bool(readers) and all(user.op == "add" for user in readers)


def rotary_of(anchor: Node, constants: ConstantEvaluator) -> frozenset[Node]:
    """Return the operators of a rotary embedding around the Neg or Sub in it. Raises Declined where there is none."""
    return _half_rotated(anchor) if anchor.op == "negative" else _rotated_pairs(anchor, constants)


def _half_rotated(negative: Node) -> frozenset[Node]:
    """Return the operators of x * cos + concat(-x2, x1) * sin, where x1 and x2 are the halves of x."""
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
    yield product.operand(0), product.operand(1)
    yield product.operand(1), product.operand(0)


def _multiplies(product: Node, x: Value, factor: Value, constants: ConstantEvaluator) -> bool:
    """Return whether a product multiplies `x` by `factor`, or by a constant with the same numbers."""
    return any(a is x and _is_same(b, factor, constants) for a, b in _orders(product))


def _sums(x1: Value, sin: Value, known: Node, constants: ConstantEvaluator) -> Iterator[tuple[Node, Node, Node]]:
    """Yield the sums of x1 * sin and another product, with both products."""
    for one in x1.users if len(x1.users) <= MOST_BETWEEN else ():
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
