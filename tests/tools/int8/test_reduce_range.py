"""Weights of 7 bits, and what is said where onnxruntime's kernels overflow with 8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness
import irc
import numpy as np
import onnx
import pytest
from graphs import F32, Array, BatchNorm, Graph
from int8_models import NEEDS_RANGES, optimized, sqnr, three_layers
from irc.tools.cli.main import main
from irc.tools.int8.preparation import PASSES
from irc.tools.verify import runner
from onnx import ModelProto, numpy_helper
from processors import overflows

pytestmark = NEEDS_RANGES
overflowing = pytest.mark.skipif(
    not overflows(), reason="this processor's kernels add products of int8 in 32 bits"
)


def positive(least: float) -> ModelProto:
    """A MatMul whose weights are between `least` and 1: with data near 1 all sums are large."""
    graph = Graph(opset=17, ir=8)
    graph.input("x", ["n", 16])
    weight = np.random.default_rng(1).uniform(least, 1, (16, 8)).astype(F32)
    graph.node("MatMul", ["x", graph.initializer(weight)], "y", "product")
    graph.output("y", ["n", 8])
    return graph.model()


def rows(least: float) -> Array:
    return np.random.default_rng(0).uniform(least, 1, (64, 16)).astype(F32)


def measured(found: irc.Quantized, source: ModelProto, x: Array) -> tuple[float, float]:
    """The ratio as users get it, and without onnxruntime's graph optimizations."""
    exact = harness.run(source, {"x": x})["y"]
    plain = harness.run(found.model, {"x": x})["y"]
    return sqnr(exact, optimized(found.model, {"x": x})), sqnr(exact, plain)


def said(found: irc.Quantized) -> list[str]:
    """The warnings but those of passes."""
    return [each for each in found.warnings if not each.startswith("BiasCorrection")]


