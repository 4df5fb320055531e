"""Integers that a model computes from open extents, in one normal form.

A piece is a number, a symbol, the extent of a value, a sum of products of these, or None if it is
unknown. Equal pieces are the same number in every run. Pieces that differ may be equal, too.

    product("N", total("N", -1))        N*N - N
    quotient(total(product(4, "N"), 6), 4)      N + 1
    maximum(0, total("N", -1))          max(N - 1, 0)

Sums and products hold modulo 2^64, as runtimes compute them. Comparisons, quotients and maxima
suppose that no product of extents exceeds 2^63: no tensor has so many elements. Numbers in int32
are known below an extent, which is supposed not to reach 2^31.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from math import gcd, prod

MAX_TERMS = 12
"""Products in the longest sum."""

MAX_DEGREE = 8
"""Factors of the longest product."""

MAX_COEFFICIENT = 1 << 63
"""Numbers in sums are below it."""

MAX_NESTING = 4
"""Quotients and maxima inside each other."""

MAX_MAXIMA = 3
"""Maxima and quotients in a sum of which bounds are asked for."""


class Formula:
    """An integer that depends on the run: all pieces but numbers and symbols."""

    __slots__ = ()


class Extent(Formula):
    """The extent of a value along an axis, if neither a number nor a symbol is known."""

    __slots__ = ("axis", "value")

    def __init__(self, value: object, axis: int) -> None:
        self.value, self.axis = value, axis

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extent) and self.value is other.value and self.axis == other.axis

    def __hash__(self) -> int:
        return hash((id(self.value), self.axis))

    def __str__(self) -> str:
        return f"extent({getattr(self.value, 'name', '')},{self.axis})"


class Quotient(Formula):
    """The quotient of a sum by a number above 1, rounded down."""

    __slots__ = ("dividend", "divisor", "nesting")

    def __init__(self, dividend: Polynomial, divisor: int) -> None:
        self.dividend, self.divisor = dividend, divisor
        self.nesting = 1 + dividend.nesting

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Quotient)
            and self.divisor == other.divisor
            and self.dividend == other.dividend
        )

    def __hash__(self) -> int:
        return hash((self.dividend, self.divisor))

    def __str__(self) -> str:
        return f"floordiv({self.dividend},{self.divisor})"


class Positive(Formula):
    """The greater one of a sum and 0."""

    __slots__ = ("nesting", "operand")

    def __init__(self, operand: Polynomial) -> None:
        self.operand = operand
        self.nesting = 1 + operand.nesting

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Positive) and self.operand == other.operand

    def __hash__(self) -> int:
        return hash((Positive, self.operand))

    def __str__(self) -> str:
        return f"max({self.operand},0)"


class FirstNonzero(Formula):
    """The first of some pieces that is not 0, or 0: the extent that a 0 in a Reshape copies."""

    __slots__ = ("nesting", "operands")

    def __init__(self, operands: tuple[Known, ...]) -> None:
        self.operands = operands
        self.nesting = 1 + max(map(_nesting, operands))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FirstNonzero) and self.operands == other.operands

    def __hash__(self) -> int:
        return hash((FirstNonzero, self.operands))

    def __str__(self) -> str:
        return f"or({','.join(map(_atom_text, self.operands))})"


Atom = str | Extent | Quotient | Positive | FirstNonzero
"""A factor of a product: an integer that is not negative."""

Factors = frozenset[tuple[Atom, int]]
"""The atoms of a product with their powers."""

_NONE: Factors = frozenset()


class Polynomial(Formula):
    """A sum of products with whole coefficients, which is neither a number nor one atom."""

    __slots__ = ("_hash", "nesting", "terms")

    def __init__(self, terms: dict[Factors, int]) -> None:
        self.terms = frozenset(terms.items())
        self.nesting = max(_nesting(atom) for factors in terms for atom, _ in factors)
        self._hash = hash(self.terms)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Polynomial)
            and self._hash == other._hash
            and self.terms == other.terms
        )

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        terms = sorted(_product_text(*term) for term in self.terms)
        return f"add({','.join(terms)})" if len(terms) > 1 else terms[0]


Known = int | str | Formula
Piece = Known | None


def _product_text(factors: Factors, coefficient: int) -> str:
    texts = sorted(_atom_text(atom) for atom, power in factors for _ in range(power))
    if coefficient != 1 or not texts:
        texts.insert(0, str(coefficient))
    return f"mul({','.join(texts)})" if len(texts) > 1 else texts[0]


def _atom_text(atom: Known) -> str:
    return symbol_text(atom) if isinstance(atom, str) else str(atom)


_PLAIN = r"[ !#-\[\]-~]*"


def symbol_text(symbol: str) -> str:
    """Return a symbol as IR text: `N`, or `"odd symbol"`."""
    return symbol if symbol.isascii() and symbol.isidentifier() else quote(symbol)


def quote(text: str) -> str:
    """Return a double-quoted literal of `text`.

    Every character that could end it or split the line is escaped.
    """
    if re.fullmatch(_PLAIN, text):
        return f'"{text}"'
    out = ['"']
    for char in text:
        if char in '"\\':
            out.append("\\" + char)
        elif char.isprintable() and not 0xD800 <= ord(char) <= 0xDFFF:
            out.append(char)
        else:
            out.append(f"\\u{{{ord(char):x}}}")
    out.append('"')
    return "".join(out)


def _nesting(piece: Known) -> int:
    """Return how deep quotients, maxima and alternatives are inside each other."""
    return getattr(piece, "nesting", 0)


def _terms(piece: Known) -> dict[Factors, int]:
    """Return the coefficients of the products of a piece."""
    if isinstance(piece, int):
        return {_NONE: piece} if piece else {}
    if isinstance(piece, Polynomial):
        return dict(piece.terms)
    assert isinstance(piece, Atom)
    return {frozenset(((piece, 1),)): 1}


def _piece(terms: dict[Factors, int]) -> Piece:
    """Return the piece of some coefficients, None if it is too large to be of use."""
    terms = {factors: count for factors, count in terms.items() if count}
    if not terms:
        return 0
    if len(terms) == 1:
        ((factors, count),) = terms.items()
        if not factors:
            return count
        if count == 1 and len(factors) == 1:
            ((atom, power),) = factors
            if power == 1:
                return atom
    if len(terms) > MAX_TERMS or max(map(abs, terms.values())) >= MAX_COEFFICIENT:
        return None
    if any(sum(power for _, power in factors) > MAX_DEGREE for factors in terms):
        return None
    found = Polynomial(terms)
    return found if found.nesting <= MAX_NESTING else None


def total(*pieces: Piece) -> Piece:
    """Return the sum of pieces."""
    none: Piece = 0
    return reduce(_sum, pieces, none)


def _sum(a: Piece, b: Piece) -> Piece:
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _piece(_added(_terms(a), _terms(b), 1))


def product(*pieces: Piece) -> Piece:
    """Return the product of pieces."""
    one: Piece = 1
    return reduce(_product, pieces, one)


def _product(a: Piece, b: Piece) -> Piece:
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    terms: dict[Factors, int] = {}
    for left, count in _terms(a).items():
        for right, times in _terms(b).items():
            powers = dict(left)
            for atom, power in right:
                powers[atom] = powers.get(atom, 0) + power
            factors = frozenset(powers.items())
            terms[factors] = terms.get(factors, 0) + count * times
    return _piece(terms)


def difference(a: Piece, b: Piece) -> Piece:
    """Return a - b."""
    return total(a, product(-1, b))


def exact_quotient(a: Piece, b: Piece) -> Piece:
    """Return a / b if b divides every product of a, else None. b is not 0."""
    if a is None or b is None or b == 0:
        return None
    # Only a product divides a sum term by term.
    divisors = _terms(b)
    if len(divisors) != 1:
        return None
    ((below, divisor),) = divisors.items()
    terms: dict[Factors, int] = {}
    for factors, count in _terms(a).items():
        powers = dict(factors)
        for atom, power in below:
            powers[atom] = powers.get(atom, 0) - power
        if count % divisor or any(power < 0 for power in powers.values()):
            return None
        left = frozenset((atom, power) for atom, power in powers.items() if power)
        terms[left] = count // divisor
    return _piece(terms)


def quotient(a: Piece, b: Piece) -> Piece:
    """Return floor(a / b), for numbers b above 0 and others that divide a."""
    if not isinstance(b, int) or a is None or b <= 0:
        return exact_quotient(a, b)
    if isinstance(a, int) or b == 1:
        return a // b if isinstance(a, int) else a
    low, high = least(a), most(a)
    if low is not None and high is not None and low // b == high // b:
        return low // b
    whole = {factors: count // b for factors, count in _terms(a).items()}
    rest = {factors: count % b for factors, count in _terms(a).items() if count % b}
    return total(_piece(whole), _floor(rest, b))


def _floor(terms: dict[Factors, int], divisor: int) -> Piece:
    """Return the quotient of a sum whose coefficients are not negative, and below the divisor."""
    number = terms.pop(_NONE, 0)
    if not terms:
        return number // divisor
    common = gcd(divisor, *terms.values())
    terms = {factors: count // common for factors, count in terms.items()}
    number, divisor = number // common, divisor // common
    if len(terms) == 1:
        ((factors, count),) = terms.items()
        ((atom, power), *others) = factors
        if isinstance(atom, Quotient) and count == power == 1 and not others:
            inner = total(atom.dividend, number * atom.divisor)
            return quotient(inner, divisor * atom.divisor)
    dividend = _piece({**terms, _NONE: number})
    if dividend is None or divisor == 1:
        return dividend
    found = Quotient(Polynomial(_terms(dividend)), divisor)
    return found if found.nesting <= MAX_NESTING else None


def truncated_quotient(a: Piece, b: Piece) -> Piece:
    """Return a / b without its fraction, as ONNX divides integers."""
    low = least(a)
    if low is not None and low >= 0:
        return quotient(a, b)
    # Between -b and 0 the quotient is 0.
    is_near = low is not None and isinstance(b, int) and -b < low
    return quotient(maximum(a, 0), b) if is_near else None


def remainder(a: Piece, b: Piece) -> Piece:
    """Return the remainder of a / b, for a >= 0 and a number b > 0."""
    low = least(a)
    if not isinstance(b, int) or b <= 0 or low is None or low < 0:
        return None
    return difference(a, product(b, quotient(a, b)))


def maximum(a: Piece, b: Piece) -> Piece:
    """Return the greater one of two pieces."""
    return total(b, _positive(difference(a, b)))


def minimum(a: Piece, b: Piece) -> Piece:
    """Return the lesser one of two pieces."""
    return difference(a, _positive(difference(a, b)))


def first_nonzero(*pieces: Piece) -> Piece:
    """Return the first piece that is not 0, or 0; None if a piece may be below 0."""
    found: list[Known] = []
    for piece in pieces:
        if piece is None:
            return None
        found += piece.operands if isinstance(piece, FirstNonzero) else [piece]
    found = [piece for piece in dict.fromkeys(found) if piece != 0]
    # n is 0 where 2 n is: it is never an alternative of that.
    found = [b for i, b in enumerate(found) if not any(_vanishes_with(b, a) for a in found[:i])]
    for i, piece in enumerate(found):
        low = least(piece)
        if low is None or low < 0:
            return None
        if low > 0:  # it is not 0: the rest is never reached
            found = found[: i + 1]
            break
    if len(found) < 2:
        return found[0] if found else 0
    alternatives = FirstNonzero(tuple(found))
    return alternatives if alternatives.nesting <= MAX_NESTING else None


def _vanishes_with(b: Known, a: Known) -> bool:
    """Return whether b is 0 in every run in which a product a is: each term has its factors."""
    if isinstance(a, int) or isinstance(b, int):
        return False
    (factors, _), *others = _terms(a).items()
    common = {atom for atom, _ in factors}
    terms = [{atom for atom, _ in each} for each in _terms(b)]
    return not others and all(common <= each for each in terms)


def _positive(piece: Piece) -> Piece:
    """Return the greater one of a piece and 0."""
    if piece is None:
        return None
    low, high = least(piece), most(piece)
    if low is not None and low >= 0:
        return piece
    if high is not None and high <= 0:
        return 0
    # max(x, 0) is x + max(-x, 0): of x and -x one is the normal form
    other = product(-1, piece)
    if other is None or isinstance(piece, int) or isinstance(other, int):
        return None
    first, second = Polynomial(_terms(piece)), Polynomial(_terms(other))
    if str(second) < str(first):
        return total(piece, _atom(second))
    return _atom(first)


def _atom(operand: Polynomial) -> Piece:
    found = Positive(operand)
    return found if found.nesting <= MAX_NESTING else None


def least(piece: Piece) -> int | None:
    """Return a lower bound of a piece, None if none is known."""
    if piece is None or isinstance(piece, int):
        return piece
    if not isinstance(piece, Polynomial):
        assert isinstance(piece, Atom)
        return _least_atom(piece)
    terms = _terms(piece)
    bounds: list[int | None] = []
    bounded = {factors: atom for factors in terms if (atom := _only_bounded(factors)) is not None}
    if len(bounded) <= MAX_MAXIMA:
        bounds = [_least_with(dict(terms), *each) for each in bounded.items()]
    if all(count > 0 for factors, count in terms.items() if factors):
        bounds.append(sum([count * _least_product(factors) for factors, count in terms.items()]))
    return max([bound for bound in bounds if bound is not None], default=None)


def _only_bounded(factors: Factors) -> Positive | Quotient | None:
    """Return the maximum or quotient that a product consists of, None for other products."""
    if len(factors) != 1:
        return None
    ((atom, power),) = factors
    return atom if isinstance(atom, Positive | Quotient) and power == 1 else None


def _least_with(
    terms: dict[Factors, int], factors: Factors, atom: Positive | Quotient
) -> int | None:
    """Return a lower bound of a sum with a maximum or a quotient.

    A maximum is 0 or its operand, and not below either. A quotient by n, n times, is its dividend
    or at most n - 1 less.
    """
    count = terms.pop(factors)
    if isinstance(atom, Quotient):
        if count % atom.divisor:
            return None
        spare = total(atom.dividend, 1 - atom.divisor) if count > 0 else atom.dividend
        return least(total(_piece(terms), product(count // atom.divisor, spare)))
    low, other = least(_piece(terms)), least(_piece(_added(terms, _terms(atom.operand), count)))
    if count > 0:
        return max([bound for bound in (low, other) if bound is not None], default=None)
    return None if low is None or other is None else min(low, other)


def _added(terms: dict[Factors, int], others: dict[Factors, int], count: int) -> dict[Factors, int]:
    """Return the coefficients of a sum and `count` times another."""
    found = dict(terms)
    for factors, times in others.items():
        found[factors] = found.get(factors, 0) + count * times
    return found


def _least_product(factors: Factors) -> int:
    return prod(_least_atom(atom) ** power for atom, power in factors)


def _least_atom(atom: Atom) -> int:
    if isinstance(atom, Quotient):
        return (least(atom.dividend) or 0) // atom.divisor
    if isinstance(atom, FirstNonzero):
        return 1 if least(atom.operands[-1]) else 0
    return 0


def most(piece: Piece) -> int | None:
    """Return an upper bound of a piece, None if none is known."""
    low = least(product(-1, piece))
    return None if low is None else -low


def is_same(a: Piece, b: Piece) -> bool:
    """Return whether two pieces are known, and the same number in every run."""
    return a is not None and a == b


def are_equal(a: Piece, b: Piece) -> bool | None:
    """Return whether two pieces are the same number in every run, or in none; None elsewhere."""
    if is_same(a, b):
        return True
    if a is None or b is None:
        return None
    apart = difference(a, b)
    low, high = least(apart), most(apart)
    is_greater = low is not None and low > 0
    is_less = high is not None and high < 0
    return False if is_greater or is_less else None


def absorbs(a: Piece, b: Piece) -> bool:
    """Return whether a and b broadcast to a in every run in which they broadcast."""
    if a is None or b is None:
        return False
    # Where a is 0, or(a,c) broadcasts with it only if c is 0 or 1.
    if isinstance(b, FirstNonzero):
        return b.operands[0] == a
    # min(a,c) is a, or it is c and less: then it has to be 1. It is 1 where a is, if c is positive.
    apart = difference(a, b)
    bound = difference(a, apart.operand) if isinstance(apart, Positive) else None
    return isinstance(bound, int) and bound > 0


def is_less(a: Piece, b: Piece) -> bool | None:
    """Return whether a < b in every run, or in none; None elsewhere."""
    apart = difference(b, a)
    low, high = least(apart), most(apart)
    if low is not None and low > 0:
        return True
    return False if high is not None and high <= 0 else None


def atoms(piece: Piece) -> Iterator[str | Extent]:
    """Yield the symbols, and the extents of values, that a piece is computed from."""
    if isinstance(piece, str | Extent):
        yield piece
    elif isinstance(piece, Quotient):
        yield from atoms(piece.dividend)
    elif isinstance(piece, Positive):
        yield from atoms(piece.operand)
    elif isinstance(piece, FirstNonzero):
        for operand in piece.operands:
            yield from atoms(operand)
    elif isinstance(piece, Polynomial):
        for factors, _ in piece.terms:
            for atom, _ in factors:
                yield from atoms(atom)


FUNCTIONS: dict[str, Callable[..., Piece]] = {
    "add": total,
    "mul": product,
    "floordiv": quotient,
    "max": maximum,
    "or": first_nonzero,
}
"""The functions of which the text of a formula is made."""
