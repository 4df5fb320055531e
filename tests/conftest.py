"""What pytest does for all tests.

Skip those of shared models that are missing, print the counts that tests record.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import harness
import pytest

MARKS = ("slow", "shared")


@cache
def marks_in(path: Path) -> frozenset[str]:
    """Return the marks whose names stand anywhere in a file."""
    text = path.read_text(encoding="utf-8").lower()
    return frozenset(mark for mark in MARKS if mark in text)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m slow` or `-m shared`, import no file without the word: all take ten seconds."""
    mark = config.option.markexpr
    is_file = mark in MARKS and collection_path.name.startswith("test_")
    return (mark not in marks_in(collection_path) or None) if is_file else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that are marked `shared` if the folder of shared models is missing."""
    for item in items:
        for mark in item.iter_markers():
            if mark.name in MARKS and mark.name not in marks_in(item.path):
                raise pytest.UsageError(f"{item.path}: -m {mark.name} does not find the word in it")
    if not harness.SHARED.is_dir():
        skip = pytest.mark.skip(reason=harness.ALONE)
        for item in items:
            if item.get_closest_marker("shared"):
                item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests recorded as `compared`: how many models, and with what outcome."""
    lines = [
        str(value)
        for report in terminalreporter.getreports("passed")
        for key, value in report.user_properties
        if key == "compared"
    ]
    if lines:
        terminalreporter.section("compared")
        for line in sorted(lines):
            terminalreporter.write_line(line)
