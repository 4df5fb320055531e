"""Progress of calls from Python, for those who ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .hooks import provided

Advance = Callable[[str], None]
"""Called with the name of each step that is done."""


@contextmanager
def shown_progress(title: str, *, wanted: bool) -> Iterator[Advance]:
    """Show on standard error the steps that are done, if `wanted`.

    Otherwise nothing is imported. The block calls the function that it gets with the name of each
    step. Shows nothing in a file or pipe.
    """
    if not wanted:
        yield lambda step: None
        return
    with provided("progress")(title) as advance:
        yield advance
