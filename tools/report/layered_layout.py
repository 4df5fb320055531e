"""Places for the boxes of a graph without cycles: rows from the inputs down, with few crossings.

The method is Sugiyama's: longest paths make rows, a long edge passes through a place in each row,
sweeps of averages order the rows, and each place then moves towards its neighbours as far as the
others of its row let it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 6
"""Times that each row is ordered by the row above it, and by the row below it."""

BEND_WIDTH = 8.0
"""Width of the place of an edge that passes a row."""


@dataclass(slots=True)
class Place:
    """One place in a row: the centre `x`, and its neighbours along edges in the next rows."""

    width: float
    row: int
    x: float = 0.0
    above: tuple[int, ...] = ()
    below: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows of boxes, their centres across, and each edge's centres from row to row; all from 0."""

    rows: tuple[int, ...]
    centres: tuple[float, ...]
    edges: tuple[tuple[int, int, tuple[float, ...]], ...]
    width: float
    height: int


def lay_out(widths: Sequence[float], reads: Sequence[Sequence[int]], gap: float) -> Layout:
    """Return places for boxes of `widths`; `reads` are the boxes before each that it reads.

    Boxes come in topological order. Boxes of a row are `gap` apart or more.
    """
    rows: list[int] = []
    for sources in reads:
        rows.append(1 + max((rows[source] for source in sources), default=-1))
    # A box without an edge to it stands right above its first reader.
    for i in reversed(range(len(rows))):
        readers = [rows[j] for j in range(i + 1, len(rows)) if i in reads[j]]
        if not reads[i] and readers:
            rows[i] = min(readers) - 1
    places = [Place(width, row) for width, row in zip(widths, rows, strict=True)]
    routes = [
        (source, target, _route(source, target, places))
        for target, sources in enumerate(reads)
        for source in dict.fromkeys(sources)
    ]
    order = _ordered(places)
    _align(places, order, gap)
    left = min((place.x - place.width / 2 for place in places), default=0.0)
    for place in places:
        place.x -= left
    centres = tuple(places[i].x for i in range(len(widths)))
    edges = tuple((start, end, tuple(places[i].x for i in route)) for start, end, route in routes)
    width = max((place.x + place.width / 2 for place in places), default=0.0)
    return Layout(tuple(rows), centres, edges, width, 1 + max(rows, default=-1))


def _route(source: int, target: int, places: list[Place]) -> list[int]:
    """Return the places of an edge from source to target, new ones in the rows between."""
    route = [source]
    for row in range(places[source].row + 1, places[target].row):
        places.append(Place(BEND_WIDTH, row))
        route.append(len(places) - 1)
    route.append(target)
    for upper, lower in pairwise(route):
        places[upper].below += (lower,)
        places[lower].above += (upper,)
    return route


def _ordered(places: Sequence[Place]) -> list[list[int]]:
    """Return the places of each row from left to right."""
    height = 1 + max((place.row for place in places), default=-1)
    order: list[list[int]] = [[] for _ in range(height)]
    for i, place in enumerate(places):
        order[place.row].append(i)
    position = {i: float(at) for row in order for at, i in enumerate(row)}

    def sort(row: list[int], *, down: bool) -> None:
        def key(i: int) -> float:
            near = places[i].above if down else places[i].below
            return sum(position[j] for j in near) / len(near) if near else position[i]

        row.sort(key=key)
        position.update((i, float(at)) for at, i in enumerate(row))

    for _ in range(SWEEPS):
        for row in order:
            sort(row, down=True)
        for row in reversed(order):
            sort(row, down=False)
    return order


def _align(places: Sequence[Place], order: Sequence[Sequence[int]], gap: float) -> None:
    """Move each place towards the average of its neighbours, in the order of its row."""
    for row in order:
        x = 0.0
        for i in row:
            places[i].x = x + places[i].width / 2
            x += places[i].width + gap
    for _ in range(SWEEPS):
        for row in order:
            _move(places, row, [_mean(places, i, places[i].above) for i in row], gap)
        for row in reversed(order):
            _move(places, row, [_mean(places, i, places[i].below) for i in row], gap)
    # An edge is straight if its rows have room.
    for row in (*order, *reversed(order)) * SWEEPS:
        _move(places, row, [_mean(places, i, places[i].above + places[i].below) for i in row], gap)


def _mean(places: Sequence[Place], i: int, near: Sequence[int]) -> float:
    return sum(places[j].x for j in near) / len(near) if near else places[i].x


def _move(places: Sequence[Place], row: Sequence[int], wanted: Sequence[float], gap: float) -> None:
    """Put a row as near to `wanted` as it fits: least squares, by merging blocks that overlap."""
    offsets, blocks = [0.0], list[list[float]]()
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (places[left].width + places[right].width) / 2 + gap)
    for offset, x in zip(offsets, wanted, strict=False):
        blocks.append([x - offset, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (mean, count), (last, more) = blocks[-2:]
            blocks[-2:] = [[(mean * count + last * more) / (count + more), count + more]]
    starts = [mean for mean, count in blocks for _ in range(int(count))]
    for i, offset, start in zip(row, offsets, starts, strict=False):
        places[i].x = start + offset
