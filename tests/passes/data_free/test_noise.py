"""Scales of least noise.

The minimum, the noise that a rounding makes, and what int8 gains by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from equalize import calibrated, values, weights
from graphs import F64, Array, Graph, assert_equivalent
from irc.compiler import compile as compile_model
from irc.frontends.onnx import from_model
from irc.passes import propagate
from irc.passes.affine.algebra.operands import Parameters
from irc.passes.data_free.layer_noise import quantized_tensors
from irc.passes.data_free.linear import Linear, read_linear
from irc.passes.data_free.noise import (
    LEVELS,
    WEIGHT_LEVELS,
    QuantizedTensor,
    least_noise,
    noise_gain,
)
from onnx import ModelProto

PASS = "CrossLayerEqualization"
POWERS = ((-1, 0), (-1, 0), (1, -1), (0, -1), (0, 1))


def tensors_of(seed: int, channels: int = 6) -> list[QuantizedTensor]:
    """Three weights and two activations with ranges and noise of several magnitudes."""
    rng = np.random.default_rng(seed)
    levels = (WEIGHT_LEVELS, LEVELS, WEIGHT_LEVELS, LEVELS, WEIGHT_LEVELS)
    return [
        QuantizedTensor(
            2 ** rng.uniform(-4, 4, channels), 2 ** rng.uniform(-6, 6, channels), powers, level
        )
        for powers, level in zip(POWERS, levels, strict=True)
    ]


def noise(tensors: Sequence[QuantizedTensor], scales: Array) -> float:
    """The sum over the tensors of (max r f / levels)^2 sum c / f^2."""
    total = 0.0
    for tensor in tensors:
        factor = np.prod(
            [scale**power for scale, power in zip(scales, tensor.powers, strict=True)], axis=0
        )
        total += float(
            ((tensor.ranges * factor).max() / tensor.levels) ** 2 * (tensor.noise / factor**2).sum()
        )
    return total


@pytest.mark.parametrize("seed", range(8))
def test_no_scales_nearby_have_less_noise(seed: int) -> None:
    """The problem is convex: a minimum among all neighbours is the minimum.

    The grid of scales is 2^(1/64).
    """
    tensors = tensors_of(seed)
    start = np.ones((2, 6))
    found = least_noise(tensors, start)
    least = noise(tensors, found)
    assert least < noise(tensors, start)
    assert noise_gain(tensors, found) == pytest.approx(noise(tensors, start) / least - 1, rel=1e-9)
    rng = np.random.default_rng(seed)
    for reach in (0.01, 0.1, 1.0):
        tried = [noise(tensors, found * 2 ** rng.normal(0, reach, found.shape)) for _ in range(500)]
        assert min(tried) > 0.95 * least


def test_the_minimum_does_not_depend_on_the_start() -> None:
    tensors = tensors_of(1)
    rng = np.random.default_rng(1)
    least = [noise(tensors, least_noise(tensors, 2 ** rng.normal(0, 2, (2, 6)))) for _ in range(5)]
    assert max(least) < 1.05 * min(least)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_the_start_is_the_answer_where_a_number_is_not_finite(number: float) -> None:
    tensors = tensors_of(2)
    tensors[0].ranges[3] = number
    start = np.full((2, 6), 2.0)
    np.testing.assert_array_equal(least_noise(tensors, start), start)


def test_a_channel_of_zeros_is_left_alone() -> None:
    tensors = tensors_of(3)
    for tensor in tensors:
        tensor.ranges[2] = tensor.noise[2] = 0.0
    found = least_noise(tensors, np.ones((2, 6)))
    assert np.isfinite(found).all()
    assert (found > 0).all()


# layers


def network(
    dead: bool = False, activation: str = "Relu", seed: int = 0, *, tails: bool = False
) -> tuple[ModelProto, dict[str, Array]]:
    """BN, Conv, BN, activation, depthwise Conv, BN, activation, Conv.

    1x1, with statistics of the data.

    Some channels are much larger than others; with `dead` some hardly ever pass the first
    activation. The data are normal; with `tails` they reach some 20 deviations, as in trained
    networks.
    """
    graph = Graph(dtype=F64, seed=seed)
    extents = (64, 5, 4, 4)
    data = {"x": graph.rng.standard_t(3, extents) if tails else graph.rng.standard_normal(extents)}
    h = calibrated(graph, graph.input("x", [64, 5, 4, 4]), data, np.ones(5), np.zeros(5))
    spread = 2.0 ** np.linspace(-2, 2, 8)
    for name, shape in (("first", (8, 5, 1, 1)), ("middle", (8, 1, 1, 1))):
        h = graph.node(
            "Conv",
            [h, graph.initializer(graph.random(*shape), name)],
            group=8 // shape[1] if shape[1] == 1 else 1,
        )
        beta = np.where(np.arange(8) % 3 == 0, -3.5, 0.5) if dead else np.full(8, 0.5)
        h = calibrated(graph, h, data, spread if name == "first" else spread[::-1], beta * spread)
        h = graph.node(activation, [h]) if activation else h
    graph.output(graph.node("Conv", [h, graph.initializer(graph.random(6, 8, 1, 1), "last")], "y"))
    return graph.model(), data


def layers_of(model: ModelProto) -> tuple[list[Linear], list[QuantizedTensor]]:
    """The convolutions of a compiled model, and their tensors as they are quantized."""
    module = compile_model(model).module
    params = Parameters(module.constants)
    layers = [read_linear(node, params) for node in module.graph if node.op == "nn.conv"]
    found = [layer for layer in layers if layer is not None]
    first, middle, last = (np.abs(layer.weight) for layer in found)
    ranges = (first.max(axis=(1, 2, 3)), middle.max(axis=(1, 2, 3)), last.max(axis=(0, 2, 3)))
    tensors = quantized_tensors(found, ranges, propagate(module))
    assert tensors is not None
    return found, tensors


@pytest.mark.parametrize("tensor", range(5))
def test_the_noise_of_a_rounding_is_that_of_random_noise(tensor: int) -> None:
    """The variances of noise in one channel and of the results, with respect to the sum."""
    model, data = network(activation="")
    (first, middle, last), tensors = layers_of(model)
    arrays = [layer.weight.reshape(layer.weight.shape[:2]) for layer in (first, middle, last)]
    x = (
        values(compile_model(model).model, data)[first.data.name]
        if first.data.node is not None
        else data["x"]
    )
    samples = x.transpose(1, 0, 2, 3).reshape(5, -1)
    rng = np.random.default_rng(0)
    bias = [layer.bias(Parameters(from_model(model).constants)) for layer in (first, middle)]

    def result(noisy: int, channel: int) -> Array:
        w0, w1, w2 = (array.copy() for array in arrays)
        if noisy == 4:
            w0[channel] += rng.standard_normal(w0.shape[1])
        if noisy == 2:
            w1[channel] += rng.standard_normal()
        if noisy == 0:
            w2[:, channel] += rng.standard_normal(len(w2))
        h = w0 @ samples + (0 if bias[0] is None else bias[0].reshape(-1, 1))
        h[channel] += rng.standard_normal(h.shape[1]) * (noisy == 3)
        h = w1 * h + (0 if bias[1] is None else bias[1].reshape(-1, 1))
        h[channel] += rng.standard_normal(h.shape[1]) * (noisy == 1)
        return np.asarray(w2 @ h)

    plain = result(-1, 0)
    found = np.array(
        [
            np.mean([((result(tensor, c) - plain) ** 2).sum(axis=0).mean() for _ in range(200)])
            for c in range(8)
        ]
    )
    np.testing.assert_allclose(tensors[tensor].noise, found, rtol=0.4)
    assert np.corrcoef(np.log(tensors[tensor].noise), np.log(found))[0, 1] > 0.99


def int8_noise(model: ModelProto, data: dict[str, Array]) -> float:
    """Noise to signal of results with weights and activations of one int8 scale each."""
    found = weights(model)
    convs = [node for node in model.graph.node if node.op_type == "Conv"]
    exact = values(model, data)

    def rounded(array: Array, levels: int, span: float) -> Array:
        step = span / levels
        return np.asarray(np.rint(array / step) * step)

    h = exact[convs[0].input[0]] if convs[0].input[0] in exact else data["x"]
    for node in convs:
        weight = found[node.input[1]]
        weight = rounded(weight, WEIGHT_LEVELS, np.abs(weight).max())
        bias = found[node.input[2]].reshape(1, -1, 1, 1) if len(node.input) > 2 else 0.0
        depthwise = weight.shape[1] == 1
        h = (
            h * weight.reshape(1, -1, 1, 1)
            if depthwise
            else np.einsum("nchw,mc->nmhw", h, weight[:, :, 0, 0])
        )
        h = h + bias
        if node is not convs[-1]:
            h = np.maximum(h, 0)
            h = rounded(h, LEVELS, h.max())
    y = exact[model.graph.output[0].name]
    return float(((h - y) ** 2).sum() / (y**2).sum())


@pytest.mark.parametrize(
    ("dead", "tails", "least"),
    [(True, False, 1.0), (False, True, -0.5), (False, False, -1.5)],
    ids=[
        "channels that rarely pass",
        "tails",
        "normal data, which pay for the room that tails have",
    ],
)
def test_int8_has_less_noise_where_channels_rarely_pass_an_activation(
    dead: bool, tails: bool, least: float
) -> None:
    """Decibels over eight networks on average.

    A gain, as much as by ranges, and no more than the room costs.
    """
    gained = []
    for seed in range(8):
        model, data = network(dead, seed=seed, tails=tails)
        found = []
        for objective in ("range", "noise"):
            result = compile_model(model, f"default,{PASS}{{objective={objective}}},FoldConstant")
            assert_equivalent(model, result.model)
            found.append(int8_noise(result.model, data))
        assert max(found) < int8_noise(compile_model(model).model, data)
        gained.append(10 * np.log10(found[0] / found[1]))
    assert np.mean(gained) > least


def test_without_statistics_the_ranges_decide() -> None:
    model, _ = network()
    folded = compile_model(model).model
    plain, noisy = (
        compile_model(folded, f"{PASS}{{objective={objective}}},FoldConstant").model
        for objective in ("range", "noise")
    )
    assert plain == noisy != folded


def test_a_second_sweep_finds_little_to_do() -> None:
    """The moments of the values are rescaled with them."""
    model, _ = network(dead=True)
    once, twice = (
        weights(
            compile_model(
                model, f"default,{PASS}{{objective=noise,iterations={n}}},FoldConstant"
            ).model
        )
        for n in (1, 2)
    )
    for name, array in once.items():
        if array.ndim == 4:
            np.testing.assert_allclose(np.abs(twice[name]), np.abs(array), rtol=0.1)


@pytest.mark.parametrize(
    ("kind", "shape", "attrs"),
    [
        ("Conv", (6, 4, 3, 3), {}),
        ("Conv", (6, 2, 3, 1), {"group": 2}),
        ("ConvTranspose", (4, 3, 2, 2), {"group": 2, "strides": [2, 1]}),
        ("Gemm", (4, 5), {}),
        ("Gemm", (5, 4), {"transB": 1}),
        ("MatMul", (4, 5), {}),
    ],
)
def test_sums_over_the_results_of_a_layer(
    kind: str, shape: tuple[int, ...], attrs: dict[str, object]
) -> None:
    graph = Graph(dtype=F64)
    x = graph.input("x", [2, 4] if len(shape) == 2 else [2, 4, 6, 6])
    graph.output(graph.node(kind, [x, graph.initializer(graph.random(*shape))], "y", **attrs))
    module = from_model(graph.model())
    (node,) = [node for node in module.graph if node.inputs and node.op != "return"]
    layer = read_linear(node, Parameters(module.constants))
    assert layer is not None
    each = [layer.apply(layer.weight, row, padding="ignore").sum() for row in np.eye(4)]
    np.testing.assert_allclose(layer.over_results(layer.weight), each, rtol=1e-12)
