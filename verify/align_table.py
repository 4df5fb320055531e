"""What `irc align` prints: the table, as wide as the terminal, and what is said below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..support.errors import visible
from .alignment import Alignment
from .counterparts import NAME
from .difference import Row, undecided, undecided_share

BESIDE = 3
"""Columns of a terminal that a column of the table takes beside its text, and the table beside its columns."""
LEGIBLE = 24
"""Columns of a terminal that a name gets at least, before numbers are left out."""
DISPENSABLE = ("cosine", "max rel", "undecided", "SQNR dB", "inputs", "shape", "max abs")
"""What is left out where there is no room, in this order."""


@dataclass(slots=True)
class Column:
    """One column: its heading, and the texts below."""

    heading: str
    texts: Sequence[str]
    is_name: bool = False

    @property
    def width(self) -> int:
        """What the widest takes."""
        return max(map(cell_len, (self.heading, *self.texts)))


def print_alignment(found: Alignment, console: Console) -> None:
    """A table with the worst row of every tensor, sentences on those that only the first model has or of which nothing
    can be said, and one on the first that diverges.
    """
    if found.rows:
        rows = found.worst
        columns, left_out = fitted(columns_of(found, rows), console.width)
        table = Table()
        for column in columns:
            table.add_column(column.heading, no_wrap=True)
        for i, row in enumerate(rows):
            table.add_row(*(Text(column.texts[i]) for column in columns), style="bold red" if row.deviates else "")
        console.print(table)
        if left_out:
            _say(console, f"there is no room for {', '.join(left_out)}: --json has all")
    for name, note in found.alone:
        _say(console, f"{name}: only in the first{f' ({note})' if note else ''}")
    silent = undecided(found.rows)
    for name in silent:
        _say(
            console,
            f"{name}: nothing can be said, as it has no finite numbers, or rounding moves them by what they are",
        )
    first = found.first_divergence
    if first is None:
        share = undecided_share(found.rows)
        rest = f"; {share:.2g} of their elements are undecided" if share else ""
        _say(console, f"{len(found.worst) - len(silent)} tensors agree within what rounding can do{rest}")
    else:
        _say(
            console,
            f"the first to diverge is {first.tensor!r}: {first.max_abs:.3g}, {first.share:.3g} times the bound",
        )


def _say(console: Console, text: str) -> None:
    console.print(visible(text), markup=False, highlight=False)


def columns_of(found: Alignment, rows: Sequence[Row]) -> list[Column]:
    """All columns; what stands for a tensor in the second model where that is not what has its name."""
    others = {name: other for name, other in found.counterparts.items() if other.by != NAME}
    there = [others.get(row.value) for row in rows]
    columns = [Column("tensor", [visible(row.tensor) for row in rows], is_name=True)]
    if others:
        texts = [f"{visible(other.name)} ({other.by})" if other else "" for other in there]
        columns.append(Column("in the second", texts, is_name=True))
    return [
        *columns,
        Column("shape", ["x".join(map(str, row.shape)) or "scalar" for row in rows]),
        Column("max abs", [f"{row.max_abs:.3g}" for row in rows]),
        Column("max rel", [f"{row.max_rel:.3g}" for row in rows]),
        Column("cosine", [f"{row.cosine:.6f}" for row in rows]),
        Column("SQNR dB", [f"{row.sqnr:.1f}" for row in rows]),
        Column("of bound", [f"{row.share:.3g}" for row in rows]),
        Column(
            "undecided", [f"{row.undecided / max(prod(row.shape), 1):.3g}" if row.undecided else "" for row in rows]
        ),
        Column("inputs", [visible(row.inputs) for row in rows]),
    ]


def fitted(columns: Sequence[Column], width: int) -> tuple[list[Column], list[str]]:
    """The columns that fit into `width`, names shortened from the left, and the headings of those that do not."""
    kept, left_out = list(columns), []
    for heading in DISPENSABLE:
        if _room(kept, width) >= sum(min(name.width, LEGIBLE) for name in kept if name.is_name):
            break
        kept = [column for column in kept if column.heading != heading]
        left_out.append(heading)
    room = _room(kept, width)
    names = sorted((column for column in kept if column.is_name), key=lambda column: column.width)
    for i, column in enumerate(names):  # the shorter one leaves what it does not need to the other
        share = max(room // (len(names) - i), len(column.heading))
        column.texts = [shortened(text, share) for text in column.texts]
        room -= column.width
    return kept, left_out


def _room(columns: Iterable[Column], width: int) -> int:
    """What is left for the text of names."""
    columns = list(columns)
    taken = sum(column.width for column in columns if not column.is_name)
    return width - taken - BESIDE * len(columns) - 1


def shortened(text: str, width: int) -> str:
    """The end of a name, which tells more than its beginning, in `width` columns of a terminal."""
    if cell_len(text) <= width:
        return text
    end = text[-width:]  # no character takes less than one, but for those that take none
    while end and cell_len(end) > width - 1:
        end = end[1:]
    return f"…{end}"
