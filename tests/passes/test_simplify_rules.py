"""The rules of SimplifyExpr on modules written as text, a file for each group. docs/testing.md has the format."""

from __future__ import annotations

from ir_text import Case, cases, check_case


@cases("passes/simplify/*.irc")
def test_rule(case: Case) -> None:
    check_case(case)
