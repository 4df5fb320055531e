"""`irc compile --json`: the document is there in full with the model, or neither is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import harness
import pytest

EXAMPLE = harness.ROOT / "examples" / "digits_cnn.onnx"


def irc(
    *arguments: str | Path, cwd: Path, stdout: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run irc, with standard output going to the file `stdout` where one is given."""
    out = None if stdout is None else os.open(stdout, os.O_WRONLY)
    return subprocess.run(
        [sys.executable, "-m", "irc", *map(str, arguments)],
        stdout=subprocess.PIPE if out is None else out,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


OTHERS = {"alone": [], "all": ["--fold-map", "m.json", "--report", "r.html"], "verified": ["--verify=end"]}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("place", ["no/j.json", "folder", "/dev/full"])
def test_a_document_that_cannot_be_written_leaves_no_output(place: str, others: list[str], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    done = irc("compile", EXAMPLE, "-o", "o.onnx", "--json", place, "-q", *others, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"irc: {place}: cannot be written: ")
    assert done.stderr.count("\n") == 1
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("lost", ["-o", "--fold-map", "--report"])
def test_an_output_that_cannot_be_written_leaves_no_summary(lost: str, tmp_path: Path) -> None:
    places = {"-o": "o.onnx", "--fold-map": "m.json", "--report": "r.html", lost: "no/x"}
    arguments = [text for option in places.items() for text in option]
    assert irc("compile", EXAMPLE, *arguments, "--json", "j.json", cwd=tmp_path).returncode == 1
    assert names(tmp_path) == []


def test_all_files_of_a_compile_are_there_and_nothing_else(tmp_path: Path) -> None:
    others = ["--fold-map", "m.json", "--report", "r.html", "--json", "j.json", "--verify=end"]
    assert irc("compile", EXAMPLE, "-o", "o.onnx", *others, cwd=tmp_path).returncode == 0
    assert names(tmp_path) == ["j.json", "m.json", "m.npz", "o.onnx", "r.html"]
    assert json.loads((tmp_path / "j.json").read_text())["operators"] == [27, 19]


@pytest.mark.parametrize("place", ["no/j.json", "folder"])
def test_of_several_models_none_is_compiled_where_the_list_cannot_be_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(EXAMPLE.read_bytes())
    done = irc("compile", "a.onnx", "b.onnx", "--json", place, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"irc: {place}: cannot be written: ")
    assert names(tmp_path) == ["a.onnx", "b.onnx", "folder"]


def test_the_list_may_stand_in_the_folder_of_the_outputs(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(EXAMPLE.read_bytes())
    done = irc("compile", "a.onnx", "b.onnx", "-o", "out", "--json", "out/all.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "out") == ["a.irc.onnx", "all.json", "b.irc.onnx"]
    assert len(json.loads((tmp_path / "out" / "all.json").read_text())) == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_one_sentence(unbuffered: str, tmp_path: Path) -> None:
    arguments = ["compile", EXAMPLE, "-o", "o.onnx", "--json", "-", "-q"]
    done = irc(*arguments, cwd=tmp_path, stdout="/dev/full", env={"PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == 1
    assert done.stderr.startswith("irc: ") and done.stderr.count("\n") == 1
