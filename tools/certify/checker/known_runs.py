"""Bodies of which one is taken, or that run a known number of times.

An If has the results of a branch if its condition is known, and a result that both branches have. A
Loop has its operands if it never runs, and the results of its body on these if it runs once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .impossible_branches import possible_branch
from .integers import Extent, Integers
from .program import Datum, Operation, Program


def single_run(operation: Operation, integers: Integers) -> list[Datum | None] | None:
    """Return what a Loop that runs once gives its body: None for the number and the condition.

    None for all other operators.
    """
    if operation.kind != "Loop" or operation.domain or iterations(operation, integers) != 1:
        return None
    carried, body = operation.inputs[2:], operation.bodies.get("body")
    if body is None or len(body.inputs) != len(carried) + 2 or None in carried:
        return None
    for value, first in zip(body.inputs, (0, True), strict=False):
        integers.found[value] = np.array(first, object)
    for value, given in zip(body.inputs[2:], carried, strict=True):
        value.stored = None if given is None else given.stored
    return [None, None, *carried]


def iterations(operation: Operation, integers: Integers) -> int | None:
    """Return how often a Loop runs, if that is certainly once or never, else None."""
    limit, start = (_number(integers, operation.operand(i)) for i in (0, 1))
    if (isinstance(limit, int) and limit <= 0) or start is False:
        return 0
    body = operation.bodies.get("body")
    if (start is not True and operation.operand(1) is not None) or body is None:
        return None
    is_last = body.outputs[0].stored is not None and not body.outputs[0].stored.array.any()
    is_started = operation.operand(0) is None or isinstance(limit, int)
    return 1 if limit == 1 or (is_last and is_started) else None


def _number(integers: Integers, value: Datum | None) -> Extent | None:
    found = integers.of(value)
    if found is None or found.size != 1:
        return None
    return bool(found.item()) if isinstance(found.item(), np.bool_) else found.item()


def chosen(operation: Operation, integers: Integers, program: Program) -> Sequence[Datum | None]:
    """Return the values that the results of an operation are, None for one that is not known.

    Its bodies were entered.
    """
    if operation.kind == "If" and not operation.domain:
        condition = _number(integers, operation.operand(0))
        if isinstance(condition, int):
            return operation.bodies["then_branch" if condition else "else_branch"].outputs
        taken = possible_branch(operation, program)
        if taken is not None:
            return operation.bodies[taken].outputs
        pairs = zip(*(each.outputs for each in operation.bodies.values()), strict=True)
        return [a if a.term == b.term >= 0 else None for a, b in pairs]
    if operation.kind == "Loop" and not operation.domain:
        count = iterations(operation, integers)
        carried = operation.inputs[2:]
        scanned = [None] * (len(operation.outputs) - len(carried))
        if count == 0:
            return [*carried, *scanned]
        if single_run(operation, integers) is not None:
            return [*operation.bodies["body"].outputs[1 : 1 + len(carried)], *scanned]
    return [None] * len(operation.outputs)
