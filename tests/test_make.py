"""The Makefile: what it says, and how it fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import harness
import pytest


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-C", harness.ROOT, f"PYTHON={sys.executable}", *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def stand_in(venv: Path, script: str) -> None:
    """Write a program in the place of the environment's Python."""
    python = venv / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


def test_setting_up_is_one_line(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    stand_in(venv, "echo noise; echo more noise >&2")
    done = make(f"{venv}/.ready", f"VENV={venv}")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("make: ")]
    assert lines[-1] == f"setting up {venv} for the group dev of pyproject.toml"
    assert "noise" not in done.stdout
    assert (venv / ".ready").exists()


def test_a_target_that_needs_shared_models_fails_without_them_before_anything_is_set_up(
    tmp_path: Path,
) -> None:
    shutil.copy(harness.ROOT / "Makefile", tmp_path)
    done = make("-C", str(tmp_path), "--no-print-directory", "test-shared")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == f"{harness.ALONE}: there is nothing to test"
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["verified_models.py"], 2),
        (["cleanup.py", "--only", "nothing of this name"], 2),
        (["peers.py", "--only", "nothing of this name", "--peers", ""], 2),
        pytest.param(
            ["soak.py", "--compiles", "1", "--models", "1", "--bytes", "inf"],
            0,
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else None,
)
def test_what_measures_shared_models_says_that_they_are_missing(
    words: list[str], status: int, tmp_path: Path
) -> None:
    """Run a copy in a folder that has nothing beside it."""
    for name in ("benchmarks", "tests", "examples"):
        shutil.copytree(
            harness.ROOT / name,
            tmp_path / "irc" / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    script, *options = words
    command = [sys.executable, tmp_path / "irc" / "benchmarks" / script, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert harness.ALONE in done.stdout + done.stderr


def test_a_setup_that_fails_shows_its_log(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    stand_in(venv, "echo no route to the index; exit 1")
    done = make(f"{venv}/.ready", f"VENV={venv}")
    assert done.returncode == 2
    assert done.stderr.startswith(
        f'no route to the index\nfailed: {venv}/bin/python -m pip install --upgrade "pip>=25.1"\n'
    )
    assert not (venv / ".ready").exists()
    assert not list(harness.ROOT.glob("=*"))


def test_every_target_is_explained_at_the_head_and_says_what_it_does() -> None:
    text = (harness.ROOT / "Makefile").read_text()
    targets = text.split(".PHONY:")[1].splitlines()[0].split()
    for target in targets:
        if target not in ("clean", "lint", "format"):
            assert f"# make {target} " in text, target
        if target != "clean":
            assert "$(call say," in text.split(f"\n{target}:")[1].split("\n\n")[0], target


def test_a_target_without_its_program_fails_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / ".ready").touch()
    for name in ("bash", "sh", "make", "echo"):
        found = next(
            (Path(folder, name) for folder in ("/bin", "/usr/bin") if Path(folder, name).exists()),
            None,
        )
        if found is None:
            pytest.skip(f"{name} is not installed")
        (tmp_path / name).symlink_to(found)
    done = subprocess.run(
        [
            tmp_path / "make",
            "-C",
            harness.ROOT,
            "test-browser",
            f"BROWSER={venv}",
            f"-o{venv}/.ready",
        ],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "chromedriver is not installed: apt-get install chromium chromium-driver" in done.stderr
