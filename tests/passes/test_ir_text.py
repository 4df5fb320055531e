"""The passes on modules written as text, one file a pass. docs/testing.md has the format."""

from __future__ import annotations

from ir_text import Case, cases, check_case


@cases("passes/*.irc")
def test_case(case: Case) -> None:
    check_case(case)
