"""Models that onnxruntime's quantizer refuses or spoils, and the messages if it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import onnx.version_converter
import onnxruntime
import onnxruntime.quantization
import pytest
from graphs import F16, F32, F64, Array, Graph, batch_norm, is_valid
from int8_models import NEEDS_RANGES, optimized, sqnr
from irc.support.errors import EmitError, VerifyError
from irc.tools.cli.main import main
from known_ranges import measured
from onnx import ModelProto, numpy_helper
from processors import of_any_processor

pytestmark = NEEDS_RANGES

Build = Callable[[Graph], str]


def weight(graph: Graph, *shape: int) -> str:
    return graph.initializer(
        (graph.random(*shape) / np.sqrt(np.prod(shape[1:]))).astype(graph.dtype)
    )


def model(
    build: Build, shape: list[Any], opset: int = 17, dtype: np.dtype[Any] = F32
) -> ModelProto:
    graph = Graph(opset=opset, ir=8 if opset < 19 else 10, dtype=dtype)
    graph.input("x", shape)
    graph.node("Identity", [build(graph)], "y", "end")
    graph.output("y", None)
    return graph.model()


def convolutions(group: int = 1, op: str = "Conv") -> Build:
    """A layer with a bias, BatchNormalization, Relu, another layer."""

    def build(graph: Graph) -> str:
        shape = (4, 3, 3, 3) if op == "ConvTranspose" else (3 * group, 4 // group, 3, 3)
        channels = 3 * group
        h = graph.node(
            op,
            ["x", weight(graph, *shape), graph.initializer(graph.random(channels))],
            "h",
            op,
            group=group,
        )
        h = graph.batch_norm(h, batch_norm(channels, dtype=graph.dtype), "b", "bn")
        h = graph.node("Relu", [h], "r", "relu")
        return graph.node(
            "Conv",
            [h, weight(graph, 5, channels, 1, 1), graph.initializer(graph.random(5))],
            "d",
            "last",
        )

    return build


def gemm(*bias: int, **attributes: Any) -> Build:
    def build(graph: Graph) -> str:
        shape = (7, 6) if attributes.get("transB") else (6, 7)
        operands = ["x", weight(graph, *shape), graph.initializer(graph.random(*bias))]
        h = graph.node(
            "Relu", [graph.node("Gemm", operands, "h", "gemm", **attributes)], "r", "relu"
        )
        return graph.node("MatMul", [h, weight(graph, 7, 3)], "m", "last")

    return build


def stacked(graph: Graph) -> str:
    return graph.node("MatMul", ["x", weight(graph, 2, 6, 4)], "m", "last")


def attention(graph: Graph) -> str:
    h = graph.node("MatMul", ["x", weight(graph, 6, 6)], "h", "first")
    return graph.node(
        "MatMul",
        [graph.node("Softmax", [h], "s", "softmax", axis=-1), weight(graph, 6, 3)],
        "m",
        "last",
    )


FOLDING = "SimplifyInference,FoldScaleAxis,FoldConstant"
IMAGES, ROWS = ["n", 4, 8, 8], ["n", 6]
GOOD: dict[str, tuple[Build, list[Any]]] = {
    "Conv": (convolutions(), IMAGES),
    "Conv in groups": (convolutions(2), IMAGES),
    "ConvTranspose": (convolutions(1, "ConvTranspose"), IMAGES),
    "ConvTranspose in two groups": (convolutions(2, "ConvTranspose"), IMAGES),
    "ConvTranspose, each channel a group": (convolutions(4, "ConvTranspose"), IMAGES),
    "Gemm": (gemm(7), ROWS),
    "Gemm, transposed": (gemm(7, transB=1), ROWS),
    "Gemm, a row as bias": (gemm(1, 7), ROWS),
    "Gemm, a number as bias": (gemm(), ROWS),
    "Gemm, a vector of one number as bias": (gemm(1), ROWS),
    "Gemm, a matrix as bias": (gemm(4, 7), [4, 6]),
    "Gemm, a column as bias": (gemm(4, 1), [4, 6]),
    "Gemm, factors": (gemm(7, alpha=0.5, beta=2.0), ROWS),
    "Gemm, factors and a row": (gemm(1, 7, alpha=0.5, beta=-2.0), ROWS),
    "Gemm, no bias": (gemm(7, beta=0.0), ROWS),
    "MatMul of several matrices": (stacked, ["n", 2, 3, 6]),
    "Softmax": (attention, ["n", 5, 6]),
}


BATCHED = [name for name, (_, shape) in GOOD.items() if shape[0] == "n"]
"""Those that take any number of samples."""


def inputs(shape: list[Any], dtype: np.dtype[Any], count: int = 32) -> Array:
    extents = [count if isinstance(extent, str) else extent for extent in shape]
    return np.random.default_rng(0).uniform(-1, 1, extents).astype(dtype)


def options_of(source: ModelProto, x: Array, passes: str, *, with_data: bool) -> dict[str, Any]:
    """Arguments by which the range of every value is known."""
    if with_data:
        return {"data": {"x": x}}
    return {"input_ranges": {"x": (-1, 1)}, "ranges": measured(source, x, passes)}


def check(source: ModelProto, x: Array, *, with_data: bool, per_channel: bool) -> irc.Quantized:
    """Quantize, and hold the numbers against the source: with optimizations and without."""
    feeds = {"x": x}
    given = options_of(source, x, FOLDING, with_data=with_data)
    found = irc.quantize(source, passes=FOLDING, per_channel=per_channel, **given)
    if not any(each.domain == "com.microsoft" for each in found.model.opset_import):
        assert is_valid(found.model) is None
    read = {name for node in found.model.graph.node for name in node.input}
    assert {tensor.name for tensor in found.model.graph.initializer} <= read
    assert [node.op_type for node in found.model.graph.node].count("Constant") == 0
    expected = harness.run(source, feeds)["y"]
    assert sqnr(expected, harness.run(found.model, feeds)["y"]) > 20
    assert sqnr(expected, optimized(found.model, feeds)) > 20
    layers = [one for one in found.coverage if one.is_layer]
    assert layers
    assert [str(one.reason) for one in layers if not one.quantized] == []
    return found


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("name", "with_data"),
    [(name, with_data) for name in GOOD for with_data in (False, True)[: 1 + (name in BATCHED)]],
)
def test_a_good_model(name: str, with_data: bool, per_channel: bool) -> None:
    build, shape = GOOD[name]
    found = check(
        model(build, shape), inputs(shape, F32), with_data=with_data, per_channel=per_channel
    )
    assert of_any_processor(found.warnings) == ()


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("opset", [13, 17, 19, 21])
@pytest.mark.parametrize("name", BATCHED)
def test_float16(name: str, opset: int, with_data: bool, per_channel: bool) -> None:
    build, shape = GOOD[name]
    found = check(
        model(build, shape, opset, F16),
        inputs(shape, F16),
        with_data=with_data,
        per_channel=per_channel,
    )
    text = (
        f"opset {opset} has no QuantizeLinear of float16: the model has operators of com.microsoft,"
        " which onnxruntime runs"
    )
    assert of_any_processor(found.warnings) == ((text,) if opset < 19 else ())
    assert {node.domain for node in found.model.graph.node if node.op_type == "QuantizeLinear"} == {
        "com.microsoft" if opset < 19 else ""
    }


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize("opset", [9, 10, 11, 12, 13])
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose in two groups", "Gemm, factors"])
def test_a_scale_for_each_channel_in_old_opsets(name: str, opset: int, with_data: bool) -> None:
    build, shape = GOOD[name]
    found = check(
        model(build, shape, opset), inputs(shape, F32), with_data=with_data, per_channel=True
    )
    is_old = any("com.microsoft" in warning for warning in found.warnings)
    assert is_old == (opset < 13)
    assert any(node.domain == "com.microsoft" for node in found.model.graph.node) == is_old


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize("form", ["value", "value_floats"])
def test_constants_are_no_activations(form: str, with_data: bool) -> None:
    def build(graph: Graph) -> str:
        numbers = np.array([0.5, -1.5, 2, 1, 0.25, 3], F32)
        value = numpy_helper.from_array(numbers) if form == "value" else numbers.tolist()
        h = graph.node(
            "Mul", ["x", graph.node("Constant", [], "k", "scale", **{form: value})], "s", "mul"
        )
        matrix = numpy_helper.from_array(graph.random(6, 4))
        return graph.node(
            "MatMul", [h, graph.node("Constant", [], "w", "weight", value=matrix)], "m", "last"
        )

    source, feeds = model(build, ROWS), {"x": inputs(ROWS, F32)}
    given = options_of(source, feeds["x"], "none", with_data=with_data)
    found = irc.quantize(source, passes="none", **given)
    assert is_valid(found.model) is None
    assert [one.node for one in found.coverage if not one.quantized] == ["end"]
    assert {node.op_type for node in found.model.graph.node} >= {"Mul", "MatMul"}
    tensors = {tensor.name: tensor.data_type for tensor in found.model.graph.initializer}
    assert tensors["w_quantized"] == onnx.TensorProto.INT8
    assert sqnr(harness.run(source, feeds)["y"], harness.run(found.model, feeds)["y"]) > 25


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16])
def test_a_layer_behind_an_operator_whose_type_onnx_does_not_infer(
    dtype: np.dtype[Any], per_channel: bool
) -> None:
    def build(graph: Graph) -> str:
        scales = [graph.initializer(np.ones(4, graph.dtype)) for _ in range(2)]
        h = graph.node("GroupNormalization", ["x", *scales], "g", "group", num_groups=2)
        bias = graph.initializer(graph.random(3))
        return graph.node("Conv", [h, weight(graph, 3, 4, 3, 3), bias], "c", "last")

    source = model(build, IMAGES, 21, dtype)
    assert "g" not in {
        info.name for info in onnx.shape_inference.infer_shapes(source).graph.value_info
    }
    check(source, inputs(IMAGES, dtype), with_data=False, per_channel=per_channel)


def test_an_old_form_of_the_file() -> None:
    graph = Graph(opset=9, ir=3)
    graph.input("x", IMAGES)
    graph.output(convolutions()(graph), ["n", 5, 6, 6])
    assert is_valid(graph.model()) is None
    found = irc.quantize(graph.model(), input_ranges={"x": (-1, 1)})
    assert is_valid(found.model) is None
    assert is_valid(found.prepared) is None


@pytest.mark.parametrize("limit", [10, 1500])
def test_a_result_that_is_lost_is_warned_of(limit: float) -> None:
    def build(graph: Graph) -> str:
        h = graph.node("MatMul", ["x", graph.initializer(np.full((6, 1), 2, F32))], "h", "first")
        return graph.node("Exp", [h], "e", "exp")

    found = irc.quantize(
        model(build, ROWS),
        input_ranges={"x": (-1, 1)},
        ranges={"h": (-limit, limit)},
        passes="none",
        reduce_range=True,
    )
    assert (found.fidelity[0].sqnr < 0) == (limit > 100)
    text = "the result 'y' is predicted to have SQNR -"
    assert [warning.startswith(text) for warning in found.warnings] == [True] * (limit > 100)


def test_other_types_stay_float() -> None:
    source = model(gemm(7, alpha=0.5, beta=2.0), ROWS, 21, F64)
    found = irc.quantize(source, input_ranges={"x": (-1, 1)})
    assert {str(one.reason) for one in found.coverage if one.node != "end"} == {
        "onnxruntime does not quantize f64"
    }
    feeds = {"x": inputs(ROWS, F64)}
    np.testing.assert_allclose(
        harness.run(found.model, feeds)["y"], harness.run(source, feeds)["y"], rtol=1e-12
    )


def test_a_layer_between_casts_stays_float() -> None:
    def build(graph: Graph) -> str:
        h = graph.node(
            "Relu", [graph.node("MatMul", ["x", weight(graph, 6, 6)], "h", "first")], "r", "relu"
        )
        wide = graph.node("Cast", [h], "w", to=onnx.TensorProto.DOUBLE)
        wide = graph.node("MatMul", [wide, graph.initializer(np.eye(6)[:, :4])], "v", "wide")
        return graph.node("Cast", [wide], "c", to=onnx.TensorProto.FLOAT)

    source = model(build, ROWS)
    ranges = {"h": (-6.0, 6.0), "r": (0.0, 6.0)}
    found = irc.quantize(source, input_ranges={"x": (-1, 1)}, ranges=ranges, passes="none")
    assert {one.node: str(one.reason) for one in found.coverage if one.is_layer} == {
        "first": "None",
        "wide": "onnxruntime does not quantize f64",
    }
    feeds = {"x": inputs(ROWS, F32)}
    assert sqnr(harness.run(source, feeds)["y"], harness.run(found.model, feeds)["y"]) > 25


def failing(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the quantizer raise an error of Python's as soon as it quantizes one of some nodes."""
    original = onnxruntime.quantization.quantize_static

    def fails(
        given: ModelProto, *arguments: Any, nodes_to_exclude: list[str], **options: Any
    ) -> Any:
        if any(
            node.name in names and node.name not in nodes_to_exclude for node in given.graph.node
        ):
            raise KeyError("no such\nthing")
        return original(given, *arguments, nodes_to_exclude=nodes_to_exclude, **options)

    monkeypatch.setattr(onnxruntime.quantization, "quantize_static", fails)


