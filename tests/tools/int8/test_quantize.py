"""`irc quantize` and `irc.quantize`, from outside.

The files, the numbers in them, the report and the refusals.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import Array, Graph, batch_norm, is_valid
from int8_models import NEEDS_RANGES, optimized, sqnr, three_layers
from irc.tools.cli.main import main
from known_ranges import measured
from onnx import ModelProto, NodeProto, numpy_helper
from processors import overflows
from quantizers.nets import Chain

pytestmark = NEEDS_RANGES

RANGE = ["--input-range", "x=-4:4"]


@pytest.fixture(scope="module")
def chain() -> Chain:
    return three_layers()


@pytest.fixture
def path(chain: Chain, tmp_path: Path) -> Path:
    onnx.save(chain.model(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def made_by(model: ModelProto) -> dict[str, NodeProto]:
    return {name: node for node in model.graph.node for name in node.output}


def constants(model: ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def operand(model: ModelProto, layer: str, index: int) -> NodeProto | None:
    """The DequantizeLinear that gives an operand of a layer, None where the operand is float."""
    node = next(node for node in model.graph.node if node.name == layer)
    made = made_by(model).get(node.input[index])
    return made if made is not None and made.op_type == "DequantizeLinear" else None


def grid(model: ModelProto, tensor: str) -> tuple[float, float]:
    """The ends of the grid onto which the model rounds a tensor."""
    quantize = next(
        n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == tensor
    )
    scale, zero = (constants(model)[name] for name in quantize.input[1:])
    assert zero.dtype == np.uint8
    return float(scale) * (0 - int(zero)), float(scale) * (255 - int(zero))


def run(model: ModelProto | Path, inputs: Array) -> Array:
    loaded = onnx.load(model) if isinstance(model, Path) else model
    return next(iter(harness.run(loaded, {"x": inputs}).values())).astype(np.float64)


def test_without_data(path: Path, chain: Chain, capsys: pytest.CaptureFixture[str]) -> None:
    output = path.with_name("int8.onnx")
    assert main(["quantize", str(path), "-o", str(output), *RANGE]) == 0
    model = onnx.load(output)
    assert is_valid(model) is None
    for layer in "abc":
        for index, dtype in ((0, np.uint8), (1, np.int8)):
            found = operand(model, layer, index)
            assert found is not None
            assert constants(model)[found.input[2]].dtype == dtype
    assert sqnr(run(path, chain.inputs), run(output, chain.inputs)) > 20
    text = capsys.readouterr().err
    (size,) = (line for line in text.splitlines() if line.startswith("size: "))
    assert size.startswith(f"size: {output.stat().st_size / 1000:.1f} kB, float ")
    first, second, third, fourth = [
        line for line in text.splitlines() if not line.startswith("warning: ")
    ][:4]
    layers = "layers: 3 static, 0 dynamic, 0 float; 3 of 3 other operators int8"
    assert first == f"{layers}; 100.0 % of the multiplications"
    assert second.startswith("c.relu.out: SQNR ")
    assert " dB predicted, " in second
    assert third.startswith("time: ")
    assert fourth == "weights: a scale for each channel"
    assert "generated within the ranges" in text


def test_the_report_measures_the_files(
    path: Path, chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    output, samples = path.with_name("int8.onnx"), path.with_name("test.npz")
    np.savez(samples, x=chain.inputs[:21])
    command = [*f"quantize {path} -o {output} --test-data {samples} --json -".split(), *RANGE]
    assert main(command) == 0
    out, err = capsys.readouterr()
    (found,) = json.loads(out)["fidelity"]
    inputs = chain.inputs[:21]
    exact, plain = run(path, inputs), run(output, inputs)
    integers = optimized(onnx.load(output), {"x": inputs})
    # batches of eight sum in another order
    assert found["sqnr"] == pytest.approx(sqnr(exact, integers), abs=0.05)
    assert found["unoptimized"] == pytest.approx(sqnr(exact, plain), abs=0.05)
    assert f"SQNR {found['sqnr']:.1f} dB, on 21 samples of the test data" in err


def test_agreement_is_the_share_of_equal_winners(tmp_path: Path) -> None:
    graph = Graph()
    graph.input("x", ["n", 6])
    graph.node("MatMul", ["x", graph.initializer(graph.random(6, 5))], "y", "dense")
    graph.output("y", ["n", 5])
    inputs = np.random.default_rng(3).uniform(-1, 1, (300, 6)).astype(np.float32)
    model = graph.model()
    found = irc.quantize(
        model, input_ranges={"x": (-1, 1)}, ranges={"y": (-6, 6)}, test_data={"x": inputs}
    )
    equal = run(model, inputs).argmax(1) == optimized(found.model, {"x": inputs}).argmax(1)
    assert 0 < equal.mean() < 1
    assert found.fidelity[0].agreement == pytest.approx(equal.mean())


def test_data_in_place_of_the_map(path: Path, chain: Chain) -> None:
    folder, output = path.with_name("data"), path.with_name("int8.onnx")
    folder.mkdir()
    np.save(folder / "first.npy", chain.inputs[:40])
    np.savez(folder / "second.npz", x=chain.inputs[40:])
    command = ["quantize", str(path), "-o", str(output), "--data", str(folder), "-q"]
    assert main([*command, "--test-data", str(folder)]) == 0
    low, high = grid(onnx.load(output), "x")
    assert (low, high) == pytest.approx(
        (chain.inputs.min(), chain.inputs.max()), abs=(high - low) / 255
    )
    whole = irc.quantize(path, data={"x": chain.inputs}, test_data={"x": chain.inputs})
    assert whole.model.graph == onnx.load(output).graph
    assert sqnr(run(path, chain.inputs), run(output, chain.inputs)) > 25


@pytest.mark.parametrize("option", ["--range", "--input-range"])
@pytest.mark.parametrize("with_data", [True, False])
def test_a_given_range_is_the_grid(option: str, with_data: bool, path: Path, chain: Chain) -> None:
    output, samples = path.with_name("int8.onnx"), path.with_name("data.npz")
    np.savez(samples, x=chain.inputs)
    data = ["--data", str(samples)] if with_data else []
    name = "b.relu.out" if option == "--range" else "x"
    base = [] if with_data or name == "x" else RANGE
    command = [
        "quantize",
        str(path),
        "-o",
        str(output),
        "--passes",
        "default",
        *data,
        *base,
        option,
        f"{name}=0:51",
    ]
    assert main([*command, "-q"]) == 0
    assert grid(onnx.load(output), name) == pytest.approx((0, 51), rel=1e-6)


def two_layers(end: str) -> ModelProto:
    """Two products of matrices; `y` is the second, its Relu, or read by a Relu."""
    graph = Graph()
    graph.input("x", ["n", 6])
    h = graph.node("MatMul", ["x", graph.initializer(graph.random(6, 8))], name="first")
    h = graph.node("Relu", [h], name="between")
    h = graph.node(
        "MatMul",
        [h, graph.initializer(graph.random(8, 5))],
        "" if end == "activated" else "y",
        "second",
    )
    if end != "last":
        graph.output(graph.node("Relu", [h], "y" if end == "activated" else "z", "end"))
    if end != "activated":
        graph.output("y")
    return graph.model()


@pytest.mark.parametrize(
    ("end", "options", "is_float"),
    [
        ("last", {}, True),
        ("last", {"ranges": {"y": (-25.0, 25.0)}}, False),
        ("activated", {}, False),
        ("read", {}, False),
    ],
    ids=[
        "the last layer",
        "with a given range",
        "an activation that the grid computes",
        "read by an operator",
    ],
)
def test_a_result_is_not_rounded(end: str, options: dict[str, Any], is_float: bool) -> None:
    model, inputs = two_layers(end), Graph().random(50, 6).clip(-2, 2)
    inner = {name: ends for name, ends in measured(model, inputs, "default").items() if name != "y"}
    ranges = inner | options.get("ranges", {})
    found = irc.quantize(model, input_ranges={"x": (-2, 2)}, passes="default", ranges=ranges)
    assert is_valid(found.model) is None
    made = made_by(found.model)["y"]
    assert (made.op_type == "MatMul") == is_float
    assert (made.op_type == "DequantizeLinear") != is_float
    read = {name for node in found.model.graph.node for name in node.input} | {"y", "z"}
    assert {tensor.name for tensor in found.model.graph.initializer} <= read
    left = {one.node: str(one.reason) for one in found.coverage if not one.quantized}
    assert left == (
        {"end": "onnxruntime would clip the result 'y' to its range"} if end == "read" else {}
    )
    results = harness.run(found.model, {"x": inputs}), harness.run(model, {"x": inputs})
    assert results[0].keys() == results[1].keys()
    for result, expected in zip(*(each.values() for each in results), strict=True):
        assert sqnr(expected, result) > 25


def test_a_float_result_is_what_was_rounded() -> None:
    """The grid of the result applied to it equals the model that rounds its result."""
    model, inputs = two_layers("last"), {"x": Graph().random(50, 6).clip(-2, 2)}
    inner = measured(model, inputs["x"], "default")
    del inner["y"]
    exact, rounded = (
        irc.quantize(
            model, input_ranges={"x": (-2, 2)}, passes="default", ranges=inner | ranges
        ).model
        for ranges in ({}, {"y": (-25.0, 25.0)})
    )
    step = np.float32(50) / np.float32(255)
    found, expected = (harness.run(each, inputs)["y"] for each in (exact, rounded))
    assert np.abs(found).max() < 25
    assert np.abs(found - expected).max() <= step * 0.5001
    assert np.abs(found - expected).max() > step * 0.4


def test_per_channel(path: Path) -> None:
    output = path.with_name("int8.onnx")
    assert main(["quantize", str(path), "-o", str(output), "--per-channel", *RANGE, "-q"]) == 0
    model = onnx.load(output)
    assert is_valid(model) is None
    for layer, channels in (("a", 8), ("b", 8), ("c", 6)):
        found = operand(model, layer, 1)
        assert found is not None
        assert constants(model)[found.input[1]].shape == (channels,)


def test_equalization_and_its_float_model(path: Path, chain: Chain) -> None:
    output, prepared = path.with_name("int8.onnx"), path.with_name("float.onnx")
    model = chain.model()
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    factors = 2.0 ** np.arange(-4, 4).astype(np.float32)
    for name, numbers in (
        ("a.bn.gamma", factors),
        ("a.bn.beta", factors),
        ("b.weight", 1 / factors),
    ):
        array = numpy_helper.to_array(tensors[name])
        scaled = array * numbers.reshape([-1, *[1] * (array.ndim - 1)])
        tensors[name].CopyFrom(numpy_helper.from_array(scaled, name))
    onnx.save(model, path)
    assert (
        main(["quantize", str(path), "-o", str(output), "--float", str(prepared), *RANGE, "-q"])
        == 0
    )
    equalized = sqnr(run(path, chain.inputs), run(output, chain.inputs))
    assert (
        main(["quantize", str(path), "-o", str(output), "--passes", "default", *RANGE, "-q"]) == 0
    )
    plain = sqnr(run(path, chain.inputs), run(output, chain.inputs))
    assert equalized > plain + 6
    assert harness.batch_norms(onnx.load(prepared)) == 0
    assert (
        sqnr(run(path, chain.inputs), run(prepared, chain.inputs)) > 30
    )  # bias correction is meant for int8


@pytest.mark.parametrize(("layer", "name"), [("b", "b"), ("c", "c.bn.out")])
def test_an_excluded_layer_stays_float(
    layer: str, name: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = path.with_name("int8.onnx")
    assert main(["quantize", str(path), "-o", str(output), "--exclude", name, *RANGE]) == 0
    model = onnx.load(output)
    assert [other for other in "abc" if operand(model, other, 1) is None] == [layer]
    text = capsys.readouterr().err
    assert "layers: 2 static, 0 dynamic, 1 float; " in text
    assert f"left float: Conv '{layer}': --exclude\n" in text


def test_a_kept_node_is_not_folded(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, prepared = path.with_name("int8.onnx"), path.with_name("float.onnx")
    words = ["quantize", str(path), "-o", str(output), "--float", str(prepared), *RANGE]
    assert main([*words, "--keep", "b.bn.out"]) == 0
    assert harness.batch_norms(onnx.load(prepared)) == 1
    assert main(words) == 0
    assert harness.batch_norms(onnx.load(prepared)) == 0
    assert main([*words, "--keep", "b.bn.ou"]) == 2
    assert "b.bn.out" in capsys.readouterr().err.splitlines()[-1]


def test_text_is_quantized_as_the_model_that_it_stands_for(path: Path) -> None:
    text, outputs = (
        path.with_suffix(".irc"),
        [path.with_name(f"{name}.onnx") for name in ("one", "other")],
    )
    assert main(["dump", str(path), "-o", str(text)]) == 0
    for model, output in zip((path, text), outputs, strict=True):
        assert main(["quantize", str(model), "-o", str(output), *RANGE, "-q"]) == 0
    one, other = (onnx.load(output) for output in outputs)
    wires = [
        [(node.op_type, node.input, node.output) for node in model.graph.node]
        for model in (one, other)
    ]
    assert wires[0] == wires[1]
    assert all(
        np.array_equal(array, constants(other)[name]) for name, array in constants(one).items()
    )
    quantized = irc.quantize(text, input_ranges={"x": (-4, 4)}, keep=["b.bn.out"])
    assert harness.batch_norms(quantized.prepared) == 1


def test_a_drawing_says_which_operators_are_float(path: Path) -> None:
    drawing = path.with_suffix(".svg")
    assert (
        main(
            [
                "quantize",
                str(path),
                "-o",
                str(path.with_name("o.onnx")),
                "--svg",
                str(drawing),
                *RANGE,
                "-q",
            ]
        )
        == 0
    )
    assert drawing.read_text().count(">int8<") == 6  # three Convs and their Relus
    assert (
        main(["quantize", str(path), "-o", str(path.with_name("o.onnx")), "--svg", "-", *RANGE])
        == 2
    )


def unknown_range() -> ModelProto:
    """x -> Conv, BatchNormalization -> Det (of which nothing is known) times the result -> y."""
    graph = Graph()
    graph.input("x", [1, 3, 4, 4])
    hidden = graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1))], "h", "known")
    graph.batch_norm(hidden, batch_norm(4), "k", "bn")
    graph.node("Det", ["k"], "d", "det")
    shape = graph.initializer(np.array([1, 4, 1, 1]))
    graph.node("Reshape", ["d", shape], "r", "reshape")
    graph.node("Conv", ["r", graph.initializer(graph.random(2, 4, 1, 1))], "y", "unknown")
    graph.output("y", [1, 2, 1, 1])
    return graph.model()


def test_a_layer_of_unknown_range_stays_float_until_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(unknown_range(), tmp_path / "model.onnx")
    command = ["quantize", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "int8.onnx"), *RANGE]
    assert main(command) == 0
    model = onnx.load(tmp_path / "int8.onnx")
    assert operand(model, "known", 1) is not None
    assert operand(model, "unknown", 1) is None
    text = capsys.readouterr().err
    assert "left float: Conv 'unknown': no range is known for " in text
    assert "--range r=LOW:HIGH" in text
    given = [option for name in "dry" for option in ("--range", f"{name}=-9:9")]
    assert main([*command, *given]) == 0
    assert operand(onnx.load(tmp_path / "int8.onnx"), "unknown", 1) is not None


def test_nodes_without_names_and_with_one_name(tmp_path: Path) -> None:
    graph = Graph()
    graph.input("x", [1, 3, 4, 4])
    value = "x"
    for name in ("", "same", "same", "t_1"):
        value = graph.node("Conv", [value, graph.initializer(graph.random(3, 3, 1, 1))], name=name)
        value = graph.node("Relu", [value])
    graph.output(value)
    ranges = {node.output[0]: (-40.0, 40.0) for node in graph.nodes}
    found = irc.quantize(
        graph.model(),
        input_ranges={"x": (-1, 1)},
        ranges=ranges,
        exclude=["same"],
        passes="default",
    )
    names = [node.name for node in found.prepared.graph.node]
    assert len(set(names)) == len(names)
    assert [one.quantized for one in found.coverage if one.is_layer] == [True, False, True, True]
    assert is_valid(found.model) is None


def test_initializers_that_callers_may_override_become_constants(path: Path, chain: Chain) -> None:
    model = chain.model()
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "b.weight")
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("b.weight", weight.data_type, weight.dims)
    )
    found = irc.quantize(model, input_ranges={"x": (-4, 4)})
    assert [info.name for info in found.model.graph.input] == ["x"]
    assert "callers can no longer override the initializers 'b.weight'" in found.warnings
    assert sum(one.is_layer and one.quantized for one in found.coverage) == 3


def test_external_data(path: Path, chain: Chain) -> None:
    stored = path.with_name("stored.onnx")
    harness.save_external(chain.model(), stored, "weights.bin")
    assert (
        main(["quantize", str(stored), "-o", str(path.with_name("int8.onnx")), *RANGE, "-q"]) == 0
    )
    expected = irc.quantize(path, input_ranges={"x": (-4, 4)})
    assert onnx.load(path.with_name("int8.onnx")).graph == expected.model.graph
    command = ["quantize", str(stored), "-o", str(path.with_name("weights.bin")), *RANGE, "-q"]
    before = path.with_name("weights.bin").read_bytes()
    assert main(command) == 2
    assert path.with_name("weights.bin").read_bytes() == before


def test_equal_calls_give_equal_bytes(path: Path) -> None:
    files = [path.with_name(f"{i}.onnx") for i in range(2)]
    for file in files:
        done = subprocess.run(
            [sys.executable, "-m", "irc", "quantize", path, "-o", file, *RANGE, "-q"], check=False
        )
        assert done.returncode == 0
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (
            [],
            2,
            "{model}: nothing is known of the range of 'x': give --input-range NAME=LOW:HIGH",
        ),
        (
            [*RANGE, "--exclude", "bb"],
            2,
            "the main graph of the folded model has no operator of the name or result 'bb'",
        ),
        ([*RANGE, "--range", "nowhere=0:1"], 2, "'nowhere' is not a floating-point value"),
        (
            [*RANGE, "--range", "a.relu.out=0:1"],
            2,
            "the passes replaced 'a.relu.out' by a value of another range",
        ),
        (["--input-range", "x=1"], 2, "'x=1' is not a range: write NAME=LOW:HIGH"),
        (["--data", "missing.npz"], 1, "missing.npz: there is no such file"),
        (
            ["--data", "{model}"],
            1,
            "{model}: give an .npz, .npy, .pb, .png, .jpg or .wav file, or a folder of them",
        ),
        (
            ["--data", "{empty}"],
            1,
            "{empty}: this folder has no .npz, .npy, .pb, .png, .jpg or .wav file",
        ),
        (["--data", "{other}"], 1, "the input 'x' is missing"),
        (["--data", "{wide}"], 1, "the input 'x' is float64, but the model takes float32"),
        ([*RANGE, "--float", "{output}"], 2, "two outputs cannot be one file"),
        ([*RANGE, "--passes", "Nothing"], 2, "Nothing"),
        ([*RANGE, "--json", "{empty}/none/x.json"], 1, "cannot be written"),
    ],
)
def test_one_sentence_and_no_file(
    options: list[str],
    status: int,
    message: str,
    path: Path,
    chain: Chain,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {key: str(path.with_name(f"{key}.npz")) for key in ("other", "wide")}
    names |= {
        "model": str(path),
        "output": str(path.with_name("int8.onnx")),
        "empty": str(path.with_name("empty")),
    }
    Path(names["empty"]).mkdir()
    np.savez(names["other"], z=chain.inputs)
    np.savez(names["wide"], x=chain.inputs.astype(np.float64))
    before = sorted(path.parent.rglob("*"))
    command = [
        "quantize",
        str(path),
        "-o",
        names["output"],
        *(option.format(**names) for option in options),
    ]
    assert main(command) == status
    text = capsys.readouterr().err
    assert message.format(**names) in text
    assert text.count("\n") == 1
    assert sorted(path.parent.rglob("*")) == before


def test_an_onnxruntime_without_the_quantizer(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["quantize", str(path), "-o", str(path.with_name("int8.onnx")), *RANGE]
    with monkeypatch.context() as patch:
        patch.setattr(onnxruntime, "__version__", "1.26.2")
        assert main(command) == 2
    assert (
        capsys.readouterr().err
        == "irc: irc quantize needs a newer onnxruntime than 1.26.2: install onnxruntime 1.27 or"
        " newer\n"
    )
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    assert main(command) == 2
    assert "irc quantize needs onnxruntime.quantization" in capsys.readouterr().err


def test_the_quantizer_is_imported_when_it_is_used() -> None:
    code = "import sys, irc; irc.quantize; sys.exit('onnxruntime.quantization' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_loggers_are_as_before(path: Path) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    irc.quantize(path, input_ranges={"x": (-4, 4)})
    assert root.handlers == before


@pytest.mark.parametrize(
    ("shapes", "arrays", "extents"),
    [
        ({"x": ["n", 3]}, {"x": 20}, [{"x": 7}, {"x": 7}, {"x": 6}]),
        ({"x": [-1, 3]}, {"x": 20}, [{"x": 7}, {"x": 7}, {"x": 6}]),
        ({"x": [1, 3]}, {"x": 3}, [{"x": 1}] * 3),
        ({"x": [2, 3], "z": [2, 3]}, {"x": 4, "z": 4}, [{"x": 2, "z": 2}] * 2),
        ({"x": [1, 3], "z": [5, 3]}, {"x": 2, "z": 5}, [{"x": 1, "z": 5}] * 2),
        ({"x": ["n", 3], "z": [1, 3]}, {"x": 16, "z": 1}, [{"x": 8, "z": 1}] * 2),
        ({"x": [2, 3]}, {"x": 3}, None),
        ({"x": [1, 3], "z": [1, 3]}, {"x": 2, "z": 3}, None),
        ({"x": ["n", 3], "z": ["n", 3]}, {"x": 2, "z": 3}, None),
    ],
)
def test_samples_become_batches(
    shapes: dict[str, Any], arrays: dict[str, int], extents: list[dict[str, int]] | None
) -> None:
    from irc.tools.int8.samples import read_samples

    graph = Graph()
    for name, shape in shapes.items():
        graph.input(name, shape)
    graph.output(graph.node("Sum", list(shapes)), None)
    data = {
        name: np.arange(3 * size, dtype=np.float32).reshape(size, 3)
        for name, size in arrays.items()
    }
    if extents is None:
        with pytest.raises(
            irc.VerifyError, match="the numbers of samples do not fit each other or the model"
        ):
            read_samples(data, graph.model())
        return
    batches = read_samples(data, graph.model())
    assert [{name: len(array) for name, array in batch.items()} for batch in batches] == extents
    if "z" not in arrays:
        assert np.array_equal(np.concatenate([batch["x"] for batch in batches]), data["x"])


@pytest.mark.shared
def test_the_shared_digits(tmp_path: Path, record_property: Any) -> None:
    folder = harness.SHARED / "digits"
    with np.load(folder / "data.npz") as data:
        images, labels = data["test_images"], data["test_labels"]
    found = irc.quantize(
        folder / "relu_imbalanced.onnx", input_ranges={"x": (-1, 2.2)}, test_data={"x": images}
    )
    accuracy = float((run(found.model, images).argmax(1) == labels).mean())
    record_property(
        "compared",
        f"irc quantize, digits relu_imbalanced: {accuracy:.4f}, {found.fidelity[0].ratio_text('dB')}",
    )
    assert all(one.quantized for one in found.coverage if one.is_layer)
    assert accuracy > 0.98
    assert (found.fidelity[0].unoptimized or 0) > 25


@pytest.mark.shared
def test_a_shared_detector(tmp_path: Path) -> None:
    path = harness.SHARED / "real" / "ZenDNN-onnxruntime__Detection_model.onnx"
    name = next(harness.required_inputs(onnx.load(path))).name
    output = tmp_path / "int8.onnx"
    assert (
        main(["quantize", str(path), "-o", str(output), "--input-range", f"{name}=-3:3", "-q"]) == 0
    )
    model = onnx.load(output)
    inputs = harness.random_inputs(onnx.load(path))
    assert harness.run(model, inputs).keys() == harness.run(onnx.load(path), inputs).keys()
    assert sum(node.op_type == "Conv" for node in model.graph.node) >= 50


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "mean", "std", "least"),
    [
        ("mobilenet_v2", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375), 17),
        ("efficientnet_lite0", (127.0,) * 3, (128.0,) * 3, 14),
    ],
)
@pytest.mark.parametrize("reduce_range", [False, True])
def test_the_shared_nets_trained_on_pictures(
    net: str,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    least: float,
    reduce_range: bool,
    record_property: Any,
) -> None:
    """Without data, on eight pictures.

    One of them may have another class than by the float model.
    """
    path = harness.SHARED / "imagenet" / f"{net}.onnx"
    with np.load(path.with_name("images.npz")) as data:
        pixels = data["images"][:8].astype(np.float64)
    low, high = ((end - np.array(mean)) / np.array(std) for end in (0, 255))
    pictures = (pixels - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    name = next(harness.required_inputs(onnx.load(path))).name
    found = irc.quantize(
        path,
        input_ranges={name: (low.min(), high.max())},
        test_data={name: pictures.astype(np.float32)},
        reduce_range=reduce_range,
    )
    (fidelity,) = found.fidelity
    record_property(
        "compared",
        f"irc quantize, {net}, {7 if reduce_range else 8} bits: {fidelity.ratio_text('dB')},"
        f" agreement {fidelity.agreement}",
    )
    assert all(one.quantized for one in found.coverage)
    assert set(found.ranges.values()) == {"given", "statistic", "propagated", "bound"}
    assert (fidelity.unoptimized or 0) > least
    assert fidelity.agreement is not None
    if overflows() and not reduce_range:
        assert fidelity.sqnr < least
        return
    assert fidelity.sqnr > least
    assert fidelity.agreement >= 7 / 8
