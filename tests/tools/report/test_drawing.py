"""Drawings: no overlaps, edges that go down, text as text, and legible colours."""

from __future__ import annotations

import random
import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from irc.tools.report.drawing import EDGE, FILLS, MAX_BOXES, TEXT, Box, draw
from irc.tools.report.layered_layout import lay_out

SVG = "{http://www.w3.org/2000/svg}"


def random_reads(seed: int, count: int) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [
        tuple(rng.sample(range(i), min(i, rng.choice((0, 1, 1, 1, 2, 3))))) for i in range(count)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_boxes_do_not_overlap_and_edges_go_down(seed: int) -> None:
    reads = random_reads(seed, 3 + seed)
    widths = [float(random.Random(seed + i).randint(20, 200)) for i in range(len(reads))]
    layout = lay_out(widths, reads, 10)
    for a, b in combinations(range(len(widths)), 2):
        if layout.rows[a] == layout.rows[b]:
            assert abs(layout.centres[a] - layout.centres[b]) >= (widths[a] + widths[b]) / 2 + 9.99
    assert {(a, b) for a, b, _ in layout.edges} == {
        (a, b) for b, sources in enumerate(reads) for a in sources
    }
    for source, target, centres in layout.edges:
        assert layout.rows[source] < layout.rows[target]
        assert len(centres) == layout.rows[target] - layout.rows[source] + 1
        for row, x in enumerate(
            centres[1:-1], layout.rows[source] + 1
        ):  # no edge passes through a box
            boxes = [i for i, at in enumerate(layout.rows) if at == row]
            assert all(abs(x - layout.centres[i]) > widths[i] / 2 for i in boxes)
    assert all(
        x - w / 2 + 1e-6 >= 0 and x + w / 2 <= layout.width + 1e-6
        for x, w in zip(layout.centres, widths, strict=True)
    )
    assert layout == lay_out(widths, reads, 10)


def test_a_chain_is_straight_and_a_residual_block_goes_round() -> None:
    layout = lay_out([40, 40, 40, 40], [(), (0,), (1,), (2, 0)], 10)
    assert layout.rows == (0, 1, 2, 3)
    assert layout.centres[1] == pytest.approx(layout.centres[2])
    (skip,) = [centres for source, target, centres in layout.edges if (source, target) == (0, 3)]
    assert skip[1] == pytest.approx(skip[2])


def test_an_input_stands_above_its_first_reader() -> None:
    assert lay_out([9, 9, 9, 9], [(), (), (0,), (2, 1)], 1).rows == (0, 1, 1, 2)


def test_a_graph_without_boxes() -> None:
    assert lay_out([], [], 10).height == 0
    assert ElementTree.fromstring(draw(("", ()))).tag == f"{SVG}svg"


def test_names_are_text() -> None:
    odd = "</text><script>alert(1)</script>\"'&\x1b[31m\u202e"
    root = ElementTree.fromstring(draw((odd, [Box(odd, odd, odd)])))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        "svg",
        "g",
        "rect",
        "text",
        "tspan",
    }
    assert all(char not in "".join(root.itertext()) for char in "\x1b\u202e")


def test_a_large_graph_ends_with_the_number_of_other_operators() -> None:
    boxes = [Box("Relu", f"r{i}", reads=(i - 1,) if i else ()) for i in range(MAX_BOXES + 7)]
    texts = list(ElementTree.fromstring(draw(("", boxes))).itertext())
    assert f"r{MAX_BOXES - 1}" in texts and f"r{MAX_BOXES}" not in texts
    assert "7 more" in texts
    assert len(draw(("", [Box("Relu", f"r{i}") for i in range(20_000)]))) < 60_000


def test_nothing_is_loaded_and_nothing_runs() -> None:
    svg = draw(("before", [Box("Conv", "c")]), ("after", [Box("Conv", "c")]))
    assert not re.search(r"href|url\(|<script|\bon\w+=|<style|@import", svg)


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_read_on_light_and_dark_pages() -> None:
    """The contrasts of WCAG 2.2, level AA: 4.5 for text, 3 for lines."""
    for fill, border in FILLS.values():
        assert contrast(TEXT, fill) > 4.5
        assert contrast(border, fill) > 2.5
    for page in ("#ffffff", "#1e2129"):
        assert contrast(EDGE, page) > 3
    assert all(one != other for one, other in pairwise(fill for fill, _ in FILLS.values()))
