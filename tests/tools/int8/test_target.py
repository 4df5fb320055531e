"""`irc quantize --target` and `--float-budget`: a quality that the user names."""

from __future__ import annotations

import json
import re
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
from irc.tools.int8.samples import generate_samples
from irc.tools.verify.runner import Runner
from onnx import ModelProto, numpy_helper
from quantizers.nets import Chain

pytestmark = NEEDS_RANGES


@pytest.fixture(scope="module")
def chain() -> Chain:
    return three_layers()


def inputs_of(chain: Chain) -> dict[str, Array]:
    return {"x": chain.inputs[:64]}


def floats(found: irc.Quantized) -> list[str]:
    return [one.node for one in found.coverage if one.is_layer and one.method.value == "float"]


def measured(model: ModelProto, found: irc.Quantized, feeds: dict[str, Array]) -> float:
    (expected,), (result,) = (harness.run(each, feeds).values() for each in (model, found.model))
    return sqnr(expected, result)


def test_as_few_layers_are_float_as_a_target_takes(chain: Chain) -> None:
    model, feeds = chain.model(), inputs_of(chain)
    plain = irc.quantize(model, input_ranges={"x": (-5, 5)}, test_data=feeds)
    reached = measured(model, plain, feeds)
    low, high = (
        irc.quantize(
            model, input_ranges={"x": (-5, 5)}, test_data=feeds, target=f"{reached + more:.1f} dB"
        )
        for more in (-3, 1)
    )
    assert floats(plain) == floats(low) == []
    assert measured(model, low, feeds) == pytest.approx(reached, abs=0.1)
    assert 0 < len(floats(high)) < 3
    assert is_valid(high.model) is None
    assert measured(model, high, feeds) >= reached + 0.9
    assert high.int8_share is not None and 0 < high.int8_share < 1
    assert low.int8_share == 1
    for found in (low, high):
        assert found.reached is not None
        assert found.reached.layers == len(floats(found))
        # The noise of roundings that do not depend on each other adds up.
        assert found.reached.predicted == pytest.approx(measured(model, found, feeds), abs=1.5)


