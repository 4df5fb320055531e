"""The rules of SimplifyExpr as text, a file for each group. docs/testing.md has the format."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import irc.passes.simplify
import pytest
from ir_text import TESTS, Case, cases, check_case, read_cases
from irc.passes.simplify.rule_set import MODULES

FOLDER = Path(irc.passes.simplify.__file__).parent


@cases("passes/simplify/*.irc")
def test_rule(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("name", [path.stem for path in FOLDER.glob("*.py")])
def test_the_table_has_every_module_of_rules(name: str) -> None:
    module = import_module(f"irc.passes.simplify.{name}")
    assert name == "rule_set" or hasattr(module, "RULES") == (module in MODULES)


def test_every_rule_has_a_case_in_which_it_applies_and_one_in_which_it_declines() -> None:
    modules = [import_module(f"irc.passes.simplify.{path.stem}") for path in FOLDER.glob("*.py")]
    tables = [getattr(module, "RULES", {}) for module in modules]
    rules = {
        rule.name for table in tables for of_operator in table.values() for rule in of_operator
    }
    assert len(rules) > 50
    applied: set[str] = set()
    declined: set[str] = set()
    for file in TESTS.glob("passes/**/*.irc"):
        for case in read_cases(file):
            (declined if case.expected is None else applied).update(case.rules)
    assert rules - applied == set(), "no case in which they apply"
    assert rules - declined == set(), (
        "no case `// UNCHANGED` in which they are tried and decline: a rule with `reads` is not"
        " tried where none of these operators computes an operand"
    )


def test_no_key_of_a_table_displaces_rules_of_another() -> None:
    for path in FOLDER.glob("*.py"):
        module = vars(import_module(f"irc.passes.simplify.{path.stem}"))
        for table in ast.parse(path.read_text()).body:
            if not isinstance(table, ast.AnnAssign) or ast.unparse(table.target) != "RULES":
                continue
            if not isinstance(table.value, ast.Dict):
                continue
            keys = [
                key
                for name, entry in zip(table.value.keys, table.value.values, strict=True)
                for key in eval(f"[{ast.unparse(name)}]" if name else ast.unparse(entry), module)
            ]
            assert len(keys) == len(set(keys)), f"{path.name} has an operator twice"
