"""The table of affine rules, whose modules are imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import irc.passes.affine.rules
import pytest
from irc.passes.affine.rules.table import MODULES

FOLDER = Path(irc.passes.affine.rules.__file__).parent


@pytest.mark.parametrize("name", [path.stem for path in FOLDER.glob("*.py")])
def test_the_table_lists_the_operators_of_every_module_of_rules(name: str) -> None:
    assert MODULES.get(name, ()) == tuple(
        getattr(import_module(f"irc.passes.affine.rules.{name}"), "RULES", {})
    )
