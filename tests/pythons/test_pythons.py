"""The wheel and the sdist on every Python that the classifiers name.

Installed from the index, and put to work.

`make test-pythons` runs this, `.ci/run` a quick form of it: the tests install packages.
Interpreters are those on the path and of pyenv.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import harness
import pytest
from test_packaging import PROJECT, build

pytestmark = pytest.mark.skipif(
    not os.environ.get("IRC_PYTHONS"), reason="installs packages on every Python: make test-pythons"
)

PREFIX = "Programming Language :: Python :: 3."
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
STATED = [
    f"3.{name.removeprefix(PREFIX)}"
    for name in PROJECT["project"]["classifiers"]
    if name.startswith(PREFIX)
]
QUICK = os.environ.get("IRC_PYTHONS") == "quick"
"""Whether the wheel alone is tried, without extras, on the other Pythons than that of the tests."""

TRIED = [*STATED, f"3.{int(STATED[-1].partition('.')[2]) + 1}"]
"""The versions of the classifiers, and the next one."""


def interpreter(version: str) -> Path | None:
    """Return the newest interpreter of a version."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(
        versions.glob(f"{version}.*/bin/python"),
        key=lambda path: [*map(int, re.findall(r"\d+", str(path)))],
    )
    if found:
        return found[-1]
    on_path = shutil.which(f"python{version}")
    return Path(on_path) if on_path else None


def call(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist."""
    folder = tmp_path_factory.mktemp("archives")
    return {"wheel": build("wheel", folder), "sdist": build("sdist", folder)}


@pytest.mark.parametrize("archive", ["wheel"] if QUICK else ["wheel", "sdist"])
@pytest.mark.parametrize("version", [version for version in TRIED if not QUICK or version != OWN])
def test_irc_is_installed_and_compiles(
    version: str, archive: str, archives: dict[str, Path], tmp_path: Path
) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on the path or in pyenv")
    assert version in STATED, f"Python {version} is there, and no classifier names it"
    call(python, "-m", "venv", tmp_path / "venv")
    bin_ = tmp_path / "venv" / "bin"
    call(
        bin_ / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        f"{archives[archive]}{'' if QUICK else '[quantize]'}",
    )
    model = harness.ROOT / "examples" / "digits_cnn.onnx"
    commands = (
        (
            f"compile {model} out.onnx --fold-map map.json --report"
            f" page.html{'' if QUICK else ' --verify'}"
        ),
        "unfold out.onnx map.json -o back.onnx",
        f"check {model}",
        *([] if QUICK else [f"quantize {model} -o int8.onnx --input-range image=0:1"]),
    )
    for command in commands:
        call(bin_ / "irc", *command.split(), cwd=tmp_path)
    assert (tmp_path / "back.onnx").read_bytes() == model.read_bytes()
    if archive == "wheel" and not QUICK:
        call(bin_ / "python", "-m", "pip", "install", "--quiet", "pip>=25.1")
        call(
            bin_ / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--group",
            f"{harness.ROOT / 'pyproject.toml'}:test",
        )
        folders = [
            harness.ROOT / "tests" / name
            for name in ("ir", "passes/test_ir_text.py", "tools/cli/test_cli.py")
        ]
        call(bin_ / "python", "-m", "pytest", "-q", "-x", *folders, cwd=harness.ROOT)


def test_the_interpreter_of_the_tests_is_among_them() -> None:
    assert OWN in STATED
