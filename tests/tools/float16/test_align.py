"""`irc align` of a float32 model and its float16 one: the bound of float16, and what overflows."""

from __future__ import annotations

import json
from pathlib import Path

import irc
import numpy as np
import onnx
import pytest
from irc.frontends.onnx import from_model
from irc.tools.cli.main import main
from onnx import ModelProto, TensorProto, numpy_helper
from streams import DATA, stream


def converted(model: ModelProto) -> ModelProto:
    return irc.to_float16(model, inputs=DATA).model


def naive(model: ModelProto) -> ModelProto:
    module = from_model(model)
    irc.compile(module, "ConvertToFloat16")
    return irc.emit(module).model


def test_scaled_values_are_scaled_back() -> None:
    found = irc.align(stream(1e5), converted(stream(1e5)), inputs=DATA)
    assert found.agrees
    assert found.overflow is None
    shares = [each.share for each in found.worst if each.share > 0]
    assert max(shares) > 0.02, "a bound that says nothing"
    first = next(each for each in found.worst if each.tensor == "first")
    assert 50 < first.sqnr < 90


def test_the_first_operator_to_overflow_is_named() -> None:
    source = stream(4e4)
    found = irc.align(source, naive(source), inputs=DATA)
    assert not found.agrees
    assert found.overflow is not None
    assert found.overflow.tensor == "first"
    assert found.overflow.op_type == "MatMul"
    assert 65504 < found.overflow.most < 1e6
    with pytest.raises(irc.VerifyError, match="the first to overflow is MatMul 'first'"):
        irc.verify(source, naive(source), inputs=DATA)


def test_nothing_overflows_in_a_small_stream() -> None:
    found = irc.align(stream(1.0), naive(stream(1.0)), inputs=DATA)
    assert found.agrees
    assert found.overflow is None


def test_an_epsilon_that_was_not_scaled_is_found() -> None:
    source = stream(10.0, epsilon=50.0)
    module = from_model(source)
    irc.compile(module, "ScaleByPowersOfTwo{exponent=-4},ConvertToFloat16")
    half = irc.emit(module).model
    assert irc.align(source, half, inputs=DATA).agrees
    for node in half.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 50.0
    found = irc.align(source, half, inputs=DATA)
    assert not found.agrees
    assert found.first_divergence is not None
    norms = [node for node in source.graph.node if node.op_type == "LayerNormalization"]
    assert found.first_divergence.tensor in {node.output[0] for node in norms}


@pytest.mark.parametrize(("factor", "agrees"), [(1.0, True), (2.0, False), (1.05, False)])
def test_a_wrong_result_is_no_scale(factor: float, agrees: bool) -> None:
    half = converted(stream(1e5))
    names = {name for node in half.graph.node for name in node.input}
    last = [tensor for tensor in half.graph.initializer if list(tensor.dims) == [16, 4]]
    (weight,) = [tensor for tensor in last if tensor.name in names]
    wrong = numpy_helper.to_array(weight) * np.float16(factor)
    weight.CopyFrom(numpy_helper.from_array(wrong, weight.name))
    assert irc.align(stream(1e5), half, inputs=DATA).agrees == agrees


def test_bfloat16_has_its_own_bound() -> None:
    """A model that a tool converted: inputs and results are bfloat16, too."""
    source, half = stream(1.0), stream(1.0)
    for tensor in half.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(
            onnx.helper.make_tensor(
                tensor.name, TensorProto.BFLOAT16, tensor.dims, array.ravel().tolist()
            )
        )
    for info in (*half.graph.input, *half.graph.output):
        info.type.tensor_type.elem_type = TensorProto.BFLOAT16
    del half.graph.value_info[:]
    found = irc.align(source, half, inputs=DATA)
    assert found.agrees
    (result,) = [each for each in found.worst if each.tensor == "y"]
    assert 25 < result.sqnr < 50


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = stream(4e4)
    onnx.save(source, tmp_path / "source.onnx")
    onnx.save(naive(source), tmp_path / "naive.onnx")
    onnx.save(converted(source), tmp_path / "half.onnx")
    np.savez(tmp_path / "samples.npz", **DATA)
    inputs = ["--inputs", str(tmp_path / "samples.npz")]
    paths = {name: str(tmp_path / f"{name}.onnx") for name in ("source", "naive", "half")}
    report = tmp_path / "report.json"
    assert main(["align", paths["source"], paths["half"], *inputs]) == 0
    capsys.readouterr()
    command = ["align", paths["source"], paths["naive"], *inputs, "--json", str(report)]
    assert main(command) == 1
    assert "the first to overflow is MatMul 'first'" in capsys.readouterr().out
    document = json.loads(report.read_text("utf-8"))
    assert document["overflow"]["tensor"] == "first"
    assert document["agrees"] is False
