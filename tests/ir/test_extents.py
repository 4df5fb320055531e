"""The normal form of integers that are computed from extents."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from irc.ir.extents import (
    MAX_TERMS,
    Extent,
    FirstNonzero,
    Piece,
    Polynomial,
    Positive,
    Quotient,
    absorbs,
    are_equal,
    atoms,
    difference,
    exact_quotient,
    first_nonzero,
    is_less,
    least,
    maximum,
    minimum,
    most,
    product,
    quotient,
    remainder,
    total,
    truncated_quotient,
)

Numbers = dict[str, int]
Function = Callable[[Numbers], int]
ENVIRONMENTS = [
    dict(zip("NML", numbers, strict=True))
    for numbers in itertools.product((0, 1, 2, 3, 7, 65), repeat=3)
]


def evaluated(piece: Piece, numbers: Numbers) -> int:
    """The number that a piece is where its symbols are `numbers`."""
    match piece:
        case int():
            return piece
        case str():
            return numbers[piece]
        case Quotient():
            return evaluated(piece.dividend, numbers) // piece.divisor
        case Positive():
            return max(0, evaluated(piece.operand, numbers))
        case FirstNonzero():
            operands = [evaluated(operand, numbers) for operand in piece.operands]
            return next((number for number in operands if number), 0)
    assert isinstance(piece, Polynomial)
    found = 0
    for factors, count in piece.terms:
        for atom, power in factors:
            count *= evaluated(atom, numbers) ** power
        found += count
    return found


BINARY: dict[str, tuple[Callable[[Piece, Piece], Piece], Callable[[int, int], int]]] = {
    "add": (total, lambda a, b: a + b),
    "subtract": (difference, lambda a, b: a - b),
    "multiply": (product, lambda a, b: a * b),
    "minimum": (minimum, min),
    "maximum": (maximum, max),
    "first_nonzero": (first_nonzero, lambda a, b: a or b),
}

BY_NUMBER: dict[str, tuple[Callable[[Piece, Piece], Piece], Callable[[int, int], int]]] = {
    "quotient": (quotient, lambda a, b: a // b),
    "truncated": (truncated_quotient, lambda a, b: int(a / b)),
    "remainder": (remainder, lambda a, b: a % b),
}

COMPARED: dict[str, tuple[Callable[[Piece, Piece], bool | None], Callable[[int, int], bool]]] = {
    "equal": (are_equal, lambda a, b: a == b),
    "less": (is_less, lambda a, b: a < b),
}


def grow(seed: int) -> None:
    """Check a row of random operations at sizes of the symbols: results, bounds and comparisons."""
    chance = random.Random(seed)
    pool: list[tuple[Piece, Function]] = [
        *((name, lambda e, name=name: e[name]) for name in "NML"),
        *((number, lambda e, number=number: number) for number in (-1, 0, 1, 2, 4)),
    ]
    for _ in range(chance.randrange(1, 8)):
        (a, of_a), (b, of_b) = chance.choice(pool), chance.choice(pool)
        kind = chance.choice([*BINARY, *BY_NUMBER, *COMPARED])
        sizes = chance.sample(ENVIRONMENTS, 16)
        if kind in COMPARED:
            compared, wanted = COMPARED[kind]
            said = compared(a, b)
            assert said is None or all(wanted(of_a(e), of_b(e)) == said for e in ENVIRONMENTS)
            continue
        if kind in BY_NUMBER:
            b = chance.choice((1, 2, 3, 4, 6))
            of_b = lambda e, b=b: b  # noqa: E731
        computed, function = (BINARY | BY_NUMBER)[kind]
        made: Function = lambda e, f=function, g=of_a, h=of_b: f(g(e), h(e))  # noqa: E731
        piece = computed(a, b)
        if piece is None:
            continue
        low, high = least(piece), most(piece)
        for numbers in sizes:
            number = made(numbers)
            assert evaluated(piece, numbers) == number, (seed, kind, str(a), str(b), str(piece))
            assert (low is None or low <= number) and (high is None or number <= high)
        pool.append((piece, made))


@pytest.mark.parametrize("block", range(4))
def test_random_expressions_are_the_numbers_that_python_computes(block: int) -> None:
    for seed in range(block * 1000, block * 1000 + 1000):
        grow(seed)


EQUAL = {
    "sums in another order": (total("N", "M", 1), total(1, "M", "N")),
    "a product of sums": (
        product(total("N", 1), total("N", -1)),
        total(product("N", "N"), -1),
    ),
    "a sum undone": (difference(total("N", "M"), "M"), "N"),
    "a whole part of a quotient": (quotient(total(product(4, "N"), 6), 4), total("N", 1)),
    "a common factor": (quotient(total(product(2, "N"), 1), 4), quotient("N", 2)),
    "a quotient of a quotient": (quotient(quotient("N", 2), 3), quotient("N", 6)),
    "what a slice drops and what it keeps": (
        difference("N", minimum("N", 1)),
        maximum(0, total("N", -1)),
    ),
    "the first of three that is not 0": (
        first_nonzero("N", first_nonzero("M", "N", 0, 4), 5),
        first_nonzero(first_nonzero("N", "M"), 4),
    ),
    "a factor where its product is 0": (first_nonzero(product(4, "N"), "N"), product(4, "N")),
    "a sum of products where a factor of both is 0": (
        first_nonzero("N", total(product("N", "M"), "N")),
        "N",
    ),
    "a quotient without its fraction that may be of -1": (
        truncated_quotient(total("N", -1), 8),
        quotient(maximum(total("N", -1), 0), 8),
    ),
    "a factor that cancels": (
        exact_quotient(product("N", "M", 8), product("M", 2)),
        product(4, "N"),
    ),
}


@pytest.mark.parametrize("which", EQUAL)
def test_equal_expressions_have_one_form(which: str) -> None:
    a, b = EQUAL[which]
    assert a is not None and a == b and hash(a) == hash(b)
    assert are_equal(a, b) is True


def test_expressions_that_some_sizes_make_equal_are_not_compared() -> None:
    assert are_equal("N", "M") is None and are_equal("N", 1) is None
    assert is_less("N", 1) is None and is_less(0, "N") is None
    assert are_equal("N", -1) is False and is_less("N", 0) is False
    assert are_equal(total("N", 1), "N") is False
    assert maximum("N", 0) == "N" and maximum("N", 1) != "N" and minimum("N", 1) != 1


def test_an_alternative_that_may_be_reached_stays() -> None:
    for first, other in (
        (product(4, "N"), "M"),
        (product("N", "M"), "N"),
        ("N", total("N", "M")),
        (total("N", "M"), "N"),
    ):
        assert are_equal(first_nonzero(first, other), first) is None


def test_a_quotient_of_what_may_be_negative_is_not_rounded() -> None:
    assert truncated_quotient(total("N", -2), 2) is None
    assert truncated_quotient(total("N", 1), 2) == quotient(total("N", 1), 2)
    assert remainder(total("N", -1), 2) is None and quotient("N", 0) is None
    assert exact_quotient(product(3, "N"), 2) is None and exact_quotient("N", "M") is None


def test_extents_of_values_are_symbols_of_their_own() -> None:
    a, b = object(), object()
    assert Extent(a, 0) == Extent(a, 0) != Extent(a, 1)
    assert are_equal(Extent(a, 0), Extent(b, 0)) is None
    assert product(2, Extent(a, 0)) == total(Extent(a, 0), Extent(a, 0))
    assert set(atoms(quotient(total(Extent(a, 0), product("N", "M")), 2))) == {
        Extent(a, 0),
        "N",
        "M",
    }


def test_a_long_expression_is_unknown() -> None:
    names = [f"s{i}" for i in range(MAX_TERMS + 1)]
    assert total(*names) is None and total(*names[1:]) is not None
    assert total(None, 1) is None and product(None, 0) is None


ABSORBED = {
    "the extent that a 0 copied": ("N", first_nonzero("N", "M")),
    "a slice of a table of positions": ("N", minimum("N", 512)),
    "another formula": (product(2, "N"), first_nonzero(product(2, "N"), 3)),
}
NOT_ABSORBED = {
    "an alternative": ("M", first_nonzero("N", "M")),
    "a slice that may be empty": ("N", minimum("N", 0)),
    "a slice of another table": ("N", minimum("N", "M")),
    "the shorter one": (minimum("N", 7), "N"),
    "another symbol": ("N", "M"),
}


@pytest.mark.parametrize("which", ABSORBED)
def test_an_extent_that_broadcasts_to_another_in_all_runs(which: str) -> None:
    a, b = ABSORBED[which]
    assert absorbs(a, b)
    for numbers in ENVIRONMENTS:
        x, y = evaluated(a, numbers), evaluated(b, numbers)
        if x == y or 1 in (x, y):
            assert x == (x if y == 1 else y)


@pytest.mark.parametrize("which", NOT_ABSORBED)
def test_an_extent_that_may_broadcast_to_something_else(which: str) -> None:
    assert not absorbs(*NOT_ABSORBED[which])
