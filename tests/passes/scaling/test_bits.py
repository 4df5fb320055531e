"""ScaleByPowersOfTwo keeps the bits of every result in float32, whatever the exponent."""

from __future__ import annotations

from collections.abc import Mapping

import harness
import irc
import numpy as np
import pytest
from graphs import Array, Graph, is_valid
from hypothesis import given, settings
from hypothesis import strategies as st
from irc.ir.verifier import verify
from irc.passes.scaling.exponents import Exponents, Wish, choose
from irc.passes.scaling.scaled_components import scaling
from onnx import ModelProto
from random_graphs.grammar import grow


def scaled(model: ModelProto, exponent: int) -> irc.Result:
    result = irc.compile(model, f"ScaleByPowersOfTwo{{exponent={exponent}}}")
    verify(result.module)
    return result


def assert_same_bits(model: ModelProto, found: ModelProto, feeds: Mapping[str, Array]) -> None:
    assert is_valid(found) is None
    expected, actual = (harness.run(each, dict(feeds)) for each in (model, found))
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


def block(norm: str) -> ModelProto:
    """Return a pre-norm block: a residual stream, a norm, attention and a gated layer."""
    graph, d = Graph(opset=23), 8
    rng = np.random.default_rng(1)

    def weight(*shape: int) -> str:
        return graph.initializer((rng.standard_normal(shape) / 2).astype(np.float32))

    def number(value: float) -> str:
        return graph.initializer(np.array(value, np.float32))

    def normed(x: str) -> str:
        if norm == "written":
            last = graph.initializer(np.array([-1]))
            shifted = graph.node("Sub", [x, graph.node("ReduceMean", [x, last])])
            square = graph.node("Pow", [shifted, number(2.0)])
            wide = graph.node("Add", [graph.node("ReduceMean", [square, last]), number(1e-5)])
            return graph.node("Div", [shifted, graph.node("Sqrt", [wide])])
        bias = [weight(d)] if norm == "LayerNormalization" else []
        return graph.node(norm, [x, weight(d), *bias], epsilon=1e-5)

    x = graph.node("MatMul", [graph.input("x", [2, 5, d]), weight(d, d)])
    y = normed(x)
    q, k, v = (graph.node("MatMul", [y, weight(d, d)]) for _ in range(3))
    scores = graph.node("MatMul", [q, graph.node("Transpose", [k], perm=[0, 2, 1])])
    shares = graph.node("Softmax", [graph.node("Mul", [scores, number(0.3)])], axis=-1)
    x = graph.node("Add", [x, graph.node("MatMul", [shares, v])])
    y = normed(x)
    gate = graph.node("Sigmoid", [graph.node("MatMul", [y, weight(d, d)])])
    y = graph.node("Mul", [gate, graph.node("MatMul", [y, weight(d, d)])])
    x = graph.node("Add", [x, graph.node("MatMul", [y, weight(d, d)])])
    graph.node("MatMul", [normed(x), weight(d, 3)], "y")
    graph.output("y", [2, 5, 3])
    return graph.model()


@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization", "written"])
def test_a_residual_stream_has_any_scale(norm: str) -> None:
    model = block(norm)
    feeds = {"x": np.random.default_rng(2).standard_normal((2, 5, 8)).astype(np.float32)}
    for exponent in (-20, -7, -1, 1, 4, 9, 20):
        result = scaled(model, exponent)
        assert sum(each.values for each in scaling(result.module)) > 10
        assert_same_bits(model, result.model, feeds)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(-9, 9).filter(bool))
def test_random_graphs_keep_their_bits(seed: int, exponent: int) -> None:
    model = grow(seed, np.dtype(np.float32))
    rng, feeds = np.random.default_rng(seed), {}
    for info in model.graph.input:
        dims = [dim.dim_value or 2 for dim in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type != 1:
            return
        feeds[info.name] = rng.standard_normal(dims).astype(np.float32)
    try:
        harness.run(model, dict(feeds))
    except Exception:  # of the random model
        return
    assert_same_bits(model, scaled(model, exponent).model, feeds)


def values(count: int) -> list[irc.ir.Value]:
    graph = irc.ir.Graph()
    return [graph.add_input(f"v{i}", irc.ir.TensorType()) for i in range(count)]


def test_products_and_roots_leave_whole_exponents() -> None:
    a, b, product, root = values(4)
    exponents = Exponents(
        [a, b, product, root], [{product: 1, a: -1, b: -1}, {root: 2, product: -1}]
    )
    assert exponents.row({product: 1, root: -2}) == {}
    frees = {free for value in (a, b) for free in exponents.row({value: 1})}
    assert len(frees) == 2


def test_what_has_no_whole_exponents_keeps_zero() -> None:
    a, b = values(2)
    exponents = Exponents([a, b], [{a: 2, b: -3}])
    assert exponents.row({a: 1}) == exponents.row({b: 1}) == {}


def test_the_fewest_changes_are_chosen() -> None:
    wishes = [
        Wish({0: 1}, most=-3),
        Wish({0: 1, 1: 1}, most=0),
        Wish({1: 1}, most=5),
        Wish({1: 1}, is_change=True),
        Wish({0: 1}, is_change=True),
    ]
    assert choose(wishes) == {0: -3}
    assert choose([Wish({0: 1}, most=0)]) == {}
    assert choose([Wish({0: 1}, most=4, least=2)]) == {0: 2}
    assert choose([Wish({0: 1}, most=-4), Wish({0: 1}, least=-2)]) == {0: -4}
