"""Counts that are part of the result are printed below it."""

from __future__ import annotations

import pytest


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
