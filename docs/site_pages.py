"""Pages of the site that are files of the repository's root, links to them, and the operator table.

Called by mkdocs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from irc.ir.ops import FAMILIES
from irc.ir.ops.row import OpInfo
from irc.passes.affine.rules.derived_rules import derived_backward
from irc.passes.affine.rules.table import affine_rule

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT_FILES = {"security.md": "SECURITY.md", "changelog.md": "CHANGELOG.md"}
TABLE = "<!-- the operators -->"
"""The place of the operator table in a page."""

HEAD = (
    "| operator | ONNX | versions | operands | results | attributes | scale and shift |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)

_subjects = re.compile(r"[A-Z]\w*(, [A-Z]\w*)*: ")
"""The operators with which a docstring begins."""


def on_files(files: Files, *, config: Any) -> Files:
    """Add the files of the root, with links as they are in docs/."""
    from mkdocs.structure.files import File

    root = Path(config["config_file_path"]).parent
    for page, name in ROOT_FILES.items():
        text = (root / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to the files of the root lead to their pages, and put in the operator table."""
    for page, name in ROOT_FILES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown.replace(TABLE, operators()) if TABLE in markdown else markdown


def operators() -> str:
    """Return a section for each family of operators, with a table row for each operator."""
    sections = []
    for family in FAMILIES:
        title = (family.__doc__ or "").partition("\n")[0].rstrip(".")
        sections.append("\n".join((f"## {title}", "", *HEAD, *map(_row, family.ROWS))))
    return "\n\n".join(sections)


def _row(info: OpInfo) -> str:
    versions = _versions().get(info.onnx or "", [])
    cells = (
        f"`{info.name}`",
        info.onnx or "",
        ", ".join(str(schema.since_version) for schema in versions),
        _code(info.inputs),
        _code(info.results),
        _code(sorted(versions[-1].attributes if versions else info.attrs)),
        "<br>".join(ways(info)),
    )
    return f"| {' | '.join(cells)} |"


@cache
def _versions() -> dict[str, list[Any]]:
    """Return the schemas of each operator of ONNX's own domain, the oldest first."""
    found: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and not schema.deprecated:
            found.setdefault(schema.name, []).append(schema)
    return {
        name: sorted(each, key=lambda schema: schema.since_version) for name, each in found.items()
    }


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def ways(info: OpInfo) -> Iterator[str]:
    """Yield how scales and shifts pass an operator or go into it, nothing if it stops them."""
    if info.affine is not None:
        yield "is one itself where its other operands are constant"
    rule = affine_rule(info.name)
    if rule.backward is derived_backward and info.channels is not None:
        yield f"both ways: {_statement(info.channels)}"
        return
    for way, function in (
        ("taken backward", rule.absorb_result),
        ("taken forward", rule.absorb_data),
        ("backward", rule.backward),
        ("forward", rule.forward),
    ):
        if function is not None:
            yield f"{way}: {_statement(function)}"


def _statement(function: Any) -> str:
    """Return the first line of a docstring, without the operators that it is about."""
    return _subjects.sub("", function.__doc__.partition("\n")[0], count=1)
