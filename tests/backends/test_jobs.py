"""Many compiles by joblib: what the API gives, and what becomes of processes."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from pathlib import Path

import harness
import irc
import joblib
import pytest
from irc.parallel import fork_server, jobs
from irc.parallel.jobs import Compiles, Job
from irc.support.output_paths import Places

EXAMPLE = harness.ROOT / "examples" / "digits_cnn.onnx"


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two models, the second broken."""
    paths = [tmp_path / "good.onnx", tmp_path / "broken.onnx"]
    paths[0].write_bytes(EXAMPLE.read_bytes())
    paths[1].write_bytes(b"hello")
    return paths


@pytest.mark.parametrize("backend", ["sequential", "threading", "loky"])
def test_outcomes_come_in_order_from_any_back_end(backend: str, pair: list[Path], tmp_path: Path) -> None:
    with joblib.parallel_config(backend, n_jobs=2):
        good, broken = irc.compile_many(pair, tmp_path / "out", fold_maps=tmp_path / "maps")
    assert (good.model, good.output, good.error) == (str(pair[0]), str(tmp_path / "out" / "good.irc.onnx"), None)
    assert good.summary["affines"] == {"folded": 8}
    assert good.seconds > 0
    assert broken.error == "this is not an ONNX model, or it is truncated"
    assert broken.summary == {}
    written = sorted(path.name for path in tmp_path.glob("*/*"))
    assert written == ["good.foldmap.json", "good.foldmap.npz", "good.irc.onnx"]
    result = irc.compile(pair[0])
    result.save(tmp_path / "alone.onnx")
    assert (tmp_path / "alone.onnx").read_bytes() == (tmp_path / "out" / "good.irc.onnx").read_bytes()


def test_passes_are_those_of_a_compile(pair: list[Path], tmp_path: Path) -> None:
    (outcome,) = irc.compile_many(pair[:1], tmp_path / "out", passes="none", freeze_initializers=True)
    assert outcome.summary["operators"] == [27, 27]
    pipeline = irc.passes.Sequential([])
    (outcome,) = irc.compile_many(pair[:1], tmp_path / "out", passes=pipeline)
    assert outcome.summary["operators"] == [27, 27]
    with pytest.raises(irc.UsageError, match="FoldScaleAxis"):
        irc.compile_many(pair, passes="FoldScaleAxes")


def test_no_models_are_no_outcomes(tmp_path: Path) -> None:
    assert irc.compile_many([], tmp_path) == []


def test_a_folder_that_cannot_be_made_is_an_error(pair: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(irc.EmitError, match="the folder cannot be made: Permission denied"):
        irc.compile_many(pair, pair[0].parent / "out")


def test_a_python_that_cannot_be_started_is_an_error_of_the_model(
    pair: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    assert [outcome.error for outcome in irc.compile_many(pair)] == [
        "irc cannot be started: No such file or directory"
    ] * 2


def test_a_process_that_hears_no_interrupt_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(harness.ROOT / "tests" / "accidents"))
    monkeypatch.setattr(jobs, "GRACE", 0.5)
    model, output = tmp_path / "deaf.onnx", tmp_path / "deaf.irc.onnx"
    model.write_bytes(EXAMPLE.read_bytes())
    compiles, outcomes = Compiles(), []
    job = Job(Places(str(model), str(output)))
    thread = threading.Thread(target=lambda: outcomes.append(compiles.run(job)))
    thread.start()
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.glob("*.tmp")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.2)
    compiles.end()
    thread.join(10)
    assert outcomes[0].error is not None and "SIGKILL" in outcomes[0].error
    assert [path.name for path in tmp_path.iterdir()] == ["deaf.onnx"]
    assert compiles.run(job).error == "interrupted"


def test_elsewhere_nothing_runs_yet() -> None:
    compiles = Compiles()
    compiles.end()
    assert pickle.loads(pickle.dumps(compiles))._ended is False


def test_where_nothing_may_be_forked_a_compile_is_a_python_of_its_own(
    pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "CAN_FORK", False)
    status, out, err = fork_server.answer(["compile", "good.onnx", "-o", "-"], str(tmp_path))
    assert status == 0
    assert out.encode(errors="surrogateescape") == irc.compile(pair[0]).model.SerializeToString(deterministic=True)
    assert err.startswith("27 -> 19 operators; ")
    assert fork_server.answer(["compile", "broken.onnx"], str(tmp_path))[0] == 1
    assert fork_server.answer(["compile"], str(tmp_path))[0] == 2


def test_a_compiler_that_is_gone_fails_its_model_and_is_replaced(pair: list[Path], tmp_path: Path) -> None:
    job = Job(Places(str(pair[0]), str(tmp_path / "out.onnx")))
    compiles = Compiles()
    try:
        assert compiles.run(job).error is None
        (compiler,) = compiles._idle
        compiler.send_signal(signal.SIGSTOP)
        thread = threading.Timer(0.5, compiler.kill)
        thread.start()
        assert compiles.run(job).error == "ended by SIGKILL, as where memory runs out"
        thread.join()
        assert compiles.run(job).error is None
        assert len(compiles._idle) == 1 and compiles._idle[0] is not compiler
    finally:
        compiles.end()
