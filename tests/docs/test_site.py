"""The pages of the site, README and the examples.

Every code block runs and prints what the page shows.

A block that cannot run here says why in a comment above it: `<!-- not run: needs torch -->`.
"""

from __future__ import annotations

import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import harness
import pytest
from irc.backends.foldmap.entries import StatusName
from irc.passes.data_free.value_ranges import Origin
from site_models import SETUP
from snippets import RUN, SHOWN, Session, Snippet, indented, snippets

DOCS = harness.ROOT / "docs"
PAGES = [
    *(
        harness.ROOT / name
        for name in ("README.md", "SECURITY.md", "examples/README.md", "examples/plugin/README.md")
    ),
    *sorted(
        page for page in DOCS.glob("*.md") if page.name != "study.md"
    ),  # which `make study` writes, with its models
]
NEEDS = {"needs torch": "torch", "needs AIMET": "aimet_onnx", "needs NNCF": "nncf"}
"""Packages that other environments have: `make test-exporters` and `make test-quantizers` run these
blocks.
"""

REASONS = {
    **dict.fromkeys(NEEDS, "not installed where the tests run"),
    "a form": "a command with its options in brackets, or with names in capitals",
    "needs Dask": "and a scheduler that waits for jobs",
    "needs Qualcomm's tools": "not on the package index",
    "a part of a file": "of a module or pipeline definition, with names that stand elsewhere",
    "installs packages": "needs the network",
    "needs the tools of the study": "the dependency group peers",
    "takes minutes": "a benchmark, or a run of the tests",
    "runs on GitHub": "a workflow",
}
"""Why a block is not run, as the comments of the pages say it."""

blocks = {page: snippets(page) for page in PAGES}


def title(page: Path) -> str:
    return str(page.relative_to(harness.ROOT))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.language in RUN for block in blocks[page])],
    ids=title,
)
def test_code_of_a_page_runs_as_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    names: dict[str, Any] = {}
    SETUP.get(page.name if page.parent == DOCS else title(page), lambda folder, names: None)(
        tmp_path, names
    )
    session = Session(tmp_path, names)
    for block in blocks[page]:
        if block.language in RUN and is_run(block):
            session.run(block)
    for picture in tmp_path.glob("*.svg"):
        assert without_shares(picture) == without_shares(DOCS / picture.name), (
            f"{title(page)}: make it again"
        )


def without_shares(picture: Path) -> str:
    """Return a drawing without the shares of bounds, which depend on the processor."""
    return re.sub(r"\d\.\d{3} of the bound", "of the bound", picture.read_text(encoding="utf-8"))


def test_the_words_of_reports_are_explained() -> None:
    rows = [
        line.split("|")
        for line in (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
        if "|" in line
    ]
    words = {word.strip() for row in rows for word in row[1].split(",")}
    assert {*get_args(StatusName), *(origin.value for origin in Origin)} <= words
    assert all(len(cell) < 150 for row in rows for cell in row)


PLOTS = {"speed.svg", "quantized_models.svg"}
"""Pictures that benchmarks draw."""


def test_pictures_are_made_by_commands_of_pages_and_shown() -> None:
    pictures = {path.name for path in DOCS.glob("*.svg")} - PLOTS
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for name in pictures:
        assert (DOCS / name).stat().st_size < 32_000
        assert any(f" {name}\n" in block.text for page in PAGES for block in blocks[page])
        assert any(f"]({name})" in text for text in texts.values())
    assert len(pictures) == 4


def is_run(block: Snippet) -> bool:
    """Whether a block is run here: it is not marked, or has the package that it needs."""
    return not block.not_run or (
        block.not_run in NEEDS and find_spec(NEEDS[block.not_run]) is not None
    )


def test_blocks_have_a_language_and_the_others_a_reason(record_property: Any) -> None:
    every = [block for page in PAGES for block in blocks[page]]
    assert not [block.place for block in every if block.language not in (*RUN, *SHOWN)]
    assert not [f"{title(page)}:{line}" for page in PAGES for line in indented(page)]
    code = [block for block in every if block.language in RUN]
    left = [block for block in code if not is_run(block)]
    assert {block.not_run for block in left} <= set(REASONS), [block.place for block in left]
    count = Counter(block.not_run for block in left)
    reasons = ", ".join(f"{reason} {number}" for reason, number in count.most_common())
    record_property(
        "compared",
        f"code blocks of the site: {len(code) - len(left)} run, {len(left)} not: {reasons}",
    )


def test_the_tutorial_brings_the_source_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    SETUP["tutorial.md"](tmp_path, {})
    session = Session(tmp_path)
    for block in blocks[DOCS / "tutorial.md"]:
        if "--fold-map" in block.text and block.language == "console":
            session.run(block)
    assert (tmp_path / "back.onnx").read_bytes() == (
        tmp_path / "examples" / "digits_cnn.onnx"
    ).read_bytes()


def test_a_page_that_shows_something_else_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    SETUP["tutorial.md"](tmp_path, {})
    for command in (
        "compile examples/digits_cnn.onnx out.onnx\n28 -> 19 operators",
        "compile missing.onnx",
    ):
        with pytest.raises(AssertionError, match=r"tutorial\.md:7: "):
            Session(tmp_path).run(Snippet(DOCS / "tutorial.md", 7, "console", f"$ irc {command}\n"))
