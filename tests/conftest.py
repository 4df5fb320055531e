"""What pytest does for all tests.

Skip those of shared models that are missing, print the counts that tests record.
"""

from __future__ import annotations

import harness
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that are marked `shared` if the folder of shared models is missing."""
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
