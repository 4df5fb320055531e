"""`irc quantize --activations int16`: activations of 16 bits, in opset 21."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from graphs import Graph, is_valid
from int8_models import NEEDS_RANGES, sqnr, three_layers
from irc.support.errors import EmitError
from irc.tools.cli.main import main
from onnx import ModelProto, numpy_helper

pytestmark = NEEDS_RANGES


def followed_by(opset: int, op: str, **attributes: Any) -> ModelProto:
    """A Conv, a Relu, and an operator."""
    graph = Graph(opset=opset, ir=7)
    graph.input("x", ["n", 4, 8, 8])
    h = graph.node("Relu", [graph.node("Conv", ["x", graph.initializer(graph.random(6, 4, 1, 1))])])
    operands = [h]
    if op == "BatchNormalization":
        ones = np.ones(6, np.float32)
        operands += [graph.initializer(ones) for _ in range(4)]
    elif op == "Resize":
        operands.append(graph.initializer(np.array([1, 1, 2, 2], np.float32)))
    graph.node(op, operands, "y", "last", **attributes)
    graph.output("y", None)
    return graph.model()


@pytest.mark.parametrize("opset", [12, 13, 17, 21])
def test_activations_have_16_bits_in_opset_21(opset: int) -> None:
    chain = three_layers()
    model = chain.model()
    model.opset_import[0].version = opset
    feeds = {"x": chain.inputs[:32]}
    (expected,) = harness.run(model, feeds).values()
    ratios = []
    for activations in ("int8", "int16"):
        found = irc.quantize(model, input_ranges=(-5, 5), activations=activations)
        assert is_valid(found.model) is None
        ratios.append(sqnr(expected, *harness.run(found.model, feeds).values()))
    assert ratios[1] > ratios[0] + 3
    assert found.model.opset_import[0].version == 21
    assert found.model.ir_version >= 10
    tensors = {each.name: each for each in found.model.graph.initializer}
    dtypes = {
        numpy_helper.to_array(tensors[node.input[2]]).dtype
        for node in found.model.graph.node
        if node.op_type == "QuantizeLinear"
    }
    assert dtypes == {np.dtype(np.uint16)}
    assert found.scales == "activations of 16 bits, a scale for each channel"


@pytest.mark.parametrize(
    ("opset", "op", "attributes"),
    [
        (11, "Softmax", {"axis": 1}),
        (12, "LogSoftmax", {}),
        (10, "Resize", {"mode": "nearest"}),
        (18, "AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ],
)
def test_an_opset_is_not_raised_past_another_meaning(
    opset: int, op: str, attributes: dict[str, Any]
) -> None:
    model = followed_by(opset, op, **attributes)
    with pytest.raises(EmitError) as error:
        irc.quantize(model, input_ranges=(-1, 1), activations="int16")
    assert f"{op} 'last' means something else in opset 21 than in opset {opset}" in str(error.value)
    assert irc.quantize(model, input_ranges=(-1, 1)).model.opset_import[0].version == opset


@pytest.mark.parametrize(
    ("opset", "op", "attributes"),
    [
        (13, "Softmax", {"axis": 1}),
        (11, "Sigmoid", {}),
        (12, "MaxPool", {"kernel_shape": [2, 2]}),
        (18, "AveragePool", {"kernel_shape": [2, 2]}),
        (11, "Flatten", {}),
        (17, "ReduceMean", {"axes": [2, 3], "keepdims": 0}),
        (11, "ReduceSum", {"axes": [2]}),
        (10, "Clip", {"min": 0.1, "max": 0.5}),
    ],
)
def test_an_opset_is_raised_where_all_operators_mean_the_same(
    opset: int, op: str, attributes: dict[str, Any]
) -> None:
    model = followed_by(opset, op, **attributes)
    feeds = {"x": np.random.default_rng(0).uniform(-1, 1, (4, 4, 8, 8)).astype(np.float32)}
    found = irc.quantize(model, data=feeds, activations="int16")
    assert found.model.opset_import[0].version == 21
    (expected,), (result,) = (harness.run(one, feeds).values() for one in (model, found.model))
    assert sqnr(expected, result) > 35


def test_the_command_line_names_the_file_and_the_operator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "net.onnx", tmp_path / "int8.onnx"
    onnx.save(followed_by(11, "Softmax", axis=1), path)
    options = ["--input-range=-1:1", "--activations", "int16"]
    assert main(["quantize", str(path), "-o", str(output), *options]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last == (
        f"irc: {path}: integers of 16 bits need opset 21: Softmax 'last' means something else in"
        " opset 21 than in opset 11"
    )
    assert not output.exists()
