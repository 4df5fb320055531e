"""Own operators and other providers: `--custom-ops`, `--providers` and `irc.session_options`.

onnxruntime-extensions is the library: its NegPos gives the minimum and the maximum with zero.
"""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import irc
import numpy as np
import onnx
import pytest
from irc.backends.runtime.remote_session import RemoteSession, runtime
from irc.tools.cli.main import main
from verification import text

NET = """g (float[1,3,8,8] x) => (float[1,4,8,8] y)
    <float[4,3,1,1] w = {1, -2, 3, -4, 5, -6, 7, -8, 9, -1, 2, -3}, float[1,4,1,1] s = {0.5, 2, -3, 0.25}> {
    c = Conv(x, w) m = Mul(c, s) y = Relu(m) }"""

PASS = """
from irc.ir.pattern import op, rewrite, value
from irc.passes import PatternPass

@rewrite(op("nn.relu", value("x")))
def to_neg_pos(found, rewriter):
    made = rewriter.make("ai.onnx.contrib::NegPos", [found["x"]], before=found.root, results=2)
    return made.outputs[{index}]

class ToNegPos(PatternPass):
    rewrites = (to_neg_pos,)
"""


@pytest.fixture
def library() -> str:
    """The path of a library of operators."""
    spec = find_spec("onnxruntime_extensions")
    if spec is None or spec.origin is None:
        pytest.skip("onnxruntime-extensions is missing: pip install onnxruntime-extensions")
    return str(Path(spec.origin).parent / f"_extensions_pydll{EXTENSION_SUFFIXES[0]}")


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model, in the working folder, whose Relu is an operator of the library."""
    monkeypatch.chdir(tmp_path)
    model = text(NET, 17)
    relu = model.graph.node[-1]
    relu.op_type, relu.domain = "NegPos", "ai.onnx.contrib"
    relu.output[:] = ["n", "y"]
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.contrib", 1))
    onnx.save(model, "own.onnx")
    onnx.save(text(NET, 17), "net.onnx")
    np.save("data.npy", np.random.default_rng(0).random((20, 3, 8, 8), np.float32))
    return "own.onnx"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("compile own.onnx out.onnx --verify", 1),
        ("verify own.onnx out.onnx", 1),
        ("align own.onnx out.onnx", 1),
        ("bisect own.onnx", 1),
        ("quantize own.onnx -o int8.onnx --input-range 0:1 --range m=-9:9", 1),
        ("quantize own.onnx -o int8.onnx --data data.npy", 1),
        ("compile own.onnx half.onnx --float16 --input-range 0:1", 0),  # with a warning
        ("compile own.onnx net.onnx -o both --verify=end", 1),
    ],
)
def test_every_command_that_runs_models_takes_own_operators(
    command: str, status: int, net: str, library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    irc.compile(net).save("out.onnx")
    assert main([*command.split(), "--custom-ops", library]) == 0, capsys.readouterr().err
    assert "is not a registered function" not in capsys.readouterr().err
    assert main(command.split()) == status
    assert "NegPos(-1) is not a registered function" in capsys.readouterr().err


@pytest.mark.parametrize(("index", "status"), [(1, 0), (0, 1)])
def test_a_fusion_to_an_own_operator_is_verified(
    index: int, status: int, net: str, library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my_passes.py").write_text(PASS.format(index=index))
    words = ["compile", "net.onnx", "fused.onnx", "--passes", "./my_passes.py:ToNegPos"]
    assert main([*words, "--verify", "--custom-ops", library]) == status
    error = capsys.readouterr().err
    assert ("ToNegPos: tensor 'y' is off by" in error) == bool(status), error
    assert Path("fused.onnx").exists() != bool(status)


def test_the_options_hold_for_the_block(net: str, library: str) -> None:
    with irc.session_options(custom_ops=[library]):
        assert irc.compile(net, verify=True).verdicts
        assert irc.verify(net, irc.compile(net).model).first_divergence is None
    with pytest.raises(irc.VerifyError, match="NegPos"):
        irc.compile(net, verify=True)


def test_the_processor_is_a_provider(net: str) -> None:
    assert (
        main(["compile", "net.onnx", "-q", "--verify", "--providers", "CPUExecutionProvider"]) == 0
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--custom-ops", "nope.so"], "nope.so: there is no such library"),
        (["--custom-ops", "net.onnx"], "net.onnx: onnxruntime cannot load it"),
        (["--providers", "CUDAExecutionProvide"], "no provider 'CUDAExecutionProvide': it has "),
        (["--providers", "CPUExecutionProvider,"], "is not a list of names: write A,B"),
    ],
)
def test_what_is_absent_is_a_sentence(
    words: list[str], sentence: str, net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["verify", "net.onnx", "net.onnx", *words])
    except SystemExit as end:  # of argparse
        status = int(str(end.code))
    error = capsys.readouterr().err
    assert (status, "Traceback" in error) == (2, False)
    assert sentence in error


def test_a_provider_that_does_not_start_is_refused(net: str) -> None:
    """onnxruntime falls back to the processor in silence."""
    with pytest.raises(irc.UsageError, match=r"does not start|has no provider"):
        irc.session_options(
            providers=["AzureExecutionProvider", "CUDAExecutionProvider"]
        ).__enter__()


def test_options_that_run_nothing_are_refused(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", net, "out.onnx", "--providers", "CPUExecutionProvider"]) == 2
    assert "need --verify or --float16" in capsys.readouterr().err


def test_a_name_alone_is_refused() -> None:
    with pytest.raises(irc.UsageError, match="providers is a list of names"):
        irc.session_options(providers="CPUExecutionProvider").__enter__()


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs /proc")
def test_float32_is_not_multiplied_in_tf32() -> None:
    session = RemoteSession(
        text("g (float[1] x) => (float[1] y) { y = Neg(x) }").SerializeToString()
    )
    assert session.run({"x": (np.ones(1, np.float32), 0)}) == [-1]
    assert runtime.worker.process is not None
    environment = Path(f"/proc/{runtime.worker.process.pid}/environ").read_bytes().split(b"\0")
    assert b"NVIDIA_TF32_OVERRIDE=0" in environment
