"""`irc.to_float16` scales by powers of two what would overflow, and leaves the rest alone."""

from __future__ import annotations

import harness
import irc
import numpy as np
import pytest
from graphs import Graph
from onnx import ModelProto, numpy_helper
from streams import DATA, feed_forward, stream


def test_a_large_stream_is_scaled() -> None:
    found = irc.to_float16(stream(1e5), inputs=DATA)
    assert found.beyond
    assert not found.stayed
    assert found.is_finite
    assert found.fidelity[0].sqnr > 55
    (component,) = found.scaled
    assert component.first == "first"
    most = component.most * 2.0**component.exponent
    assert 65504 / 4 < most <= 65504 / 2


def test_a_small_one_is_not() -> None:
    found = irc.to_float16(stream(1.0), inputs=DATA)
    assert not found.scaled
    assert not found.beyond


def test_the_margin_is_kept() -> None:
    one, four = (irc.to_float16(stream(1e5), inputs=DATA, margin=bits) for bits in (1, 4))
    assert one.scaled[0].exponent - four.scaled[0].exponent == 3


def test_quiet_tokens_keep_their_epsilon() -> None:
    """With an epsilon that does not scale, tokens whose variance is near it would be wrong."""
    loud = np.ones((10, 6, 1), np.float32)
    loud[:, ::2] = 1e-4
    quiet = {"x": DATA["x"] * loud}
    found = irc.to_float16(stream(1e5, epsilon=50.0), inputs=quiet)
    norms = [node for node in found.model.graph.node if node.op_type == "LayerNormalization"]
    exponent = found.scaled[0].exponent
    epsilons = {
        attribute.f for node in norms for attribute in node.attribute if attribute.name == "epsilon"
    }
    assert epsilons == {50.0 * 2.0 ** (2 * exponent)}
    assert found.fidelity[0].sqnr > 50


def test_scaled_results_leave_as_they_were() -> None:
    graph = Graph()
    x = graph.input("x", ["N", 6, 16])
    weight = graph.initializer((np.eye(16) * 1e5).astype(np.float32))
    graph.node("MatMul", [x, weight], "y")
    graph.output("y", ["N", 6, 16])
    found = irc.to_float16(graph.model(), inputs=DATA)
    assert [node.op_type for node in found.model.graph.node] == ["Cast", "MatMul", "Cast", "Mul"]
    assert [each.reason for each in found.stayed] == ["scales a result back"]
    result = harness.run(found.model, DATA)["y"]
    assert np.abs(result).max() > 65504
    np.testing.assert_allclose(result, DATA["x"] * 1e5, rtol=2e-3)


@pytest.mark.parametrize("op", ["Tanh", "Sigmoid", "Erf", "Exp"])
def test_what_reads_a_value_itself_keeps_it_float32(op: str) -> None:
    graph = Graph()
    x = graph.input("x", ["N", 6, 16])
    weight = graph.initializer((np.eye(16) * 1e5).astype(np.float32))
    graph.node("MatMul", [x, weight], "a", "layer")
    graph.node(op, [graph.node("Min", ["a", graph.initializer(np.array(80.0, np.float32))])], "y")
    graph.output("y", ["N", 6, 16])
    found = irc.to_float16(graph.model(), inputs=DATA)
    assert not found.scaled
    assert ("layer", "range exceeds float16 by 2^4") in [
        (each.name, each.reason) for each in found.stayed
    ]


def test_sums_inside_norms_are_scaled_on_demand() -> None:
    plain = irc.to_float16(stream(1e5), inputs=DATA)
    found = irc.to_float16(stream(1e5), inputs=DATA, accumulate="float16")
    component = found.scaled[0]
    assert component.exponent < plain.scaled[0].exponent
    most = component.most * 2.0**component.exponent
    assert 65504 / 8 < 16 * (2 * most) ** 2 <= 65504 / 2
    assert not found.stayed
    assert found.fidelity[0].sqnr > 50


def test_sums_that_no_exponent_saves_stay_float32() -> None:
    graph = Graph()
    x = graph.input("x", ["N", 6, 16])
    ones = graph.initializer(np.full((16, 4), 5000.0, np.float32))
    graph.node("Tanh", [graph.node("MatMul", [x, ones], "a", "layer")], "y")
    graph.output("y", ["N", 6, 4])
    data = {
        "x": np.where(np.arange(16) % 2, 2.0, -2.0).astype(np.float32)
        * np.ones((5, 6, 1), np.float32)
    }
    assert not irc.to_float16(graph.model(), inputs=data).stayed
    found = irc.to_float16(graph.model(), inputs=data, accumulate="float16", keep_float32=["y"])
    assert ("layer", "a sum of products exceeds float16 by 2^3") in [
        (each.name, each.reason) for each in found.stayed
    ]
    with pytest.raises(irc.UsageError, match="accumulate has to be one of float32, float16"):
        irc.to_float16(graph.model(), inputs=data, accumulate="bfloat16")


def products(model: ModelProto) -> list[float]:
    """Return the scalars that a model multiplies by."""
    arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    return [
        float(arrays[name])
        for node in model.graph.node
        if node.op_type == "Mul"
        for name in node.input
        if name in arrays and arrays[name].size == 1
    ]


def test_squares_of_a_stream_do_not_make_its_small_values_subnormal() -> None:
    """The square of 2e5 takes 2^-10, with which weights of 1 would lose their bits."""
    found = irc.to_float16(feed_forward(1e5), inputs=DATA, target=0)
    assert not found.stayed
    assert found.fidelity[0].sqnr > 55
    stream_exponent = max(each.exponent for each in found.scaled)
    assert stream_exponent > -6
    assert [2.0**-10 < factor < 1 for factor in products(found.model)] == [True]


@pytest.mark.parametrize("sizes", [(1.0, 1.0), (1e5, 1e5)], ids=["small", "large throughout"])
def test_no_product_stands_before_a_norm_that_needs_none(sizes: tuple[float, float]) -> None:
    model = feed_forward(*sizes)
    found = irc.to_float16(model, inputs=DATA, target=0)
    assert products(found.model) == []
    assert found.operators[0] + found.casts == found.operators[1]
