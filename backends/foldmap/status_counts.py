"""How many affines of a source have which status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def count_statuses(found: Iterable[tuple[str, str | None]]) -> Counter[str]:
    """Count pairs of status and reason; affines that are kept count as `kept: <reason>`."""
    return Counter(f"kept: {reason}" if status == "kept" else status for status, reason in found)


def statuses(counts: Counter[str]) -> str:
    """Return the counts of `FoldMap.count` in one line."""
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none"
