"""The pages of the site as files: links, the menu, the operator table. No page is run."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import harness
import irc
import pytest
from irc.ir.ops import OPS
from irc.passes.affine.rules.table import AFFINE_RULES
from snippets import snippets

DOCS = harness.ROOT / "docs"
FILES = sorted(
    [
        *DOCS.glob("*.md"),
        *(harness.ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md")),
        *(harness.ROOT / "examples").rglob("README.md"),
    ]
)
_code = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_link = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
_heading = re.compile(r"^#+ (.+)$", re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as the site and GitHub make them."""
    text = re.sub(
        r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    found: set[str] = set()
    for title in _heading.findall(text):
        words = re.sub(r"[^\w\s-]", "", title).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", words))
    return found


def broken(page: Path, text: str) -> list[str]:
    """Return the links of `text`, which stands in `page`, that lead to no file or no heading."""
    found = []
    for path, anchor in _link.findall(_code.sub("", text)):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            found.append(f"{page.name}: {path}#{anchor}")
    return found


def test_no_link_is_broken() -> None:
    assert not [link for page in FILES for link in broken(page, page.read_text(encoding="utf-8"))]


def test_broken_links_are_found() -> None:
    page = DOCS / "index.md"
    for right, wrong in (
        ("[x](passes.md#foldscaleaxis)", "[x](passes.md#no-such-heading)"),
        ("[x](../SECURITY.md)", "[x](SECURITY.md)"),
        ("![x](before_after.svg)", "![x](none.svg)"),
        ("[x](#beside-other-tools)", "[x](#beside)"),
    ):
        assert not broken(page, right)
        assert broken(page, wrong)


def menu() -> dict[str, str]:
    """Return the menu that each page of the site is in, "" for the top."""
    text = (harness.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    found, title = {}, ""
    for line in text[text.index("\nnav:\n") :].splitlines():
        if match := re.fullmatch(r"( +)- (?:\"[^\"]+\"|[^:]+): *(\S*)", line):
            if not match[2]:
                title = line.strip(" -:")
            else:
                found[match[2]] = title if len(match[1]) > 2 else ""
    return found


MENU = menu()
ROOT_PAGES = {name.lower(): harness.ROOT / name for name in ("SECURITY.md", "CHANGELOG.md")}


def test_every_page_is_in_the_menu() -> None:
    assert set(MENU) == {page.name for page in DOCS.glob("*.md")} | set(ROOT_PAGES)


@pytest.mark.parametrize("page", [page for page in MENU if page != "changelog.md"])
def test_a_page_has_an_example(page: str) -> None:
    path = ROOT_PAGES.get(page, DOCS / page)
    objects = re.search(r"^::: ", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert snippets(path) or objects


def sentences() -> str:
    """Return the strings of the package without docstrings, one a line."""
    found: list[str] = []
    for path in Path(irc.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docs = {node.value for node in nodes if isinstance(node, ast.Expr)}
        found += [
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs
        ]
    return "\n".join(found)


def absent_messages(page: str, known: str) -> list[str]:
    """Return the messages of the tables of a page, in their first column, that irc never says."""
    cells = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    found = [text for cell in cells for text in re.findall("`([^`]+)`", cell)]
    assert len(found) > 15
    return [text for text in found if not all(part.strip() in known for part in text.split("…"))]


def test_the_messages_of_troubleshooting_are_those_of_irc() -> None:
    page, known = (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), sentences()
    assert not absent_messages(page, known)
    wrong = page.replace("an HTML page, not the model", "a page of HTML")
    assert len(absent_messages(wrong, known)) == 1


@cache
def site_pages() -> Any:
    return harness.script(DOCS / "site_pages.py")


def test_the_operator_page_has_a_row_for_each_operator() -> None:
    page = site_pages().on_page_markdown((DOCS / "operators.md").read_text(encoding="utf-8"))
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    found = {row[0].removeprefix("| `").removesuffix("`"): row for row in rows}
    assert set(OPS) <= set(found)
    assert all(len(found[name]) == 7 for name in OPS)
    cells = {name: found[name][6].removesuffix(" |") for name in OPS}
    assert {name for name, cell in cells.items() if cell.strip()} == set(AFFINE_RULES)
    assert cells["nn.relu"] == "both ways: op(s x) = s op(x) for s >= 0, whatever the slope."
    assert cells["nn.conv"].startswith("taken backward: weight [M, ")
    assert found["nn.conv"][1:5] == ["Conv", "1, 11, 22", "`data`, `weight`, `bias?`", "`output`"]
