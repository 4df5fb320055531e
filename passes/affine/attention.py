"""The units of attention: scores with their scale, the mask that is added to them, and rotary embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value
from ...ir.ops.inference import number_of
from ...ir.ops.row import Constants

SCORES = "product of queries and keys"
ROTARY = "rotary embedding"

MOST_BETWEEN = 6
"""Operators between the scores and their Softmax."""

MOST_MOVES = 2
"""Transposes between a scale and the product of queries and keys."""

_MASKING = frozenset(("add", "subtract", "where", "maximum", "minimum", "clip", "cast", "identity", "reshape"))
"""Operators that mask scores, or bring them into the form of the mask."""

_HALVES = frozenset(("strided_slice", "split"))

Number = Callable[[Value | None], float | None]
"""The number that a constant of one element holds, None where a value is something else."""


def scores_of(matmul: Node, number: Number, constants: ConstantEvaluator) -> frozenset[Node] | None:
    """Return a MatMul of two computed operands that a Softmax reads, with the scales beside it; None without both."""
    # A runtime has the scale as a number of its attention, or of the product: of its operands or its result.
    if any(constants.is_constant(matmul.operand(i)) for i in (0, 1)):
        return None
    nodes = {matmul}
    for i in (0, 1):
        nodes |= _scale_before(matmul.operand(i), matmul, number)
    behind = _reader(matmul.output, matmul)
    if behind is not None and _is_scale(behind, number):
        nodes.add(behind)
    return frozenset(nodes) if len(nodes) > 1 and _is_for_softmax(matmul) else None


def _is_scale(node: Node, number: Number) -> bool:
    """Return whether a node multiplies or divides by one number other than 1."""
    if node.op not in ("multiply", "divide") or len(node.inputs) != 2:
        return False
    found = [number(value) for value in node.inputs]
    factor = found[1] if found[1] is not None or node.op == "divide" else found[0]
    return factor is not None and factor != 1.0


def _scale_before(value: Value, reader: Node, number: Number) -> set[Node]:
    """Return the scale of an operand with the transposes behind it, nothing where there is none."""
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
    value = matmul.output
    for _ in range(MOST_BETWEEN):
        node = _reader(value, matmul)
        if node is None or node.op not in (*_MASKING, "multiply", "divide"):
            return node is not None and node.op == "nn.softmax"
        value = node.output
    return False


def is_of_mask(unsqueeze: Node, constants: Constants) -> bool:
    """Return whether an Unsqueeze begins (1 - mask) * number, which is added to scores, as BERT has it."""
    reader = _reader(unsqueeze.output, unsqueeze)
    if reader is not None and reader.op == "cast":
        reader = _reader(reader.output, unsqueeze)
    if reader is None or reader.op != "subtract" or number_of(reader, 0, constants, 0.0) != 1.0:
        return False
    product = _reader(reader.output, unsqueeze)
    if product is None or product.op != "multiply":
        return False
    is_scaled = any(number_of(product, i, constants, 0.0) is not None for i in (0, 1))
    return is_scaled and bool(product.output.users) and all(user.op == "add" for user in product.output.users)


def _reader(value: Value, near: Node) -> Node | None:
    """Return the only reader of a value in the graph of `near`."""
    node = value.sole_user()
    return node if node is not None and node.graph is near.graph else None


def rotary_of(anchor: Node, constants: ConstantEvaluator) -> frozenset[Node] | None:
    """Return the operators of a rotary embedding around the Neg or Sub in it."""
    return _half_rotated(anchor) if anchor.op == "negative" else _rotated_pairs(anchor, constants)


def _half_rotated(negative: Node) -> frozenset[Node] | None:
    """Return the operators of x * cos + concat(-x2, x1) * sin, where x1 and x2 are the halves of x."""
    joined = _reader(negative.output, negative)
    if joined is None or joined.op != "concatenate" or len(joined.inputs) != 2:
        return None
    first = negative.output is joined.inputs[0]
    halves = [negative.operand().node, joined.operand(1 if first else 0).node]
    if any(half is None or half.op not in _HALVES for half in halves):
        return None
    data = {half.operand() for half in halves if half is not None}
    product = _reader(joined.output, joined)
    if len(data) != 1 or product is None or product.op != "multiply":
        return None
    total = _reader(product.output, product)
    if total is None or total.op != "add" or len(total.inputs) != 2:
        return None
    other = total.operand(1 if total.inputs[0] is product.output else 0).node
    if other is None or other.op != "multiply" or not data & set(other.inputs):
        return None
    return frozenset((negative, joined, product, other, total, *(half for half in halves if half is not None)))


def _rotated_pairs(difference: Node, constants: ConstantEvaluator) -> frozenset[Node] | None:
    """Return the operators of x1 * cos - x2 * sin beside x2 * cos + x1 * sin."""
    terms = [difference.operand(i).node for i in (0, 1)]
    if len(difference.inputs) != 2 or any(term is None or term.op != "multiply" for term in terms):
        return None
    left, right = (term for term in terms if term is not None)
    for x1, cos in _orders(left):
        for x2, sin in _orders(right):
            for total, one, two in _sums(x1, sin, left, constants):
                if any(a is x2 and _is_same(b, cos, constants) for a, b in _orders(two)) and x1 is not x2:
                    return frozenset((difference, left, right, one, two, total))
    return None


def _orders(product: Node) -> Iterator[tuple[Value, Value]]:
    """Yield the two operands of a product in both orders."""
    yield product.operand(0), product.operand(1)
    yield product.operand(1), product.operand(0)


def _sums(x1: Value, sin: Value, known: Node, constants: ConstantEvaluator) -> Iterator[tuple[Node, Node, Node]]:
    """Yield the sums of x1 * sin and another product, with both products."""
    for one in x1.users if len(x1.users) <= MOST_BETWEEN else ():
        total = _reader(one.output, known) if one.op == "multiply" and one is not known else None
        if total is None or total.op != "add" or len(total.inputs) != 2:
            continue
        if not any(a is x1 and _is_same(b, sin, constants) for a, b in _orders(one)):
            continue
        two = total.operand(1 if total.inputs[0] is one.output else 0).node
        if two is not None and two is not one and two.op == "multiply":
            yield total, one, two


def _is_same(a: Value, b: Value, constants: ConstantEvaluator) -> bool:
    """Return whether two values are one, or constants of the same numbers."""
    if a is b:
        return True
    if not (constants.is_constant(a) and constants.is_constant(b)):
        return False
    found, other = constants.array(a), constants.array(b)
    return found is not None and other is not None and np.array_equal(found, other)