@pytest.mark.parametrize("name", ["Conv", "last", "relu"])
@pytest.mark.parametrize("with_data", [False, True])
def test_an_error_of_the_quantizer_names_the_operator(
    name: str,
    with_data: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing(monkeypatch, name)
    source, output = tmp_path / "m.onnx", tmp_path / "int8.onnx"
    onnx.save(model(convolutions(), IMAGES), source)
    np.savez(tmp_path / "x.npz", x=inputs(IMAGES, F32))
    given = ["--data", str(tmp_path / "x.npz")] if with_data else ["--input-range", "x=-1:1"]
    files = [
        "-o",
        str(output),
        "--json",
        str(tmp_path / "r.json"),
        "--float",
        str(tmp_path / "f.onnx"),
    ]
    before = sorted(tmp_path.iterdir())
    assert main(["quantize", str(source), *files, *given]) == 1
    out, err = capsys.readouterr()
    op = {"Conv": "Conv", "last": "Conv", "relu": "Relu"}[name]
    assert (
        err
        == f"irc: {source}: onnxruntime's quantizer fails on {op} {name!r} (--exclude, in Python"
        " exclude=, leaves it float): KeyError: 'no such\\nthing'\n"
    )
    assert out == ""
    assert sorted(tmp_path.iterdir()) == before
    assert main(["quantize", str(source), *files, *given, "--exclude", name, "-q"]) == 0


def test_an_error_without_any_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("out of order\nin many lines")

    monkeypatch.setattr(onnxruntime.quantization, "quantize_static", fails)
    with pytest.raises(
        EmitError, match=r"^onnxruntime's quantizer fails: RuntimeError: out of order$"
    ):
        irc.quantize(model(convolutions(), IMAGES), input_ranges={"x": (-1, 1)})


def test_a_model_that_onnx_does_not_convert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", fails)
    source = tmp_path / "m.onnx"
    onnx.save(model(convolutions(), IMAGES, 9), source)
    assert (
        main(["quantize", str(source), "-o", str(tmp_path / "o.onnx"), "--input-range", "x=-1:1"])
        == 1
    )
    text = "onnx cannot convert opset 9, without QuantizeLinear, to 11: RuntimeError: no adapter"
    assert capsys.readouterr().err == f"irc: {source}: {text}\n"
    assert list(tmp_path.iterdir()) == [source]


def test_a_model_that_the_runtime_does_not_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(model(convolutions(), IMAGES, 21, F64), source)
    assert (
        main(["quantize", str(source), "-o", str(tmp_path / "o.onnx"), "--input-range", "x=-1:1"])
        == 1
    )
    err = capsys.readouterr().err
    assert err.startswith(f"irc: {source}: onnxruntime cannot load the model: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "o.onnx").exists()


def test_exported_ranges_have_the_type_of_their_tensor(tmp_path: Path) -> None:
    def build(graph: Graph) -> str:
        h = graph.node("Conv", ["x", weight(graph, 4, 4, 1, 1)], "h", "first")
        wide = graph.node("Cast", [h], "wide", to=onnx.TensorProto.FLOAT)
        return graph.node(
            "Cast", [graph.node("Relu", [wide], "r", "relu")], "c", to=onnx.TensorProto.FLOAT16
        )

    result = irc.compile(model(build, IMAGES, 19, F16), "none")
    result.save(tmp_path / "m.onnx", fold_map=tmp_path / "map.json")
    for form in (
        "ort-calibration",
        "ort-overrides",
        "ranges",
        "tensorrt",
        "aimet-encodings",
        "nncf",
    ):
        command = (
            f"foldmap export {tmp_path / 'm.onnx'} {tmp_path / 'map.json'} --to {form}".split()
        )
        ends = ["--input-range", "x=-100000:100000", "--range", "wide=-1e39:1e39"]
        assert main([*command, "-o", str(tmp_path / form), *ends]) == 0
    data = json.loads((tmp_path / "ort-calibration").read_text())["data"]
    assert {name: entry["highest"]["dtype"] for name, entry in data.items()} == {
        "x": "float16", "h": "float16", "wide": "float32", "r": "float32", "c": "float16", "y": "float16"
    }  # fmt: skip
    assert data["x"]["lowest"]["data"] == -65504
    assert data["wide"]["highest"]["data"] == float(np.finfo(np.float32).max)
    assert json.loads((tmp_path / "ort-overrides").read_text())["x"] == [
        {"rmin": -65504.0, "rmax": 65504.0}
    ]


def test_the_bias_of_a_grouped_layer_stays_exact() -> None:
    source = model(convolutions(2, "ConvTranspose"), IMAGES)
    found = irc.quantize(source, input_ranges={"x": (-1, 1)}, passes="none", per_channel=True)
    before = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    after = {tensor.name: numpy_helper.to_array(tensor) for tensor in found.model.graph.initializer}
    ours, theirs = (
        next(n for n in m.graph.node if n.op_type == "ConvTranspose") for m in (source, found.model)
    )
    np.testing.assert_array_equal(after[theirs.input[2]], before[ours.input[2]])


def test_a_kernel_that_crashes_while_samples_run_is_a_sentence() -> None:
    """Otherwise the quantizer's own run of them would end this process."""
    graph = Graph(opset=17, ir=8, dtype=F32)
    h = graph.node(
        "Conv", [graph.input("x", ["N", 4, 5, 5]), weight(graph, 4, 4, 3, 3)], "h", "conv"
    )
    least = graph.initializer(np.array(-(2**63)))
    zero = graph.node(
        "Mul", [graph.node("Cast", [h], to=onnx.TensorProto.INT64), graph.initializer(np.array(0))]
    )
    whole = graph.node(
        "Div", [graph.node("Add", [zero, least]), graph.initializer(np.array(-1))], name="divide"
    )
    graph.node("Add", [h, graph.node("Cast", [whole], to=onnx.TensorProto.FLOAT)], "y")
    graph.output("y", None)
    with pytest.raises(VerifyError, match="the runtime died by SIGFPE in Div 'divide'"):
        irc.quantize(
            graph.model(), data={"x": np.ones((2, 4, 5, 5), np.float32)}, passes="FoldConstant"
        )


@pytest.mark.parametrize(
    ("alpha", "is_exact"), [(0.3, True), (-2.0, True), (1e-38, False), (3e38, False)]
)
def test_a_factor_of_a_gemm_goes_into_its_weight_unless_that_is_no_normal_number(
    alpha: float, is_exact: bool
) -> None:
    """Another layer reads the same weight, and one of another name is there already."""
    graph = Graph(opset=17, dtype=F32)
    x = graph.input("x", ["n", 4])
    w = graph.initializer(np.diag(np.float32([8, 4, 1, 0.25])))
    scaled = graph.node("Gemm", [x, w], f"{w}_", "scaled", alpha=alpha)
    plain = graph.node("Gemm", [x, w], "p", "plain")
    graph.node("Concat", [scaled, plain], "c", "both", axis=1)
    graph.node("Identity", ["c"], "y", "end")
    graph.output("y", None)
    source, data = graph.model(), inputs(["n", 4], F32) / 1024
    found = irc.quantize(source, data={"x": data}, passes=FOLDING, per_channel=False).model
    gemms = {node.name: node for node in found.graph.node if node.op_type == "Gemm"}
    assert [each.name for each in gemms["scaled"].attribute] == ([] if is_exact else ["alpha"])
    assert not gemms["plain"].attribute
    shared = gemms["scaled"].input[1] == gemms["plain"].input[1]
    assert shared == (not is_exact)
    if is_exact:
        expected = np.split(harness.run(source, {"x": data})["y"], 2, axis=1)
        for run in (
            lambda: harness.run(found, {"x": data})["y"],
            lambda: optimized(found, {"x": data}),
        ):
            for part, wanted in zip(np.split(run(), 2, axis=1), expected, strict=True):
                assert sqnr(wanted, part) > 30


def test_a_gemm_with_a_factor_is_computed_in_integers(tmp_path: Path) -> None:
    build, shape = GOOD["Gemm, factors"]
    source, x = model(build, shape), inputs(shape, F32)
    found = irc.quantize(source, data={"x": x}, passes=FOLDING).model
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    onnxruntime.InferenceSession(found.SerializeToString(), options, ["CPUExecutionProvider"])
    run = onnx.load(tmp_path / "run.onnx")
    assert [node.op_type for node in run.graph.node if "Gemm" in node.op_type] == ["QGemm"]
