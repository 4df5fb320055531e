"""The reason codes of refusals.

Those in the source are those that schema, entries and documentation list.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from harness import ROOT
from irc.backends.foldmap.entries import ReasonCode

ROOMS = (
    "backends",
    "codec",
    "commands",
    "frontends",
    "ir",
    "parallel",
    "passes",
    "report",
    "support",
    "verify",
)
MAKERS = ("Refused", "Refusal", "_refused")
MODULES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def strings(tree: ast.AST) -> set[str]:
    """The texts in an expression."""
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def first_arguments(tree: ast.AST) -> Iterator[ast.expr]:
    """The code of every refusal that a module makes."""
    for node in ast.walk(tree):
        name = (
            node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        )
        if isinstance(node, ast.Call) and name in MAKERS:
            yield (
                node.args[0]
                if node.args
                else next(word.value for word in node.keywords if word.arg == "code")
            )


def assigned(tree: ast.AST, name: str) -> set[str]:
    """The texts that a module may assign to a name."""
    assigns = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    return {
        text
        for node in assigns
        if any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        for text in strings(node.value)
    }


def codes(paths: list[Path]) -> dict[str, str]:
    """Each code in the source, with a module that uses it."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in paths}
    shared = {
        name: text for tree in trees.values() for name in ("CODE",) for text in assigned(tree, name)
    }
    found: dict[str, str] = {}
    for path, tree in trees.items():
        for argument in first_arguments(tree):
            texts = strings(argument)
            if isinstance(argument, ast.Name):
                texts = (
                    {shared[argument.id]} if argument.id in shared else assigned(tree, argument.id)
                )
            found.update((text, path.name) for text in texts)
    return found


def documented() -> dict[str, str]:
    """Each code that docs/reasons.md explains, with its section."""
    _, *sections = re.split(
        r"^## ", (ROOT / "docs" / "reasons.md").read_text("utf-8"), flags=re.MULTILINE
    )
    return {section.split("\n")[0]: section for section in sections}


def test_the_codes_in_the_source_are_those_of_the_entries() -> None:
    found = codes(MODULES)
    assert set(found) == set(get_args(ReasonCode)), found


def test_the_codes_of_the_schema_are_those_of_the_entries() -> None:
    schema = json.loads((ROOT / "backends" / "foldmap" / "schema.json").read_text("utf-8"))
    reason = schema["$defs"]["source"]["properties"]["reason"]["oneOf"][1]["enum"]
    assert sorted(reason) == sorted(get_args(ReasonCode))


def test_each_code_is_documented_once_and_linked_from_the_head_of_the_page() -> None:
    assert list(documented()) == sorted(get_args(ReasonCode))
    head = (ROOT / "docs" / "reasons.md").read_text("utf-8").split("\n## ")[0]
    linked = re.findall(r"\[`(\w+)`\]\(#(\w+)\)", head)
    assert sorted(linked) == [(code, code) for code in documented()]


@pytest.mark.parametrize("code", get_args(ReasonCode))
def test_the_page_shows_a_model_that_has_the_code_and_a_remedy(code: str) -> None:
    """tests/docs/test_site.py runs the commands, and holds the page to what they print."""
    example, remedy = documented()[code].split("**Remedy:**")
    shown = re.findall(r"```console\n(.*?)```", example, re.DOTALL)
    assert "```onnx\n" in example
    assert len(shown) == 1 and f" kept ({code}): " in shown[0]
    if "none is needed. The" in remedy:
        return
    (after,) = re.findall(r"```console\n(.*?)```", remedy, re.DOTALL)
    assert ": folded into " in after or ": merged: " in after
    assert " kept (" not in after


def test_a_code_that_is_not_listed_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        'raise Refused("of_its_own", "why")\ncode = "other" if x else "third"\nRefusal(code,'
        ' "why")\n'
    )
    assert set(codes([module])) == {"of_its_own", "other", "third"}