def test_the_report_has_the_noise_of_each_rounding(
    chain: Chain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, samples = tmp_path / "net.onnx", tmp_path / "test.npz"
    onnx.save(chain.model(), path)
    np.savez(samples, **inputs_of(chain))
    options = f"--input-range x=-5:5 --test-data {samples} --target 20dB --json -".split()
    assert main(["quantize", str(path), "-o", str(tmp_path / "int8.onnx"), *options]) == 0
    out, err = capsys.readouterr()
    goal = json.loads(out)["goal"]
    weights = [one["name"] for one in goal["roundings"] if one["kind"] == "weight"]
    assert sorted(weights) == ["a", "b", "c"]
    alone = [one["alone"] for one in goal["roundings"]]
    assert alone == sorted(alone)
    total = -10 * np.log10(sum(10 ** (-ratio / 10) for ratio in alone))
    assert goal["predicted"] == pytest.approx(total)
    assert f"target: 20 dB: {total:.1f} dB by the sum of {len(alone)} roundings" in err


def test_a_budget_that_is_too_small_ends_with_the_best(
    chain: Chain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "net.onnx", tmp_path / "int8.onnx"
    onnx.save(chain.model(), path)
    options = ["--input-range", "x=-5:5", "--target", "90dB", "--float-budget", "20%"]
    assert main(["quantize", str(path), "-o", str(output), *options]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith(
        f"irc: {path}: the target of 90 dB is not reached with 20 % of the multiplications in"
        " float: the best is "
    )
    assert not output.exists()


def test_a_budget_without_a_target_is_used(chain: Chain) -> None:
    model, feeds = chain.model(), inputs_of(chain)
    plain, some, full = (
        irc.quantize(model, input_ranges={"x": (-5, 5)}, test_data=feeds, float_budget=budget)
        for budget in (None, "40%", "100 %")
    )
    assert some.int8_share is not None and 0.6 <= some.int8_share < 1
    ratios = [measured(model, found, feeds) for found in (plain, some)]
    assert ratios[1] > ratios[0]
    assert floats(full) == ["a", "b", "c"]


def test_an_agreement_is_reached_on_data() -> None:
    graph = Graph(opset=17, ir=8)
    graph.input("x", ["n", 6])
    h = graph.node("Relu", [graph.node("MatMul", ["x", graph.initializer(graph.random(6, 40))])])
    graph.node("MatMul", [h, graph.initializer(graph.random(40, 5))], "y", "last")
    graph.output("y", ["n", 5])
    model = graph.model()
    data = {"x": np.random.default_rng(3).uniform(-1, 1, (500, 6)).astype(np.float32)}
    options: dict[str, Any] = {"data": data, "test_data": data}
    plain = irc.quantize(model, **options)
    found = irc.quantize(model, target="100%", **options)
    agreements = []
    for each in (plain, found):
        pair = (harness.run(one, data)["y"].argmax(1) for one in (model, each.model))
        agreements.append(float(np.mean(np.equal(*pair))))
    assert agreements[0] < 1 == agreements[1]


def test_dynamic_layers_are_roundings_too() -> None:
    graph = Graph(opset=17, ir=8)
    graph.input("x", ["n", 16])
    h = graph.node("Relu", [graph.node("MatMul", ["x", graph.initializer(graph.random(16, 24))])])
    h = graph.node("Relu", [graph.node("MatMul", [h, graph.initializer(graph.random(24, 20))])])
    graph.node("MatMul", [h, graph.initializer(graph.random(20, 8))], "y", "last")
    graph.output("y", ["n", 8])
    model = graph.model()
    feeds = {"x": np.random.default_rng(0).uniform(-1, 1, (64, 16)).astype(np.float32)}
    plain = irc.quantize(model, input_ranges=(-1, 1), test_data=feeds)
    assert [one.method.value for one in plain.coverage if one.is_layer] == ["dynamic"] * 3
    reached = measured(model, plain, feeds)
    found = irc.quantize(
        model, input_ranges=(-1, 1), test_data=feeds, target=f"{reached + 2:.2f}dB"
    )
    assert 0 < len(floats(found)) < 3
    assert measured(model, found, feeds) >= reached + 1.9


@pytest.mark.parametrize("target", ["22", "dB", "101%", "-3dB", "22dBm"])
def test_targets_of_another_form_are_usage_errors(target: str, chain: Chain) -> None:
    with pytest.raises(UsageError, match="22dB or 99%"):
        irc.quantize(chain.model(), input_ranges=(-5, 5), target=target)


def test_budgets_of_another_form_are_usage_errors(chain: Chain) -> None:
    with pytest.raises(UsageError, match="such as 5%"):
        irc.quantize(chain.model(), input_ranges=(-5, 5), float_budget="120%")


def embedding() -> ModelProto:
    """Products of the rows of a table, whose indices are the input."""
    graph = Graph(opset=17, ir=8)
    graph.input("ids", ["n", 12], np.dtype(np.int64))
    h = graph.node("Gather", [graph.initializer(graph.random(64, 16)), "ids"])
    h = graph.node("Relu", [graph.node("MatMul", [h, graph.initializer(graph.random(16, 24))])])
    h = graph.node("ReduceMean", [h], axes=[1], keepdims=0)
    graph.node("MatMul", [h, graph.initializer(graph.random(24, 8))], "y", "last")
    graph.output("y", ["n", 8])
    return graph.model()


def test_generated_integers_differ_in_each_sample() -> None:
    """Of magika two samples were repeated 16 times: 40 dB were predicted, and 35 by the sum."""
    model = embedding()
    runner = Runner(model, Path())
    batches = generate_samples(runner, {})
    rows = np.concatenate([feeds["ids"] for feeds in batches])
    assert len(np.unique(rows, axis=0)) == len(rows) >= 16
    again = np.concatenate([feeds["ids"] for feeds in generate_samples(runner, {})])
    np.testing.assert_array_equal(rows, again)
    found = irc.quantize(model, target="10dB")
    assert found.reached is not None and found.reached.layers == 0
    others = {"ids": np.random.default_rng(5).integers(0, 64, (400, 12))}
    assert found.reached.predicted == pytest.approx(measured(model, found, others), abs=1.5)


def rare_events(chain: Chain, shift: float) -> ModelProto:
    """The layers, a sum that makes scores of them, and their Sigmoid."""
    model = chain.model()
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.float32(shift), "shift"))
    graph.node.append(onnx.helper.make_node("Add", [chain.result, "shift"], ["scores"], "shift"))
    graph.node.append(onnx.helper.make_node("Sigmoid", ["scores"], ["y"], "decision"))
    graph.output[0].name = "y"
    return model


def test_a_result_that_is_too_small_to_compare_is_said(chain: Chain) -> None:
    """PP-OCR's detector sees no text in generated inputs: 3e-7 is rounding of float32."""
    options: dict[str, Any] = {"input_ranges": (-5, 5)}
    model = rare_events(chain, -25)
    small = r"in float 'y' has \d+.\d dB there, as it is at most \S+e-07[:;] --data or --test-data"
    with pytest.raises(EmitError, match=small):
        irc.quantize(model, target="22dB", **options)
    assert any(re.search(small, each) for each in irc.quantize(model, **options).doubts)
    # Larger ones are compared; where float is good, a doubt is one of quantizing.
    for shift in (-1, -16):
        model = rare_events(chain, shift)
        doubts = irc.quantize(model, **options).doubts
        assert not any("in float" in each for each in doubts)
        assert irc.quantize(model, target="22dB", **options).reached is not None
    with pytest.raises(EmitError, match=r"not your data$"):
        irc.quantize(model, target="40dB", float_budget="0%", **options)


def test_an_agreement_needs_data(chain: Chain, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(chain.model(), path)
    options = ["--input-range", "x=-5:5", "--target", "99%"]
    assert main(["quantize", str(path), "-o", str(tmp_path / "int8.onnx"), *options]) == 2


def test_an_agreement_of_a_result_without_scores_is_not_reached(chain: Chain) -> None:
    with pytest.raises(EmitError, match="the best is no row of scores"):
        irc.quantize(chain.model(), input_ranges=(-5, 5), test_data=inputs_of(chain), target="99%")
