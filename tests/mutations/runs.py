"""Runs of tests against a copy of the package, each in a process of its own.

A process is forked from this one, which has imported everything heavy but the package and the
tests, so that a run takes little more than its tests. A test that fails for want of time has said
nothing: it is told apart from one that fails.
"""

from __future__ import annotations

import builtins
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy  # noqa: F401
import onnx  # noqa: F401
import onnxruntime  # noqa: F401
import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT = 900.0
"""Seconds for a run of tests against a mutant."""

LATE = ("TimeoutError", "TimeoutExpired", "DeadlineExceeded", "Flaky")
"""Names of the exceptions that a loaded machine can be the cause of."""


@dataclass
class Found:
    """The outcome of a run: tests that failed, and why the run says nothing of others."""

    failed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """Tests that failed for want of time, and a run that did not end."""

    collected: list[str] = field(default_factory=list)
    durations: dict[str, float] = field(default_factory=dict)
    reached: dict[int, list[str]] = field(default_factory=dict)
    """The tests during which each condition led to a refusal."""

    @classmethod
    def read(cls, data: dict[str, Any]) -> Found:
        """Return the outcome of its JSON form."""
        return cls(
            **{**data, "reached": {int(index): tests for index, tests in data["reached"].items()}}
        )


def copy_package(to: Path) -> Path:
    """Return the folder of a copy of the package that can be imported from `to`."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]
    for name in packages:
        source, target = ROOT.joinpath(*name.split(".")[1:]), to.joinpath(*name.split("."))
        target.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            if file.is_file() and file.suffix in (".py", ".json", ".typed"):
                shutil.copy(file, target / file.name)
    return to / "irc"


class _Recorder:
    """A plugin that fills a Found, and with `first` stops at the first test that fails."""

    def __init__(self, *, first: bool) -> None:
        self.found, self.first = Found(), first
        self.held: set[int] = set()

    def probe(self, index: int, refused: bool, outcome: Any) -> Any:
        if bool(outcome) == refused:
            self.held.add(index)
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None and _is_late(call.excinfo.type):
            self.found.late.append(item.nodeid)
        elif report.failed:
            self.found.failed.append(item.nodeid)
            item.session.shouldstop = self.first
        if report.when == "call":
            self.found.durations[item.nodeid] = report.duration
            for index in self.held:
                self.found.reached.setdefault(index, []).append(item.nodeid)
            self.held.clear()
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found.failed.append(report.nodeid or "collection")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.found.collected = [item.nodeid for item in session.items]


def _is_late(exception: type[BaseException]) -> bool:
    return any(kind.__name__ in LATE for kind in exception.__mro__)


def _run(package: Path, arguments: Sequence[str], out: Path, first: bool) -> None:
    """In a process of its own: run tests against the package, and write what the recorder found."""
    sink = os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(package.parent))
    recorder = _Recorder(first=first)
    builtins._irc_probe_ = recorder.probe  # type: ignore[attr-defined]
    status = pytest.main(
        ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments], plugins=[recorder]
    )
    found = recorder.found
    if status not in (0, 1, 2) and not found.failed:
        found.late.append(f"exit status {int(status)}")
    out.write_text(json.dumps(asdict(found)))
    os._exit(0)


def run_tests(
    package: Path,
    tests: Sequence[str],
    *options: str,
    first: bool = False,
    timeout: float = TIMEOUT,
) -> Found:
    """Return the outcome of tests that import the package from a folder."""
    with tempfile.TemporaryDirectory() as folder:
        out, listed = Path(folder) / "found.json", Path(folder) / "tests.txt"
        listed.write_text("\n".join(tests))
        arguments = (package, [*options, f"@{listed}"], out, first)
        process = multiprocessing.get_context("fork").Process(target=_run, args=arguments)
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            return Found(late=[f"no end after {timeout:.0f} s"])
        if not out.exists():
            return Found(late=[f"the process ended with status {process.exitcode}"])
        return Found.read(json.loads(out.read_text()))