@pytest.mark.parametrize("reduce_range", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_ratio_is_that_of_the_model_as_it_is_run(per_channel: bool, reduce_range: bool) -> None:
    source, x = positive(0.5), rows(0.5)
    found = irc.quantize(
        source,
        input_ranges={"x": (0, 1)},
        test_data={"x": x},
        per_channel=per_channel,
        reduce_range=reduce_range,
    )
    (one,) = found.fidelity
    assert (one.sqnr, one.unoptimized) == pytest.approx(measured(found, source, x), abs=0.05)
    assert one.unoptimized is not None
    assert one.unoptimized > 40
    if reduce_range or not overflows():
        assert one.sqnr > 40
        assert said(found) == []


@overflowing
@pytest.mark.parametrize("with_data", [False, True])
def test_an_overflow_is_said_and_changes_no_choice(with_data: bool) -> None:
    """As run, the static model has less than the 20 dB from which a dynamic one is not tried."""
    x = rows(0.5)
    given: dict[str, Any] = {"data": {"x": x}} if with_data else {"input_ranges": {"x": (0, 1)}}
    found = irc.quantize(positive(0.5), test_data={"x": x}, **given)
    (one,) = found.fidelity
    assert 10 < one.sqnr < 20
    assert [each.method.value for each in found.coverage] == ["static"]
    (warning,) = said(found)
    assert warning == (
        f"the result 'y' has SQNR {one.sqnr:.1f} dB, {one.unoptimized:.1f} dB without onnxruntime's"
        " graph optimizations: on x86 processors without VNNI its kernels overflow with weights of"
        " 8 bits, --reduce-range (in Python reduce_range=True) takes 7"
    )
    assert found.doubts == ()


@overflowing
def test_an_overflow_that_spoils_a_result_is_refused_by_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output, report = (tmp_path / name for name in ("m.onnx", "int8.onnx", "out.json"))
    onnx.save(positive(0.99), source)
    np.savez(tmp_path / "test.npz", x=rows(0.99))
    command = ["quantize", str(source), "-o", str(output), "--input-range", "x=0:1", "--strict"]
    command += ["--test-data", str(tmp_path / "test.npz"), "--json", str(report), "--no-time"]
    assert main(command) == 1
    text = capsys.readouterr().err
    assert "--reduce-range" in text.splitlines()[-1]
    assert not output.exists()
    (one,) = json.loads(report.read_text())["fidelity"]
    assert one["sqnr"] < 10
    both = f"{one['sqnr']:.1f} dB, {one['unoptimized']:.1f} dB without"
    assert f"y: SQNR {both} onnxruntime's graph optimizations, agreement" in text
    assert main([*command, "--reduce-range"]) == 0
    text = capsys.readouterr().err
    assert "weights: 7 bits, a scale for each channel" in text
    assert "optimizations" not in text
    assert json.loads(report.read_text())["fidelity"][0]["sqnr"] > 40


def layers() -> ModelProto:
    """One layer of every kind, an Add of a constant, and a Conv that is excluded."""
    graph = Graph(opset=17, ir=8)
    h = graph.input("x", ["n", 4, 4, 4])
    for op in ("Conv", "ConvTranspose", "Conv"):
        operands = [h, graph.initializer(graph.random(4, 4, 1, 1)), graph.initializer(ONES)]
        h = graph.node(op, operands, name=f"{op}{len(graph.nodes)}")
        h = graph.batch_norm(h, BatchNorm(ONES, 0 * ONES, 0 * ONES, ONES), f"{h}_norm")
        h = graph.node("Relu", [h])
    h = graph.node("MatMul", [h, graph.initializer(graph.random(4, 4))], name="stacked")
    h = graph.node("Add", [h, graph.initializer(graph.random(1, 4, 1, 4), "shift")], name="sum")
    h = graph.node("Flatten", [graph.node("Relu", [h])])
    graph.node("Gemm", [h, graph.initializer(graph.random(64, 5))], "y", "last")
    graph.output("y", ["n", 5])
    return graph.model()


ONES = np.ones(4, F32)


@pytest.mark.parametrize("reduce_range", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_weights_of_layers_take_seven_bits(per_channel: bool, reduce_range: bool) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (16, 4, 4, 4)).astype(F32)
    options = {"per_channel": per_channel, "reduce_range": reduce_range}
    found = irc.quantize(layers(), data={"x": x}, passes="default", **options)
    assert all(one.quantized for one in found.coverage if one.is_layer)
    graph = found.model.graph
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    makers = {node.output[0]: node for node in graph.node}
    weights = [
        tensors[makers[node.input[1]].input[0]]
        for node in graph.node
        if node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm")
    ]
    assert len(weights) == 5
    for weight in weights:
        assert weight.dtype == np.int8
        assert np.abs(weight.astype(int)).max() == (64 if reduce_range else 127)
    (total,) = (node for node in graph.node if node.name == "sum")
    (shift,) = (
        tensors[makers[name].input[0]] for name in total.input if makers[name].input[0] in tensors
    )
    assert (shift.min(), shift.max()) == (0, 255)


def test_channels_are_scaled_for_weights_of_seven_bits() -> None:
    """Noise of weights weighs more then: --reduce-range scales as the pass with its option."""
    model, made = three_layers().model(), {}
    for reduce_range in (False, True):
        passes = PASSES.format(str(reduce_range).lower())
        found = irc.quantize(
            model, reduce_range=reduce_range, input_ranges={"x": (-5, 5)}, per_channel=False
        )
        folded = irc.compile(three_layers().model(), passes)
        for key, float_model in (("quantize", found.prepared), ("compile", folded.model)):
            tensors = {t.name: numpy_helper.to_array(t) for t in float_model.graph.initializer}
            (last,) = (n for n in float_model.graph.node if n.name == "c")
            made[key, reduce_range] = tensors[last.input[1]]
    for reduce_range in (False, True):
        np.testing.assert_allclose(
            made["quantize", reduce_range], made["compile", reduce_range], rtol=1e-5
        )
    assert np.abs(made["compile", False] / made["compile", True] - 1).max() > 0.01


def test_biases_are_corrected_for_weights_of_seven_bits() -> None:
    """What is taken off the bias is the mean of what the rounding of the weight adds.

    The data of the layer are above 0, so that its mean is known but for digits.
    """
    random = np.random.default_rng(2)
    graph = Graph(opset=17, ir=8)
    x = random.uniform(-1, 1, (400, 4, 1, 1)).astype(F32)
    first = random.normal(size=(6, 4, 1, 1)).astype(F32)
    h = graph.node("Conv", [graph.input("x", ["n", 4, 1, 1]), graph.initializer(first)], name="a")
    values = x[:, :, 0, 0] @ first[:, :, 0, 0].T
    scale = random.uniform(1, 2, 6).astype(F32)
    h = graph.batch_norm(h, BatchNorm(scale, 5 * scale, values.mean(0), values.var(0)), "norm")
    operands = [
        graph.node("Relu", [h]),
        graph.initializer(random.normal(size=(5, 6, 1, 1)).astype(F32)),
    ]
    graph.node("Conv", [*operands, graph.initializer(np.zeros(5, F32))], "y", "b")
    graph.output("y", ["n", 5, 1, 1])
    given: dict[str, Any] = {"input_ranges": {"x": (-1, 1)}}

    def constant(found: irc.Quantized, index: int, *, rounded: bool = False) -> Array:
        model = found.model if rounded else found.prepared
        name = next(node for node in model.graph.node if node.name == "b").input[index]
        made = ModelProto()
        made.CopyFrom(model)
        del made.graph.output[:]
        made.graph.output.add().name = name
        tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        return tensors[name] if name in tensors else harness.run(made, {"x": x})[name]

    for reduce_range in (False, True):
        passes = PASSES.format(str(reduce_range).lower())
        plain = irc.quantize(graph.model(), passes=passes, **given)
        mean = constant(plain, 0).mean(axis=0)[:, 0, 0]
        found = irc.quantize(graph.model(), reduce_range=reduce_range, **given)
        error = (constant(found, 1, rounded=True) - constant(found, 1))[:, :, 0, 0] @ mean
        off = constant(plain, 2) - constant(found, 2)
        assert np.abs(error).max() > 1e-3
        np.testing.assert_allclose(off, error, atol=2e-5)


def test_a_model_that_runs_unoptimized_only_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    session = runner.RemoteSession

    def refuse(*args: Any, optimize: bool, **options: Any) -> Any:
        if optimize:
            raise runner.RuntimeFailedError("a fusion fails")
        return session(*args, optimize=optimize, **options)

    monkeypatch.setattr(runner, "RemoteSession", refuse)
    found = irc.quantize(positive(0.5), input_ranges={"x": (0, 1)})
    (doubt,) = found.doubts
    assert doubt.startswith("the model runs without onnxruntime's graph optimizations only: ")
    assert doubt.endswith("a fusion fails")
    assert found.fidelity[0].unoptimized is None
    assert found.fidelity[0].sqnr > 40
