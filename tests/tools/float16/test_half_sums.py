"""Sums of a device that adds up in float16, bit by bit against numpy."""

from __future__ import annotations

from pathlib import Path

import irc
import numpy as np
import pytest
from graphs import Array, Graph, is_valid
from irc.frontends.onnx import from_model
from irc.result import Result
from irc.tools.float16.emulation import emulated
from irc.tools.float16.half_sums import with_half_sums
from irc.tools.verify.runner import Runner
from onnx import ModelProto
from streams import DATA, stream

RNG = np.random.default_rng(2)


def computed(model: ModelProto, feeds: dict[str, Array]) -> Array:
    """The result of the model in float16, with sums in float16."""
    module = from_model(model)
    irc.compile(module, "ConvertToFloat16")
    half = with_half_sums(emulated(Result(module)))
    assert is_valid(half) is None
    (found,) = Runner(half, Path()).run([model.graph.output[0].name], feeds)
    return np.asarray(found)


def added(terms: Array, axis: int) -> Array:
    """The sum of float32 terms, each sum of two rounded to float16."""
    total = np.zeros(np.delete(terms.shape, axis), np.float32)
    for each in np.moveaxis(terms, axis, 0):
        total = (total + each).astype(np.float16).astype(np.float32)
    return total


def half(*shape: int, size: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * size).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_products(op: str) -> None:
    graph, weight, x = Graph(opset=17), half(48, 5), half(6, 48)
    operand = weight.T if op == "Gemm" else weight
    attributes = {"transB": 1} if op == "Gemm" else {}
    names = [graph.input("x", [6, 48]), graph.initializer(np.ascontiguousarray(operand))]
    graph.node(op, names, "y", **attributes)
    graph.output("y", [6, 5])
    expected = added(x[:, :, None] * weight[None], 1)
    np.testing.assert_array_equal(computed(graph.model(), {"x": x}), expected)
    exact = x.astype(np.float64) @ weight
    assert np.abs(expected - exact).max() > 2 * np.abs(exact.astype(np.float16) - exact).max()


def test_products_of_matrices_with_a_batch() -> None:
    graph, x, z = Graph(opset=17), half(2, 3, 4, 16), half(2, 3, 16, 5)
    graph.node("MatMul", [graph.input("x", [2, 3, 4, 16]), graph.input("z", [2, 3, 16, 5])], "y")
    graph.output("y", [2, 3, 4, 5])
    expected = added(x[..., None] * z[:, :, None], 3)
    np.testing.assert_array_equal(computed(graph.model(), {"x": x, "z": z}), expected)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
def test_reductions(op: str) -> None:
    graph, x = Graph(opset=17), half(4, 5, 64)
    data = graph.input("x", [4, 5, 64])
    if op == "ReduceSum":
        graph.node(op, [data, graph.initializer(np.array([2]))], "y", keepdims=0)
    else:
        graph.node(op, [data], "y", axes=[2], keepdims=0)
    graph.output("y", [4, 5])
    expected = added(x, 2) / np.float32(1 if op == "ReduceSum" else 64)
    expected = expected.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(computed(graph.model(), {"x": x}), expected)


def test_a_conv_adds_up_its_channels() -> None:
    graph, x, weight, bias = Graph(opset=17), half(2, 24, 5, 5), half(3, 24, 1, 1), half(3)
    names = [graph.input("x", [2, 24, 5, 5]), graph.initializer(weight), graph.initializer(bias)]
    graph.node("Conv", names, "y")
    graph.output("y", [2, 3, 5, 5])
    total = added(x[:, None] * weight[None, :, :, 0, 0, None, None], 2)
    expected = (total + bias[None, :, None, None]).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(computed(graph.model(), {"x": x}), expected)


def test_a_sum_overflows_where_its_mean_does_not() -> None:
    graph, x = Graph(opset=17), np.full((1, 2, 32, 32), 100.0, np.float32)
    graph.node("GlobalAveragePool", [graph.input("x", [1, 2, 32, 32])], "y")
    graph.output("y", [1, 2, 1, 1])
    assert np.isinf(computed(graph.model(), {"x": x})).all()


def test_a_device_that_adds_up_in_float16_is_judged_so() -> None:
    """Squares of a norm overflow in it, unless the norm is scaled for it."""
    model = stream(3e3)
    scaled = irc.to_float16(model, inputs=DATA, accumulate="float16")
    assert scaled.scaled
    assert scaled.is_finite
    assert scaled.fidelity[0].sqnr > 40
    assert not scaled.predicted
    plain = irc.to_float16(model, inputs=DATA)
    assert plain.fidelity[0].sqnr > scaled.fidelity[0].sqnr
    narrow = with_half_sums(emulated(plain.result))
    (found,) = Runner(narrow, Path()).run(["y"], DATA)
    (exact,) = Runner(model, Path()).run(["y"], DATA)
    assert not np.allclose(found, exact, atol=0.5)
