"""The biases that take back the mean error of rounded weights."""

from __future__ import annotations

import irc
import numpy as np
import pytest
from graphs import Array, Graph
from irc.frontends.onnx import from_model
from irc.ir import Module
from irc.passes.float16.weight_errors import ChannelMeans, known_means
from irc.result import emit
from onnx import ModelProto, numpy_helper

RNG = np.random.default_rng(11)
ROUND_UP = np.float32(1 + 2.0**-11 - 2.0**-13)
"""A weight that float16 rounds to 1: the error is known."""


def conv(group: int = 1) -> ModelProto:
    graph = Graph()
    x = graph.input("x", [1, 4, 5, 5])
    weight = (ROUND_UP * np.ones((4, 4 // group, 3, 3))).astype(np.float32)
    names = graph.initializer(weight, "w"), graph.initializer(np.zeros(4, np.float32), "b")
    graph.node("Conv", [x, *names], "y", group=group)
    graph.output("y")
    return graph.model()


def product(*, transposed: bool | None = None, readers: int = 1) -> ModelProto:
    """Return a MatMul and an Add, or a Gemm whose weight may be transposed."""
    graph = Graph()
    x = graph.input("x", [3, 4])
    weight = np.zeros((4, 2), np.float32)
    weight[0, 0] = weight[2, 1] = ROUND_UP
    bias = graph.initializer(np.zeros(2, np.float32), "b")
    if transposed is None:
        graph.node("MatMul", [x, graph.initializer(weight, "w")], "a")
        graph.node("Add", ["a", bias], "y")
        if readers > 1:
            graph.node("Relu", ["a"], "z")
            graph.output("z")
    else:
        name = graph.initializer(weight.T if transposed else weight, "w")
        graph.node("Gemm", [x, name, bias], "y", transB=int(transposed))
    graph.output("y")
    return graph.model()


def biases(model: ModelProto, mean: Array, axis: int = 1) -> Array:
    """Return the bias of the converted model, given the means of its input."""
    module: Module = from_model(model)
    known_means(module)[module.graph.inputs[0]] = ChannelMeans(axis, mean)
    irc.compile(module, "ConvertToFloat16")
    (found,) = [each for each in emit(module).model.graph.initializer if each.name == "b"]
    return numpy_helper.to_array(found).astype(np.float64)


ERROR = 1 - float(ROUND_UP)
MEAN = np.array([1.0, 10.0, 100.0, 1000.0])


def test_a_convolution_takes_back_its_mean_error() -> None:
    found = biases(conv(), MEAN)
    np.testing.assert_allclose(found, np.full(4, -9 * ERROR * MEAN.sum()), rtol=1e-3)


def test_a_group_reads_its_own_channels() -> None:
    np.testing.assert_allclose(biases(conv(group=4), MEAN), -9 * ERROR * MEAN, rtol=1e-3)
    by_two = np.repeat([MEAN[:2].sum(), MEAN[2:].sum()], 2)
    np.testing.assert_allclose(biases(conv(group=2), MEAN), -9 * ERROR * by_two, rtol=1e-3)


@pytest.mark.parametrize("transposed", [None, False, True])
def test_products_of_matrices_do(transposed: bool | None) -> None:
    found = biases(product(transposed=transposed), MEAN)
    np.testing.assert_allclose(found, -ERROR * MEAN[[0, 2]], rtol=1e-3)


def test_not_by_the_bias_of_a_product_that_others_read() -> None:
    assert not biases(product(readers=2), MEAN).any()


def test_not_where_the_means_are_of_another_axis() -> None:
    assert not biases(conv(), MEAN, axis=0).any()
    assert not biases(product(), MEAN[:3]).any()


def test_scaling_takes_the_means_along() -> None:
    graph = Graph()
    x = graph.input("x", [1, 4, 5, 5])
    first = graph.initializer(np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1), "v")
    weight = (ROUND_UP * np.ones((4, 4, 1, 1))).astype(np.float32)
    names = graph.initializer(weight, "w"), graph.initializer(np.zeros(4, np.float32), "b")
    graph.node("Conv", [x, first], "a")
    graph.node("Sigmoid", [graph.node("Conv", ["a", *names])], "y")
    graph.output("y")
    found = []
    for passes in ("ConvertToFloat16", "ScaleByPowersOfTwo{exponent=3},ConvertToFloat16"):
        module = from_model(graph.model())
        (a,) = [node.output for node in module.graph.operators() if node.output.name == "a"]
        known_means(module)[a] = ChannelMeans(1, MEAN)
        irc.compile(module, passes)
        (bias,) = [each for each in emit(module).model.graph.initializer if each.name == "b"]
        found.append(numpy_helper.to_array(bias))
    np.testing.assert_array_equal(*found)
    assert found[0].all()
