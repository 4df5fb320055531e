"""HighBiasAbsorption: what moves, what stays, and how far the result may be off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from equalize import (
    accuracy,
    activated,
    assert_statistics_are_true,
    calibrated,
    digits,
    logits,
    per_channel,
    values,
    weights,
)
from graphs import F64, Array, BatchNorm, Graph, assert_equivalent, assert_interface, operators
from irc.compiler import compile as compile_model
from irc.frontends.onnx import from_model
from irc.passes import (
    CrossLayerEqualization,
    HighBiasAbsorption,
    PassContext,
    Verify,
    default_pipeline,
)
from irc.passes.affine.records.fold_records import fold_records
from irc.passes.affine.records.statistics import statistic_refs
from irc.result import Result, emit
from irc.support.errors import UsageError
from onnx import ModelProto

PASS = "HighBiasAbsorption"
GAMMA = np.array([0.5, 1.0, 0.25, 2.0])
BETA = np.array([3.0, 1.0, 2.0, -1.0])
AMOUNT = np.array([1.5, 0.0, 1.25, 0.0])
"""max(0, beta - 3 gamma)."""

Build = Callable[[Graph, str], str]


def conv(graph: Graph, x: str, kernel: int = 1, scale: float = 1.0, **attrs: object) -> str:
    """A convolution of four channels with a bias."""
    weight, bias = graph.random(6, 4, kernel, kernel) * scale, graph.random(6)
    return graph.node(
        "Conv", [x, graph.initializer(weight, "second"), graph.initializer(bias, "b2")], **attrs
    )


def model_of(build: Build) -> tuple[ModelProto, dict[str, Array]]:
    """Conv and BatchNormalization with statistics of the data, and operators of `build`."""
    graph = Graph(dtype=F64)
    graph.input("x", [16, 3, 6, 6])
    data = {"x": graph.random(16, 3, 6, 6)}
    h = graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1), "first")])
    h = calibrated(graph, h, data, GAMMA, BETA)
    graph.node("Tanh", [build(graph, h)], "y")
    graph.output("y", None)
    return graph.model(), data


def absorbed(model: ModelProto, options: str = "") -> Result:
    """The result of the pass behind the default pipeline."""
    result = compile_model(
        model, f"default,{PASS}{{{options}}},FoldConstant", context=PassContext([Verify()])
    )
    assert_interface(model, result.model)
    assert operators(result.model) == operators(compile_model(model).model)
    return result


@pytest.mark.parametrize("how", ["Relu", "LeakyRelu", "PRelu"])
def test_a_high_bias_moves_behind_the_activation(how: str) -> None:
    model, data = model_of(lambda graph, h: conv(graph, activated(graph, h, how)))
    plain, result = compile_model(model), absorbed(model)
    before, after = weights(plain.model), weights(result.model)
    bias = next(name for name, array in before.items() if array.shape == (4,))
    np.testing.assert_allclose(after[bias], before[bias] - AMOUNT, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(after["first"], before["first"])
    np.testing.assert_array_equal(after["second"], before["second"])
    np.testing.assert_allclose(
        after["b2"], before["b2"] + before["second"].sum(axis=(2, 3)) @ AMOUNT, rtol=1e-10
    )
    first, second = fold_records(result.module).history[0].layers.values()
    np.testing.assert_allclose(first["absorbed"], AMOUNT, atol=1e-10)
    np.testing.assert_allclose(second["received"], AMOUNT, atol=1e-10)
    assert assert_statistics_are_true(result, data) == 1


def test_the_result_is_off_by_no_more_than_what_is_below_c() -> None:
    model, data = model_of(lambda graph, h: conv(graph, graph.node("Relu", [h])))
    plain, result = compile_model(model).model, absorbed(model).model
    first, second = (values(made, data) for made in (plain, result))
    conv_of = [node for node in plain.graph.node if node.op_type == "Conv"]
    x = first[conv_of[0].output[0]]
    c = AMOUNT.reshape(1, -1, 1, 1)
    off = np.maximum(x - c, 0) + c - np.maximum(x, 0)
    assert ((off >= -1e-12) & (off <= c + 1e-12)).all()
    assert (np.abs(off[(x >= c) & (c > 0)]) < 1e-12).all()
    assert 0 < (off > 1e-9).mean() < 0.01
    name = conv_of[1].output[0]
    names = [node.output[0] for node in result.graph.node if node.op_type == "Conv"]
    weight = np.abs(weights(plain)["second"])[:, :, 0, 0]
    bound = np.einsum("mc,nchw->nmhw", weight, np.abs(off)) + 1e-12
    assert (np.abs(second[names[1]] - first[name]) <= bound).all()


@pytest.mark.parametrize("between", ["", "AveragePool", "Reshape"])
def test_without_an_activation_the_whole_mean_moves_and_nothing_is_lost(between: str) -> None:
    def build(graph: Graph, h: str) -> str:
        if between == "AveragePool":
            h = graph.node("AveragePool", [h], kernel_shape=[2, 2], pads=[1, 0, 0, 1])
        elif between:
            h = graph.node("Reshape", [h, graph.initializer(np.array([16, 4, 36, 1]))])
        return conv(graph, h)

    model, data = model_of(build)
    result = absorbed(model)
    assert_equivalent(model, result.model)
    first, _ = fold_records(result.module).history[0].layers.values()
    np.testing.assert_allclose(first["absorbed"], BETA, rtol=1e-12)
    assert assert_statistics_are_true(result, data) == 1


def clipped(low: float, high: float, limit: tuple[float, ...] = ()) -> Build:
    """A Clip, and a Min that limits each channel where `limit` has a bound for each."""

    def build(graph: Graph, h: str) -> str:
        h = graph.node("Clip", [h, graph.initializer(low), graph.initializer(high)])
        if limit:
            h = graph.node("Min", [h, graph.initializer(np.array(limit).reshape(-1, 1, 1))])
        return conv(graph, h)

    return build


@pytest.mark.parametrize("low", [0.0, -0.5])
def test_a_high_bias_moves_behind_a_clip_that_is_limited_per_channel(low: float) -> None:
    """The second bound is below c, so that the channel is constant."""
    model, data = model_of(clipped(low, 4.0, (3.5, 2.0, 1.0, 4.0)))
    plain, result = compile_model(model), absorbed(model)
    first, second = fold_records(result.module).history[0].layers.values()
    np.testing.assert_allclose(first["absorbed"], AMOUNT, atol=1e-10)
    np.testing.assert_allclose(second["received"], AMOUNT, atol=1e-10)
    assert assert_statistics_are_true(result, data) == 1
    limits = [node for node in result.model.graph.node if node.op_type in ("Clip", "Min")]
    after = weights(result.model)
    np.testing.assert_allclose(
        after[limits[1].input[1]].ravel(), np.array([3.5, 2.0, 1.0, 4.0]) - AMOUNT, atol=1e-10
    )
    assert after[limits[0].input[2]] == after[limits[1].input[1]].max()
    before, found = (values(made.model, data) for made in (plain, result))
    convs = [
        [node for node in made.model.graph.node if node.op_type == "Conv"]
        for made in (plain, result)
    ]
    x = before[convs[0][0].output[0]]
    c = AMOUNT.reshape(1, -1, 1, 1)
    same = ((x >= c) | (c == 0)).all(axis=1)
    assert same.mean() > 0.9
    y, z = (
        part[layers[1].output[0]].transpose(0, 2, 3, 1)
        for part, layers in zip((before, found), convs, strict=True)
    )
    np.testing.assert_allclose(z[same], y[same], atol=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "limit"),
    [
        (0.0, 6.0, ()),
        (0.0, 6.0, (3.0, 7.0, 3.0, 3.0)),
        (0.25, 6.0, (3.0, 2.0, 3.0, 3.0)),
        (0.0, 6.0, (3.0,)),
    ],
    ids=[
        "no Min",
        "a Min that is not further",
        "a lower bound above 0",
        "a Min of one bound, which the Clip takes",
    ],
)
def test_clips_that_stop_it(low: float, high: float, limit: tuple[float, ...]) -> None:
    model, _ = model_of(clipped(low, high, limit))
    result = absorbed(model)
    assert not fold_records(result.module).history
    assert result.model == compile_model(model).model


def test_padding_stops_it_unless_it_is_ignored() -> None:
    model, data = model_of(
        lambda graph, h: conv(graph, graph.node("Relu", [h]), 3, pads=[1, 1, 1, 1])
    )
    exact = absorbed(model)
    assert not fold_records(exact.module).history
    assert exact.model == compile_model(model).model
    ignoring = absorbed(model, "padding=ignore,sigmas=2")
    (warning,) = ignoring.warnings
    assert "1 layer pads shifted data with zeros" in warning
    assert "padding=exact" in warning
    assert_statistics_are_true(ignoring, data)
    found = [values(made, data) for made in (exact.model, ignoring.model)]
    names = [
        [n.output[0] for n in made.graph.node if n.op_type == "Conv"][1]
        for made in (exact.model, ignoring.model)
    ]
    error = np.abs(found[0][names[0]] - found[1][names[1]])
    inner = error[:, :, 1:-1, 1:-1]
    assert np.sqrt((inner**2).mean()) < 0.1 * np.sqrt((error**2).mean())


def _second_reader(graph: Graph, h: str) -> str:
    graph.node("Sigmoid", [h], "z")
    graph.output("z", None)
    return conv(graph, graph.node("Relu", [h]))


def _returned(graph: Graph, h: str) -> str:
    graph.output(h, None)
    return conv(graph, graph.node("Relu", [h]))


STOPPED: dict[str, Build] = {
    "Relu6": lambda graph, h: conv(graph, activated(graph, h, "Relu6")),
    "Sigmoid": lambda graph, h: conv(graph, graph.node("Sigmoid", [h])),
    "a second reader": _second_reader,
    "a result": _returned,
    "no layer": lambda graph, h: graph.node("Relu", [h]),
    "a MatMul, which has no bias": lambda graph, h: graph.node(
        "MatMul",
        [
            graph.node("GlobalAveragePool", [graph.node("Relu", [h])]),
            graph.initializer(graph.random(1, 3)),
        ],
    ),
    "a pool that counts its padding": lambda graph, h: conv(
        graph,
        graph.node("AveragePool", [h], kernel_shape=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
    ),
}


@pytest.mark.parametrize("name", STOPPED)
def test_what_stops_a_bias(name: str) -> None:
    model, _ = model_of(STOPPED[name])
    result = absorbed(model)
    assert not fold_records(result.module).history
    assert result.model == compile_model(model).model


def test_gamma_is_no_deviation_where_epsilon_counts() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 5, 5])
    h = graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1))])
    var = np.array([1e-6, 1.0, 1e-6, 1.0])
    h = graph.batch_norm(h, BatchNorm(GAMMA, BETA, np.zeros(4), var, 1e-3))
    graph.node("Tanh", [conv(graph, graph.node("Relu", [h]))], "y")
    graph.output("y")
    epsilon = float(np.float32(1e-3))
    for spread, deviation in {
        "std": GAMMA * np.sqrt(var / (var + epsilon)),
        "gamma": GAMMA,
    }.items():
        first, _ = (
            fold_records(absorbed(graph.model(), f"spread={spread}").module)
            .history[0]
            .layers.values()
        )
        np.testing.assert_allclose(
            first["absorbed"], np.maximum(0, BETA - 3 * deviation), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("option", ["padding", "spread"])
def test_an_unknown_option_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=option):
        HighBiasAbsorption(**{option: "some"})


@pytest.mark.shared
def test_a_trained_model_keeps_its_predictions() -> None:
    path, images, labels = digits("relu_imbalanced")
    plain = compile_model(path).model
    result = compile_model(path, f"default,CrossLayerEqualization,{PASS}")
    assert fold_records(result.module).history[1].layers
    share = (
        logits(result.model, images).argmax(axis=1) == logits(plain, images).argmax(axis=1)
    ).mean()
    assert share > 0.99
    assert accuracy(result.model, images, labels) > accuracy(plain, images, labels) - 0.01


@pytest.mark.parametrize("stale", [False, True], ids=["rescaled", "not rescaled"])
def test_statistics_that_are_not_rescaled_would_ruin_the_function(stale: bool) -> None:
    model, data = model_of(lambda graph, h: conv(graph, graph.node("Relu", [h]), scale=2.0**-6))
    module = from_model(model)
    default_pipeline()(module)
    original = dict(statistic_refs(module))
    CrossLayerEqualization()(module)
    if stale:
        statistic_refs(module).clear()
        statistic_refs(module).update(original)
    HighBiasAbsorption()(module)
    before, after = (values(made, data)["y"] for made in (model, emit(module).model))
    error = np.abs(before - after).mean() / per_channel(before, 1)[1].mean()
    assert error > 0.3 if stale else error < 0.01


def test_a_matmul_without_a_place_for_a_bias_stays() -> None:
    """It would need an Add in front of all who read it."""
    graph = Graph(dtype=F64)
    x = graph.input("x", [32, 4])
    data = {"x": graph.random(32, 4)}
    h = graph.node("MatMul", [graph.node("Tanh", [x]), graph.initializer(graph.random(4, 4))], "t")
    norm = calibrated(graph, h, data, GAMMA, BETA)
    graph.output(
        graph.node(
            "Relu", [graph.node("MatMul", [norm, graph.initializer(graph.random(4, 4))])], "y"
        )
    )
    dense = [h, graph.initializer(graph.random(4, 4)), graph.initializer(graph.random(4))]
    graph.output(graph.node("Relu", [graph.node("Gemm", dense)], "z"))
    model = graph.model()
    assert compile_model(model, f"default,{PASS}{{sigmas=0.1}}").model == compile_model(model).model


@pytest.mark.parametrize("high", [6.0, 1.0])
def test_one_bias_moves_behind_a_clip_that_is_the_same_in_all_channels(high: float) -> None:
    """With the upper bound below c, the Clip is constant: it stays at that bound, less c."""
    graph = Graph(dtype=F64)
    graph.input("x", [16, 3, 6, 6])
    data = {"x": graph.random(16, 3, 6, 6)}
    h = graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1), "first")])
    h = calibrated(graph, h, data, np.full(4, 0.25), np.full(4, 3.0))
    graph.node("Tanh", [clipped(0.0, high)(graph, h)], "y")
    graph.output("y", None)
    plain, result = compile_model(graph.model()), absorbed(graph.model(), "spread=gamma")
    first, second = fold_records(result.module).history[0].layers.values()
    np.testing.assert_allclose(first["absorbed"], 2.25, rtol=1e-6)
    np.testing.assert_allclose(second["received"], 2.25, rtol=1e-6)
    before, found = (values(made.model, data) for made in (plain, result))
    convs = [
        [node for node in made.model.graph.node if node.op_type == "Conv"]
        for made in (plain, result)
    ]
    same = (before[convs[0][0].output[0]] >= 2.25).all(axis=1)
    assert same.mean() > 0.9
    y, z = (
        part[layers[1].output[0]].transpose(0, 2, 3, 1)
        for part, layers in zip((before, found), convs, strict=True)
    )
    np.testing.assert_allclose(z[same], y[same], atol=1e-6)
