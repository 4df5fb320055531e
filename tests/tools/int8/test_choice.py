"""What `irc quantize` chooses for each operator: static, dynamic or float, and what it warns of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from graphs import F16, F32, Array, BatchNorm, Graph, is_valid
from int8_models import NEEDS_RANGES, optimized, sqnr
from irc.tools.cli.main import main
from onnx import ModelProto

pytestmark = NEEDS_RANGES

RANGES: dict[str, Any] = {"input_ranges": {"x": (-1, 1)}}


def weight(graph: Graph, *shape: int) -> str:
    """A weight for results as large as the data."""
    count = int(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
    return graph.initializer((graph.random(*shape) / np.sqrt(count)).astype(graph.dtype))


def dense(opset: int = 17, dtype: Any = F32, **attributes: Any) -> ModelProto:
    """Gemm, Relu, MatMul, Relu, MatMul of wide layers: nothing but the input has a range."""
    graph = Graph(opset=opset, ir=8 if opset < 19 else 10, dtype=dtype)
    graph.input("x", ["n", 16])
    shape = (24, 16) if attributes.get("transB") else (16, 24)
    operands = ["x", weight(graph, *shape), graph.initializer(graph.random(24))]
    h = graph.node("Relu", [graph.node("Gemm", operands, name="first", **attributes)])
    h = graph.node("Relu", [graph.node("MatMul", [h, weight(graph, 24, 20)], name="second")])
    graph.node("MatMul", [h, weight(graph, 20, 8)], "y", "third")
    graph.output("y", ["n", 8])
    return graph.model()


def methods(found: irc.Quantized) -> dict[str, str]:
    return {one.node: one.method.value for one in found.coverage if one.is_layer}


def rows(count: int = 64, width: int = 16, dtype: Any = F32) -> Array:
    return np.random.default_rng(0).uniform(-1, 1, (count, width)).astype(dtype)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    "attributes",
    [{}, {"transB": 1}, {"alpha": 0.5}, {"beta": -2.0}, {"beta": 0.0}, {"alpha": 2.0, "transB": 1}],
)
def test_products_behind_guesses_are_dynamic(attributes: dict[str, Any], per_channel: bool) -> None:
    model = dense(**attributes)
    found = irc.quantize(model, per_channel=per_channel, **RANGES)
    assert is_valid(found.model) is None
    assert methods(found) == dict.fromkeys(("first", "second", "third"), "dynamic")
    types = [node.op_type for node in found.model.graph.node]
    assert types.count("MatMulInteger") == 3
    assert types.count("DynamicQuantizeLinear") == 3
    assert {"Gemm", "MatMul", "QuantizeLinear"}.isdisjoint(types)
    read = {name for node in found.model.graph.node for name in node.input}
    assert {tensor.name for tensor in found.model.graph.initializer} <= read
    feeds = {"x": rows()}
    expected = harness.run(model, feeds)["y"]
    assert sqnr(expected, harness.run(found.model, feeds)["y"]) > 30
    assert sqnr(expected, optimized(found.model, feeds)) > 25


def test_dynamic_layers_round_shared_data_once() -> None:
    graph = Graph(opset=17, ir=8)
    graph.input("x", ["n", 4, 16])
    h = graph.node("MatMul", ["x", weight(graph, 16, 16)], name="first")
    h = graph.node("LayerNormalization", [h, graph.initializer(np.ones(16, np.float32))])
    parts = [graph.node("MatMul", [h, weight(graph, 16, 16)]) for _ in range(3)]
    graph.output(graph.node("Concat", parts, "y", axis=-1), ["n", 4, 48])
    found = irc.quantize(graph.model(), **RANGES)
    types = [node.op_type for node in found.model.graph.node]
    assert types.count("DynamicQuantizeLinear") == 2
    assert types.count("MatMulInteger") == 4


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (dense(17, F16), "the range is a guess"),
        (dense(10), "the range is a guess"),
        (dense(transA=1, opset=17), None),
    ],
    ids=["float16", "an opset without DynamicQuantizeLinear", "transposed data"],
)
def test_products_that_cannot_be_dynamic_stay_float(model: ModelProto, text: str | None) -> None:
    if text is None:
        node = model.graph.node[0]
        assert node.op_type == "Gemm"
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 16
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 4
        node.input[2] = ""
        found = irc.quantize(model, **RANGES)
        assert methods(found) == {"first": "float", "second": "dynamic", "third": "dynamic"}
        return
    found = irc.quantize(model, **RANGES)
    assert set(methods(found).values()) == {"float"}
    assert "no layer is int8: --data or --range gives the ranges" in found.doubts
    feeds = {
        "x": rows(
            dtype=np.float16 if model.graph.input[0].type.tensor_type.elem_type == 10 else F32
        )
    }
    assert sqnr(harness.run(model, feeds)["y"], harness.run(found.model, feeds)["y"] + 1e-9) > 40


def recurrent(**attributes: Any) -> ModelProto:
    """An LSTM in two directions, with states and a bias."""
    graph = Graph(opset=17, ir=8)
    graph.input("x", [7, "n", 12])
    operands = [
        "x",
        *(graph.initializer((graph.random(2, 40, k) / 3).astype(F32)) for k in (12, 10)),
    ]
    operands.append(graph.initializer(graph.random(2, 80)))
    graph.node(
        "LSTM", operands, ["y"], "lstm", direction="bidirectional", hidden_size=10, **attributes
    )
    graph.output("y", [7, 2, "n", 10])
    return graph.model()


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_recurrent_layer_is_dynamic(per_channel: bool) -> None:
    model = recurrent()
    found = irc.quantize(model, per_channel=per_channel, **RANGES)
    assert methods(found) == {"lstm": "dynamic"}
    assert [node.op_type for node in found.model.graph.node] == ["DynamicQuantizeLSTM"]
    feeds = {"x": rows(7 * 3, 12).reshape(7, 3, 12)}
    expected = harness.run(model, feeds)["y"]
    assert sqnr(expected, harness.run(found.model, feeds)["y"]) > 30
    excluded = irc.quantize(model, exclude=["lstm"], **RANGES)
    assert methods(excluded) == {"lstm": "float"}


def test_a_recurrent_layer_with_limits_stays_float() -> None:
    assert methods(irc.quantize(recurrent(clip=2.0), **RANGES)) == {"lstm": "float"}


def norm(graph: Graph, x: str, channels: int, name: str) -> str:
    ones = np.ones(channels, np.float32)
    return graph.batch_norm(x, BatchNorm(ones, 0 * ones, 0 * ones, ones), name)


def convolutions(norms: int) -> ModelProto:
    """Four Convs with Relus, the first `norms` with a BatchNormalization, and a Gemm."""
    graph = Graph(opset=17, ir=8)
    h = graph.input("x", ["n", 3, 8, 8])
    channels = 3
    for index in range(4):
        h = graph.node("Conv", [h, weight(graph, 8, channels, 1, 1)], name=f"c{index}")
        channels = 8
        if index < norms:
            h = norm(graph, h, 8, f"b{index}")
        h = graph.node("Relu", [h])
    h = graph.node("Flatten", [graph.node("GlobalAveragePool", [h])])
    graph.node("Gemm", [h, weight(graph, 8, 5)], "y", "last")
    graph.output("y", ["n", 5])
    return graph.model()


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        (4, ["static"] * 5),
        (3, ["static"] * 5),
        (2, ["static", "static", "static", "float", "dynamic"]),
        (1, ["static", "static", "float", "float", "dynamic"]),
        (0, ["float", "float", "float", "float", "dynamic"]),
    ],
)
def test_one_layer_behind_a_statistic_is_static(norms: int, expected: list[str]) -> None:
    model = convolutions(norms)
    found = irc.quantize(model, **RANGES)
    assert list(methods(found).values()) == expected
    feeds = {"x": rows(20 * 3, 64).reshape(20, 3, 8, 8)}
    assert sqnr(harness.run(model, feeds)["y"], harness.run(found.model, feeds)["y"]) > 15


def test_a_layer_that_stays_float_keeps_its_bias() -> None:
    """Bias correction is for rounded weights: the other layers compute as they did."""
    found = irc.quantize(convolutions(1), **RANGES)
    plain = irc.quantize(convolutions(1), passes="default", **RANGES)

    def bias(model: ModelProto, name: str) -> Array:
        node = next(node for node in model.graph.node if node.name == name)
        tensors = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        return tensors[node.input[2]] if len(node.input) > 2 else np.zeros(8)

    for name in ("c2", "c3"):
        np.testing.assert_array_equal(bias(found.model, name), bias(plain.model, name))


def heads(scores: float, boxes: float) -> ModelProto:
    """Two heads joined and transposed: boxes up to 1 times `boxes`, scores times `scores`."""
    graph = Graph(opset=17, ir=8)
    h = graph.node("Conv", [graph.input("x", ["n", 3, 4, 4]), weight(graph, 8, 3, 1, 1)])
    h = graph.node("Relu", [norm(graph, h, 8, "b")])
    parts = []
    for name, factor in (("boxes", boxes), ("scores", scores)):
        part = graph.node("Conv", [h, weight(graph, 4, 8, 1, 1)], name=name)
        ends = [graph.initializer(np.float32(end)) for end in (0, 1)]
        part = graph.node("Clip", [part, *ends])
        parts.append(graph.node("Mul", [part, graph.initializer(np.float32(factor))]))
    joined = graph.node("Concat", parts, "joined", "join", axis=1)
    graph.node("Reshape", [joined, graph.initializer(np.array([-1, 8, 16]))], "flat", "flat")
    graph.node("Transpose", ["flat"], "y", "turn", perm=[0, 2, 1])
    graph.output("y", ["n", 16, 8])
    return graph.model()


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize(("boxes", "is_apart"), [(320.0, True), (4.0, False)])
def test_heads_of_ranges_far_apart_are_joined_in_float(
    boxes: float, is_apart: bool, with_data: bool
) -> None:
    model, x = heads(1.0, boxes), rows(40 * 3, 16).reshape(40, 3, 4, 4)
    given = {"data": {"x": x}} if with_data else RANGES
    found = irc.quantize(model, passes="default", **given)
    reasons = {one.node: str(one.reason) for one in found.coverage if not one.quantized}
    assert ("join" in reasons) == is_apart
    if is_apart:
        assert "times apart" in reasons["join"]
    y, exact = (harness.run(each, {"x": x})["y"][..., 4:] for each in (found.model, model))
    assert (sqnr(exact, y) > 25) or not is_apart


def places(end: float) -> ModelProto:
    """Places on a grid up to `end`, and what is added to them: numbers up to 1."""
    graph = Graph(opset=17, ir=8)
    h = graph.node("Conv", [graph.input("x", ["n", 3, 4, 4]), weight(graph, 8, 3, 1, 1)])
    h = graph.node("Relu", [norm(graph, h, 8, "b")])
    h = graph.node("Conv", [h, weight(graph, 4, 8, 1, 1)], name="parts")
    ends = [graph.initializer(np.float32(each)) for each in (0, 1)]
    grid = graph.initializer(np.linspace(0, end, 16, dtype=np.float32).reshape(1, 1, 4, 4))
    h = graph.node("Add", [graph.node("Clip", [h, *ends]), grid], name="place")
    graph.node("Mul", [h, graph.initializer(np.float32(2))], "y", "size")
    graph.output("y", ["n", 4, 4, 4])
    return graph.model()


@pytest.mark.parametrize(("end", "is_apart"), [(100.0, True), (5.0, False)])
def test_a_small_number_that_is_added_near_a_result_is_added_in_float(
    end: float, is_apart: bool
) -> None:
    model, x = places(end), rows(40 * 3, 16).reshape(40, 3, 4, 4)
    found = irc.quantize(model, passes="default", data={"x": x})
    reasons = {one.node: str(one.reason) for one in found.coverage if not one.quantized}
    assert ("place" in reasons) == is_apart
    y, exact = (harness.run(each, {"x": x})["y"] for each in (found.model, model))
    if is_apart:
        assert "times apart" in reasons["place"]
        assert float(np.abs(y - exact).max()) < 0.1


def scored(last: str, behind: bool) -> ModelProto:
    """A layer, a Reshape and scores of its result; perhaps a layer behind them."""
    graph = Graph(opset=17, ir=8)
    h = graph.node("Conv", [graph.input("x", ["n", 3, 4, 4]), weight(graph, 8, 3, 1, 1)], name="c")
    h = graph.node("Relu", [norm(graph, h, 8, "b")])
    h = graph.node("Conv", [h, weight(graph, 4, 8, 1, 1)], "scores", "s")
    h = graph.node("Reshape", [h, graph.initializer(np.array([-1, 4, 16]))], "flat", "move")
    h = graph.node(last, [h], "chances", "chance")
    if behind:
        graph.node("MatMul", [h, weight(graph, 16, 3)], "y", "more")
        graph.output("y", ["n", 4, 3])
    else:
        graph.node("Transpose", [h], "y", "turn", perm=[0, 2, 1])
        graph.output("y", ["n", 16, 4])
    return graph.model()


@pytest.mark.parametrize("last", ["Sigmoid", "Softmax"])
@pytest.mark.parametrize("with_data", [False, True])
def test_the_data_of_a_softmax_or_sigmoid_before_a_result_are_not_rounded(
    last: str, with_data: bool
) -> None:
    x = rows(40 * 3, 16).reshape(40, 3, 4, 4)
    given: dict[str, Any] = {"data": {"x": x}} if with_data else RANGES
    found = irc.quantize(scored(last, behind=False), **given)
    assert is_valid(found.model) is None
    rounded = {n.input[0] for n in found.model.graph.node if n.op_type == "QuantizeLinear"}
    assert rounded.isdisjoint({"scores", "flat", "chances", "y"})
    assert methods(found) == {"c": "static", "s": "static"}
    reasons = {one.node: str(one.reason) for one in found.coverage}
    assert reasons["chance"] == reasons["move"] == "it decides a result, or what leads to it"
    # The neighbour: a layer reads the chances, and its data are rounded.
    other = irc.quantize(scored(last, behind=True), data={"x": x})
    rounded = {n.input[0] for n in other.model.graph.node if n.op_type == "QuantizeLinear"}
    assert {"scores", "chances"} <= rounded


def test_results_in_doubt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A clipped tensor makes the result useless: that is said, and --strict refuses."""
    source, output = tmp_path / "m.onnx", tmp_path / "int8.onnx"
    onnx.save(convolutions(4), source)
    result = irc.compile(convolutions(4))
    inner = next(n.output[0] for n in result.model.graph.node if n.op_type == "Relu")
    command = ["quantize", str(source), "-o", str(output), "--input-range", "x=-1:1"]
    command += ["--passes", "default", "--json", str(tmp_path / "out.json")]
    bad = ["--range", f"{inner}=0:0.001"]
    assert main([*command, *bad]) == 0
    text = capsys.readouterr().err
    assert "warning: the result 'y' is predicted to have SQNR " in text
    assert "--data gives better ranges" in text
    assert output.exists()
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["predicted"]
    assert len(document["doubts"]) == 1
    output.unlink()
    assert main([*command, *bad, "--strict"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"irc: {source}: nothing is written (--strict): the result 'y' is")
    assert not output.exists()
    assert main([*command, "--strict"]) == 0
    assert output.exists()


def test_align_names_the_layers_that_it_does_not_compare(tmp_path: Path) -> None:
    found = irc.quantize(convolutions(2), **RANGES)
    onnx.save(found.prepared, tmp_path / "float.onnx")
    onnx.save(found.model, tmp_path / "int8.onnx")
    command = ["align", str(tmp_path / "float.onnx"), str(tmp_path / "int8.onnx"), "-q"]
    assert main([*command, "--json", str(tmp_path / "out.json")]) == 0
    document = json.loads((tmp_path / "out.json").read_text())
    assert {"layer": "last", "reason": "its scales are found at run time"} in document["left_out"]
    assert {row["layer"] for row in document["layers"]} >= {"c0", "c1", "c2"}


def test_a_map_of_what_is_rare_is_in_doubt() -> None:
    """Detectors and segmenters: what statistics of all places say is not enough."""
    graph = Graph(opset=17, ir=8)
    h = graph.node("Conv", [graph.input("x", [1, 3, 8, 8]), weight(graph, 8, 3, 1, 1)], name="c")
    h = graph.node("Relu", [norm(graph, h, 8, "b")])
    sizes = graph.initializer(np.array([1, 1, 2, 2], np.float32))
    h = graph.node("Resize", [h, "", sizes], name="up", mode="nearest")
    h = graph.node("Conv", [h, weight(graph, 8, 8, 1, 1)], name="bare")
    h = graph.node("Relu", [h])
    graph.node("Conv", [h, weight(graph, 2, 8, 1, 1)], "y", "last")
    graph.output("y", [1, 2, 16, 16])
    x = rows(10 * 3, 64).reshape(10, 3, 8, 8)
    found = irc.quantize(graph.model(), **RANGES)
    assert methods(found) == {"c": "static", "bare": "float", "last": "float"}
    assert any(text.startswith("the result 'y' is a map") for text in found.doubts)
    measured = irc.quantize(graph.model(), test_data={"x": x}, **RANGES)
    assert measured.doubts == ()
    calibrated = irc.quantize(graph.model(), data={"x": x})
    assert set(methods(calibrated).values()) == {"static"}
    assert calibrated.doubts == ()


@pytest.mark.parametrize("norms", [1, 2])
def test_layers_without_statistics_before_a_map_are_float(norms: int) -> None:
    """One layer between the last statistic and the last layer: its tails are not known."""
    graph = Graph(opset=17, ir=8)
    h = graph.node("Conv", [graph.input("x", [1, 3, 8, 8]), weight(graph, 8, 3, 1, 1)], name="c")
    h = graph.node("Relu", [norm(graph, h, 8, "b")])
    h = graph.node("Conv", [h, weight(graph, 8, 8, 1, 1)], name="bare")
    h = graph.node("Relu", [norm(graph, h, 8, "d") if norms == 2 else h])
    graph.node("Conv", [h, weight(graph, 2, 8, 1, 1)], "y", "last")
    graph.output("y", [1, 2, 8, 8])
    found = methods(irc.quantize(graph.model(), **RANGES))
    others = "static" if norms == 2 else "float"
    assert found == {"c": "static", "bare": others, "last": others}


def test_a_batch_of_minus_one_is_open() -> None:
    """paddle2onnx writes -1 for an extent that is not known: 20 samples are some batches."""
    model = convolutions(4)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = -1
    found = irc.quantize(model, data={"x": rows(20 * 3, 64).reshape(20, 3, 8, 8)})
    assert found.measured_on == "3 samples, held out of the calibration"


def test_a_number_for_each_sample_is_no_map() -> None:
    assert irc.quantize(convolutions(4), **RANGES).doubts == ()


def test_with_data_a_fifth_is_held_out() -> None:
    x = rows(40 * 3, 64).reshape(40, 3, 8, 8)
    found = irc.quantize(convolutions(4), data={"x": x})
    assert found.measured_on == "8 samples, held out of the calibration"
    assert not found.is_predicted
    few = irc.quantize(convolutions(4), data={"x": x[:3]})
    assert few.measured_on == "3 samples of the calibration"


def test_with_data_the_better_of_static_and_dynamic() -> None:
    """One row of 16 is a thousand times the others: a fixed scale leaves these nothing."""
    graph = Graph(opset=17, ir=8)
    graph.input("x", [1, 16])
    h = graph.node("LayerNormalization", ["x", graph.initializer(np.ones(16, np.float32))])
    h = graph.node("Relu", [graph.node("MatMul", [h, weight(graph, 16, 16)], name="first")])
    graph.node("Concat", [h, "x"], "wide", axis=1)
    graph.node("MatMul", ["wide", weight(graph, 32, 8)], "y", "second")
    graph.output("y", [1, 8])
    x = rows(50)
    x[7] *= 1e4
    found = irc.quantize(graph.model(), data={"x": x}, test_data={"x": x[20:]})
    assert set(methods(found).values()) == {"dynamic"}
    assert found.fidelity[0].sqnr > 30


@pytest.mark.parametrize(("size", "expected"), [(8.0, "float"), (0.5, "static")])
def test_with_data_a_convolution_of_no_use_stays_float(size: float, expected: str) -> None:
    """Numbers from e^-8 to e^8, whose logarithm counts: next to the greatest, a step is all."""
    graph = Graph(opset=17, ir=8)
    h = graph.node("Conv", [graph.input("x", ["n", 3, 4, 4]), weight(graph, 8, 3, 1, 1)], name="c")
    h = graph.node("Mul", [graph.node("Tanh", [h]), graph.initializer(np.float32(size))])
    positive = graph.initializer(np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1))
    h = graph.node("Conv", [graph.node("Exp", [h]), positive], "power", "last")
    h = graph.node("Log", [graph.node("Add", [h, graph.initializer(np.float32(1e-4))])])
    graph.node("Identity", [h], "y")
    graph.output("y", ["n", 8, 4, 4])
    x = 4 * rows(60 * 3, 16).reshape(60, 3, 4, 4)
    found = irc.quantize(graph.model(), data={"x": x})
    assert methods(found)["last"] == expected
    assert found.fidelity[0].sqnr > 10


