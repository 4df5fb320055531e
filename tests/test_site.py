"""The pages of docs/ that a newcomer types: their commands run, and print what the pages show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import harness
import pytest

DOCS = harness.ROOT / "docs"
SECONDS = re.compile(r"\d+\.\d+ s\b")


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with the examples of the repository."""
    (tmp_path / "examples").mkdir()
    shutil.copy(harness.ROOT / "examples" / "digits_cnn.onnx", tmp_path / "examples")
    return tmp_path


def sessions(page: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a page, each with the lines that it shows."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line != "...":
                found[-1][1].append(line)
    return found


@pytest.mark.parametrize("page", ["index.md", "tutorial.md"])
def test_commands_print_the_lines_that_the_page_shows(page: str, workplace: Path) -> None:
    commands = sessions(page)
    assert commands
    for command, shown in commands:
        assert command.startswith("irc ")
        words = [sys.executable, "-m", *command.split()]
        done = subprocess.run(
            words, cwd=workplace, capture_output=True, text=True, env={**os.environ, "COLUMNS": "160"}
        )
        assert done.returncode == 0, (command, done.stderr)
        printed = {SECONDS.sub("S", line) for line in (done.stdout + done.stderr).splitlines()}
        assert {SECONDS.sub("S", line) for line in shown} <= printed, (command, sorted(printed))


def test_python_of_the_tutorial(workplace: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text(), re.DOTALL):
        done = subprocess.run([sys.executable, "-c", code], cwd=workplace, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("folded") == 8


def test_the_tutorial_brings_the_source_back(workplace: Path) -> None:
    for command, _ in sessions("tutorial.md"):
        if "--fold-map" in command or command.startswith("irc unfold"):
            subprocess.run([sys.executable, "-m", *command.split()], cwd=workplace, check=True, capture_output=True)
    assert (workplace / "back.onnx").read_bytes() == (workplace / "examples" / "digits_cnn.onnx").read_bytes()
