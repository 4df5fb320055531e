"""The benchmarks beside other tools, as they are run from a shell."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import harness
import irc
import numpy as np
import onnx
import pytest

SCRIPT = harness.ROOT / "benchmarks" / "peers.py"
SPEED = harness.ROOT / "benchmarks" / "speed.py"


def peers(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True)


def cells(text: str, first: str) -> list[list[str]]:
    """The cells of every Markdown table line that begins with `first`."""
    lines = [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines()
    ]
    return [line[1:] for line in lines if line[0] == first]


@pytest.mark.slow
def test_tools_stand_side_by_side_and_missing_ones_are_named() -> None:
    done = peers(
        "--only",
        "light/light_squeezenet",
        "--peers",
        "onnxruntime,onnxsim",
        "--repeat",
        "1",
        "--markdown",
    )
    assert done.returncode == 0, done.stderr
    missing = importlib.util.find_spec("onnxsim") is None
    assert ("onnxsim: not installed" in done.stdout) == missing
    tools = 3 if missing else 4
    operators, times, *_ = cells(done.stdout, "light/light_squeezenet.onnx")
    assert len(operators) == tools + 1
    assert operators[0] == "105"
    assert len(times) == tools
    assert "Where a tool failed: none" in done.stdout


def test_a_tool_that_runs_out_of_time_is_counted() -> None:
    done = peers(
        "--only", "light/light_squeezenet", "--peers", "", "--timeout", "0.001", "--markdown"
    )
    assert done.returncode == 0, done.stderr
    operators, times, *_ = cells(done.stdout, "light/light_squeezenet.onnx")
    assert operators == ["105", "timeout", "timeout"]
    assert times == ["timeout", "timeout"]
    *_, failures = cells(done.stdout, "light/light_squeezenet.onnx")
    assert failures == ["irc frozen", "timeout: no result after 0.001 s"]


def test_an_unknown_peer_is_an_error_that_names_the_known_ones() -> None:
    done = peers("--peers", "onnxsimm")
    assert done.returncode == 2
    assert (
        "unknown peer onnxsimm: known are onnxsim, onnxslim, onnxscript, onnxruntime" in done.stderr
    )


def test_no_such_model_is_an_error() -> None:
    assert peers("--only", "nothing is called that").returncode == 2


# benchmarks/speed.py


def speed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SPEED, "--small", "--rounds", "1", "--markdown", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_speed_stands_in_tables_and_missing_peers_are_named(tmp_path: Path) -> None:
    saved, drawn = tmp_path / "saved.json", tmp_path / "drawn.svg"
    models = (
        "--only",
        "10_nodes,blocks_1k,blocks_5k,external_4gb",
        "--peers",
        "onnxruntime,onnxslim",
    )
    done = speed(
        *models, "--folder", tmp_path / "models", "--json", saved, "--plot", drawn, "--check"
    )
    assert done.returncode == 0, done.stderr
    missing = importlib.util.find_spec("onnxslim") is None
    assert ("onnxslim: not installed" in done.stdout) == missing
    reference, cpu, *_ = cells(done.stdout, "onnx")
    assert all(cell.endswith(" s") and float(cell[:-2]) > 0 for cell in (*reference, *cpu))
    for name in ("irc", "cp", "onnxruntime", *(() if missing else ("onnxslim",))):
        times, cpu, memory, *_ = cells(done.stdout, name)
        assert all(float(cell) > 0 for cell in (*times, *cpu, *memory))
        assert len(times) == 4
    targets = [line[-1] for line in cells(done.stdout, "27 Conv, 4 GB external")]
    assert len(targets) == 3
    assert set(targets) <= {"met", "missed"}
    assert list((tmp_path / "models").iterdir()) == []
    assert drawn.exists() == (importlib.util.find_spec("matplotlib") is not None)
    assert drawn.exists() or "no plot: matplotlib is not installed" in done.stdout
    again = speed("--load", saved, "--check")
    assert again.stdout in done.stdout


def test_a_run_that_is_out_of_time_is_counted_and_exits_0() -> None:
    done = speed("--only", "10_nodes,blocks_1k,blocks_5k", "--peers", "", "--timeout", "0.02")
    assert done.returncode == 0, done.stderr
    assert cells(done.stdout, "irc")[0] == ["timeout", "timeout", "-"]
    assert "irc on 10 nodes: timeout, stopped after 0.02 s" in done.stdout


def test_unknown_names_are_errors_that_name_the_known_ones() -> None:
    done = speed("--only", "10_node")
    assert done.returncode == 2
    assert "unknown workload 10_node: known are 10_nodes, blocks_1k" in done.stderr
    done = speed("--peers", "onnxslim,nothing")
    assert done.returncode == 2
    assert "unknown peer nothing: known are numpy, onnxruntime" in done.stderr


def test_exponents_are_those_of_what_exceeds_10_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SPEED.parent)
    report = importlib.import_module("speed_report")
    results = [
        report.Result("10_nodes", "10 nodes", 10, 0, [], {"irc": [report.Run(9, 0.25, 1000)]})
    ]
    for count in (1000, 5000, 10_000, 50_000):
        runs = [report.Run(9, 0.25 + 1e-6 * count**1.5, 1000 + 8 * count)]
        results.append(
            report.Result(
                f"blocks_{count // 1000}k", f"{count} blocks", 3 * count, 0, [], {"irc": runs}
            )
        )
    session = report.Session("", "", {}, [], {}, results)
    found = report.growth(session, "irc")
    assert (found.time, found.memory) == (pytest.approx(1.5), pytest.approx(1))
    assert found.last == "50000 blocks"
    assert list(report.targets(session))[-1] == ("blocks", "exponent of time", 1.05, found.time)


def test_a_folder_that_is_too_small_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(SPEED.parent)
    module = importlib.import_module("speed")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=8e9))
    monkeypatch.setattr(sys, "argv", ["speed", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        module.main()
    assert list(tmp_path.iterdir()) == []


def test_workloads_are_the_same_every_time_and_a_wrong_result_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(SPEED.parent)
    module = importlib.import_module("workloads")
    for name, workload in module.WORKLOADS.items():
        files = [tmp_path / name / folder / "model.onnx" for folder in "ab"]
        for file in files:
            file.parent.mkdir(parents=True)
            module.make(name, file, small=True)
        beside = [file.with_name("model.onnx.data") for file in files]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert not workload.external or beside[0].read_bytes() == beside[1].read_bytes()
        model = onnx.load(files[0], load_external_data=False)
        assert files[0].read_bytes() == model.SerializeToString()
        assert module.wrong(files[0], files[0]) == "a BatchNormalization is left"
        irc.compile(files[0]).save(tmp_path / "out.onnx")
        assert module.wrong(files[0], tmp_path / "out.onnx") is None
    changed = onnx.load(tmp_path / "out.onnx")
    weight = changed.graph.initializer[0]
    weight.CopyFrom(
        onnx.numpy_helper.from_array(
            onnx.numpy_helper.to_array(weight) * np.float32(1.001), weight.name
        )
    )
    onnx.save(changed, tmp_path / "changed.onnx")
    assert (
        module.wrong(files[0], tmp_path / "changed.onnx")
        == f"{changed.graph.node[0].name} differs from float64"
    )
