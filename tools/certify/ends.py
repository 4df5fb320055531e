"""Where a proof without success ends."""

from __future__ import annotations

from .checker.program import MALFORMED, Datum, Operation, Unproved
from .checker.proof import Proof


def open_outputs(proof: Proof) -> list[Datum]:
    """Return the outputs of the result that are not proved equal."""
    pairs = zip(proof.source.body.outputs, proof.result.body.outputs, strict=True)
    return [second for first, second in pairs if first.term != second.term or second.term < 0]


def ends_of(proof: Proof) -> list[Operation]:
    """Return the operations of the result that open outputs depend on where the proof ends.

    Their operands are related to the source, their results are not. Of an operation with bodies
    those inside are listed, if there are any. Where all outputs are proved, but scales or shifts
    grew, the operations of these are.
    """
    pairs = zip(proof.source.body.outputs, proof.result.body.outputs, strict=True)
    found: set[Operation] = set()
    seen: set[Operation] = set()
    try:
        stack = open_outputs(proof) or [
            second for first, second in pairs if proof.grows(first, second)
        ]
        while stack:
            operation = stack.pop().producer
            if operation is None or operation in seen:
                continue
            seen.add(operation)
            inner = [value for body in operation.bodies.values() for value in body.outputs]
            before = [
                each
                for each in (*operation.inputs, *inner)
                if each is not None and _is_open(proof, each)
            ]
            stack.extend(before)
            if not before:
                found.add(operation)
    except (Unproved, *MALFORMED):  # of a value that the proof did not reach
        return []
    return [each for each in proof.result.operations.values() if each in found]


def _is_open(proof: Proof, value: Datum) -> bool:
    """Return whether an operation computes neither a source value nor an affine of one."""
    if value.producer is None or value.stored is not None or value.term in proof.known:
        return False
    return value.term < 0 or not value.is_float or proof.base(value) is None
