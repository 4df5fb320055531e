"""The rules of SimplifyExpr on modules written as text, a file for each group. docs/testing.md has
the format.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import irc.passes.simplify
import pytest
from ir_text import Case, cases, check_case
from irc.passes.simplify.rule_set import MODULES

FOLDER = Path(irc.passes.simplify.__file__).parent


@cases("passes/simplify/*.irc")
def test_rule(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("name", [path.stem for path in FOLDER.glob("*.py")])
def test_the_table_lists_the_operators_of_every_module_of_rules(name: str) -> None:
    rules = getattr(import_module(f"irc.passes.simplify.{name}"), "RULES", {})
    assert name == "rule_set" or MODULES.get(name, ()) == tuple(rules)
