"""The units of attention scores, with their scale, and the mask that is added to them."""

from __future__ import annotations

from contextlib import suppress

from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Node, Value
from ....ir.matching import reader_of
from ....ir.ops.inference import number_of
from ....ir.ops.row import Constants
from ....ir.provenance import Declined
from .unit import Unit, UnitMatch

SCORES = "product of queries and keys"

MOST_BETWEEN = 6
"""Operators between the scores and their Softmax."""

MOST_MOVES = 2
"""Transposes between a scale and the product of queries and keys."""

_MASKING = frozenset(
    ("add", "subtract", "where", "maximum", "minimum", "clip", "cast", "identity", "reshape")
)
"""Operators that mask scores, or bring them into the form of the mask."""


def scores_at(matmul: Node, constants: ConstantEvaluator) -> Unit:
    """Return the unit of a MatMul that a Softmax reads, with the scales beside it.

    Raises Declined if one of these is missing.
    """
    match = UnitMatch(matmul, constants, {matmul})
    # A runtime has the scale as a number of its attention, or of the product: of its operands or
    # its result.
    if any(constants.is_constant(matmul.operand(i)) for i in (0, 1)):
        raise Declined("an operand is constant")
    for i in (0, 1):
        match.nodes |= _scale_before(matmul.operand(i), matmul, match)
    reader = matmul.output.sole_user()
    if reader is not None and reader.graph is matmul.graph and _is_scale(reader, match):
        match.nodes.add(reader)
    if len(match.nodes) == 1 or not _is_for_softmax(matmul):
        raise Declined("there is no scale, or no Softmax")
    return Unit(SCORES, frozenset(match.nodes))


def _is_scale(node: Node, match: UnitMatch) -> bool:
    """Return whether a node multiplies or divides by one number other than 1."""
    if node.op not in ("multiply", "divide") or len(node.inputs) != 2:
        return False
    found = [match.scalar(value) for value in node.inputs]
    factor = found[1] if found[1] is not None or node.op == "divide" else found[0]
    return factor is not None and factor != 1.0


def _scale_before(value: Value, reader: Node, match: UnitMatch) -> set[Node]:
    """Return the scale of an operand and the transposes after it, if there is one."""
    passed: set[Node] = set()
    for _ in range(MOST_MOVES + 1):
        node = value.node
        if node is None or node.graph is not reader.graph or value.sole_user() is not reader:
            return set()
        passed.add(node)
        if node.op != "transpose":
            return passed if _is_scale(node, match) else set()
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
    """Return whether an Unsqueeze begins (1 - mask) * number, as in BERT."""
    try:
        inverted = reader_of(unsqueeze, "cast", "subtract")
        if inverted.op == "cast":
            inverted = reader_of(inverted, "subtract")
        product = reader_of(inverted, "multiply")
    except Declined:
        return False
    is_inverse = number_of(inverted, "lhs", constants) == 1.0
    is_scaled = any(number_of(product, side, constants) is not None for side in ("lhs", "rhs"))
    # (1 - mask) * number, which is added to the scores.
    readers = product.output.users
    is_added = bool(readers) and all(user.op == "add" for user in readers)
    return is_inverse and is_scaled and is_added
