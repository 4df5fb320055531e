"""The chosen exponents beside the best of all, by exhaustive search on small groups."""

from __future__ import annotations

import random
from itertools import product

import pytest
from irc.passes.scaling.exponents import Wish, choose

REACH = range(-8, 9)


def wishes(seed: int) -> list[Wish]:
    """Return random wishes of two components: ranges, constants, an end and products."""
    rng = random.Random(seed)
    found = [
        Wish({free: 1}, rng.randint(-6, 8), rng.choice([None, None, -2, 1]), rng.randint(1, 6))
        for free in range(2)
    ]
    for _ in range(rng.randint(2, 5)):
        row = {free: rng.choice([-2, -1, 1, 1, 2]) for free in rng.sample(range(2), 2)}
        kind = rng.random()
        if kind < 0.4:
            found.append(Wish(row, None, rng.choice([None, -6, 2]), is_change=True))
        elif kind < 0.6:
            found.append(Wish({rng.randrange(2): 1}, is_operator=True))
        else:
            found.append(Wish(row, rng.randint(-6, 6), None, rng.randint(1, 5)))
    return found


def cost(group: list[Wish], chosen: dict[int, int]) -> tuple[int, int]:
    """Return the values that are too large, and the operators that are added."""
    at = [(wish, wish.at(chosen)) for wish in group]
    above = sum(wish.values for wish, each in at if wish.most is not None and each > wish.most)
    return above, sum(wish.is_operator and each != 0 for wish, each in at)


@pytest.mark.parametrize("seed", range(60))
def test_no_exponents_have_fewer_values_too_large_or_operators(seed: int) -> None:
    group = wishes(seed)
    best = min(cost(group, dict(enumerate(each))) for each in product(REACH, repeat=2))
    assert cost(group, choose(group)) <= best


def test_two_components_move_together_where_each_alone_is_worse() -> None:
    """A value is too large in both, and a product of the quotient has no room."""
    group = [
        Wish({0: 1}, -4, values=2),
        Wish({1: 1}, None),
        Wish({0: 1, 1: -1}, 0, values=3),
        Wish({0: -1, 1: 1}, 0, values=3),
    ]
    assert choose(group) == {0: -4, 1: -4}
