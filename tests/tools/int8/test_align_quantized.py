"""`irc align FLOAT INT8`.

The error of every layer, where it comes from, and what would repair it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from graphs import Array, Graph
from int8_models import NEEDS_RANGES, sqnr, three_layers
from irc.tools.cli.main import main
from irc.tools.verify import reference_model
from onnx import ModelProto, numpy_helper
from quantizers.nets import Chain

pytestmark = NEEDS_RANGES

KINDS = ("weights", "rounding", "clipping")


@pytest.fixture(scope="module")
def chain() -> Chain:
    return three_layers()


def aligned(
    folder: Path, first: ModelProto, second: ModelProto, data: Array, *options: str
) -> dict[str, Any]:
    """The document of `irc align --json`."""
    for name, model in (("float.onnx", first), ("int8.onnx", second)):
        onnx.save(model, folder / name)
    np.savez(folder / "data.npz", x=data)
    paths = [str(folder / name) for name in ("float.onnx", "int8.onnx")]
    command = [
        "align",
        *paths,
        "--data",
        str(folder / "data.npz"),
        "--json",
        str(folder / "out.json"),
        "-q",
    ]
    assert main([*command, *options]) == 0
    return dict(json.loads((folder / "out.json").read_text()))


def row(document: dict[str, Any], layer: str) -> dict[str, Any]:
    return next(row for row in document["layers"] if row["layer"] == layer)


def dense(weight: Array) -> ModelProto:
    graph = Graph()
    graph.input("x", ["n", weight.shape[0]])
    graph.node("MatMul", ["x", graph.initializer(weight)], "y", "dense")
    graph.output("y", ["n", weight.shape[1]])
    return graph.model()


def test_the_parts_are_those_of_the_formulas(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 5)).astype(np.float32)
    x = rng.uniform(-1.5, 1.5, (40, 6)).astype(np.float32)
    model = dense(weight)
    int8 = irc.quantize(
        model,
        input_ranges={"x": (-1, 1)},
        ranges={"y": (-3, 3)},
        passes="none",
        per_channel=False,
    ).model
    (found,) = aligned(tmp_path, model, int8, x)["layers"]

    def rounded(array: Array, limit: float, steps: int) -> Array:
        scale = 2 * limit / steps
        return (
            np.rint(array / scale) * scale
        )  # both zero points are in the middle, up to half a step

    near = rounded(weight, float(np.abs(weight).max()), 254)
    exact = x @ weight
    assert found["weights"] == pytest.approx(sqnr(exact, x @ near), abs=0.1)
    cut = np.clip(np.clip(x, -1, 1) @ weight, -3, 3)
    assert found["clipping"] == pytest.approx(sqnr(exact, cut), abs=0.1)
    assert found["rounding"] == pytest.approx(
        sqnr(exact, rounded(rounded(x, 1, 255) @ weight, 3, 255)), abs=1.0
    )
    result = harness.run(int8, {"x": x})["y"]
    assert found["alone"] == pytest.approx(sqnr(exact, result), abs=0.01)
    assert found["accumulated"] == pytest.approx(sqnr(exact, result), abs=0.01)
    assert found["max_abs"] == pytest.approx(np.abs(result - exact).max(), rel=1e-5)


def test_alone_is_on_the_data_of_the_float_model(tmp_path: Path, chain: Chain) -> None:
    whole = irc.quantize(chain.model(), input_ranges={"x": (-4, 4)})
    document = aligned(tmp_path, whole.prepared, whole.model, chain.inputs)
    assert document["left_out"] == []
    assert [found["alone"] for found in document["layers"]] == sorted(
        found["alone"] for found in document["layers"]
    )
    expected, found = (
        harness.run(model, {"x": chain.inputs}) for model in (whole.prepared, whole.model)
    )
    (result,) = document["results"]
    assert result["sqnr"] == pytest.approx(sqnr(*expected.values(), *found.values()), abs=0.01)
    assert row(document, "c")["accumulated"] == pytest.approx(result["sqnr"], abs=0.01)
    assert row(document, "c")["alone"] > row(document, "c")["accumulated"] + 0.5
    assert row(document, "a")["alone"] == pytest.approx(row(document, "a")["accumulated"], abs=0.01)


def test_a_range_that_clips_is_named_and_its_repair_repairs(tmp_path: Path, chain: Chain) -> None:
    base: dict[str, Any] = {"input_ranges": {"x": (-5, 5)}, "passes": "default"}
    narrow = irc.quantize(chain.model(), ranges={"b.relu.out": (0, 0.3)}, **base)
    document = aligned(tmp_path, narrow.prepared, narrow.model, chain.inputs)
    worst = document["layers"][0]
    assert worst["layer"] in "bc"  # the one that writes the tensor, or the one that reads it
    assert min(KINDS, key=lambda kind: float(worst[kind])) == "clipping"
    assert worst["repair"].startswith("wider range: b.relu.out=0:")
    assert "not 0:0.3" in worst["repair"]
    low, high = map(float, worst["repair"].split("=")[1].split(",")[0].split(":"))
    repaired = irc.quantize(chain.model(), ranges={"b.relu.out": (low, high)}, **base)
    after = aligned(tmp_path, repaired.prepared, repaired.model, chain.inputs)
    assert after["results"][0]["sqnr"] > document["results"][0]["sqnr"] + 10
    assert (
        row(after, worst["layer"])["clipping"] in ("inf", None)
        or row(after, worst["layer"])["clipping"] > 40
    )


def test_a_weight_of_uneven_channels_wants_a_scale_for_each(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((16, 8)).astype(np.float32) / 100
    weight[:, -1] = 0
    weight[0, -1] = 1.0
    x = rng.uniform(-1, 1, (64, 16)).astype(np.float32)
    x[:, 0] = 0
    model = dense(weight)
    keep: dict[str, Any] = {
        "input_ranges": {"x": (-1, 1)},
        "ranges": {"y": (-0.1, 0.1)},
        "passes": "none",
    }
    document = aligned(tmp_path, model, irc.quantize(model, per_channel=False, **keep).model, x)
    (found,) = document["layers"]
    assert min(KINDS, key=lambda kind: float(found[kind])) == "weights"
    assert found["repair"].startswith("per channel (")
    graph = aligned(tmp_path, model, irc.quantize(model, per_channel=True, **keep).model, x)
    assert graph["layers"][0]["weights"] == pytest.approx(found["per_channel"], abs=0.5)
    assert graph["layers"][0]["per_channel"] == "nan"


def mixed() -> ModelProto:
    """Layers of every operator.

    ConvTranspose, grouped Conv, Gemm in both forms, MatMul of two activations.
    """
    graph = Graph()
    graph.input("x", ["n", 4, 5, 5])
    up = graph.node(
        "ConvTranspose",
        ["x", graph.initializer(graph.random(4, 6, 2, 2))],
        "u",
        "up",
        strides=[2, 2],
    )
    low = graph.node(
        "Clip",
        [up, graph.initializer(np.float32(-1)), graph.initializer(np.float32(2))],
        "k",
        "clip",
    )
    conv = [low, graph.initializer(graph.random(9, 2, 3, 3)), graph.initializer(graph.random(9))]
    graph.node("Conv", conv, "v", "grouped", group=3)
    pooled = graph.node("GlobalAveragePool", ["v"])
    flat = graph.node("Flatten", [pooled], "f")
    graph.node("Gemm", [flat, graph.initializer(graph.random(7, 9)), graph.initializer(graph.random(7))], "p", "first",
               transB=1, alpha=0.5)  # fmt: skip
    graph.node("Gemm", [flat, graph.initializer(graph.random(9, 7))], "q", "second")
    graph.node("Transpose", ["q"], "qt", "turn", perm=[1, 0])
    graph.node("MatMul", ["p", "qt"], "y", "pair")
    graph.output("y", ["n", "n"])
    return graph.model()


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_every_layer_in_both_forms(form: str, per_channel: bool, tmp_path: Path) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    x = np.random.default_rng(0).standard_normal((6, 4, 5, 5)).astype(np.float32)

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = iter([{"x": x}])

        def get_next(self) -> Any:
            return next(self._batches, None)

    model = mixed()
    onnx.save(model, tmp_path / "model.onnx")
    quantize_static(
        tmp_path / "model.onnx", tmp_path / "made.onnx", Reader(), quant_format=QuantFormat[form],
        activation_type=QuantType.QUInt8, per_channel=per_channel,
    )  # fmt: skip
    int8 = onnx.load(tmp_path / "made.onnx")
    document = aligned(tmp_path, model, int8, x)
    expected = {"up", "grouped", "first", "second", "pair"} - (
        {"up"} if form == "QOperator" else set()
    )
    assert {found["layer"] for found in document["layers"]} == expected
    assert document["left_out"] == []
    for found in document["layers"]:
        parts = [10 ** (-float(found[kind]) / 10) for kind in KINDS]
        assert -10 * np.log10(sum(parts)) == pytest.approx(
            found["alone"], abs=2.5
        )  # independent parts add up
        assert found["alone"] > 15
    result = sqnr(harness.run(model, {"x": x})["y"], harness.run(int8, {"x": x})["y"])
    assert document["results"][0]["sqnr"] == pytest.approx(result, abs=0.01)
    assert row(document, "pair")["accumulated"] == pytest.approx(result, abs=0.01)


def test_chunks_and_batches_change_nothing(
    tmp_path: Path, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = irc.quantize(chain.model(), input_ranges={"x": (-4, 4)})
    expected = aligned(tmp_path, whole.prepared, whole.model, chain.inputs)
    monkeypatch.setattr(reference_model, "CHUNK_BYTES", 1)
    assert aligned(tmp_path, whole.prepared, whole.model, chain.inputs) == expected


def test_batch_normalizations_of_the_float_model_are_folded(tmp_path: Path, chain: Chain) -> None:
    int8 = irc.quantize(chain.model(), input_ranges={"x": (-4, 4)}, passes="default").model
    document = aligned(tmp_path, chain.model(), int8, chain.inputs)
    assert {found["layer"] for found in document["layers"]} == {"a", "b", "c"}


def test_an_equalized_model_needs_its_own_float_model(
    tmp_path: Path, chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    model = chain.model()
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name in ("a.bn.gamma", "a.bn.beta", "b.bn.gamma", "b.bn.beta", "c.bn.gamma"):
        array = numpy_helper.to_array(tensors[name])
        scaled = array * 50 ** np.linspace(-1, 1, len(array), dtype=np.float32)
        tensors[name].CopyFrom(numpy_helper.from_array(scaled, name))
    found = irc.quantize(model, input_ranges={"x": (-4, 4)}, ranges={})
    document = aligned(tmp_path, found.prepared, found.model, chain.inputs)
    assert document["left_out"] == []
    onnx.save(model, tmp_path / "float.onnx")
    assert main(["align", str(tmp_path / "float.onnx"), str(tmp_path / "int8.onnx"), "-q"]) == 1
    text = capsys.readouterr().err
    assert (
        "compare with the float model that was quantized, which irc quantize writes with --float"
        in text
    )
    assert text.count("\n") == 1


def test_the_table_and_the_page(
    tmp_path: Path, chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    found = irc.quantize(chain.model(), input_ranges={"x": (-4, 4)})
    for name, model in (("f.onnx", found.prepared), ("q.onnx", found.model)):
        onnx.save(model, tmp_path / name)
    page = tmp_path / "page.html"
    assert (
        main(["align", str(tmp_path / "f.onnx"), str(tmp_path / "q.onnx"), "--html", str(page)])
        == 0
    )
    out = capsys.readouterr().out
    heading = [
        cell.strip()
        for cell in next(line for line in out.split("\n") if "┃" in line).split("┃")[1:-1]
    ]
    assert heading == ["layer", "operator", "alone", "accumulated", *KINDS, "repair"]
    assert [line.split("│")[1].strip() for line in out.split("\n") if line.startswith("│")] != []
    assert "SQNR" in out.splitlines()[-1]
    assert "generated within the ranges of the inputs" in out.splitlines()[-1]
    assert "c.relu.out" in page.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dump", "{folder}/dump"], "--dump is not for quantized models: add --by rounding"),
        (["--thorough"], "--thorough is not for quantized models: add --by rounding"),
        (["--by", "rounding", "--data", "x.npz"], "--data is for quantized models: give --inputs"),
        (["--json", "{folder}/q.onnx"], "this output would replace a file that is read"),
    ],
)
def test_options_that_do_not_go_together(
    options: list[str],
    message: str,
    tmp_path: Path,
    chain: Chain,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = irc.quantize(chain.model(), input_ranges={"x": (-4, 4)})
    for name, model in (("f.onnx", found.prepared), ("q.onnx", found.model)):
        onnx.save(model, tmp_path / name)
    paths = [str(tmp_path / name) for name in ("f.onnx", "q.onnx")]
    assert main(["align", *paths, *(option.format(folder=tmp_path) for option in options)]) == 2
    text = capsys.readouterr().err
    assert message in text
    assert text.count("\n") == 1


def test_rounding_on_request_and_between_two_quantized_models(
    tmp_path: Path, chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    found = irc.quantize(chain.model(), input_ranges={"x": (-4, 4)})
    for name, model in (("f.onnx", found.prepared), ("q.onnx", found.model)):
        onnx.save(model, tmp_path / name)
    paths = [str(tmp_path / name) for name in ("f.onnx", "q.onnx")]
    assert main(["align", *paths, "--by", "rounding"]) == 1
    assert main(["align", paths[1], paths[1]]) == 0
    assert "agree within their rounding bounds" in capsys.readouterr().out
    assert main(["align", paths[0], paths[0], "--by", "sqnr"]) == 2
    assert "--by sqnr needs a quantized model" in capsys.readouterr().err


def test_own_inputs(tmp_path: Path, chain: Chain, capsys: pytest.CaptureFixture[str]) -> None:
    found = irc.quantize(chain.model(), input_ranges={"x": (-4, 4)})
    for name, model in (("f.onnx", found.prepared), ("q.onnx", found.model)):
        onnx.save(model, tmp_path / name)
    np.save(tmp_path / "x.npy", chain.inputs[:3])
    paths = [str(tmp_path / name) for name in ("f.onnx", "q.onnx")]
    assert main(["align", *paths, "--inputs", str(tmp_path / "x.npy")]) == 0
    assert "on 3 samples" in capsys.readouterr().out.splitlines()[-1]
    np.save(tmp_path / "x.npy", chain.inputs[:3, :2])
    assert main(["align", *paths, "--inputs", str(tmp_path / "x.npy")]) == 1
    assert capsys.readouterr().err.startswith(f"irc: {paths[0]}: ")


def quantized(chain: Chain, folder: Path, **options: Any) -> tuple[irc.Quantized, list[str]]:
    """A quantized model, and the paths of the float model beside it and of itself."""
    found = irc.quantize(chain.model(), input_ranges=(-5, 5), **options)
    paths = [str(folder / name) for name in ("float.onnx", "int8.onnx")]
    found.save(paths[1], prepared=paths[0])
    return found, paths


def test_the_noise_of_each_rounding_is_that_of_a_target(tmp_path: Path, chain: Chain) -> None:
    feeds = {"x": chain.inputs[:24]}
    # Without corrections, which are in the float model that is written.
    options: dict[str, Any] = {"test_data": feeds, "target": "10dB", "passes": "default"}
    found, _ = quantized(chain, tmp_path, **options)
    assert found.reached is not None and found.reached.layers == 0
    document = aligned(tmp_path, found.prepared, found.model, feeds["x"])
    expected = found.reached.to_json()
    assert [one["name"] for one in document["roundings"]] == [
        one["name"] for one in expected["roundings"]
    ]
    for one, other in zip(document["roundings"], expected["roundings"], strict=True):
        assert one == other | {"alone": pytest.approx(other["alone"], abs=0.01)}
    assert document["predicted"] == pytest.approx(expected["predicted"], abs=0.01)


def test_the_noise_is_printed_with_its_sum(
    tmp_path: Path, chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    _, paths = quantized(chain, tmp_path)
    assert main(["align", *paths]) == 0
    out = capsys.readouterr().out
    table = out[out.index("rounding of") : out.index(" dB by the sum of 7 roundings")]
    assert "share %" in table and "tensor" in table
    assert table.splitlines()[-1].startswith("noise: ")


def test_dynamic_layers_are_roundings_of_the_table(tmp_path: Path, chain: Chain) -> None:
    model = chain.model()
    graph = model.graph
    graph.node.append(onnx.helper.make_node("GlobalAveragePool", [chain.result], ["pool"]))
    graph.node.append(onnx.helper.make_node("Flatten", ["pool"], ["d0"]))
    rng = np.random.default_rng(1)
    for i, (rows, columns) in enumerate(((6, 16), (16, 16), (16, 5))):
        weight = rng.normal(size=(rows, columns)).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(weight, f"w{i}"))
        made = onnx.helper.make_node("MatMul", [f"d{i}", f"w{i}"], [f"p{i}"], f"dense{i}")
        graph.node.extend([made, onnx.helper.make_node("Relu", [f"p{i}"], [f"d{i + 1}"])])
    del graph.node[-1]
    graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("p2", 1, ["n", 5]))
    del graph.value_info[:]
    found = irc.quantize(model, input_ranges=(-5, 5))
    methods = {one.node: one.method.value for one in found.coverage if one.is_layer}
    assert set(methods.values()) == {"static", "dynamic"}
    document = aligned(tmp_path, found.prepared, found.model, chain.inputs[:24])
    alone = {one["name"]: one["alone"] for one in document["roundings"]}
    assert all(name in alone and alone[name] < 100 for name in methods)
    assert document["predicted"] == pytest.approx(document["results"][0]["sqnr"], abs=3)


def test_a_model_in_another_form_has_no_noise_of_roundings(
    tmp_path: Path, chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside another float model, errors of weights would be taken for roundings."""
    _, paths = quantized(chain, tmp_path)
    other = onnx.load(paths[0])
    for node in other.graph.node:
        node.name = f"{node.name}_other"
    for tensor in other.graph.initializer:
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array((array * 1.001).astype(array.dtype), tensor.name))
    onnx.save(other, paths[0])
    assert main(["align", *paths]) == 0
    out = capsys.readouterr().out
    assert "the noise of each rounding is not known: " in out
    assert "rounding of" not in out
