"""Loop and Scan: the values that each run of a body hands on, and the number of runs."""

from __future__ import annotations

from typing import NamedTuple

from .evaluate import ConstantEvaluator
from .extents import Piece, maximum
from .graph import Node, Value

LOOPS = ("::Loop", "::Scan")
"""Operators that run a body again and again."""

SCAN_WITHOUT_BATCHES = 9
"""The opset from which the data of Scan have no batch axis."""


class Carried(NamedTuple):
    """A value that each run of a body hands on to the next one."""

    start: Value | None
    """The operand that the first run reads."""
    inside: Value
    """The input of the body."""
    end: Value
    """The result of the body."""
    result: Value
    """The result of the operator: that of the last run, or the start if there is no run."""


def carried_values(node: Node) -> list[Carried]:
    """Return the carried values of a Loop or Scan, none of any other operator."""
    if node.op not in LOOPS or len(node.regions) != 1:
        return []
    body, operands, inputs = node.regions[0], list(node.inputs), 0
    ends = body.outputs
    if node.op == "::Loop":
        operands, inputs, ends = operands[2:], 2, ends[1:]  # number of the run, condition
        count = len(operands)
    else:
        scanned = node.attrs.get("num_scan_inputs")
        if not isinstance(scanned, int) or node.opset < SCAN_WITHOUT_BATCHES:
            return []
        count = len(operands) - scanned
    parts = (operands, body.inputs[inputs:], ends, node.outputs)
    if count < 0 or any(len(part) < count for part in parts):
        return []
    return [Carried(*values) for values in zip(*[part[:count] for part in parts], strict=True)]


def listed_results(node: Node) -> list[tuple[Value, Value]]:
    """Return the lists that a Loop makes, each behind the result of the body that it lists."""
    if node.op != "::Loop" or len(node.regions) != 1:
        return []
    count = len(carried_values(node))
    return list(zip(node.regions[0].outputs[1 + count :], node.outputs[count:], strict=False))


def runs_of(node: Node, evaluator: ConstantEvaluator) -> Piece:
    """Return how often the body of a Loop runs, None if that is unknown.

    `evaluator` gives the extents of which the number and the conditions are computed.
    """
    if node.op != "::Loop" or len(node.regions) != 1:
        return None
    body, count, condition = node.regions[0], node.input(0), node.input(1)
    limit = _element(count, evaluator)
    starts = True if condition is None else _element(condition, evaluator)
    is_above = isinstance(limit, int) and limit > 0
    if starts == 0 or (isinstance(limit, int) and not is_above):
        return 0
    if starts is None or len(body.inputs) < 2 or not body.outputs:
        return None
    end = body.outputs[0]
    goes_on = True if _source(end) is body.inputs[1] else _element(end, evaluator)
    if limit == 1 or (goes_on == 0 and (count is None or is_above)):
        return 1
    return maximum(limit, 0) if goes_on == 1 else None


def _element(value: Value | None, evaluator: ConstantEvaluator) -> Piece:
    """Return the only element of a value, None if it is unknown."""
    found = evaluator.extents(value)
    return found[0] if found is not None and len(found) == 1 else None


def _source(value: Value) -> Value:
    """Return the value that an Identity hands on, or the value itself."""
    node = value.node
    return node.operand() if node is not None and node.op == "identity" else value


def counter_operands(value: Value) -> list[Value]:
    """Return the start of a counter, the number that each run adds, and the number of runs.

    `value` is a result of a Loop. The list is empty if it is not such a counter.
    """
    node = value.node
    carried = [] if node is None else carried_values(node)
    if node is None or value.index >= len(carried):
        return []
    start, inside, end, _ = carried[value.index]
    limit, adds = node.inputs[0], end.node
    if start is None or limit is None or adds is None or adds.op != "add" or "axis" in adds.attrs:
        return []
    steps = [operand for operand in adds.inputs if operand is not inside]
    return [] if len(steps) != 1 or steps[0] is None else [start, steps[0], limit]
