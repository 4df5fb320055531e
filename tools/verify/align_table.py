"""The output of `irc align` on a terminal: a table of its width, and sentences below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...support.errors import listed, visible
from .alignment import Alignment
from .correspondence import NAME
from .difference import TensorDifference, undecided_tensors

PADDING = 3
"""Width that a column takes beside its text."""
MIN_NAME_WIDTH = 24
"""Width that a name gets at least, before columns are left out."""
MAX_NAMED = 3
"""Most names of one kind that are printed."""
DISPENSABLE = ("cosine", "max rel", "undecided", "SQNR dB", "inputs", "shape", "max abs")
"""Columns that are left out if there is no room, in this order."""


@dataclass(slots=True)
class Column:
    """One column: its heading, and the texts below."""

    heading: str
    texts: Sequence[str]
    is_name: bool = False

    @property
    def width(self) -> int:
        """Width of the widest text."""
        return max(map(cell_len, (self.heading, *self.texts)))


def print_alignment(alignment: Alignment, console: Console) -> None:
    """Print the verdict, a table of the worst differences, and the tensors left out."""
    for line in alignment.lines():
        print_line(console, line)
    if alignment.differences:
        worst = alignment.worst
        styles = ["bold red" if difference.deviates else "" for difference in worst]
        print_columns(console, make_columns(alignment, worst), styles)
    print_names(
        console,
        "undecided, since they are not finite or their rounding bounds as large as their values",
        undecided_tensors(alignment.differences),
    )
    notes = [f"{name} ({note})" if note else name for name, note in alignment.alone]
    print_names(console, "only in the first model", notes)


def print_names(console: Console, title: str, names: Iterable[str]) -> None:
    """Print how many names there are, and the first of them, on one line."""
    found = list(names)
    if found:
        count = "1 tensor" if len(found) == 1 else f"{len(found)} tensors"
        print_line(console, f"{title}: {count}: {listed(found, MAX_NAMED)}")


def print_columns(
    console: Console,
    columns: Sequence[Column],
    styles: Sequence[str],
    dispensable: Sequence[str] = DISPENSABLE,
) -> None:
    """Print a table with a row for each style; `dispensable` is as for `fit_columns`."""
    columns, left_out = fit_columns(columns, console.width, dispensable)
    table = Table()
    for column in columns:
        table.add_column(column.heading, no_wrap=True)
    for i, style in enumerate(styles):
        table.add_row(*(Text(column.texts[i]) for column in columns), style=style)
    console.print(table)
    if left_out:
        print_line(console, f"there is no room for {', '.join(left_out)}: --json has all columns")


def print_line(console: Console, text: str) -> None:
    """Print a line without markup."""
    console.print(visible(text), markup=False, highlight=False)


def make_columns(alignment: Alignment, differences: Sequence[TensorDifference]) -> list[Column]:
    """Return all columns; the column of names in the second model only if some are not equal."""
    renamed = {name: other for name, other in alignment.counterparts.items() if other.by != NAME}
    others = [renamed.get(one.value) for one in differences]
    columns = [Column("tensor", [visible(one.tensor) for one in differences], is_name=True)]
    if renamed:
        texts = [f"{visible(other.name)} ({other.by})" if other else "" for other in others]
        columns.append(Column("in the second", texts, is_name=True))
    undecided = [
        f"{one.undecided / max(prod(one.shape), 1):.3g}" if one.undecided else ""
        for one in differences
    ]
    limit = "of bound" if alignment.tolerance is None else "of tolerance"
    return [
        *columns,
        Column("shape", ["x".join(map(str, one.shape)) or "scalar" for one in differences]),
        Column("max abs", [f"{one.max_abs:.3g}" for one in differences]),
        Column("max rel", [f"{one.max_rel:.3g}" for one in differences]),
        Column("cosine", [f"{one.cosine:.6f}" for one in differences]),
        Column("SQNR dB", [f"{one.sqnr:.1f}" for one in differences]),
        Column(limit, [f"{one.share:.3g}" for one in differences]),
        Column("undecided", undecided),
        Column("inputs", [visible(one.inputs) for one in differences]),
    ]


def fit_columns(
    columns: Sequence[Column], width: int, dispensable: Sequence[str] = DISPENSABLE
) -> tuple[list[Column], list[str]]:
    """Return the columns that fit into `width`, with short names, and the headings left out.

    `dispensable` are the headings of columns that may be left out, in this order.
    """
    kept, left_out = list(columns), []
    least = sum(min(column.width, MIN_NAME_WIDTH) for column in columns if column.is_name)
    for heading in dispensable:
        if _name_room(kept, width) >= least:
            break
        kept = [column for column in kept if column.heading != heading]
        left_out.append(heading)
    room = _name_room(kept, width)
    names = sorted((column for column in kept if column.is_name), key=lambda column: column.width)
    # The shorter one leaves the room that it does not need to the other.
    for i, column in enumerate(names):
        share = max(room // (len(names) - i), len(column.heading))
        column.texts = [shorten(text, share) for text in column.texts]
        room -= column.width
    return kept, left_out


def _name_room(columns: Iterable[Column], width: int) -> int:
    """Return the width left for the text of names."""
    columns = list(columns)
    taken = sum(column.width for column in columns if not column.is_name)
    return width - taken - PADDING * len(columns) - 1


def shorten(text: str, width: int) -> str:
    """Return the end of a name in `width` cells of a terminal: it tells more than its beginning."""
    if cell_len(text) <= width:
        return text
    end = text[-width:]  # no character takes less than one cell, except those that take none
    while end and cell_len(end) > width - 1:
        end = end[1:]
    return f"…{end}"
