"""Branches of an If that no run takes, as a recurrent operator behind it would fail.

Recurrent operators take data of three axes. Where the branches of an If have results of different
ranks, and one of the ranks leads to other data in any case, all runs take the other branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .operators import ELEMENTWISE
from .program import Block, Datum, Operation, Program

RECURRENT = frozenset(("GRU", "LSTM", "RNN"))
RANK = 3
"""The rank of the data of a recurrent operator."""

MAX_DEPTH = 32
"""Most operators between the If and the recurrent one."""


def possible_branch(operation: Operation, program: Program) -> str | None:
    """Return the only branch of an If that a run can take, None if both may be taken."""
    names = ("then_branch", "else_branch")
    branches = [operation.bodies[name].outputs for name in names]
    for result, *inner in zip(operation.outputs, *branches, strict=True):
        ranks = [each.rank for each in inner]
        if None in ranks or ranks[0] == ranks[1]:
            continue
        fails = [_must_fail(operation, result, rank, program) for rank in ranks if rank is not None]
        if fails[0] != fails[1]:
            return names[fails[0]]
    return None


def _must_fail(operation: Operation, result: Datum, rank: int, program: Program) -> bool:
    """Return whether a run fails in which a result of an If has a rank.

    An operator counts that the outputs of the model certainly need.
    """
    if operation not in program.body.operations:
        return False
    for each in _needed(program.body.outputs, program):
        data = each.operand(0)
        if each.kind in RECURRENT and not each.domain and data is not None:
            ranks = _ranks(data, {result: rank}, 0)
            if ranks is not None and RANK not in ranks:
                return True
    return False


def _needed(values: Sequence[Datum], program: Program) -> set[Operation]:
    """Return the operators that some values certainly need: of an If what both branches do."""
    stack, found = list(values), set[Operation]()
    while stack:
        operation = stack.pop().producer
        if operation is None or operation in found:
            continue
        found.add(operation)
        stack += [each for each in operation.inputs if each is not None]
        taken = _taken(operation, program)
        if taken is not None:
            stack += taken.outputs
        elif operation.kind == "If" and not operation.domain:
            branches = [_needed(each.outputs, program) for each in operation.bodies.values()]
            found |= set.intersection(*branches)
    return found


def _taken(operation: Operation, program: Program) -> Block | None:
    """Return the branch of an If whose condition follows from extents."""
    condition = operation.operand(0)
    known = None if condition is None else condition.stored or program.settled.get(condition)
    if operation.kind != "If" or operation.domain or known is None or known.array.size != 1:
        return None
    return operation.bodies["then_branch" if known.array.any() else "else_branch"]


def _ranks(value: Datum, assumed: Mapping[Datum, int], depth: int) -> frozenset[int] | None:
    """Return the ranks that a value may have, None if they are unknown."""
    if value in assumed:
        return frozenset((assumed[value],))
    operation = value.producer
    if value.rank is not None or operation is None or operation.domain or depth > MAX_DEPTH:
        return None if value.rank is None else frozenset((value.rank,))
    if operation.kind == "If":
        found = [
            _ranks(body.outputs[value.index], assumed, depth + 1)
            for body in operation.bodies.values()
        ]
        known = [each for each in found if each is not None]
        return frozenset().union(*known) if len(known) == len(found) else None
    data, more = operation.operand(0), 0
    if operation.kind in ("Squeeze", "Unsqueeze"):
        axes = operation.integers("axes", 1) or []
        if len(set(axes)) < len(axes) or not axes or min(axes) < 0 <= max(axes):
            return None  # an axis may be listed twice
        more = len(axes) if operation.kind == "Unsqueeze" else -len(axes)
    elif operation.kind not in ELEMENTWISE and operation.kind != "Identity":
        return None
    inner = None if data is None else _ranks(data, assumed, depth + 1)
    return None if inner is None else frozenset(rank + more for rank in inner)
