"""Spatial kernels whose rounding errors cancel over neighbours."""

from __future__ import annotations

import harness
import irc
import numpy as np
import pytest
from graphs import Array
from int8_models import NEEDS_RANGES, sqnr
from irc.ir.tensor import to_float64
from irc.passes.data_free.tap_rounding import correlation_of, distances, rounded_taps
from irc.tools.int8.preparation import CORRECTION, PASSES
from onnx import ModelProto, numpy_helper
from quantizers.nets import SIZE, Chain

pytestmark = NEEDS_RANGES

PLAIN = PASSES.format("false")
NEAREST = f"{PLAIN},{CORRECTION.format('per_channel=true')}"
"""The passes of irc quantize, whose weights the quantizer rounds to the nearest."""


def smooth(rho: float) -> Array:
    """Data whose neighbours along each axis have this correlation."""
    data = np.random.default_rng(0).normal(size=(64, 4, SIZE, SIZE))
    for axis in (2, 3):
        moved = np.moveaxis(data, axis, 0)
        for i in range(1, SIZE):
            moved[i] = rho * moved[i - 1] + np.sqrt(1 - rho**2) * moved[i]
    return data


def chain_of(rho: float) -> Chain:
    """Depthwise layers on smooth data, and a last one that mixes channels."""
    found = Chain(data=smooth(rho))
    found.layer("a", 4, kernel=1)
    found.layer("b", 16, kernel=3, pad=1, group=4)
    found.layer("c", 5)
    return found


def weights_of(model: ModelProto) -> dict[str, Array]:
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    return {
        node.name: numpy_helper.to_array(tensors[node.input[1]])
        for node in model.graph.node
        if node.op_type == "Conv"
    }


def weight_noise(chain: Chain, found: irc.Quantized) -> float:
    """The ratio in dB of the model with rounded weights and float activations."""
    feeds = {"x": chain.inputs}
    (expected,), (result,) = (
        harness.run(model, feeds).values() for model in (chain.model(), found.prepared)
    )
    return sqnr(expected, result)


def test_kernels_on_smooth_data_are_not_rounded_to_the_nearest() -> None:
    chain = chain_of(0.9)
    ours, nearest = (
        irc.quantize(chain.model(), input_ranges=(-6, 6), passes=passes)
        for passes in (None, NEAREST)
    )
    feeds = {"x": chain.inputs}
    (expected,) = harness.run(chain.model(), feeds).values()
    ratios = [sqnr(expected, *harness.run(one.model, feeds).values()) for one in (ours, nearest)]
    assert ratios[0] > ratios[1]
    weights = weights_of(ours.prepared)["b"], weights_of(nearest.prepared)["b"]
    step = np.abs(weights[1]).max(axis=(1, 2, 3), keepdims=True) / 127
    integers = weights[0] / step
    np.testing.assert_allclose(integers, np.rint(integers), atol=1e-3)
    off = np.abs(integers - weights[1] / step)
    assert off.max() < 1
    assert off.max() > 0.5
    assert weight_noise(chain, ours) > 30


def test_kernels_on_white_data_are_rounded_to_the_nearest() -> None:
    chain = chain_of(0.0)
    ours, nearest = (
        irc.quantize(chain.model(), input_ranges=(-6, 6), passes=passes)
        for passes in (None, NEAREST)
    )
    weights = weights_of(ours.prepared)["b"], weights_of(nearest.prepared)["b"]
    step = np.abs(weights[1]).max(axis=(1, 2, 3), keepdims=True) / 127
    far = np.abs(weights[0] - weights[1]) > 0.501 * step
    assert far.mean() < 0.1
    feeds = {"x": chain.inputs}
    (expected,) = harness.run(chain.model(), feeds).values()
    ratios = [sqnr(expected, *harness.run(one.model, feeds).values()) for one in (ours, nearest)]
    assert ratios[0] > ratios[1] - 0.2


def test_a_kernel_that_stays_float_is_not_rounded() -> None:
    chain = chain_of(0.9)
    found = irc.quantize(chain.model(), input_ranges=(-6, 6), exclude=["b"])
    plain = irc.compile(chain.model(), PLAIN).model
    plain_weights, weights = weights_of(plain), weights_of(found.prepared)
    np.testing.assert_array_equal(weights["b"], plain_weights["b"])


class _Kernels:
    """What rounding reads of a layer."""

    def __init__(self, weight: Array) -> None:
        self.weight = weight


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("top", [7, 127])
def test_the_noise_of_a_kernel_is_never_more_than_that_of_the_nearest(rho: float, top: int) -> None:
    weight = np.random.default_rng(1).normal(size=(40, 3, 3, 3))
    weight[0] = 0.0
    weight[1, 0, 0, 0] = np.abs(weight).max()
    steps = np.abs(weight).max() / top
    places = np.indices((3, 3)).reshape(2, -1)
    apart = np.abs(places[:, :, None] - places[:, None, :]).sum(axis=0)
    correlation = rho**apart
    found = rounded_taps(_Kernels(weight), np.asarray(steps), top, correlation)  # type: ignore[arg-type]
    exact = weight / steps
    nearest = np.clip(np.rint(exact), -top, top)
    assert np.abs(found).max() <= top
    assert (np.abs(found - exact) < 1).all()
    np.testing.assert_array_equal(found[np.abs(nearest) == top], nearest[np.abs(nearest) == top])
    noises = []
    for integers in (found, nearest):
        error = (integers - exact).reshape(-1, 9)
        noises.append(np.einsum("mk,kl,ml->m", error, correlation, error))
    assert (noises[0] <= noises[1] + 1e-9).all()
    if rho == 0:
        np.testing.assert_array_equal(found, nearest)
    else:
        assert noises[0].sum() < 0.9 * noises[1].sum()


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_deviations_before_and_after_a_depthwise_layer_tell_the_correlation(rho: float) -> None:
    from irc.passes.affine.algebra.operands import Parameters
    from irc.passes.data_free.linear import read_linear
    from irc.passes.data_free.statistic_ranges import propagate

    chain = Chain(data=smooth(rho))
    chain.nodes, chain.initializers = [], []
    chain.layer("b", 32, kernel=3, group=4)
    module = irc.load(chain.model())
    irc.passes.parse_pipeline("default")(module)
    params, moments = Parameters(module.constants), propagate(module)
    (linear,) = (
        found
        for node in module.graph.operators()
        if (found := read_linear(node, params)) is not None
    )
    apart = distances(linear)
    assert apart is not None
    assert to_float64(linear.weight).shape == (32, 1, 3, 3)
    found = correlation_of(linear, apart, moments)
    assert found.shape == (9, 9)
    assert found[0, 1] == pytest.approx(rho, abs=0.1)
