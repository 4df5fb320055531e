"""bfloat16 by the road of float16: which operators ONNX has, and how near the results are."""

from __future__ import annotations

from pathlib import Path

import irc
import numpy as np
import onnx
import pytest
from graphs import Graph, is_valid
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto
from streams import DATA, stream


def convnet(opset: int) -> ModelProto:
    graph = Graph(opset=opset)
    weight = graph.initializer(graph.random(4, 3, 3, 3), "w")
    graph.node("Conv", [graph.input("x", [10, 3, 8, 8]), weight], "a", "conv")
    graph.node("Relu", ["a"], "y", "relu")
    graph.output("y", [10, 4, 6, 6])
    return graph.model()


PICTURES = {"x": np.random.default_rng(0).standard_normal((50, 3, 8, 8)).astype(np.float32)}


def test_nothing_is_scaled() -> None:
    found = irc.to_float16(stream(1e6), inputs=DATA, dtype="bfloat16")
    assert not found.scaled
    assert not found.stayed
    assert found.is_finite
    assert 30 < found.fidelity[0].sqnr < 50
    assert is_valid(found.model) is None
    kinds = {tensor.data_type for tensor in found.model.graph.initializer}
    assert kinds == {TensorProto.BFLOAT16}


def test_its_noise_is_8_times_that_of_float16() -> None:
    half, narrow = (
        irc.to_float16(stream(1.0), inputs=DATA, dtype=dtype) for dtype in ("float16", "bfloat16")
    )
    assert half.fidelity[0].sqnr - narrow.fidelity[0].sqnr == pytest.approx(18, abs=3)


def test_the_result_agrees_with_its_source() -> None:
    found = irc.to_float16(stream(1e6), inputs=DATA, dtype="bfloat16")
    assert irc.align(stream(1e6), found.model, inputs=DATA).agrees


def test_layers_need_their_opset() -> None:
    message = r"Conv 'conv' has no bfloat16 form in opset 17: convert the model to opset 22"
    with pytest.raises(irc.ModelError, match=message):
        irc.to_float16(convnet(17), inputs=PICTURES, dtype="bfloat16")
    found = irc.to_float16(convnet(22), inputs=PICTURES, dtype="bfloat16")
    assert not found.stayed
    assert is_valid(found.model) is None
    assert found.is_finite


def test_an_opset_without_casts_is_refused() -> None:
    with pytest.raises(irc.ModelError, match="opset 12 has no bfloat16"):
        irc.to_float16(convnet(12), inputs=PICTURES, dtype="bfloat16")


def test_an_operator_of_a_newer_opset_stays_float32() -> None:
    graph = Graph(opset=17)
    x = graph.input("x", ["N", 6, 16])
    weight = graph.initializer(np.eye(16, dtype=np.float32))
    graph.node("HardSigmoid", [graph.node("MatMul", [x, weight])], "y", "sigmoid")
    graph.output("y", ["N", 6, 16])
    found = irc.to_float16(graph.model(), inputs=DATA, dtype="bfloat16")
    assert ("sigmoid", "no bfloat16 form in opset 17") in [
        (each.name, each.reason) for each in found.stayed
    ]


def test_masks_are_finite() -> None:
    """float32's least number is -inf in bfloat16."""
    graph = Graph(opset=17)
    x, m = graph.input("x", ["N", 6, 16]), graph.input("m", ["N", 6, 16])
    low = graph.initializer(np.array(np.finfo(np.float32).min))
    graph.node("Softmax", [graph.node("Add", [x, graph.node("Mul", [m, low])])], "y", axis=-1)
    graph.output("y", ["N", 6, 16])
    mask = np.zeros((10, 6, 16), np.float32)
    mask[:, 3:, 4:] = 1
    mask[:, 5] = 1
    found = irc.to_float16(graph.model(), inputs={**DATA, "m": mask}, dtype="bfloat16")
    assert found.is_finite
    assert [each.note for each in found.constants if each.note] == ["a mask"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(stream(1.0), tmp_path / "model.onnx")
    onnx.save(convnet(17), tmp_path / "convnet.onnx")
    np.savez(tmp_path / "samples.npz", **DATA)
    out, samples = str(tmp_path / "out.onnx"), str(tmp_path / "samples.npz")
    command = ["compile", str(tmp_path / "model.onnx"), "-o", out, "--inputs", samples]
    assert main([*command, "--bfloat16", "--io", "bfloat16"]) == 0
    assert "operators bfloat16, 0.0 % float32" in capsys.readouterr().err
    ends = [*onnx.load(out).graph.input, *onnx.load(out).graph.output]
    assert {info.type.tensor_type.elem_type for info in ends} == {TensorProto.BFLOAT16}
    assert main([*command, "--bfloat16", "--io", "float16"]) == 2
    with pytest.raises(SystemExit):
        main([*command, "--bfloat16", "--float16"])
    convnet_in = ["compile", str(tmp_path / "convnet.onnx"), "-o", out]
    assert main([*convnet_in, "--bfloat16", "--input-range", "x=-3:3"]) == 1
    assert "has no bfloat16 form in opset 17" in capsys.readouterr().err
