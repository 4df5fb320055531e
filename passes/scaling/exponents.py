"""The exponents of all values at once: components of one exponent, equations, and a choice.

Values that share an exponent are a component. Equations between components are solved for as few
of them as determine the others, with whole factors; what has no such solution keeps exponent 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd

from msgspec import Struct

from ...ir.graph import Value
from .homogeneity import Terms

Row = dict[int, int]
"""A sum of exponents of components, each with a factor."""

Step = tuple[int, int]
"""A free component, and another exponent of it."""

MOST_STEPS = 400
"""Steps beyond which two are not tried together."""

ROUNDS = 200
"""Most changes of one free component until a group is settled."""

LARGEST_EXPONENT = 60
"""Beyond it numbers of float32 come near the ends of its range."""


class Exponents:
    """The exponents of values, as sums of exponents of components that are free.

    + Component numbers are the places of their first values.
    """

    def __init__(self, values: Sequence[Value], equations: Iterable[Terms]) -> None:
        from networkx import Graph, connected_components  # 0.2 s

        self.values = values
        place = {value: i for i, value in enumerate(values)}
        shared: Graph[int] = Graph()
        zero = len(values)
        shared.add_nodes_from(range(zero + 1))
        others: list[Terms] = []
        for terms in equations:
            factors = list(terms.values())
            if not terms:
                continue
            if len(terms) == 1:
                shared.add_edge(place[next(iter(terms))], zero)
            elif len(terms) == 2 and sorted(factors) == [-1, 1]:
                shared.add_edge(*(place[value] for value in terms))
            else:
                others.append(terms)
        self.component: dict[Value, int] = {}
        for members in connected_components(shared):
            number = zero if zero in members else min(members)
            self.component.update((values[i], number) for i in members if i != zero)
        self.rows: dict[int, Row] = {zero: {}}
        """The exponents of components that depend on others."""
        for terms in others:
            self._eliminate(self.row(terms))

    def row(self, terms: Terms) -> Row:
        """Return a sum of exponents in terms of free components."""
        found: Row = {}
        for value, factor in terms.items():
            component = self.component[value]
            for free, own in self.rows.get(component, {component: 1}).items():
                found[free] = found.get(free, 0) + factor * own
        return {free: factor for free, factor in found.items() if factor}

    def _eliminate(self, row: Row) -> None:
        """Let a sum of free components be 0."""
        if not row:
            return
        divisor = gcd(*row.values())
        row = {free: factor // divisor for free, factor in row.items()}
        unit = max((free for free, factor in row.items() if abs(factor) == 1), default=None)
        if unit is None:
            for free in row:
                self._substitute(free, {})
            return
        sign = row.pop(unit)
        self._substitute(unit, {free: -factor * sign for free, factor in row.items()})

    def _substitute(self, gone: int, row: Row) -> None:
        """Put a sum of others in place of a free component."""
        for component, own in self.rows.items():
            factor = own.pop(gone, 0)
            if factor:
                for free, each in row.items():
                    own[free] = own.get(free, 0) + factor * each
                self.rows[component] = {free: each for free, each in own.items() if each}
        self.rows[gone] = dict(row)

    def freeze(self, row: Row) -> None:
        """Let the free components of a sum have exponent 0."""
        for free in row:
            self._substitute(free, {})


class Wish(Struct, eq=False):
    """What is wished of a sum of exponents: at most `most`, at least `least` if that can be had.

    `values` is the number of values that are too large above `most`. An exponent other than 0
    changes a constant if `is_change`, and takes an operator if `is_operator`.
    """

    row: Row
    most: int | None = None
    least: int | None = None
    values: int = 1
    is_change: bool = False
    is_operator: bool = False

    def at(self, chosen: Mapping[int, int]) -> int:
        """Return the exponent for chosen exponents of the free components."""
        return sum([factor * chosen.get(free, 0) for free, factor in self.row.items()])


def choose(wishes: Sequence[Wish]) -> dict[int, int]:
    """Return exponents of the free components that fulfil the wishes as far as possible.

    First of all as few values as possible are too large, then as few operators as possible are
    added, then the bounds from below hold, then as few constants as possible change, then the
    exponents are small.
    """
    chosen: dict[int, int] = {}
    for group in _groups(wishes):
        chosen |= _settled(group)
    return {free: exponent for free, exponent in chosen.items() if exponent}


def _groups(wishes: Sequence[Wish]) -> list[list[Wish]]:
    """Return wishes in groups that have no free component in common."""
    from networkx import Graph, connected_components

    graph: Graph[int] = Graph()
    for wish in wishes:
        frees = list(wish.row)
        graph.add_nodes_from(frees)
        graph.add_edges_from((frees[0], other) for other in frees[1:])
    number = {free: i for i, members in enumerate(connected_components(graph)) for free in members}
    found: dict[int, list[Wish]] = {}
    for wish in wishes:
        if wish.row:
            found.setdefault(number[next(iter(wish.row))], []).append(wish)
    return list(found.values())


def _settled(group: Sequence[Wish]) -> dict[int, int]:
    """Return exponents for one group, by steps of one free component, or of two where none helps.

    Two that a wish has in common may be better together, where each alone is worse.
    """
    chosen: dict[int, int] = {}
    if not any(_is_broken(wish) for wish in group):
        return chosen
    near: dict[int, list[Wish]] = {}
    for wish in group:
        for free in wish.row:
            near.setdefault(free, []).append(wish)
    for _ in range(ROUNDS):
        steps = _steps(group, chosen)
        found = _best(((step,) for step in steps), near, chosen)
        if found is None and len(steps) <= MOST_STEPS:
            found = _best(_pairs(steps, near, chosen), near, chosen)
        if found is None:
            break
        chosen.update(found)
    return chosen


def _is_broken(wish: Wish) -> bool:
    """Return whether the exponent 0 is not what `wish` asks."""
    return (wish.most is not None and wish.most < 0) or (wish.least is not None and wish.least > 0)


def _pairs(
    steps: Sequence[Step], near: Mapping[int, Sequence[Wish]], chosen: Mapping[int, int]
) -> Iterator[tuple[Step, ...]]:
    """Yield two steps each: any, and one of another component that shares a wish with it."""
    for step in steps:
        free, exponent = step
        tried = {**chosen, free: exponent}
        for other in _steps(near[free], tried):
            if other[0] != free:
                yield step, other


def _best(
    moves: Iterable[tuple[Step, ...]], near: Mapping[int, Sequence[Wish]], chosen: Mapping[int, int]
) -> dict[int, int] | None:
    """Return the exponents of the move that gains most, None if none gains. Of equals the first."""
    best: tuple[tuple[int, ...], dict[int, int]] | None = None
    for move in moves:
        tried = {**chosen, **dict(move)}
        wishes = near[move[0][0]]
        for free, _ in move[1:]:
            wishes = [*wishes, *(wish for wish in near[free] if move[0][0] not in wish.row)]
        before, after = _cost(wishes, chosen), _cost(wishes, tried)
        gain = tuple([new - old for new, old in zip(after, before, strict=True)])
        if gain < (best[0] if best is not None else (0,) * len(gain)):
            best = gain, dict(move)
    return None if best is None else best[1]


def _steps(group: Sequence[Wish], chosen: Mapping[int, int]) -> list[Step]:
    """Return the exponents of one free component each that would fulfil a wish, or be 0."""
    found: dict[tuple[int, int], None] = {}
    for wish in group:
        now = wish.at(chosen)
        for free, factor in wish.row.items():
            at = chosen.get(free, 0)
            for bound in (wish.most, wish.least, 0):
                if bound is None:
                    continue
                step = (bound - now) / factor
                for whole in (int(step // 1), -int(-step // 1)):
                    if abs(at + whole) <= LARGEST_EXPONENT:
                        found[free, at + whole] = None
            found[free, 0] = None
    return [(free, exponent) for free, exponent in found if exponent != chosen.get(free, 0)]


def _cost(group: Sequence[Wish], chosen: Mapping[int, int]) -> tuple[int, ...]:
    """Return how far exponents are from what is wished, most important first."""
    above = operators = below = changes = size = 0
    for wish in group:
        exponent = wish.at(chosen)
        if wish.most is not None and exponent > wish.most:
            above += wish.values
        if wish.least is not None and exponent < wish.least:
            below += wish.least - exponent
        changes += wish.is_change and exponent != 0
        operators += wish.is_operator and exponent != 0
        size += abs(exponent)
    return above, operators, below, changes, size
