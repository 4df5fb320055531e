"""Identities by which a result equals a value of the source, or an operand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .blocks import block_size, same_blocks
from .congruence import SOURCE
from .equal_operands import constant_mask, equal_operand
from .kernels import BOUNDS, stated
from .movement import same_moves
from .open_constants import open_constant
from .operators import BROADCASTING
from .pools import check_padded, check_same_windows, zero_padding
from .program import Datum, Operation, Stored, Unproved
from .recomputation import recomputed
from .reduced_axes import check_same_reduction
from .relations import Relations
from .reshaped_operators import reshaped_class
from .steps import Step, counterpart
from .weighted_layers import DENSE

Identity = Callable[[Relations, Step, Operation], None]
"""Adds the facts of a step at an operation. Raises Unproved."""


def _constant(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the operation computes a constant, which the checker computes itself.

    Of a constant with open elements nothing follows but other constants. A step may state that its
    numbers are rounded to their type before others are computed from
    them, and how far a runtime's result is away, for operators that runtimes do not round to the
    nearest.
    """
    try:
        found = recomputed(operation)
    except Unproved:
        open_one = open_constant(operation, proof.open)
        if open_one.is_open.any():
            proof.open[operation.outputs[0]] = open_one
            proof.enter(operation, proof.key(operation))
            return
        found = [Stored(None, open_one.array)]
    # A runtime rounds the result's constants; the source's may be kept exact.
    if step.get("rounded") or step.get("at") == "result":
        found = [Stored(None, each.array) for each in found]
    if step.get("ulps") is not None:
        if proof.side != SOURCE:
            raise Unproved("only the source has constants that a runtime computed")
        found = [stated(operation, found[0], step["ulps"])]
    if operation.kind in BOUNDS:
        proof.agree(operation, found[0])
    is_unrounded = any(
        each.stored.is_unrounded for each in operation.inputs if each is not None and each.stored
    )
    key = proof.key(operation)
    proof.give_unread(operation.outputs[len(found) :])
    for i, (value, stored) in enumerate(zip(operation.outputs, found, strict=False)):
        stored.is_unrounded |= is_unrounded
        value.stored = stored
        proof.give(value, proof.term(stored.key))
        proof.terms.setdefault((*key, i), value.term)


def _equal_operand(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the result is equal to an operand."""
    same = operation
    if operation.kind in BROADCASTING and not operation.domain:
        same = replace(operation, inputs=proof.unexpanded(operation))
    operand = equal_operand(same, proof.first_of, proof.shape)
    proof.give(operation.outputs[0], proof.term_of(operand))
    operation.outputs[0].stored = operand.stored
    mask = constant_mask(operation)
    if mask is None:
        proof.give_unread(operation.outputs[1:])
        return
    for other in operation.outputs[1:]:
        other.stored = Stored(None, mask)
        proof.give(other, proof.term(other.stored.key))


def _same_moves(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the result has the elements of a source value in order, moved from `from`."""
    target = proof.value_of_source(step.get("source"))
    leaves = [proof.value_of_source(each) for each in step.get("from", ())]
    result = operation.outputs[0]
    size = block_size(target, leaves[0]) if len(leaves) == 1 else None
    if size is None:
        same_moves(result, target, leaves)
    else:
        same_blocks(target, result, leaves[0], size)
    proof.give(result, proof.term_of(target))


def _same_windows(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that a pool or Conv has the windows of the source's, by other attributes."""
    source = counterpart(proof, step, operation)
    first, second = source.operand(0), operation.operand(0)
    others = [
        [-1 if each is None else proof.term_of(each) for each in op.inputs[1:]]
        for op in (source, operation)
    ]
    if first is None or second is None or others[0] != others[1]:
        raise Unproved("the operands differ")
    padded = zero_padding(first)
    if proof.term_of(first) == proof.term_of(second):
        check_same_windows(source, operation)
    elif padded is not None and proof.term_of(padded[0]) == proof.term_of(second):
        check_padded(source, operation, padded[1])
    else:
        raise Unproved("the operands differ")
    for result, given in zip(operation.outputs, source.outputs, strict=True):
        proof.give(result, proof.term_of(given))


def _product_and_sum(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the operation is a Gemm of a product and a sum of the source."""
    total = proof.operation_of_source(step.get("source"))
    if (
        operation.kind != "Gemm"
        or total.kind != "Add"
        or operation.domain
        or total.domain
        or total.version < 7
    ):
        raise Unproved("it is no Gemm, or no sum")
    given = {k: v for k, v in operation.attributes.items() if k != "beta"}
    first, second, third = (operation.operand(i) for i in range(3))
    if (
        operation.attributes.get("beta", 1.0) != 1.0
        or first is None
        or second is None
        or third is None
    ):
        raise Unproved("an operand is absent, or multiplied")
    terms = [proof.term_of(first), proof.term_of(second), proof.term_of(third)]
    for product, addend in (total.inputs, total.inputs[::-1]):
        if product is None:
            inner = None
        else:
            inner = proof.known.get(proof.term_of(product), product).producer
        if (
            inner is None
            or inner.domain
            or inner.kind not in DENSE
            or addend is None
            or inner.operand(2) is not None
        ):
            continue
        operands = [proof.term_of(each) for each in inner.inputs[:2] if each is not None]
        own = {k: v for k, v in inner.attributes.items() if k != "beta"}
        if (
            [*operands, proof.term_of(addend)] == terms
            and own == given
            and _fits(addend, inner.outputs[0])
        ):
            proof.give(operation.outputs[0], proof.term_of(total.outputs[0]))
            return
    raise Unproved("the sum has no product with these operands")


def _fits(addend: Datum, product: Datum) -> bool:
    """Return whether a sum with `addend` has the extents of a matrix, as a Gemm needs."""
    if (
        product.extents is None
        or len(product.extents) != 2
        or addend.extents is None
        or len(addend.extents) > 2
    ):
        return False
    pairs = zip(reversed(addend.extents), reversed(product.extents), strict=False)
    return all(own == 1 or (own is not None and own == extent) for own, extent in pairs)


def _same_reduction(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the operation reduces what reductions of the source in a row reduce."""
    source = counterpart(proof, step, operation)
    check_same_reduction(proof, source, operation)
    proof.give(operation.outputs[0], proof.term_of(source.outputs[0]))


def _reshaped(proof: Relations, step: Step, operation: Operation) -> None:
    """Prove that the operation computes one of the source element by element, in another shape."""
    proof.give(
        operation.outputs[0], reshaped_class(proof, counterpart(proof, step, operation), operation)
    )


EQUALITIES: dict[str, Identity] = {
    "constant": _constant,
    "equal operand": _equal_operand,
    "same elements": _same_moves,
    "same reduction": _same_reduction,
    "same windows": _same_windows,
    "reshaped": _reshaped,
    "product and sum": _product_and_sum,
}
"""The identities by the name that steps have for them."""
