"""The table of `irc compile --table` and of `irc inspect A B`: sizes of models side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

TYPE_CHECKING = False  # of typing, which takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Any

    from .inspection import SizeFacts

Row = tuple[str, ...]


def size_rows(sizes: Sequence[SizeFacts], heads: Sequence[str]) -> list[Row]:
    """Return a row for each operator, and for the totals of two models."""
    types = sorted(
        {op for size in sizes for op in size["operators"]},
        key=lambda op: (-max(size["operators"].get(op, 0) for size in sizes), op),
    )

    def row(name: str, numbers: Iterable[int]) -> Row:
        return (name, *(f"{number:,}" for number in numbers))

    return [
        ("operator", *heads),
        *(row(op, (size["operators"].get(op, 0) for size in sizes)) for op in types),
        row("all operators", (sum(size["operators"].values()) for size in sizes)),
        row("parameters", (size["parameters"] for size in sizes)),
        row("bytes of parameters", (size["parameter_bytes"] for size in sizes)),
        row("multiplications", (size["macs"]["counted"] for size in sizes)),
    ]


def model_rows(models: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Row]:
    """Return a row for each model that was compiled, by its document, and their total."""
    found = [(name, document["sizes"]) for name, document in models if "sizes" in document]

    def numbers(sizes: Sequence[SizeFacts]) -> list[int]:
        kinds = [
            [sum(size["operators"].values()) for size in sizes],
            [size["parameters"] for size in sizes],
            [size["macs"]["counted"] for size in sizes],
        ]
        return [number for pair in kinds for number in pair]

    rows = [(name, numbers(sizes)) for name, sizes in found]
    total = [sum(column) for column in zip(*(row for _, row in rows), strict=True)]
    heads = ("operators", "after", "parameters", "after", "multiplications", "after")
    return [
        ("model", *heads),
        *((name, *(f"{number:,}" for number in row)) for name, row in rows),
        ("all models", *(f"{number:,}" for number in total)),
    ]


def table_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the rows as lines, names to the left and numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for name, *numbers in rows:
        cells = (text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True))
        yield "  ".join((name.ljust(widths[0]), *cells))
