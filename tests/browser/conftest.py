"""A headless Chromium, and pages in it; skipped with a reason where something is missing."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reports import write

Open = Callable[[dict[str, Any]], Any]


def _programs() -> tuple[str, str]:
    browser = next(
        (
            found
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (found := shutil.which(name))
        ),
        None,
    )
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip(
            "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)"
        )
    return browser, driver


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A driver of a headless Chromium."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed: make test-browser"
    )
    program, driver = _programs()
    options = webdriver.ChromeOptions()
    options.binary_location = program
    flags = [
        "headless=new",
        "disable-gpu",
        "disable-dev-shm-usage",
        "window-size=1500,1000",
        "force-device-scale-factor=1",
    ]
    if os.geteuid() == 0:
        flags.append("no-sandbox")  # Chromium as root refuses to start otherwise
    for flag in flags:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield running
    running.quit()


class Page:
    """A report in the browser."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        for kind in ("browser", "performance"):
            browser.get_log(kind)
        start = time.monotonic()
        browser.get(path.as_uri())
        self.until('return "ready" in document.documentElement.dataset')
        self.seconds = time.monotonic() - start

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def until(self, script: str) -> None:
        """Wait for a script to return something true."""
        end = time.monotonic() + 20
        while not self.run(script):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()

    def box(self, side: int, name: str) -> Any:
        """The box of a layer."""
        boxes = self.browser.find_elements("css selector", f"#pane-{side} .box.node")
        return next(box for box in boxes if box.find_element("css selector", ".label").text == name)

    def focused(self) -> str:
        """What a screen reader says of the element that has the focus."""
        return str(
            self.run(
                "return document.activeElement.getAttribute('aria-label') ||"
                " document.activeElement.textContent"
            )
        )

    @property
    def panel(self) -> str:
        """The text of the panel, empty where it is closed."""
        return str(
            self.run(
                "const p = document.getElementById('panel'); return p.hidden ? '' : p.innerText"
            )
        )

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses of all that was fetched, the page itself and data in it aside."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")
        ]
        sent = [
            event["params"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        addresses = [params["request"]["url"] for params in sent]
        assert self.browser.current_url.split("#")[0] in addresses
        return [
            url
            for url in addresses
            if url != self.browser.current_url.split("#")[0] and not url.startswith("data:")
        ]


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Callable[[dict[str, Any]], Page]:
    """Opens the report of some data."""
    return lambda data: Page(browser, write(tmp_path / "report.html", data))
