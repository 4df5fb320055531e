"""Kernels of onnxruntime that crash end another process, and the message names the operator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from irc.backends.runtime import remote_session
from irc.backends.runtime.remote_session import OUT_OF_TIME, runtime
from irc.support.errors import SourceError, VerifyError
from irc.tools.cli.main import main
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.inputs import Stimulus
from irc.tools.verify.runner import Runner
from onnx import ModelProto
from verification import text, verdict

DIVISION = """g (int64[4] x, float[2] u) => (int64[4] y, float[2] v)
    <int64[1] divisor = {-1}, int64[1] zero = {0}, int64[1] least = {-9223372036854775808}> {
    a = Mul(x, zero) b = Add(a, least) [divide] c = Div(b, divisor) d = Neg(c) y = Add(d, x) v = Relu(u) }"""


ENDLESS = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.F (x) }
    <domain: "local", opset_import: ["" : 18, "local" : 1]> F (a) => (b) { b = local.G (a) }
    <domain: "local", opset_import: ["" : 18, "local" : 1]> G (a) => (b) { b = local.F:other (a) }
    <domain: "local", overload: "other", opset_import: ["" : 18, "local" : 1]> F (a) => (b) { b = Relu (a) }"""
"""A model that onnxruntime loads without end: it does not tell the two functions F apart."""


def absent_results(opset: int) -> ModelProto:
    """A BatchNormalization and a Split with absent results, which kernels do not expect."""
    return text(
        """g (float[2,4,3,3] x) => (float[2,4,3,3] y, float[2,2,3,3] z) <float[4] one = {1, 2, 3, 4}> {
        y, "", "", "", "" = BatchNormalization(x, one, one, one, one) z, "" = Split<axis=1>(x) }""",
        opset,
    )


@pytest.mark.parametrize("opset", [7, 9, 12])
def test_absent_results_are_dropped(opset: int) -> None:
    model = absent_results(opset)
    assert not verdict(model, model)
    assert {row.tensor for row, _ in Comparison(model).differences(model)} == {"y", "z"}


def test_a_crash_of_the_source_names_the_operator() -> None:
    with pytest.raises(SourceError, match="the runtime died by SIGFPE in Div 'divide'"):
        Comparison(text(DIVISION))


def test_a_crash_of_the_other_model_names_the_operator_and_leaves_the_process() -> None:
    source = text(DIVISION.replace("{-1}", "{3}"))
    feeds = Stimulus("one", {"x": np.arange(1, 5, dtype=np.int64), "u": np.ones(2, np.float32)})
    comparison = Comparison(source, inputs=[feeds])
    with pytest.raises(VerifyError, match="the runtime died by SIGFPE in Div 'divide'"):
        list(comparison.differences(text(DIVISION)))
    first, _ = comparison.deviation(source)
    assert first is None


def test_a_model_that_crashes_is_not_tried_again_and_again() -> None:
    runner = Runner(text(DIVISION), Path())
    feeds = {"x": np.arange(1, 5, dtype=np.int64), "u": np.ones(2, np.float32)}
    for _ in range(6):
        with pytest.raises(VerifyError, match="SIGFPE"):
            runner.run(["y"], feeds)
    crashes = runtime.worker.crashes
    with pytest.raises(VerifyError, match="SIGFPE"):
        runner.run(["y"], feeds)
    assert runtime.worker.crashes == crashes


@pytest.mark.skipif(not OUT_OF_TIME, reason="the system limits no processor time")
def test_a_model_that_loads_without_end_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_session, "LOADING_SECONDS", 1)
    runner = Runner(onnx.parser.parse_model(ENDLESS), Path())
    sentence = "the runtime took more than 1 s while loading the model"
    with pytest.raises(VerifyError, match=sentence):
        runner.check_loads()
    crashes = runtime.worker.crashes
    for _ in range(3):
        with pytest.raises(VerifyError, match=sentence):
            runner.run(["y"], {"x": np.ones(2, np.float32)})
    assert runtime.worker.crashes == crashes + 1
    quick = Runner(text("g (float[2] x) => (float[2] y) { y = Relu(x) }"), Path())
    assert quick.run(["y"], {"x": np.ones(2, np.float32)})[0].tolist() == [1, 1]


def test_a_process_that_is_killed_is_started_again() -> None:
    runner = Runner(text("g (float[2] x) => (float[2] y) { y = Relu(x) }"), Path())
    feeds = {"x": np.ones(2, np.float32)}
    assert runner.run(["y"], feeds)[0].tolist() == [1, 1]
    process = runtime.worker.process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(VerifyError, match="SIGKILL"):
        runner.run(["y"], feeds)
    assert runner.run(["y"], feeds)[0].tolist() == [1, 1]


def test_a_forked_process_has_a_runtime_of_its_own() -> None:
    runner = Runner(text("g (float[2] x) => (float[2] y) { y = Relu(x) }"), Path())
    feeds = {"x": np.ones(2, np.float32)}
    runner.run(["y"], feeds)
    child = os.fork()
    if not child:
        os._exit(0 if runner.run(["y"], feeds)[0].tolist() == [1, 1] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert runner.run(["y"], feeds)[0].tolist() == [1, 1]


def test_the_runtime_ends_with_its_caller() -> None:
    code = (
        "from irc.backends.runtime.remote_session import runtime\n"
        "runtime.start()\nprint(runtime.worker.process.pid, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_the_command_line_says_what_died(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.onnx"
    onnx.save(text(DIVISION), path)
    assert main(["align", str(path), str(path)]) == 1
    assert "the runtime died by SIGFPE in Div 'divide'" in capsys.readouterr().err
