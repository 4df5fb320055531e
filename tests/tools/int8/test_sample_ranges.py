"""Ranges of `irc quantize --data`: the least and the greatest element in the samples."""

from __future__ import annotations

import irc
import numpy as np
import pytest
from graphs import Array
from int8_models import NEEDS_RANGES
from onnx import ModelProto, numpy_helper
from verification import text

pytestmark = NEEDS_RANGES

NET = """g (float[N,4] x) => (float[N,3] y, {result} z)
    <float[4,3] w = {{1, -2, 3, -4, 5, -6, 7, -8, 9, -1, 2, -3}}, float[3,3] v = {{1, 2, 3, 4, 5, 6, 7, 8, 9}},
     int64[1] zero = {{0}}> {{
    h = MatMul(x, w) y = MatMul(h, v)
    {last} }}"""
PLAIN = NET.format(result="float[N,3]", last="z = Neg(h)")


def samples() -> Array:
    return np.random.default_rng(0).uniform(-3, 5, (20, 4)).astype(np.float32)


def quantized(source: ModelProto, x: Array, **options: object) -> irc.Quantized:
    return irc.quantize(source, data={"x": x}, test_data={"x": x}, passes="none", **options)  # type: ignore[arg-type]


def scale_of(found: ModelProto, name: str) -> Array:
    """The scale that a value is rounded by."""
    tensors = {each.name: numpy_helper.to_array(each) for each in found.graph.initializer}
    (scale,) = {
        node.input[1]
        for node in found.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] == name
    }
    return tensors[scale]


@pytest.mark.parametrize("rows", [1, "N"])
def test_scales_are_those_of_the_samples(rows: int | str) -> None:
    """Samples that run one by one have the ranges of all."""
    source, x = text(PLAIN.replace("float[N,4]", f"float[{rows},4]"), 17), samples()
    weight = numpy_helper.to_array(source.graph.initializer[0])
    values = {"x": x, "h": x.astype(np.float64) @ weight}
    found = quantized(source, x).model
    for name, array in values.items():
        expected = (array.max() - array.min()) / 255
        np.testing.assert_allclose(scale_of(found, name), expected, rtol=1e-6)


def test_a_given_range_holds_instead_of_the_samples() -> None:
    found = quantized(text(PLAIN, 17), samples(), ranges={"h": (-200, 200)}).model
    np.testing.assert_allclose(scale_of(found, "h"), 400 / 255, rtol=3e-7)


def test_an_operator_without_a_number_in_any_sample_stays_float() -> None:
    last = "a = Exp(h) b = Neg(a) n = Sqrt(b) z = MatMul(n, v)"
    found = quantized(text(NET.format(result="float[N,3]", last=last), 17), samples())
    reasons = {one.node: str(one.reason) for one in found.coverage if one.is_layer}
    assert reasons == {"h": "None", "y": "None", "z": "no sample has a number for 'z'"}
    assert "DynamicQuantizeLinear" not in {node.op_type for node in found.model.graph.node}


def test_a_result_without_elements_is_compared() -> None:
    """Its samples have no greatest element."""
    last = "z = Slice(h, zero, zero, zero)"
    found = quantized(text(NET.format(result="float[0,3]", last=last), 17), samples())
    ratios = {one.name: (one.sqnr, one.agreement) for one in found.fidelity}
    assert ratios["z"] == (np.inf, None)
    assert ratios["y"][0] > 30
