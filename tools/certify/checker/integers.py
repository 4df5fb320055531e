"""Small integer tensors as expressions of extents, element by element.

Two expressions that are equal are equal numbers, whatever the extents are: they are numbers,
symbols of the interface, extents of values, products in one order, and operators of these. Extents
are at least 1, and below 2^31.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from .program import FLOATS, Array, Datum, Operation, Unproved
from .recomputation import EVALUATORS


@dataclass(frozen=True, slots=True)
class Expression:
    """An unknown number: a `symbol`, the `extent` of a value, `*` with factors, or an operator."""

    head: str
    parts: tuple[Any, ...]


Extent = int | Expression

MAX_ELEMENTS = 64
"""Most elements of a tensor that is looked at."""

INTEGERS: dict[int, type[np.generic]] = {
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
    TensorProto.BOOL: np.bool_,
}
"""The types of numbers whose expressions are looked at."""

BITS: dict[int, int] = {TensorProto.INT32: 31, TensorProto.INT64: 62}
"""The bits that numbers may have, so that no type wraps them."""

MOVING = frozenset(
    (
        *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
        *("Expand", "Slice", "Concat", "Gather"),
    )
)
"""Operators that only move elements, which are computed on expressions as on numbers."""


def times(*numbers: Extent) -> Extent:
    """Return a product: a number before factors in one order."""
    count, factors = 1, []
    for number in numbers:
        known, others = monomial(number)
        count *= known
        factors += others
    if not factors or not count:
        return count
    factors.sort(key=repr)
    return factors[0] if count == 1 and len(factors) == 1 else Expression("*", (count, *factors))


def monomial(number: Extent) -> tuple[int, list[Expression]]:
    """Return the number and the factors of a product."""
    if isinstance(number, Expression):
        return (number.parts[0], list(number.parts[1:])) if number.head == "*" else (1, [number])
    return int(number), []


def quotient(number: Extent, divisor: Extent) -> Extent | None:
    """Return an exact quotient of products, None if there is a remainder."""
    (count, factors), (other, gone) = monomial(number), monomial(divisor)
    left = Counter(factors)
    left.subtract(gone)
    if not other or count % other or min(left.values(), default=0) < 0:
        return None
    return times(count // other, *left.elements())


def is_natural(number: Extent) -> bool:
    """Return whether a number is not negative, whatever the extents are."""
    if not isinstance(number, Expression):
        return number >= 0
    if number.head == "*":
        return all(is_natural(each) for each in number.parts)
    return number.head in ("symbol", "extent")


def bits(number: Extent) -> int:
    """Return how many bits the magnitude of a number may have."""
    count, factors = monomial(number)
    if len(factors) > 1 or (factors and count != 1):
        return (abs(count) - 1).bit_length() + sum(map(bits, factors))
    if not isinstance(number, Expression):
        return abs(number).bit_length()
    if number.head in ("symbol", "extent"):
        return 31
    inner = [bits(each) for each in number.parts if isinstance(each, int | Expression)]
    if number.head in ("Add", "Sub"):
        return max(inner) + 1
    return max(inner) if number.head in ("Max", "Min", "Div") else BITS[TensorProto.INT64]


def is_cast_number(number: Extent) -> bool:
    """Return whether a number is an integer that was cast to a floating-point type."""
    return (
        isinstance(number, Expression)
        and number.head == "Cast"
        and isinstance(number.parts[-1], int)
    )


def _known(kind: str, compute: Callable[..., int]) -> Callable[..., Extent]:
    """Return a function that computes with numbers, and makes an expression otherwise."""
    return lambda *given: (
        Expression(kind, given)
        if any(isinstance(each, Expression) for each in given)
        else compute(*given)
    )


def _sum(first: Extent, second: Extent) -> Extent:
    if not isinstance(first, Expression) and not isinstance(second, Expression):
        return first + second
    if first == 0 or second == 0:
        return second if first == 0 else first
    return _known("Add", lambda a, b: a + b)(*sorted((first, second), key=repr))


def _difference(first: Extent, second: Extent) -> Extent:
    if second == 0:
        return first
    if first == second:
        return 0
    return _known("Sub", lambda a, b: a - b)(first, second)


def _ratio(first: Extent, second: Extent) -> Extent:
    exact = quotient(first, second)
    if exact is not None:
        return exact
    if second == 0:
        raise Unproved("a division by zero")
    return _known("Div", lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))(
        first, second
    )


def _equal(first: Extent, second: Extent) -> Extent:
    if first == second:
        return True
    for one, other in ((first, second), (second, first)):
        if not isinstance(one, Expression) and one < 0 and is_natural(other):
            return False
    return _known("Equal", lambda a, b: a == b)(first, second)


def _choice(condition: Extent, first: Extent, second: Extent) -> Extent:
    if first == second or not isinstance(condition, Expression):
        return first if condition or first == second else second
    return Expression("Where", (condition, first, second))


ELEMENTWISE: dict[str, Callable[..., Extent]] = {
    "Add": _sum,
    "Sub": _difference,
    "Mul": times,
    "Div": _ratio,
    "Equal": _equal,
    "Where": _choice,
    "Max": _known("Max", max),
    "Min": _known("Min", min),
    "Less": _known("Less", lambda a, b: a < b),
    "Greater": _known("Greater", lambda a, b: a > b),
    "Not": _known("Not", lambda a: not a),
    "And": _known("And", lambda a, b: bool(a and b)),
    "Or": _known("Or", lambda a, b: bool(a or b)),
}
"""The operators of integers and truth values, on one element each."""


class Integers:
    """The elements of the small integer tensors of a model.

    `shape_of` gives the extents of a value.
    """

    def __init__(self, shape_of: Callable[[Datum], Sequence[Extent] | None]) -> None:
        self.shape_of = shape_of
        self.found: dict[Datum, Array] = {}

    def of(self, value: Datum | None) -> Array | None:
        """Return the elements of a value as numbers and expressions, None if unknown."""
        if value is None or value in self.found:
            return None if value is None else self.found[value]
        if (
            value.stored is None
            or value.kind in FLOATS
            or value.stored.array.dtype.kind not in "iub"
            or value.stored.array.size > MAX_ELEMENTS
        ):
            return None
        return value.stored.array.astype(object)

    def enter(self, operation: Operation) -> Array | None:
        """Return and remember the elements of an operation's result, None if unknown."""
        if (
            operation.domain
            or operation.bodies
            or len(operation.outputs) != 1
            or "broadcast" in operation.attributes
        ):
            return None
        try:
            made = self._computed(operation)
        except (Unproved, ValueError, IndexError, TypeError, KeyError, OverflowError):
            return None
        if made is None or made.size > MAX_ELEMENTS:
            return None
        self.found[operation.outputs[0]] = made
        return made

    def _computed(self, operation: Operation) -> Array | None:
        data, kind = operation.operand(0), operation.kind
        if data is not None and kind in ("Shape", "Size"):
            extents = self.shape_of(data)
            if extents is None:
                return None
            end = operation.attributes.get("end")
            cut = extents[
                int(operation.attributes.get("start", 0)) : len(extents)
                if end is None
                else int(end)
            ]
            return _array([times(*extents)], ()) if kind == "Size" else _array(cut, (len(cut),))
        if kind == "Range":
            return EVALUATORS[kind](
                operation, [self._number(each) for each in operation.inputs]
            ).astype(object)
        arrays = [self.of(each) for each in operation.inputs]
        given = [each for each in arrays if each is not None]
        if (
            not given
            or len(given) < len(arrays)
            or sum(each.size for each in given) > 4 * MAX_ELEMENTS
        ):
            return None
        if kind in MOVING:
            if kind != "Concat" and any(
                each is None or each.stored is None for each in operation.inputs[1:]
            ):
                return None
            return np.asarray(EVALUATORS[kind](operation, given), object)
        if kind == "Cast" and data is not None:
            return _mapped(
                lambda each: _cast(each, data.kind, int(operation.attributes["to"])), given
            )
        if any(each is None or each.kind not in INTEGERS for each in operation.inputs):
            return None
        limit, made = BITS.get(operation.outputs[0].kind, 64), _mapped(ELEMENTWISE[kind], given)
        return None if any(bits(each) > limit for each in made.flat) else made

    def _number(self, value: Datum | None) -> Array:
        """Return a constant of one element. Raises Unproved."""
        found = self.of(value)
        if found is None or found.size != 1 or isinstance(found.reshape(-1)[0], Expression):
            raise Unproved("it is no constant of one element")
        return np.array(found.reshape(-1)[0], np.int64)


def _cast(number: Extent, before: int, after: int) -> Extent:
    if after not in FLOATS and after not in INTEGERS:
        raise Unproved("attributes of the Cast may decide about numbers of this type")
    inner = number.parts[-1] if isinstance(number, Expression) and number.head == "Cast" else None
    if before in BITS and after in BITS:
        if bits(number) > BITS[after]:
            raise Unproved("a number may not fit into the integer type")
        return number
    if before in FLOATS and after in BITS and isinstance(inner, int) and abs(inner) <= 2**8:
        return inner  # every floating-point type has it
    if isinstance(number, int) and {before, after} <= INTEGERS.keys():
        return int(number != 0) if after in BITS else number != 0
    return Expression("Cast", (after, number))


def _mapped(function: Callable[..., Extent], arrays: Sequence[Array]) -> Array:
    wide = np.broadcast_arrays(*arrays)
    return _array(
        [function(*each) for each in zip(*(array.flat for array in wide), strict=True)],
        wide[0].shape,
    )


def _array(elements: Sequence[Extent], extents: tuple[int, ...]) -> Array:
    made = np.empty(len(elements), object)
    made[:] = elements
    return made.reshape(extents)
