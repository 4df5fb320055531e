"""Operators on data in another shape: element by element they compute the same, in that shape.

Let S be the shape of an operation's result in the source, and R that in the result. Every operand
that has the shape S must have the same elements in the shape R there, and every other operand must
be broadcast the same into both: it has one element, or varies along last axes that S and R have
alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from .congruence import Congruence
from .integers import Extent
from .operators import BROADCASTING, ELEMENTWISE, VARIADIC
from .program import Datum, Operation, Unproved
from .reordering import Groups, regrouped


def reshaped_class(proof: Congruence, source: Operation, result: Operation) -> int:
    """Return the class of an operation that computes one of the source in another shape.

    Raises Unproved.
    """
    before, after = proof.shape(source.outputs[0]), proof.own_shape(result.outputs[0])
    if before is None or after is None or len(source.outputs) > 1 or len(result.outputs) > 1:
        raise Unproved("a rank is unknown, or there are several results")
    if (source.kind, source.version, source.domain) != (result.kind, result.version, "") or (
        _attributes(source) != _attributes(result) or len(source.inputs) != len(result.inputs)
    ):
        raise Unproved("the operators or their attributes differ")
    pairs = list(zip(source.inputs, result.inputs, strict=True))
    if source.kind in BROADCASTING and source.version >= (8 if source.kind in VARIADIC else 7):
        data = pairs
    elif source.kind in ELEMENTWISE:
        data, others = pairs[:1], pairs[1:]
        if any(_term(proof, one) != _term(proof, other) for one, other in others):
            raise Unproved("the other operands differ")
    else:
        raise Unproved(f"{source.kind} is not looked at element by element")
    found = [_is_data(proof, *pair, before, after) for pair in data]
    if not any(found):
        raise Unproved("no operand has the shape of the result")
    return _view(proof, source.outputs[0], after)


def _attributes(operation: Operation) -> list[tuple[str, str]]:
    return sorted((name, repr(each)) for name, each in operation.attributes.items())


def _term(proof: Congruence, value: Datum | None) -> int:
    return -1 if value is None else proof.term_of(value)


def _view(proof: Congruence, value: Datum, shape: Sequence[Extent]) -> int:
    """Return the class of a value in another shape. Raises Unproved."""
    found: tuple[int, Groups] | None = proof.view(value)
    if found is None:
        raise Unproved("a rank is unknown")
    core, groups = found
    return proof.view_term(core, regrouped(groups, shape))


def _is_data(
    proof: Congruence,
    one: Datum | None,
    other: Datum | None,
    before: Sequence[Extent],
    after: Sequence[Extent],
) -> bool:
    """Return whether an operand has the shape of the result, and not only some of its axes.

    Raises Unproved.
    """
    if one is None or other is None:
        raise Unproved("an operand is absent")
    if one.stored is not None and other.stored is not None:
        first, second = one.stored.array, other.stored.array
        if one.kind != other.kind or first.dtype == object or first.tobytes() != second.tobytes():
            raise Unproved("a constant is another")
        if first.shape == tuple(before) and second.shape == tuple(after):
            return False
        _check_last_axes(first.shape, second.shape, before, after)
        return False
    shapes = proof.shape(one), proof.shape(other)
    if shapes == (tuple(before), tuple(after)) and _view(proof, one, after) == proof.term_of(other):
        return True
    if shapes[0] is None or shapes[0] != shapes[1] or proof.term_of(one) != proof.term_of(other):
        raise Unproved("an operand has other elements")
    _check_last_axes(shapes[0], shapes[1] or (), before, after)
    return False


def _check_last_axes(
    one: Sequence[Extent],
    other: Sequence[Extent],
    before: Sequence[Extent],
    after: Sequence[Extent],
) -> None:
    """Prove that an operand varies along last axes alone that both results have.

    Raises Unproved.
    """
    varying = [_without_ones(each) for each in (one, other)]
    count = len(varying[0])
    if (
        varying[0] != varying[1]
        or len(one) > len(before)
        or len(other) > len(after)
        or count > len(before)
    ):
        raise Unproved("an operand is broadcast in another way")
    last = [list(each[len(each) - count :]) for each in (before, after)]
    if last[0] != last[1] or any(a not in (1, b) for a, b in zip(varying[0], last[0], strict=True)):
        raise Unproved("an operand varies along other axes")


def _without_ones(shape: Sequence[Extent]) -> list[Extent]:
    first = next((i for i, extent in enumerate(shape) if extent != 1), len(shape))
    return list(shape[first:])
