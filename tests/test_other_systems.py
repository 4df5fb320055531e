"""What irc does where the calls of POSIX are missing, which a start-up file of Python takes away.

The table is in docs/stability.md. Other systems were not tried.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import harness
import pytest

WITHOUT_POSIX = """
import ctypes, pathlib, subprocess, tempfile  # these ask for the system when they are imported
import os, signal, sys
for module, names in (
    (os, "fork killpg setpgid pread preadv copy_file_range O_NOFOLLOW O_CLOEXEC"),
    (signal, "SIGBUS SIGXCPU pthread_sigmask"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.modules["fcntl"] = sys.modules["resource"] = None
os.name = "other"
"""


def irc(cwd: Path, command: str, *, posix: bool) -> subprocess.CompletedProcess[str]:
    if not posix:
        (cwd / "sitecustomize.py").write_text(WITHOUT_POSIX)
    return subprocess.run(
        [sys.executable, "-m", "irc", *command.split()],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": "" if posix else str(cwd)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes((harness.ROOT / "examples" / "digits_cnn.onnx").read_bytes())
    return path


def test_a_model_is_compiled_verified_and_unfolded_without_posix(
    model: Path, tmp_path: Path
) -> None:
    done = irc(tmp_path, "compile model.onnx posix.onnx -q", posix=True)
    assert done.returncode == 0, done.stderr
    for command in (
        "compile model.onnx out.onnx --fold-map map.json --verify --certificate proof.json",
        "certify model.onnx out.onnx proof.json",
        "align model.onnx out.onnx",
        "unfold out.onnx map.json -o back.onnx",
    ):
        done = irc(tmp_path, command, posix=False)
        assert done.returncode == 0, (command, done.stderr)
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "posix.onnx").read_bytes()
    assert (tmp_path / "back.onnx").read_bytes() == model.read_bytes()


def test_several_models_at_once_need_posix_and_leave_nothing(model: Path, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(model.read_bytes())
    command = "compile model.onnx other.onnx -o out"
    done = irc(tmp_path, command, posix=False)
    assert (done.returncode, done.stderr) == (
        2,
        "irc: several models at once need a POSIX system: compile one after another\n",
    )
    assert not (tmp_path / "out").exists()
    (tmp_path / "sitecustomize.py").unlink()
    assert irc(tmp_path, command, posix=True).returncode == 0
