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


def checked(words: list[str], folder: Path, **texts: str) -> dict[str, list[str]]:
    """Return the errors that a type checker finds in modules, by the module's name."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    command = [*words, *(f"{name}.py" for name in texts)]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    errors = [line for line in found.stdout.splitlines() if " error: " in line]
    assert found.returncode == bool(errors), found.stdout + found.stderr
    return {name: [line for line in errors if f"{name}.py:" in line] for name in texts}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is missing: the group dev has it")
def test_mypy_accepts_the_examples(tmp_path: Path) -> None:
    text = examples(PAGE.read_text(encoding="utf-8"))
    assert text.count("class ") == 2
    wrong = text.replace("DropNegativePairs()]", "DropNegativePairs(deep=True), 3]")
    found = checked(MYPY, tmp_path, my_passes=text, my_mistakes=wrong)
    assert found["my_passes"] == []
    unexpected, incompatible = found["my_mistakes"]
    assert "Unexpected keyword argument" in unexpected
    assert "incompatible type" in incompatible


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not on the path")
def test_pyright_accepts_the_examples(tmp_path: Path) -> None:
    text = examples(PAGE.read_text(encoding="utf-8"))
    wrong = text.replace("DropNegativePairs()]", "3]")
    words = ["pyright", "--pythonpath", sys.executable]
    found = checked(words, tmp_path, my_passes=text, my_mistakes=wrong)
    assert found["my_passes"] == []
    assert found["my_mistakes"]
