"""Type checkers accept what docs/passes.md shows, and find a mistake in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import harness
import pytest

PAGE = harness.ROOT / "docs" / "passes.md"
BEFORE = """import irc

module = irc.load("model.onnx")
graph, rewriter = module.graph, irc.ir.Rewriter(module)
"""
AFTER = """
result: irc.Result = irc.compile(
    "model.onnx", [irc.passes.default_pipeline(), [FuseHardSwish, DropNegativePairs()]]
)
"""
MYPY = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file="]


def examples(page: str) -> str:
    """Return the Python blocks of a page as one file."""
    blocks = page.split("```python\n")[1:]
    return BEFORE + "\n".join(block.split("```")[0] for block in blocks) + AFTER


def checked(words: list[str], text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "my_passes.py"
    path.write_text(text, encoding="utf-8")
    return subprocess.run([*words, str(path)], cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is missing: the group dev has it")
def test_mypy_accepts_the_examples(tmp_path: Path) -> None:
    text = examples(PAGE.read_text(encoding="utf-8"))
    assert text.count("class ") == 2
    found = checked(MYPY, text, tmp_path)
    assert found.returncode == 0, found.stdout
    wrong = text.replace("DropNegativePairs()]", "DropNegativePairs(deep=True), 3]")
    found = checked(MYPY, wrong, tmp_path)
    assert "Unexpected keyword argument" in found.stdout, found.stdout
    assert "incompatible type" in found.stdout, found.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not on the path")
def test_pyright_accepts_the_examples(tmp_path: Path) -> None:
    text = examples(PAGE.read_text(encoding="utf-8"))
    words = ["pyright", "--pythonpath", sys.executable]
    found = checked(words, text, tmp_path)
    assert found.returncode == 0, found.stdout
    assert checked(words, text.replace("DropNegativePairs()]", "3]"), tmp_path).returncode == 1
