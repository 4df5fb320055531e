"""The benchmark beside other tools, as it is run from a shell."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import harness

SCRIPT = harness.ROOT / "benchmarks" / "peers.py"


def peers(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)


def cells(text: str, first: str) -> list[list[str]]:
    """The cells of every Markdown table line that begins with `first`."""
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines()]
    return [line[1:] for line in lines if line[0] == first]


def test_tools_stand_side_by_side_and_missing_ones_are_named() -> None:
    done = peers("--only", "light/light_squeezenet", "--peers", "onnxruntime,onnxsim", "--repeat", "1", "--markdown")
    assert done.returncode == 0, done.stderr
    missing = importlib.util.find_spec("onnxsim") is None
    assert ("onnxsim: not installed" in done.stdout) == missing
    tools = 3 if missing else 4
    operators, times, *_ = cells(done.stdout, "light/light_squeezenet.onnx")
    assert len(operators) == tools + 1
    assert operators[0] == "105"
    assert len(times) == tools
    assert cells(done.stdout, "irc") == [["1", "0", "0", "0", "0", "1", "0", "0"]]


def test_a_tool_that_runs_out_of_time_is_counted() -> None:
    done = peers("--only", "light/light_squeezenet", "--peers", "", "--timeout", "0.001", "--markdown")
    assert done.returncode == 0, done.stderr
    operators, times, *_ = cells(done.stdout, "light/light_squeezenet.onnx")
    assert operators == ["105", "timeout", "timeout"]
    assert times == ["timeout", "timeout"]
    assert cells(done.stdout, "irc") == [["0", "0", "0", "1", "0", "0", "0", "0"]]


def test_an_unknown_peer_is_an_error_that_names_the_known_ones() -> None:
    done = peers("--peers", "onnxsimm")
    assert done.returncode == 2
    assert "unknown peer onnxsimm: known are onnxsim, onnxslim, onnxscript, onnxruntime" in done.stderr


def test_no_such_model_is_an_error() -> None:
    assert peers("--only", "nothing is called that").returncode == 2
