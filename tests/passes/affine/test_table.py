"""The table of affine rules holds the rules of every module of its folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import irc.passes.affine.rules
import pytest
from irc.passes.affine.rules.table import AFFINE_RULES

FOLDER = Path(irc.passes.affine.rules.__file__).parent


@pytest.mark.parametrize("name", [path.stem for path in FOLDER.glob("*.py")])
def test_the_table_has_the_rules_of_every_module(name: str) -> None:
    rules = getattr(import_module(f"irc.passes.affine.rules.{name}"), "RULES", {})
    assert {op: AFFINE_RULES[op] for op in rules} == rules
