"""HTML of objects in a notebook, in a frame of its own, so that it does not restyle the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from re import findall

from ...support.errors import visible

MAX_ROWS = 200
"""Most rows of a table that is shown."""

_STYLE = (
    ":root{color-scheme:light dark}body{font:13px"
    " sans-serif;margin:4px}table{border-collapse:collapse;margin:6px"
    " 0}th,td{text-align:left;padding:2px 10px 2px 0;vertical-align:top;border-bottom:1px solid"
    " #8884}pre{overflow:auto}summary{cursor:pointer}"
)

_ROW, _MAX_HEIGHT = 24, 480
"""Pixels of a row, and of the frame at most."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table of at most MAX_ROWS rows, and the number of others in the last one."""
    lines = [[_text(cell) for cell in row] for row in rows]
    left = len(lines) - MAX_ROWS
    if left > 0:
        lines[MAX_ROWS:] = [[f"and {left} more"]]
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    if not lines:
        return ""
    heading = "".join(f"<th>{_text(cell)}</th>" for cell in head)
    return f"<table><tr>{heading}</tr>{cells}</table>"


def folded_text(title: str, text: str) -> str:
    """Return a text that opens by a click on its title."""
    shown = escape(visible(text, keep="\n"))
    return f"<details><summary>{_text(title)}</summary><pre>{shown}</pre></details>"


def frame(title: str, *parts: str) -> str:
    """Return a frame with a title and parts of HTML.

    Nothing in it may run, load, or reach the page around it.
    """
    page = (
        "<!DOCTYPE html><meta"
        f" charset=utf-8><style>{_STYLE}</style><b>{_text(title)}</b>{''.join(parts)}"
    )
    rows = 2 + sum(part.count("<tr>") + part.count("<details>") for part in parts)
    drawn = sum(map(int, findall(r'<svg [^>]*? height="(\d+)', "".join(parts))))
    height = min(_MAX_HEIGHT, _ROW * rows + 16 + drawn)
    return (
        f'<iframe sandbox="" srcdoc="{escape(page)}"'
        f' style="width:100%;height:{height}px;border:0"></iframe>'
    )


def escape(text: str) -> str:
    """Return text for HTML. Python's `html` takes longer to import than all of this module."""
    for char, entity in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ('"', "&quot;"),
        ("'", "&#x27;"),
    ):
        text = text.replace(char, entity)
    return text


def _text(value: object) -> str:
    return escape(visible(str(value)))
