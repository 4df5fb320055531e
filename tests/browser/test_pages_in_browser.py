"""The pages of the site in Chromium: no horizontal scroll bar at 1300 and 400 pixels."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import pytest

PAGES = sorted(path.stem for path in (harness.ROOT / "docs").glob("*.md"))
SCROLLED = """
const bars = [...document.querySelectorAll('.md-content *')].filter(
    (e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth
        && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX));
return bars.map((e) => e.textContent.slice(0, 60));
"""
"""The text of the parts of a page that have a horizontal scroll bar of their own."""

WIDER = "return document.scrollingElement.scrollWidth > document.documentElement.clientWidth;"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built from the pages as they are now."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make test-browser")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=harness.ROOT, check=True)
    return folder


@pytest.fixture(params=[1300, 400])
def width(browser: Any, request: pytest.FixtureRequest) -> Iterator[int]:
    """Give the window of the browser a width in pixels."""
    metrics = {"width": request.param, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    yield request.param
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_horizontal_scroll_bar(
    browser: Any, site: Path, width: int, page: str
) -> None:
    """On a phone a table with many columns scrolls within itself; the page does not."""
    browser.get((site / f"{page}.html").as_uri())
    assert not browser.execute_script(WIDER)
    if width == 1300:
        assert not browser.execute_script(SCROLLED)


def test_scroll_bars_are_seen(browser: Any, site: Path, width: int, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path, dirs_exist_ok=True)
    page = tmp_path / "jobs.html"
    wide = '<div style="overflow-x: auto"><div style="width: 3000px">too wide</div></div>'
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</article>", f"{wide}</article>"), encoding="utf-8")
    browser.get(page.as_uri())
    assert browser.execute_script(SCROLLED)[-1] == "too wide"
    page.write_text(
        text.replace("</body>", '<div style="width: 3000px">x</div></body>'), encoding="utf-8"
    )
    browser.get(page.as_uri())
    assert browser.execute_script(WIDER)
