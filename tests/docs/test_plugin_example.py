"""examples/plugin, installed as a package: its tests run, and the command line finds its passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of the plugin's copy, and an environment in which it is installed."""
    folder = tmp_path_factory.mktemp("plugin")
    copy, site = folder / "plugin", folder / "site"
    shutil.copytree(ROOT / "examples" / "plugin", copy)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(copy)], check=True, timeout=300
    )
    return copy, {**os.environ, "PYTHONPATH": str(site)}


def run(arguments: list[str], installed: tuple[Path, dict[str, str]]) -> str:
    copy, environment = installed
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=copy / "tests",
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_its_tests_pass(installed: tuple[Path, dict[str, str]]) -> None:
    assert " passed" in run(["pytest", "-q", "-p", "no:cacheprovider", "test_passes.py"], installed)


def test_the_command_line_finds_its_passes(
    installed: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    assert "FuseHardSwish" in run(["irc", "passes"], installed)
    source = tmp_path / "m.irc"
    source.write_text(
        "graph(%x: f32[N,4]) {\n  %three = constant {value=f32[] 3.0}\n  %zero = constant"
        " {value=f32[] 0.0}\n  %six = constant {value=f32[] 6.0}\n  %a = add(%x, %three)\n  %c ="
        " clip(%a, %zero, %six)\n  %m = multiply(%x, %c)\n  %y = divide(%m, %six)\n "
        " return(%y)\n}\n"
    )
    out = tmp_path / "out.onnx"
    run(
        [
            "irc",
            "compile",
            str(source),
            "-o",
            str(out),
            "--passes",
            "FuseHardSwish,MarkRelu6{key=a}",
            "--verify-ir",
        ],
        installed,
    )
    import onnx

    assert [node.op_type for node in onnx.load(out).graph.node] == ["HardSwish"]
