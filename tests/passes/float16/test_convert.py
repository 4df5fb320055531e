"""ConvertToFloat16 on ONNX models: which it refuses, and that what it writes is valid and near."""

from __future__ import annotations

import harness
import irc
import numpy as np
import pytest
from graphs import Graph, is_valid
from irc.backends.foldmap.inverse import unfold
from irc.passes.float16.conversion import conversion
from irc.support.errors import ModelError, UsageError
from onnx import ModelProto, TensorProto


def converted(model: ModelProto, passes: str = "ConvertToFloat16") -> ModelProto:
    found = irc.compile(model, passes).model
    assert is_valid(found) is None
    return found


def layers() -> Graph:
    graph = Graph()
    x = graph.input("x", [2, 3, 8, 8])
    weight = graph.initializer(graph.random(4, 3, 3, 3), "w")
    graph.node("Conv", [x, weight], "a", "conv", pads=[1, 1, 1, 1])
    graph.node("Relu", ["a"], "y", "relu")
    graph.output("y")
    return graph


def test_the_result_is_near_the_source() -> None:
    source = layers().model()
    found = converted(source)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    expected, actual = (harness.run(model, feeds)["y"] for model in (source, found))
    assert actual.dtype == np.float32
    error = np.square(actual.astype(np.float64) - expected).sum()
    assert 0 < error < 1e-6 * np.square(expected.astype(np.float64)).sum()
    (weight,) = found.graph.initializer
    assert (weight.name, weight.data_type) == ("w", TensorProto.FLOAT16)


def test_declared_types_do_not_stay() -> None:
    graph = layers()
    source = graph.model()
    info = source.graph.value_info.add()
    info.CopyFrom(source.graph.output[0])
    info.name = "a"
    found = converted(source)
    assert not [info for info in found.graph.value_info if info.name == "a"]


def test_float16_inputs_and_outputs_are_declared() -> None:
    found = converted(layers().model(), "ConvertToFloat16{io=float16}")
    ends = [*found.graph.input, *found.graph.output]
    assert [info.type.tensor_type.elem_type for info in ends] == [TensorProto.FLOAT16] * 2
    assert [node.op_type for node in found.graph.node] == ["Conv", "Relu"]


def test_the_source_can_be_restored() -> None:
    source = layers().model()
    result = irc.compile(source, "default,ConvertToFloat16")
    assert unfold(result.model, result.fold_map) == source


def test_what_stays_is_listed() -> None:
    graph = layers()
    big = graph.initializer(np.array([70000.0], np.float32), "big")
    graph.node("Add", ["y", big], "z", "shift")
    graph.output("z")
    result = irc.compile(graph.model(), "ConvertToFloat16")
    (stayed,) = conversion(result.module).stayed
    assert (stayed.op_type, stayed.name) == ("Add", "shift")
    assert stayed.reason == "the constant 70000 exceeds float16"


@pytest.mark.parametrize(
    ("op", "dtype", "message"),
    [
        ("Relu", np.float16, "has 16-bit floats already"),
        ("QuantizeLinear", np.float32, "is of a quantized model"),
        ("Dropout", np.float32, "is of a training graph"),
    ],
)
def test_models_that_are_refused(op: str, dtype: type, message: str) -> None:
    graph = Graph()
    x = graph.input("x", [2, 3], np.dtype(dtype))
    inputs = [x]
    if op == "QuantizeLinear":
        inputs.append(graph.initializer(np.array(0.5, np.float32), "scale"))
    if op == "Dropout":
        inputs.append(graph.initializer(np.array(0.5, np.float32), "ratio"))
        inputs.append(graph.initializer(np.array(True), "training"))
    graph.node(op, inputs, "y", "node")
    graph.output("y", [2, 3], np.dtype(np.uint8 if op == "QuantizeLinear" else dtype))
    with pytest.raises(ModelError, match=message):
        irc.compile(graph.model(), "ConvertToFloat16")


def test_an_unknown_interface_is_refused() -> None:
    with pytest.raises(UsageError, match="io has to be one of float32, float16"):
        irc.compile(layers().model(), "ConvertToFloat16{io=half}")


@pytest.mark.parametrize("gamma", [1.0, 3e4])
def test_statistics_of_branches_bound_their_sum(gamma: float) -> None:
    """Two normalized Convs of one value that are added become one Conv."""
    graph = Graph()
    x, branches = graph.input("x", [2, 3, 8, 8]), []
    for name in ("a", "b"):
        conv = graph.node("Conv", [x, graph.initializer(graph.random(4, 3, 1, 1))])
        numbers = [np.full(4, gamma), np.zeros(4), np.zeros(4), np.ones(4)]
        names = [graph.initializer(array.astype(np.float32)) for array in numbers]
        branches.append(graph.node("BatchNormalization", [conv, *names], name))
    graph.node("Tanh", [graph.node("Add", branches, "total", "merged")], "y", "tanh")
    graph.output("y")
    result = irc.compile(graph.model(), "default,ConvertToFloat16")
    assert [node.op_type for node in result.model.graph.node if node.op_type != "Cast"] == [
        "Conv",
        "Tanh",
    ]
    reasons = {each.op_type: each.reason for each in conversion(result.module).stayed}
    if gamma == 1.0:
        assert not reasons
    else:
        assert set(reasons) == {"Conv", "Tanh"}
        assert reasons["Conv"].startswith("range exceeds float16 by 2^")