@pytest.mark.parametrize(
    ("opset", "options", "count", "text"),
    [
        (13, [], 8, "weights: a scale for each channel"),
        (13, ["--per-tensor"], 1, "weights: one scale for each"),
        (12, [], 1, "weights: one scale for each, as opset 12 has none for each channel"),
        (12, ["--per-channel"], 8, "weights: a scale for each channel"),
    ],
)
def test_a_scale_for_each_channel_is_the_default_where_the_opset_has_it(
    opset: int,
    options: list[str],
    count: int,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = convolutions(4)
    model.opset_import[0].version = opset
    onnx.save(model, tmp_path / "m.onnx")
    words = ["quantize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx")]
    assert main([*words, "--input-range", "x=-1:1", *options]) == 0
    found = onnx.load(tmp_path / "o.onnx")
    tensors = {tensor.name: tensor for tensor in found.graph.initializer}
    makers = {node.output[0]: node for node in found.graph.node}
    layer = next(node for node in found.graph.node if node.name == "c1")
    scale = tensors[makers[layer.input[1]].input[1]]
    assert int(np.prod(scale.dims)) == count
    assert text in capsys.readouterr().err


def test_the_time_of_a_run_is_said_unless_it_is_not_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(convolutions(4), tmp_path / "m.onnx")
    words = ["quantize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx")]
    words += ["--input-range", "x=-1:1", "--json", str(tmp_path / "out.json")]
    assert main(words) == 0
    found = json.loads((tmp_path / "out.json").read_text())["milliseconds"]
    assert 0 < found["before"] < 1000
    assert 0 < found["after"] < 1000
    text = capsys.readouterr().err
    line = next(line for line in text.splitlines() if line.startswith("time: "))
    assert line.endswith(", slower") == (found["after"] > found["before"])
    assert f"float {found['before']:.2f} ms" in line
    assert main([*words, "--no-time"]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["milliseconds"] is None
    assert "time: " not in capsys.readouterr().err
