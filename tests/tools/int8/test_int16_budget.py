"""`irc quantize --int16-budget`: some tensors have 16 bits, before layers become float."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from graphs import Array, Graph, is_valid
from int8_models import NEEDS_RANGES, sqnr, three_layers
from irc.support.errors import EmitError, UsageError
from irc.tools.cli.main import main
from onnx import ModelProto, numpy_helper
from quantizers.nets import Chain

pytestmark = NEEDS_RANGES


@pytest.fixture(scope="module")
def chain() -> Chain:
    return three_layers()


def feeds_of(chain: Chain) -> dict[str, Array]:
    return {"x": chain.inputs[:64]}


def measured(model: ModelProto, found: irc.Quantized, feeds: dict[str, Array]) -> float:
    (expected,), (result,) = (harness.run(each, feeds).values() for each in (model, found.model))
    return sqnr(expected, result)


def floats(found: irc.Quantized) -> list[str]:
    return [one.node for one in found.coverage if one.is_layer and one.method.value == "float"]


def bits(found: irc.Quantized) -> list[str]:
    """The integers of rounded activations, by name."""
    tensors = {each.name: each for each in found.model.graph.initializer}
    return sorted(
        numpy_helper.to_array(tensors[node.input[2]]).dtype.name
        for node in found.model.graph.node
        if node.op_type == "QuantizeLinear"
    )


def test_tensors_have_16_bits_before_layers_are_float(chain: Chain) -> None:
    model, feeds = chain.model(), feeds_of(chain)
    options: dict[str, Any] = {"input_ranges": (-5, 5), "test_data": feeds}
    plain = irc.quantize(model, **options)
    all_wide = irc.quantize(model, activations="int16", **options)
    low, high = (measured(model, each, feeds) for each in (plain, all_wide))
    assert high > low + 6
    target = f"{low + 1:.1f}dB"
    without, found = (
        irc.quantize(model, target=target, int16_budget=budget, **options)
        for budget in (None, "100%")
    )
    assert floats(without) and bits(without) == ["uint8"] * len(bits(without))
    assert without.model.opset_import[0].version == 17
    assert floats(found) == []
    assert set(bits(found)) == {"uint8", "uint16"}  # no more than the target takes
    assert found.model.opset_import[0].version == 21 and found.model.ir_version >= 10
    assert is_valid(found.model) is None
    assert measured(model, found, feeds) >= low + 0.9
    assert found.reached is not None
    assert found.reached.tensors == bits(found).count("uint16")
    assert found.reached.predicted == pytest.approx(measured(model, found, feeds), abs=1.5)


def test_layers_become_float_where_16_bits_are_not_enough(chain: Chain) -> None:
    model, feeds = chain.model(), feeds_of(chain)
    options: dict[str, Any] = {"input_ranges": (-5, 5), "test_data": feeds}
    best = irc.quantize(model, int16_budget="100%", **options)
    assert bits(best) == ["uint16"] * len(bits(best)) and floats(best) == []
    goal = measured(model, best, feeds) + 1
    with pytest.raises(EmitError, match="100 % of the tensors in 16 bits: the best is"):
        irc.quantize(
            model, target=f"{goal:.1f}dB", int16_budget="100%", float_budget="0%", **options
        )
    found = irc.quantize(model, target=f"{goal:.1f}dB", int16_budget="100%", **options)
    assert 0 < len(floats(found)) < 3
    assert measured(model, found, feeds) >= goal - 0.1


@pytest.mark.parametrize(("budget", "count"), [("0%", 0), ("24%", 0), ("25%", 1), ("50%", 2)])
def test_a_budget_counts_tensors(budget: str, count: int, chain: Chain) -> None:
    found = irc.quantize(chain.model(), input_ranges=(-5, 5), int16_budget=budget)
    assert len(bits(found)) == 4
    assert bits(found).count("uint16") == count
    assert floats(found) == []
    # Without a budget the model keeps its opset.
    assert found.model.opset_import[0].version == (17 if budget == "0%" else 21)


def test_a_budget_of_nothing_changes_nothing(chain: Chain) -> None:
    options: dict[str, Any] = {"input_ranges": (-5, 5), "target": "30dB"}
    pair = [irc.quantize(chain.model(), int16_budget=b, **options).model for b in (None, "0%")]
    assert pair[0].SerializeToString() == pair[1].SerializeToString()


def test_tensors_of_16_bits_take_ranges_from_data(chain: Chain) -> None:
    model, feeds = chain.model(), feeds_of(chain)
    plain, some = (irc.quantize(model, data=feeds, int16_budget=b) for b in (None, "75%"))
    assert bits(some).count("uint16") == 3
    assert measured(model, some, feeds) > measured(model, plain, feeds) + 1


def test_a_limit_of_channels_is_rounded_to_16_bits_once() -> None:
    """A Min reads a tensor that is rounded, too: 8 bits there would leave the noise as it is."""
    graph = Graph(opset=17, ir=8)
    graph.input("x", ["n", 4, 8, 8])
    h = graph.node("Relu", [graph.node("Conv", ["x", graph.initializer(graph.random(6, 4, 1, 1))])])
    limit = graph.initializer(np.linspace(0.5, 3, 6, dtype=np.float32).reshape(6, 1, 1))
    h = graph.node("Min", [h, limit])
    graph.node("Conv", [h, graph.initializer(graph.random(5, 6, 1, 1))], "y", "last")
    graph.output("y", ["n", 5, 8, 8])
    model = graph.model()
    feeds = {"x": np.random.default_rng(0).uniform(-1, 1, (20, 4, 8, 8)).astype(np.float32)}
    wide = irc.quantize(model, data=feeds, activations="int16", passes="default")
    found = irc.quantize(model, data=feeds, int16_budget="100%", passes="default")
    assert set(bits(wide)) == set(bits(found)) == {"uint16"}
    assert measured(model, found, feeds) == pytest.approx(measured(model, wide, feeds), abs=0.5)


def softmax(opset: int) -> ModelProto:
    """Two layers and a Softmax along channels."""
    graph = Graph(opset=opset, ir=7)
    graph.input("x", ["n", 4, 8, 8])
    h = graph.node("Relu", [graph.node("Conv", ["x", graph.initializer(graph.random(6, 4, 1, 1))])])
    h = graph.node("Conv", [h, graph.initializer(graph.random(5, 6, 1, 1))])
    graph.node("Softmax", [h], "y", "last", axis=1)
    graph.output("y", ["n", 5, 8, 8])
    return graph.model()


@pytest.mark.parametrize("opset", [10, 11, 12])
def test_a_model_below_opset_13_is_raised_or_refused(
    opset: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = three_layers()
    model = chain.model()
    model.opset_import[0].version = opset
    found = irc.quantize(model, input_ranges=(-5, 5), int16_budget="50%")
    assert found.model.opset_import[0].version == 21
    assert bits(found).count("uint16") == 2
    assert is_valid(found.model) is None
    assert measured(model, found, feeds_of(chain)) > 20
    path, output = tmp_path / "net.onnx", tmp_path / "int8.onnx"
    onnx.save(softmax(opset), path)
    options = ["--input-range=-1:1", "--int16-budget"]
    assert main(["quantize", str(path), "-o", str(output), *options, "50%"]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last == (
        f"irc: {path}: integers of 16 bits need opset 21: Softmax 'last' means something else in"
        f" opset 21 than in opset {opset}"
    )
    assert not output.exists()
    assert main(["quantize", str(path), "-o", str(output), *options, "0%"]) == 0


def test_the_report_says_what_a_cpu_computes_in_float(
    chain: Chain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(chain.model(), path)
    options = ["--input-range=-5:5", "--int16-budget", "50%", "--json", "-", "--no-time"]
    assert main(["quantize", str(path), "-o", str(tmp_path / "int8.onnx"), *options]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    layers = document["int16"]["layers"]
    assert document["int16"] == {"tensors": 2, "total": 4, "layers": layers}
    assert document["goal"]["int16_budget"] == 0.5
    assert document["goal"]["made_int16"] == 2
    assert 1 < layers <= 3
    assert (
        f"16 bits: 2 of 4 roundings, and onnxruntime on a CPU computes the {layers} layers beside"
        " them in float" in err
    )
    assert "0 of 3 layers made float for it, 2 tensors of 16 bits" in err
    plain = irc.quantize(chain.model(), input_ranges=(-5, 5))
    assert plain.to_json()["int16"] is None
    assert not any(line.startswith("16 bits") for line in plain.lines())


@pytest.mark.parametrize("budget", ["30", "130%", "some"])
def test_budgets_of_another_form_are_usage_errors(budget: str, chain: Chain) -> None:
    with pytest.raises(UsageError, match="a share of the tensors, such as 5%"):
        irc.quantize(chain.model(), input_ranges=(-5, 5), int16_budget=budget)


def test_a_budget_beside_activations_of_16_bits_is_a_usage_error(
    chain: Chain, tmp_path: Path
) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(chain.model(), path)
    options = ["--input-range=-5:5", "--int16-budget", "50%", "--activations", "int16"]
    assert main(["quantize", str(path), "-o", str(tmp_path / "int8.onnx"), *options]) == 2
