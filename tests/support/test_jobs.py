"""Many compiles by joblib: what the API gives, and what becomes of processes."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import harness
import irc
import joblib
import pytest
from harness import EXAMPLE
from irc.support import jobs
from irc.support.jobs import JobResult, WorkerPool
from irc.support.output_paths import OutputPaths
from irc.tools.cli.compile_many import CompileJob
from irc.tools.cli.options import default_compile_options
from printing import Printing


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two models, the second broken."""
    paths = [tmp_path / "good.onnx", tmp_path / "broken.onnx"]
    paths[0].write_bytes(EXAMPLE.read_bytes())
    paths[1].write_bytes(b"hello")
    return paths


@pytest.mark.parametrize("backend", ["sequential", "threading", "loky"])
def test_outcomes_come_in_order_from_any_back_end(
    backend: str, pair: list[Path], tmp_path: Path
) -> None:
    with joblib.parallel_config(backend, n_jobs=2):
        good, broken = irc.compile_many(pair, tmp_path / "out", fold_maps=tmp_path / "maps")
    assert (good.model, good.output, good.error) == (
        str(pair[0]),
        str(tmp_path / "out" / "good.irc.onnx"),
        None,
    )
    assert good.summary["affines"] == {"folded": 8}
    assert good.seconds > 0
    assert broken.error == "this is not an ONNX model, or it is truncated"
    assert broken.summary == {}
    written = sorted(path.name for path in tmp_path.glob("*/*"))
    assert written == ["good.foldmap.json", "good.foldmap.npz", "good.irc.onnx"]
    result = irc.compile(pair[0])
    result.save(tmp_path / "alone.onnx")
    assert (tmp_path / "alone.onnx").read_bytes() == (
        tmp_path / "out" / "good.irc.onnx"
    ).read_bytes()


def test_passes_are_those_of_a_compile(pair: list[Path], tmp_path: Path) -> None:
    (outcome,) = irc.compile_many(
        pair[:1], tmp_path / "out", passes="none", freeze_initializers=True
    )
    assert outcome.summary["operators"] == [27, 27]
    pipeline = irc.passes.Sequential([])
    (outcome,) = irc.compile_many(pair[:1], tmp_path / "out", passes=pipeline)
    assert outcome.summary["operators"] == [27, 27]
    with pytest.raises(irc.UsageError, match="FoldScaleAxis"):
        irc.compile_many(pair, passes="FoldScaleAxes")


def test_no_models_are_no_outcomes(tmp_path: Path) -> None:
    assert irc.compile_many([], tmp_path) == []


def test_a_folder_that_cannot_be_made_is_an_error(
    pair: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(irc.EmitError, match="the folder cannot be made: Permission denied"):
        irc.compile_many(pair, pair[0].parent / "out")


def test_a_python_that_cannot_be_started_is_an_error_of_the_model(
    pair: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    error = "irc cannot be started: its process ended with exit status 255"
    assert [outcome.error for outcome in irc.compile_many(pair)] == [error] * 2


def job(model: Path, output: Path) -> CompileJob:
    options = default_compile_options()
    options.model, options.output = str(model), str(output)
    return CompileJob(options, OutputPaths(str(model), str(output)))


def test_a_process_that_hears_no_interrupt_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(harness.ROOT / "tests" / "support" / "accidents"))
    monkeypatch.setattr(jobs, "GRACE", 0.5)
    model, output = tmp_path / "deaf.onnx", tmp_path / "deaf.irc.onnx"
    model.write_bytes(EXAMPLE.read_bytes())
    workers = WorkerPool()
    results: list[JobResult[Any]] = []
    thread = threading.Thread(target=lambda: results.append(workers.run(0, job(model, output))))
    thread.start()
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.glob("*.tmp")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.2)
    workers.end()
    thread.join(10)
    assert results[0].error is not None and "SIGKILL" in results[0].error
    assert [path.name for path in tmp_path.iterdir()] == ["deaf.onnx"]
    assert workers.run(0, job(model, output)).error == "interrupted"


def test_a_pickled_pool_keeps_no_worker(pair: list[Path], tmp_path: Path) -> None:
    ended = WorkerPool()
    ended.end()
    arrived: WorkerPool = pickle.loads(pickle.dumps(ended))
    assert arrived.run(0, job(pair[0], tmp_path / "out.onnx")).error is None
    assert not arrived._idle and not arrived._busy


def test_a_worker_is_used_again_and_one_that_is_gone_fails_its_job_alone(
    pair: list[Path], tmp_path: Path
) -> None:
    good = job(pair[0], tmp_path / "out.onnx")
    workers = WorkerPool()
    try:
        assert workers.run(0, good).error is None
        (worker,) = workers._idle
        worker.send_signal(signal.SIGSTOP)
        thread = threading.Timer(0.5, worker.send_signal, [signal.SIGKILL])
        thread.start()
        assert workers.run(1, good).error == "ended by SIGKILL, as if memory runs out"
        thread.join()
        assert workers.run(2, good).error is None
        (worker,) = workers._idle
        assert workers.run(3, good).error is None
        assert workers._idle == [worker]
        worker.send_signal(signal.SIGKILL)
        assert worker.wait(10)
        assert workers.run(4, good).error is None
        assert len(workers._idle) == 1 and workers._idle[0] is not worker
    finally:
        workers.end()


def test_all_that_a_worker_prints_is_kept_for_its_job(capfd: pytest.CaptureFixture[str]) -> None:
    workers = WorkerPool()
    try:
        results = [
            workers.run(index, Printing(text)) for index, text in enumerate(("a", "ö", "died"))
        ]
    finally:
        workers.end()
    assert [result.log for result in results] == [
        f"{text} of C\n{text} of Python\n" for text in ("a", "ö", "died")
    ]
    assert [result.error for result in results] == [
        None,
        None,
        "its process ended with exit status 3",
    ]
    assert capfd.readouterr() == ("", "")
