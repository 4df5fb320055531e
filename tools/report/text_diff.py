"""Compare two IR texts, in bounded time and space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import islice

from .page_text import short

MAX_COMPARED = 8_000
"""Texts that differ over more lines are only counted: matching their lines would take too long."""
MAX_LINES = 1_000
"""Lines of a diff that are kept."""
MAX_WIDTH = 400
"""Characters of a line that are kept."""
CONTEXT = 2


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff: line counts, the first `lines` without header, and the number `left_out`."""

    added: int = 0
    removed: int = 0
    lines: tuple[str, ...] = ()
    left_out: int | None = 0


def diff(before: Sequence[str], after: Sequence[str]) -> Diff:
    """Return the diff that leads from `before` to `after`."""
    if before is after or list(before) == list(after):
        return Diff()
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if len(old) + len(new) > MAX_COMPARED:
        lost, gained = Counter(old), Counter(new)
        return Diff((gained - lost).total(), (lost - gained).total(), (), None)
    around = slice(max(0, head - CONTEXT), None)
    old, new = before[around][: len(old) + 2 * CONTEXT], after[around][: len(new) + 2 * CONTEXT]
    lines = list(islice(unified_diff(old, new, n=CONTEXT, lineterm=""), 2, None))
    shown = tuple(_shifted(short(line, MAX_WIDTH), around.start) for line in lines[:MAX_LINES])
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    return Diff(added, removed, shown, len(lines) - len(shown))


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the number of lines with which both begin."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count


def _shifted(line: str, by: int) -> str:
    """Return a line of a diff; the line numbers of a hunk header move by `by`."""
    if not line.startswith("@@"):
        return line
    parts = line.split()
    for i in (1, 2):
        start, comma, count = parts[i][1:].partition(",")
        parts[i] = f"{parts[i][0]}{int(start) + by}{comma}{count}"
    return " ".join(parts)
