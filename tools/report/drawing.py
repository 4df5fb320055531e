"""Drawings of graphs as SVG, legible on light and dark pages, without scripts or references."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from ...support.errors import visible
from .layered_layout import lay_out
from .notebook import escape

MAX_BOXES = 120
"""Most boxes that a drawing of a graph has."""

MAX_LABEL, MAX_NOTE = 34, 48
"""Characters of a name and of a note. Of a longer name the end is shown: it tells more."""

FILLS = {
    "end": ("#e8eaf6", "#5c6bc0"),
    "same": ("#f5f5f5", "#8d8d8d"),
    "removed": ("#fff3e0", "#ef6c00"),
    "changed": ("#e0f2f1", "#00897b"),
    "kept": ("#ffebee", "#d32f2f"),
    "more": ("#fafafa", "#8d8d8d"),
}
"""Fill and border of a box by its kind. The text is dark on all of them."""

LINE, MARGIN, GAP, ROW_GAP = 14, 8, 14, 14
"""Pixels: height of a line of text, space in a box, between boxes, and between rows."""

CHARACTER, BOLD = 6.2, 7.2
"""Pixels across of a character, and of a bold one. Fonts differ: most texts are narrower."""

EDGE, TEXT = "#7b8794", "#1f2933"
"""Colours of edges, which have contrast with white and with black, and of the text in boxes."""


@dataclass(frozen=True, slots=True)
class Box:
    """One operator, input or output: its operator, name and note, each of which may be empty.

    `reads` are the positions of the boxes that it has an edge from, `kind` is a key of FILLS.
    """

    operator: str
    name: str = ""
    note: str = ""
    reads: tuple[int, ...] = ()
    kind: str = "same"

    def lines(self) -> list[list[str]]:
        """Return the lines as they are drawn, each in one or two parts."""
        head = [_cut(text) for text in (self.operator, self.name) if text]
        return [line for line in (head, [_begun(self.note)] if self.note else []) if line] or [[""]]

    @property
    def width(self) -> float:
        """Pixels across."""
        space = bool(self.operator and self.name)
        head = BOLD * len(_cut(self.operator)) + CHARACTER * (len(_cut(self.name)) + space)
        return 2 * MARGIN + max(head, CHARACTER * len(_begun(self.note)))


class Boxes(list[Box]):
    """The boxes of a graph, linked by the values that they read and make."""

    def __init__(self) -> None:
        self._makers: dict[Hashable, int] = {}

    def link(
        self, box: Box, reads: Iterable[Hashable] = (), makes: Iterable[Hashable] = ()
    ) -> None:
        """Append `box` with an edge from each box that makes a value that it `reads`."""
        makers = dict.fromkeys(self._makers[value] for value in reads if value in self._makers)
        self._makers.update((value, len(self)) for value in makes)
        self.append(replace(box, reads=tuple(makers)))

    def link_result(self, name: str, value: Hashable) -> None:
        """Append a result of the graph, unless no box makes it."""
        if value in self._makers:
            self.link(Box(name, kind="end"), (value,))


def draw(*graphs: tuple[str, Sequence[Box]]) -> str:
    """Return graphs with titles side by side as one SVG; `boxes` are in topological order."""
    parts: list[str] = []
    left, bottom = 0.0, 0.0
    for title, boxes in graphs:
        graph, width, height = _graph(_limited(boxes))
        width = max(width, CHARACTER * len(title) + 2 * MARGIN)
        heading = ""
        if title:
            size = f'width="{_n(width)}" height="{LINE + 6}"'
            heading = f'<rect x="0" y="0" {size} rx="4" fill="#cfd8dc"/>'
            heading += _text([[visible(title)]], width / 2, LINE, "bold")
        parts.append(f'<g transform="translate({_n(left)} 0)">{heading}')
        parts.append(f'<g transform="translate(0 {2 * LINE if title else 0})">{graph}</g></g>')
        left += width + 3 * GAP
        bottom = max(bottom, height + (2 * LINE if title else 0))
    width = max(left - 3 * GAP, 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width + 2)}"'
        f' height="{_n(bottom + 2)}" '
        f'viewBox="-1 -1 {_n(width + 2)} {_n(bottom + 2)}" font-family="sans-serif" font-size="11">'
        f"{''.join(parts)}</svg>\n"
    )


def _limited(boxes: Sequence[Box]) -> Sequence[Box]:
    """Return the first MAX_BOXES boxes, and one that stands for the others."""
    if len(boxes) <= MAX_BOXES:
        return boxes
    shown = boxes[:MAX_BOXES]
    read = {source for box in boxes[MAX_BOXES:] for source in box.reads if source < MAX_BOXES}
    ends = tuple(sorted(read)) or (MAX_BOXES - 1,)
    return [*shown, Box(f"{len(boxes) - MAX_BOXES} more", "", "irc report shows all", ends, "more")]


def _graph(boxes: Sequence[Box]) -> tuple[str, float, float]:
    """Return the edges and boxes of a graph, its width and its height."""
    texts = [box.lines() for box in boxes]
    widths = [box.width for box in boxes]
    layout = lay_out(widths, [box.reads for box in boxes], GAP)
    heights = [LINE * len(lines) + 6.0 for lines in texts]
    tall = [0.0] * layout.height
    for row, height in zip(layout.rows, heights, strict=True):
        tall[row] = max(tall[row], height)
    tops = [sum(tall[:row]) + ROW_GAP * row for row in range(layout.height)]
    parts = []
    for source, target, centres in layout.edges:
        row = layout.rows[source]
        points = [(centres[0], tops[row] + heights[source])]
        for step, x in enumerate(centres[1:-1], 1):
            points += [(x, tops[row + step]), (x, tops[row + step] + tall[row + step])]
        points.append((centres[-1], tops[layout.rows[target]]))
        parts.append(f'<path d="{_curve(points)}" fill="none" stroke="{EDGE}" stroke-width="1.5"/>')
    sizes = zip(widths, heights, strict=True)
    places = zip(layout.centres, layout.rows, sizes, strict=True)
    for box, lines, (x, row, (width, height)) in zip(boxes, texts, places, strict=True):
        fill, border = FILLS[box.kind]
        dashes = ' stroke-dasharray="5 3"' if box.kind in ("removed", "more") else ""
        parts.append(
            f'<rect x="{_n(x - width / 2)}" y="{_n(tops[row])}" width="{_n(width)}"'
            f' height="{_n(height)}" rx="{9 if box.kind == "end" else 3}" fill="{fill}"'
            f' stroke="{border}"{dashes}/>'
        )
        parts.append(_text(lines, x, tops[row] + LINE, "bold" if box.kind != "end" else "normal"))
    bottom = tops[-1] + tall[-1] if tops else 0.0
    return "".join(parts), layout.width, bottom


def _text(lines: Sequence[Sequence[str]], x: float, y: float, weight: str) -> str:
    """Return lines of text around `x`, the first on the base line `y` and partly in `weight`."""
    found = []
    for i, (first, *rest) in enumerate(lines):
        bold = f' font-weight="{weight}"' if i == 0 and weight != "normal" else ""
        parts = "".join(f'<tspan dx="5">{escape(part)}</tspan>' for part in rest)
        found.append(
            f'<text x="{_n(x)}" y="{_n(y + LINE * i)}" text-anchor="middle" fill="{TEXT}">'
        )
        found.append(f"<tspan{bold}>{escape(first)}</tspan>{parts}</text>")
    return "".join(found)


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Return a path through points that leaves and enters each of them downwards."""
    x, y = points[0]
    found = [f"M{_n(x)} {_n(y)}"]
    for to_x, to_y in points[1:]:
        if to_x == x:
            found.append(f"V{_n(to_y)}")
        else:
            middle = _n((y + to_y) / 2)
            found.append(f"C{_n(x)} {middle} {_n(to_x)} {middle} {_n(to_x)} {_n(to_y)}")
        x, y = to_x, to_y
    return "".join(found)


def _cut(text: str) -> str:
    text = visible(text)
    return text if len(text) <= MAX_LABEL else f"…{text[-MAX_LABEL + 1 :]}"


def _begun(text: str) -> str:
    text = visible(text)
    return text if len(text) <= MAX_NOTE else f"{text[: MAX_NOTE - 1]}…"


def _n(number: float) -> str:
    """Return a coordinate, rounded to a tenth of a pixel."""
    return f"{round(number, 1) + 0.0:.1f}".removesuffix(".0")
