"""Small integer tensors as expressions of extents, element by element, in one normal form.

Two expressions that are equal are equal numbers, whatever the extents are. An expression is an
atom, or a sum of products of atoms. An atom is a symbol of the interface, an extent of a value, the
greater one of a sum and 0 (`positive`), a sum divided and rounded down (`floor`), or an operator
that nothing more is known of. Extents are natural numbers below 2^31 here, also where they are 0.
Sums and products are equal modulo 2^64, too. Nothing else is computed of a number that its type may
wrap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import product as pairs_of
from math import gcd, isfinite, prod
from typing import Any

import numpy as np
from onnx import TensorProto

from .operators import MOVING
from .program import FLOATS, Array, Datum, Operation, Unproved
from .recomputation import EVALUATORS


@dataclass(frozen=True, slots=True)
class Expression:
    """An unknown number: `+` of products, `*` of a number and atoms, or an atom."""

    head: str
    parts: tuple[Any, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.head, self.parts)))

    def __hash__(self) -> int:
        return self._hash


Extent = int | Expression
Factors = tuple[Expression, ...]

MAX_ELEMENTS = 64
"""Most elements of a tensor that is looked at."""

MAX_TERMS = 12
"""Most products in a sum."""

MAX_STEPS = 3
"""Most maxima and quotients in a sum whose bounds are looked for case by case."""

INTEGERS: dict[int, type[np.generic]] = {
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
    TensorProto.BOOL: np.bool_,
}
"""The types of numbers whose expressions are looked at."""

BITS: dict[int, int] = {TensorProto.INT32: 31, TensorProto.INT64: 62}
"""The bits that numbers may have, so that no type wraps them."""

PRECISIONS: dict[int, int] = {
    TensorProto.FLOAT16: 11,
    TensorProto.FLOAT: 24,
    TensorProto.DOUBLE: 53,
}
"""The bits of the whole numbers that floats are exact to."""

OPAQUE = "opaque"
"""The head of an element that an operator makes of numbers that a type may have wrapped."""

TRUTHS = frozenset(("Equal", "Less", "Not", "And", "Or"))
"""The heads of truth values."""


# sums of products


@lru_cache(maxsize=1 << 14)
def _text(atom: Expression) -> str:
    return repr(atom)


def _terms(number: Extent) -> dict[Factors, int]:
    """Return the numbers by which the products of atoms count in a sum."""
    if not isinstance(number, Expression):
        return {(): int(number)} if number else {}
    if number.head == "+":
        return {factors: count for part in number.parts for factors, count in _terms(part).items()}
    count, factors = monomial(number)
    return {tuple(factors): count}


@lru_cache(maxsize=1 << 14)
def _order(factors: Factors) -> tuple[int, list[str]]:
    """Return the place of a product: one that products by the same factor keep."""
    return len(factors), sorted(map(_text, factors), reverse=True)


def _sum(terms: dict[Factors, int]) -> Extent:
    """Return a sum of products."""
    found = [
        _product(count, factors)
        for factors, count in sorted(terms.items(), key=lambda each: _order(each[0]))
        if count
    ]
    if len(found) > 1:
        return Expression("+", tuple(found))
    return found[0] if found else 0


def _product(count: int, factors: Factors) -> Extent:
    if not factors:
        return count
    return factors[0] if count == 1 and len(factors) == 1 else Expression("*", (count, *factors))


def _integers(numbers: Sequence[Extent]) -> list[int] | None:
    """Return numbers without extents, None if one has some."""
    known = [int(number) for number in numbers if not isinstance(number, Expression)]
    return known if len(known) == len(numbers) else None


@lru_cache(maxsize=1 << 14)
def plus(*numbers: Extent) -> Extent:
    """Return a sum."""
    known = _integers(numbers)
    if known is not None:
        return sum(known)
    terms: Counter[Factors] = Counter()
    for number in numbers:
        terms.update(_terms(number))
    return _sum(terms)


def minus(first: Extent, second: Extent) -> Extent:
    """Return a difference."""
    return plus(first, times(-1, second))


@lru_cache(maxsize=1 << 14)
def times(*numbers: Extent) -> Extent:
    """Return a product."""
    known = _integers(numbers)
    if known is not None:
        return prod(known)
    made: dict[Factors, int] = {(): 1}
    for number in numbers:
        terms: Counter[Factors] = Counter()
        for (left, one), (right, other) in pairs_of(made.items(), _terms(number).items()):
            terms[tuple(sorted((*left, *right), key=_text))] += one * other
        made = terms
    return _sum(made)


def monomial(number: Extent) -> tuple[int, list[Expression]]:
    """Return the number and the factors of a product; a sum is one factor."""
    if isinstance(number, Expression):
        return (number.parts[0], list(number.parts[1:])) if number.head == "*" else (1, [number])
    return int(number), []


@lru_cache(maxsize=1 << 14)
def quotient(number: Extent, divisor: Extent) -> Extent | None:
    """Return an exact quotient of sums, None if there is a remainder."""
    left, given = _terms(number), _terms(divisor)
    if not given:
        return None
    first = max(given, key=_order)
    found: dict[Factors, int] = {}
    while left:
        lead = max(left, key=_order)
        rest = Counter(lead)
        rest.subtract(first)
        if left[lead] % given[first] or min(rest.values(), default=0) < 0 or len(found) > MAX_TERMS:
            return None
        part = tuple(sorted(rest.elements(), key=_text))
        found[part] = left[lead] // given[first]
        gone = _terms(times(-found[part], _sum({part: 1}), divisor))
        left = _terms(plus(_sum(left), _sum(gone)))
    return _sum(found)


# bounds


@lru_cache(maxsize=1 << 14)
def least(number: Extent) -> int:
    """Return a lower bound of a number, for all extents."""
    terms = _terms(number)
    steps = [each for each in terms if len(each) == 1 and each[0].head in ("positive", "floor")]
    bounds = [sum(count * _bound(factors, count) for factors, count in terms.items())]
    if len(steps) <= MAX_STEPS:
        for step in steps:
            rest = {factors: count for factors, count in terms.items() if factors != step}
            bounds += _least_with(_sum(rest), step[0], terms[step])
    return max(bounds)


def most(number: Extent) -> int:
    """Return an upper bound of a number, for all extents."""
    return -least(times(-1, number))


def _bound(factors: Factors, count: int) -> int:
    """Return the least number of a product of atoms, the greatest if it counts below 0."""
    low, high = 1, 1
    for atom in factors:
        corners = [a * b for a in (low, high) for b in _bounds(atom)]
        low, high = min(corners), max(corners)
    return low if count > 0 else high


def _bounds(atom: Expression) -> tuple[int, int]:
    head, parts = atom.head, atom.parts
    if head in ("symbol", "extent"):
        return 0, (1 << 31) - 1
    if head == "positive":
        return max(least(parts[0]), 0), max(most(parts[0]), 0)
    if head == "floor":
        return least(parts[0]) // parts[1], most(parts[0]) // parts[1]
    if head in TRUTHS:
        return 0, 1
    if head == "Where":
        return min(map(least, parts[1:])), max(map(most, parts[1:]))
    limit = 1 << (63 if head == OPAQUE else BITS[TensorProto.INT64])
    if head == "Div":
        limit = max(-least(parts[0]), most(parts[0]))
    return -limit, limit


def _least_with(rest: Extent, step: Expression, count: int) -> list[int]:
    """Return lower bounds of a sum with a maximum or a quotient, by its cases.

    A maximum is 0 or its operand, and not below either. A quotient by n, n times, is its dividend,
    or at most n - 1 less; so the sum is looked at n times.
    """
    inner = step.parts[0]
    if step.head == "floor":
        divisor = step.parts[1]
        spare = plus(inner, 1 - divisor) if count > 0 else inner
        return [-(-least(plus(times(divisor, rest), times(count, spare))) // divisor)]
    cases = least(rest), least(plus(rest, times(count, inner)))
    return [max(cases) if count > 0 else min(cases)]


def is_natural(number: Extent) -> bool:
    """Return whether a number is not negative, whatever the extents are."""
    return least(number) >= 0


def bits(number: Extent) -> int:
    """Return how many bits the magnitude of a number may have."""
    if not isinstance(number, Expression):
        return int(number).bit_length()
    return max(-least(number), most(number)).bit_length()


# operators of integers and truth values


def _positive(number: Extent) -> Extent:
    """Return the greater one of a number and 0."""
    if least(number) >= 0:
        return number
    if most(number) <= 0:
        return 0
    other = times(-1, number)  # max(x, 0) is x + max(-x, 0): one of them is the normal form
    assert isinstance(number, Expression) and isinstance(other, Expression)
    if _text(other) < _text(number):
        return plus(number, Expression("positive", (other,)))
    return Expression("positive", (number,))


def maximum(first: Extent, second: Extent) -> Extent:
    """Return the greater one of two numbers."""
    return plus(second, _positive(minus(first, second)))


def minimum(first: Extent, second: Extent) -> Extent:
    """Return the lesser one of two numbers."""
    return minus(first, _positive(minus(first, second)))


def floored(number: Extent, divisor: int) -> Extent:
    """Return a number divided by one above 0, rounded down."""
    low = least(number) // divisor
    if low == most(number) // divisor:
        return low
    terms = _terms(number)
    whole = _sum({factors: count // divisor for factors, count in terms.items()})
    rest = {factors: count % divisor for factors, count in terms.items()}
    offset = rest.pop((), 0)
    rest = {factors: count for factors, count in rest.items() if count}
    common = gcd(divisor, *rest.values())
    if not rest or common == divisor:
        return whole
    rest = {factors: count // common for factors, count in rest.items()}
    offset, divisor = offset // common, divisor // common
    inner = next(iter(rest))[0]
    if len(rest) == 1 and _sum(rest) == inner and inner.head == "floor":
        dividend = plus(inner.parts[0], offset * inner.parts[1])
        return plus(whole, floored(dividend, divisor * inner.parts[1]))
    return plus(whole, Expression("floor", (_sum({**rest, (): offset}), divisor)))


def _divided(number: Extent, divisor: Extent) -> Extent:
    """Return a quotient without its fraction."""
    if divisor == 0:
        raise Unproved("a division by zero")
    exact = quotient(number, divisor)
    if exact is not None:
        return exact
    if isinstance(divisor, int) and divisor > 0 and least(number) > -divisor:
        return floored(maximum(number, 0), divisor)  # between -divisor and 0 it is 0
    if isinstance(number, int) and isinstance(divisor, int):
        return abs(number) // abs(divisor) * (1 if (number < 0) == (divisor < 0) else -1)
    return Expression("Div", (number, divisor))


def _remainder(number: Extent, divisor: Extent) -> Extent:
    if not isinstance(divisor, int) or divisor <= 0:
        raise Unproved("the divisor is unknown, or not above 0")
    return minus(number, times(divisor, floored(number, divisor)))


def _less(first: Extent, second: Extent) -> Extent:
    apart = minus(second, first)
    if least(apart) > 0:
        return True
    return False if most(apart) <= 0 else Expression("Less", (first, second))


def _equal(first: Extent, second: Extent) -> Extent:
    if first == second:
        return True
    apart = minus(first, second)
    if least(apart) > 0 or most(apart) < 0:
        return False
    return Expression("Equal", tuple(sorted((first, second), key=repr)))


def _not(given: Extent) -> Extent:
    if isinstance(given, Expression):
        return given.parts[0] if given.head == "Not" else Expression("Not", (given,))
    return not given


def _all(first: Extent, second: Extent) -> Extent:
    for one, other in ((first, second), (second, first)):
        if not isinstance(one, Expression):
            return other if one else False
    if first == _not(second):
        return False
    return first if first == second else Expression("And", (first, second))


def _choice(condition: Extent, first: Extent, second: Extent) -> Extent:
    if first == second or not isinstance(condition, Expression):
        return first if condition or first == second else second
    return Expression("Where", (condition, first, second))


ELEMENTWISE: dict[str, Callable[..., Extent]] = {
    "Add": plus,
    "Sum": plus,
    "Sub": minus,
    "Mul": times,
    "Div": _divided,
    "Mod": _remainder,
    "Neg": lambda a: times(-1, a),
    "Abs": lambda a: maximum(a, times(-1, a)),
    "Max": lambda *given: reduce(maximum, given),
    "Min": lambda *given: reduce(minimum, given),
    "Clip": lambda a, low, high: minimum(maximum(a, low), high),
    "Relu": lambda a: maximum(a, 0),
    "Equal": _equal,
    "Less": _less,
    "Greater": lambda a, b: _less(b, a),
    "LessOrEqual": lambda a, b: _not(_less(b, a)),
    "GreaterOrEqual": lambda a, b: _not(_less(a, b)),
    "Not": _not,
    "And": _all,
    "Or": lambda a, b: _not(_all(_not(a), _not(b))),
    "Where": _choice,
}
"""The operators of integers and truth values, on one element each."""

WRAPPING = frozenset(("Add", "Sum", "Sub", "Mul", "Neg", "ReduceSum", "ReduceProd", "Where"))
"""The operators that are the same modulo a power of 2."""

REDUCTIONS: dict[str, Callable[..., Extent]] = {
    "ReduceSum": plus,
    "ReduceProd": times,
    "ReduceMax": ELEMENTWISE["Max"],
    "ReduceMin": ELEMENTWISE["Min"],
}


# whole numbers as floats


def _real(kind: int, number: Extent, divisor: int, low: int, high: int) -> Extent:
    """Return a whole number divided by one above 0, or the float next to that. Raises Unproved.

    The number is from `low` to `high`. Numbers and divisors are below 2^(p - 2) for floats of p
    bits. So a quotient that is no whole number is further from the next one than half the distance
    of floats there.
    """
    low, high = max(low, least(number)), min(high, most(number))
    if kind not in PRECISIONS or max(-low, high, divisor) > 1 << (PRECISIONS[kind] - 2):
        raise Unproved("a float may not be exact")
    return Expression("real", (kind, number, divisor, low, high))


def _whole_real(kind: int, number: Extent) -> Extent:
    """Return a whole number as a float. Raises Unproved."""
    return _real(kind, number, 1, least(number), most(number))


def _exact(*reals: Extent) -> list[tuple[Any, ...]]:
    """Return number, divisor and bounds of floats that are not rounded. Raises Unproved."""
    found = []
    for each in reals:
        if not isinstance(each, Expression) or each.head != "real":
            raise Unproved("a float is not known")
        if each.parts[2] & (each.parts[2] - 1):
            raise Unproved("a float is rounded")
        found.append(each.parts)
    return found


def _real_sum(first: Extent, second: Extent) -> Extent:
    (kind, a, below, *lows), (_, b, under, *highs) = _exact(first, second)
    bounds = [x * under + y * below for x, y in zip(lows, highs, strict=True)]
    return _real(kind, plus(times(a, under), times(b, below)), below * under, *bounds)


def _real_difference(first: Extent, second: Extent) -> Extent:
    ((kind, number, divisor, low, high),) = _exact(second)
    return _real_sum(first, _real(kind, times(-1, number), divisor, -high, -low))


def _real_product(first: Extent, second: Extent) -> Extent:
    (kind, a, below, *lows), (_, b, under, *highs) = _exact(first, second)
    corners = [x * y for x in lows for y in highs]
    return _real(kind, times(a, b), below * under, min(corners), max(corners))


def _real_quotient(first: Extent, second: Extent) -> Extent:
    (kind, a, below, low, high), (_, b, under, *_) = _exact(first, second)
    if not isinstance(b, int) or b <= 0:
        raise Unproved("the divisor is unknown, or not above 0")
    return _real(kind, times(a, under), below * b, low * under, high * under)


def _real_floor(real: Expression, more: int = 0) -> Extent:
    kind, number, divisor, low, high = real.parts
    whole = floored(plus(number, more), divisor)
    return _real(kind, whole, 1, (low + more) // divisor, (high + more) // divisor)


REALS: dict[str, Callable[..., Extent]] = {
    "Add": _real_sum,
    "Sub": _real_difference,
    "Mul": _real_product,
    "Div": _real_quotient,
    "Floor": _real_floor,
    "Ceil": lambda real: _real_floor(real, real.parts[2] - 1),
}
"""The operators of whole numbers as floats, on one element each."""


def float_of(number: Extent) -> float | None:
    """Return the float that is a known integer, or a quotient of two; None for other numbers.

    A quotient is rounded to float64, and a rounding of that to fewer bits is the one of the
    quotient: `_real` bounds both integers.
    """
    if not isinstance(number, Expression) or number.head not in ("Cast", "real"):
        return None
    dividend, *divisor = number.parts[1:3]
    if not isinstance(dividend, int) or abs(dividend) > 1 << 53:
        return None
    return dividend / (divisor[0] if divisor else 1)


class Integers:
    """The elements of the small integer tensors of a model.

    `shape_of` gives the extents of a value.
    """

    def __init__(self, shape_of: Callable[[Datum], Sequence[Extent] | None]) -> None:
        self.shape_of = shape_of
        self.found: dict[Datum, Array] = {}
        self.extents: set[Expression] = set()
        """Extents of values that every run has: no run has one of 2^31."""

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
            return self._shape(operation, data)
        if kind == "Range":
            return EVALUATORS[kind](
                operation, [self._number(each) for each in operation.inputs]
            ).astype(object)
        arrays = [self.of(each) for each in operation.inputs]
        if kind in REALS and data is not None and data.kind in FLOATS:
            return self._reals(operation, arrays)
        given = [each for each in arrays if each is not None]
        if (
            not given
            or len(given) < len(arrays)
            or sum(each.size for each in given) > 4 * MAX_ELEMENTS
        ):
            return None
        if kind == "OneHot":
            return _one_hot(operation, *given)
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
        # Sums and products are equal as types wrap them, too. All else is about whole numbers.
        if operation.attributes.get("fmod", 0):
            return None
        if kind not in WRAPPING and not all(map(_fit, given)):
            return _opaque(operation, given)
        if kind in REDUCTIONS:
            made = _reduced(operation, given[0])
        else:
            made = _mapped(ELEMENTWISE[kind], given)
        known = _array([each for each in made.flat if not isinstance(each, Expression)], (-1,))
        if not _fit(known):
            return None
        if operation.outputs[0].kind == TensorProto.INT32 and not all(map(self._fits, made.flat)):
            return None
        return made if all(len(_terms(each)) <= MAX_TERMS for each in made.flat) else None

    def _fits(self, number: Extent) -> bool:
        """Return whether a number is one of int32: it has few bits, or never exceeds an extent."""
        if bits(number) <= BITS[TensorProto.INT32]:
            return True
        is_low = least(number) >= -(1 << BITS[TensorProto.INT32])
        return is_low and any(is_natural(minus(extent, number)) for extent in self.extents)

    def note_extents(self, extents: Iterable[Extent]) -> None:
        """Note the extents of a value that every run has."""
        self.extents.update(
            each for each in extents if isinstance(each, Expression) and each.head in ("+", "*")
        )

    def _shape(self, operation: Operation, data: Datum) -> Array | None:
        extents = self.shape_of(data)
        if extents is None:
            return None
        if operation.kind == "Size":
            return _array([times(*extents)], ())
        start, end = operation.attributes.get("start", 0), operation.attributes.get("end")
        cut = extents[int(start) : len(extents) if end is None else int(end)]
        return _array(cut, (len(cut),))

    def _reals(self, operation: Operation, arrays: Sequence[Array | None]) -> Array | None:
        """Return what floats are that are computed from integers, constants beside them."""
        if all(each is None for each in arrays):
            return None
        given = []
        for value, array in zip(operation.inputs, arrays, strict=True):
            if array is None:
                stored = None if value is None else value.stored
                if stored is None or stored.array.size > MAX_ELEMENTS or stored.is_unrounded:
                    return None
                kind = 0 if value is None else value.kind
                array = _mapped(lambda each, kind=kind: _constant(kind, each), [stored.array])
            given.append(array)
        return _mapped(REALS[operation.kind], given)

    def _number(self, value: Datum | None) -> Array:
        """Return a constant of one element. Raises Unproved."""
        found = self.of(value)
        if found is None or found.size != 1 or isinstance(found.reshape(-1)[0], Expression):
            raise Unproved("it is no constant of one element")
        return np.array(found.reshape(-1)[0], np.int64)


def _one_hot(operation: Operation, indices: Array, depth: Array, values: Array) -> Array | None:
    """Return the second of two values at the indices along a new axis, and the first elsewhere."""
    places, count = indices.astype(np.int64), int(depth.item())
    axis = int(operation.attributes.get("axis", -1)) % (places.ndim + 1)
    if not 0 < count * places.size <= MAX_ELEMENTS:
        return None
    row = np.arange(count).reshape(-1, *(1,) * (places.ndim - axis))
    given = np.expand_dims(np.where(places < 0, places + count, places), axis)
    off, on = (np.array(each, object) for each in values.flat)
    return np.where(given == row, on, off)


def _opaque(operation: Operation, arrays: Sequence[Array]) -> Array | None:
    """Return elements of which nothing is known but that equal operands make them equal."""
    result = operation.outputs[0].kind
    if operation.kind not in ELEMENTWISE or operation.attributes or result != TensorProto.INT64:
        return None
    return _mapped(lambda *given: Expression(OPAQUE, (operation.kind, *given)), arrays)


def _fit(array: Array) -> bool:
    """Return whether no number of an array may have been wrapped by int64."""
    return all(bits(each) <= BITS[TensorProto.INT64] for each in array.flat)


def _constant(kind: int, number: object) -> Extent:
    """Return a stored float as a whole number divided by another. Raises Unproved."""
    found = float(number)  # type: ignore[arg-type]
    if not isfinite(found):
        raise Unproved("a number is infinite, or none")
    number, divisor = found.as_integer_ratio()
    return _real(kind, number, divisor, number, number)


def _reduced(operation: Operation, array: Array) -> Array:
    """Return a reduction of all elements of a vector. Raises Unproved."""
    axes = operation.integers("axes", 1)
    if array.ndim != 1 or not array.size or (axes is None and operation.operand(1) is not None):
        raise Unproved("it is no vector, or the axes are unknown")
    if not axes and operation.attributes.get("noop_with_empty_axes", 0):
        raise Unproved("no axis is reduced")
    made = REDUCTIONS[operation.kind](*array.tolist())
    return _array([made], (1,) if operation.attributes.get("keepdims", 1) else ())


def _cast(number: Extent, before: int, after: int) -> Extent:
    if after not in FLOATS and after not in INTEGERS:
        raise Unproved("attributes of the Cast may decide about numbers of this type")
    if before in BITS and after in BITS:
        if before != after and bits(number) > BITS[after]:
            raise Unproved("a number may not fit into the integer type")
        return number
    if before in BITS and after in FLOATS:
        try:
            return _whole_real(after, number)
        except Unproved:
            return Expression("Cast", (after, number))
    if before in FLOATS and after in BITS:
        return _truncated(number, after)
    if before in BITS and after == TensorProto.BOOL and bits(number) <= BITS[before]:
        return _not(_equal(number, 0))
    if not isinstance(number, Expression) and {before, after} <= INTEGERS.keys():
        return int(number != 0) if after in BITS else bool(number)
    if before == after == TensorProto.BOOL:
        return number
    return Expression("Cast", (after, number))


def _truncated(number: Extent, after: int) -> Extent:
    """Return the integer that a Cast makes of a float. Raises Unproved."""
    if not isinstance(number, Expression) or number.head not in ("real", "Cast"):
        raise Unproved("a float is not known")
    if number.head == "Cast":
        inner = number.parts[1]
        if isinstance(inner, int) and abs(inner) <= 2**8:
            return inner  # every floating-point type has it
        return Expression("Cast", (after, number))
    _, dividend, divisor, low, _ = number.parts
    if divisor == 1:
        return plus(dividend)
    return floored(dividend, divisor) if low >= 0 else _divided(dividend, divisor)


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
