"""Pairs of models that compute different results, and that a checker without some condition would accept."""

from __future__ import annotations

import pytest

from .pairs import is_proved

LOOP = """(float[2, 3] x) => (float[P, Q] y) <int64 m = {{3}}> {{
    y = Loop(m, , x) <body = outer (int64 i, bool c, float[A, B] a) => (bool d, float[C, D] e) {{
        d = Identity(c)
        w = Loop(m, , x) <body = inner (int64 j, bool k, float[E, F] b) => (bool l, float[G, H] n) {{
            l = Identity(k)  n = Add(b, {read}) }}>
        e = Add(w, a) }}> }}"""


def test_parameters_of_an_inner_loop_are_its_own() -> None:
    assert is_proved(LOOP.format(read="a"), LOOP.format(read="a"))
    assert not is_proved(LOOP.format(read="a"), LOOP.format(read="b"))


OVERRIDABLE = """(float[6] x{given}) => (int64[2] y, float[P, Q] r) <int64[2] s = {{2, 3}}, int64[2] k = {{2, 3}}> {{
    r = Reshape(x, s)  y = {shape} }}"""


@pytest.mark.parametrize(("given", "holds"), [("", True), (", int64[2] s", False)])
def test_a_default_that_callers_may_override_is_no_shape(given: str, holds: bool) -> None:
    pair = (OVERRIDABLE.format(given=given, shape=shape) for shape in ("Shape(r)", "Identity(k)"))
    assert is_proved(*pair) is holds


def test_a_constant_beside_joined_data_keeps_its_extents() -> None:
    text = "(float[1, 1] x) => (float[1, N] y) <float[1, {n}] c = {{{numbers}}}> {{ y = Concat<axis = 1>(x, c) }}"
    step = {"step": 1, "identity": "crosses", "at": "result", "operation": "y", "source": "y"}
    assert not is_proved(text.format(n=1, numbers="7"), text.format(n=2, numbers="7, 7"), step)


@pytest.mark.parametrize(
    "source",
    [
        "(float[2] x) => (float[N] y) <float[2] c = {1, 2}, int64[0] e = {}>"
        "{ k = ReduceSum<noop_with_empty_axes = 1>(c, e)  y = Mul(x, k) }",
        "(float[2] x) => (float[N] y) <float[2] c = {1, 2}, int64[1] s = {-10}, int64[1] e = {-100}, int64[1] a = {0}, "
        "int64[1] p = {-1}> { k = Slice(c, s, e, a, p)  y = Mul(x, k) }",
    ],
)
def test_constants_are_computed_as_onnx_says(source: str) -> None:
    step = {"step": 1, "identity": "constant", "at": "source", "operation": "k"}
    assert not is_proved(source, "(float[2] x) => (float[N] y) <float[1] k = {3}> { y = Mul(x, k) }", step)


ADDED = """(float[3] x) => (float[3] y) <float a = {{{far}}}, float b = {{0.4}}> {{
    u = Add(x, a)  v = Add(u, b)  y = Sub(v, a) }}"""


@pytest.mark.parametrize("far", ["1099511627776.0", "1e30"])
def test_sums_that_drown_the_data_are_no_identity(far: str) -> None:
    assert not is_proved("(float[3] x) => (float[3] y) { y = Identity(x) }", ADDED.format(far=far))


def test_a_normalization_without_a_mean_drops_no_shift() -> None:
    head = "(float[2, 3] x) => (float[2, 3] y) <float[3] g = {1, 1, 1}, float t = {5}> "
    step = {"step": 1, "identity": "layer", "at": "result", "operation": "y", "source": "y"}
    for kind, holds in (("LayerNormalization", True), ("RMSNormalization", False)):
        source, result = f"{{ v = Add(x, t)  y = {kind}<axis = -1>(v, g) }}", f"{{ y = {kind}<axis = -1>(x, g) }}"
        assert is_proved(head + source, head + source, opset=23)
        assert is_proved(head + source, head + result, step, opset=23) is holds


def test_the_greatest_number_is_no_lower_bound() -> None:
    greatest = "340282346638528859811704183484516925440.0"
    text = "(float[3] x) => (float[3] y) <float m = {{{low}}}> {{ y = {body} }}"
    step = {"step": 1, "identity": "same bounds", "at": "result", "operation": "y", "source": "y"}
    pair = [text.format(low=low, body="Clip(x, m)") for low in (greatest, f"-{greatest}")]
    assert not is_proved(*pair, step)
    assert is_proved(pair[1], pair[1])
