"""The units of LayerNormalization and RMSNormalization, written out."""

from __future__ import annotations

from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Node, Value, producer_of
from ....ir.matching import other_operand, result_of
from ....ir.ops.inference import integers_of
from ....ir.provenance import Declined
from ....ir.types import element_count, shape_of, static_shape_of
from .unit import NormParts, Unit, UnitMatch


def normalization_at(anchor: Node, constants: ConstantEvaluator) -> Unit:
    """Return the LayerNormalization or RMSNormalization of whose variance `anchor` is the root.

    Raises Declined if there is none.
    """
    match = UnitMatch(anchor, constants, {anchor})
    square, epsilon = _variance(match)
    quotient, numerator = _divided_by(match)
    squared, divided = _before_cast(match, square.operand()), _before_cast(match, numerator)
    mean = _centered(match, squared)
    if divided is not squared and (mean is None or _centered(match, divided) is not mean):
        raise Declined("the variance is of other data than the divided ones")
    data = divided if mean is None or mean.node is None else mean.node.operand()
    changed = frozenset(match.nodes - {quotient})
    gamma = _parameter(match, quotient, "multiply")
    at_epsilon, at_gamma = (_constant_index(match, each) for each in (epsilon, gamma))
    parts = NormParts(data, changed, epsilon, at_epsilon, gamma, at_gamma)
    if mean is None:
        return match.unit("RMSNormalization", frozenset((gamma,)), parts)
    ends = frozenset((gamma, _parameter(match, gamma, "add")))
    return match.unit("LayerNormalization", ends, parts)


def _constant_index(match: UnitMatch, node: Node) -> int:
    """Return the index of the constant operand of a node that has one."""
    return next(i for i, each in enumerate(node.inputs) if match.constants.is_constant(each))


def _variance(match: UnitMatch) -> tuple[Node, Node]:
    """Return the square whose mean, plus epsilon, the anchor takes the root of, and the sum."""
    total = result_of(match.anchor.operand(), "add")
    epsilon = next((value for value in total.inputs if match.scalar(value) is not None), None)
    if epsilon is None:
        raise Declined("no epsilon is added to the variance")
    mean = result_of(other_operand(total, epsilon), "mean")
    square = result_of(mean.operand(), "power", "multiply")
    is_power = square.op == "power" and match.scalar(square["exponent"]) == 2.0
    is_product = square.op == "multiply" and square["lhs"] is square["rhs"]
    if not (_is_mean_of_row(mean, match.constants) and (is_power or is_product)):
        raise Declined("it is not the root of a mean of squares along the last axis")
    match.nodes |= {total, mean, square}
    return square, total


def _is_mean_of_row(mean: Node, constants: ConstantEvaluator) -> bool:
    """Return whether a mean is along the last axis, which stays as an extent of 1."""
    last = len(shape_of(mean.operand().type) or ()) - 1
    along_last = integers_of(mean, "axes", constants) in ((-1,), (last,))
    return along_last and mean.attrs.get("keepdims", 1) == 1


def _divided_by(match: UnitMatch) -> tuple[Node, Value]:
    """Return the operator that divides by the root, and its numerator."""
    root = match.anchor.output
    reader = match.reader(match.anchor, "reciprocal", "divide")
    if reader.op == "divide" and reader["rhs"] is not root:
        raise Declined("it divides the root")
    if reader.op == "reciprocal" or match.scalar(reader["lhs"]) == 1.0:
        product = match.reader(reader, "multiply")
        return product, other_operand(product, reader.output)
    return reader, reader["lhs"]


def _before_cast(match: UnitMatch, value: Value) -> Value:
    """Return the value that a Cast between the operators of a unit converts, or `value`."""
    node = producer_of(value, "cast")
    if node is None or any(user not in match.nodes for user in value.users):
        return value
    match.nodes.add(node)
    return node.operand()


def _centered(match: UnitMatch, value: Value) -> Value | None:
    """Return the mean that `value` is the data without, None if it is something else."""
    node = producer_of(value, "subtract")
    mean = None if node is None else producer_of(node["rhs"], "mean")
    if node is None or mean is None or not _is_mean_of_row(mean, match.constants):
        return None
    if mean.operand() is not node["lhs"]:
        return None
    match.nodes |= {node, mean}
    return mean.output


def _parameter(match: UnitMatch, last: Node, op: str) -> Node:
    """Return the operator that applies gamma or beta, constant along the last axis."""
    node = match.reader(last, "cast", op)
    if node.op == "cast":
        node = match.reader(node, op)
    parameter = next(
        (operand for operand in node.inputs if match.constants.is_constant(operand)), None
    )
    shape = () if parameter is None else static_shape_of(parameter.type) or ()
    is_row = shape[-1:] == (element_count(shape),) and "axis" not in node.attrs
    is_of_norm = producer_of(parameter, "nn.batch_norm_to_affine") is not None
    if not is_row or len(node.inputs) != 2 or is_of_norm:
        raise Declined("the parameter is not a constant along the last axis")
    return node
