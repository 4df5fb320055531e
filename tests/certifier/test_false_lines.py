"""Pairs of models whose affines differ, and that a checker without some condition would take for equal."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from .pairs import is_proved


def _numbers(*numbers: float) -> str:
    return base64.b64encode(np.array(numbers, "<f8").tobytes()).decode()


def _step(identity: str, operation: str, source: str, **rest: object) -> dict[str, object]:
    return {"identity": identity, "at": "result", "operation": operation, "source": source, **rest}


@pytest.mark.parametrize(("scale", "holds"), [(7.0, True), (_numbers(7.0), True), ("", False), (5.0, False)])
def test_an_affine_has_numbers(scale: float | str, holds: bool) -> None:
    text = "(float[N] x) => (float[N] y, float[N] z) <float a = {7}> { y = Mul(x, a)  z = Identity(y) }"
    step = _step("rounded affine", "y", "x", step=1, axis=0, applies=[{"scale": scale}])
    assert is_proved(text, text, step) is holds
    identity = text.replace("Mul(x, a)", "Identity(x)")
    assert not is_proved(identity, text, step)


NORMALIZED = """(float[2, 1] x) => (float[P, Q] y) <float[1] g = {{1}}, float[1] b = {{0}}, float k = {{1}}> {{
    y{further} = {body} }}"""


@pytest.mark.parametrize(("further", "holds"), [("", True), (', "m#1", "n#2", "o#3", "p#4"', False)])
def test_an_old_normalization_with_further_results_is_in_training(further: str, holds: bool) -> None:
    source = NORMALIZED.format(further=further, body="BatchNormalization<epsilon = 0.0>(x, g, b, b, g)")
    assert is_proved(source, NORMALIZED.format(further="", body="Mul(x, k)"), opset=9) is holds


PADDED = """(float[2] x) => (float[M] y) <float[2] f = {{0.1, 1.2}}, float five = {{5}},
    float value = {{{value}}}, float two = {{2}}, float half = {{0.5}}> {{
    g = Mul(f, f)  pads = Cast<to = 7>(g)  {body} }}"""


@pytest.mark.parametrize(
    ("value", "scales", "holds"), [(10, (2, 2, 2), True), (14, (2, 2), False), (14, (2, 2, 2), False)]
)
def test_an_affine_of_a_padded_axis_has_all_its_numbers(value: int, scales: tuple[int, ...], holds: bool) -> None:
    source = PADDED.format(value=value, body="p = Pad(x, pads, five)  y = Identity(p)")
    result = PADDED.format(value=value, body="u = Mul(x, two)  p = Pad(u, pads, value)  y = Mul(p, half)")
    computed = [
        {"identity": "constant", "at": at, "operation": name, "rounded": True}
        for at in ("source", "result")
        for name in ("g", "pads")
    ]
    steps = [*computed, _step("crosses", "p", "p", axis=0, applies=[{"scale": _numbers(*scales)}])]
    assert is_proved(source, result, *({"step": i, **step} for i, step in enumerate(steps, 1))) is holds


@pytest.mark.parametrize(
    ("pads", "holds"),
    [('auto_pad = "VALID", pads = [1, 0]', False), ('auto_pad = "VALID"', True), ("pads = [0, 0]", True)],
)
def test_pads_beside_automatic_ones_are_none(pads: str, holds: bool) -> None:
    extent = 4 if holds else 5
    attributes = "kernel_shape = [2], strides = [2], ceil_mode = {mode}, {pads}"
    text = "(float[1, 1, {n}] x) => (float[A, B, C] y) {{ y = MaxPool<" + attributes + ">(x) }}"
    pair = (text.format(n=extent, mode=mode, pads=pads) for mode in (1, 0))
    assert is_proved(*pair, _step("same windows", "y", "y", step=1)) is holds


FAR = """(float[3] x) => (float[3] y{further}) <float k = {{7.888609052210118e-31}}, float o = {{1.0}},
    float t = {{32.0}}, float i = {{1267650600228229401496703205376.0}}, float u = {{0.03125}}, bool s = {{1}}> {{
    {body} }}"""
"""Here k is 2^-100, i 2^100, t 2^5 and u 2^-5."""

BRANCHES = """y = If(s)<then_branch = f () => (float[3] w) {{
    a = Mul(x, {0})  c = Mul(a, {0})  d = Mul(c, {1})  w = Mul(d, {1}) }},
    else_branch = g () => (float[3] v) {{ v = Identity(x) }}>"""


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        ("a = Mul(x, u)  b = Add(a, o)  c = Sub(b, o)  y = Mul(c, t)", True),
        ("a = Mul(x, k)  b = Add(a, o)  c = Sub(b, o)  y = Mul(c, i)", False),
        ("a = Mul(x, k)  b = Mul(a, k)  c = Mul(b, i)  y = Mul(c, i)", False),
        ("a = Mul(x, i)  b = Mul(a, i)  c = Mul(b, k)  y = Mul(c, k)", False),
        ("a = Add(x, i)  y = Sub(a, i)", False),
        (BRANCHES.format("t", "u"), True),
        (BRANCHES.format("k", "i"), False),
    ],
)
def test_no_affine_in_between_is_far_from_the_source(body: str, holds: bool) -> None:
    steps = [{"identity": "taken branch", "at": "result", "operation": "y", "step": 1}] if "If" in body else []
    for further, unused in (("", ""), ("", "z = Add(x, i)  r = Relu(z)"), (", float[3] z", "z = Add(x, i)")):
        pair = [FAR.format(further=further, body=f"{unused}  {each}") for each in ("y = Identity(x)", body)]
        assert is_proved(*pair, *steps) is holds


@pytest.mark.parametrize(
    ("kind", "number", "holds"), [("float16", 21376, True), ("float16", 30547, False), ("float", 3e4, True)]
)
def test_narrow_types_have_less_room(kind: str, number: float, holds: bool) -> None:
    """The bits 21376 and 30547 are 60 and 30,000 in float16."""
    text = f"({kind}[3] x) => ({kind}[3] y) <{kind} a = {{{number}}}> {{"
    assert is_proved(f"{text} y = Identity(x) }}", f"{text} b = Add(x, a)  y = Sub(b, a) }}") is holds


@pytest.mark.parametrize(("number", "holds"), [("o", True), ("i", False)])
def test_lost_data_stay_lost_behind_another_operator(number: str, holds: bool) -> None:
    body = f"a = Add(x, {number})  b = Sub(a, {number})  c = Mul(b, t)  d = Abs(c)  y = Mul(d, u)"
    pair = [FAR.format(further="", body=each) for each in ("y = Abs(x)", body)]
    assert is_proved(*pair, _step("crosses", "d", "y", step=1)) is holds


@pytest.mark.parametrize(("kind", "holds"), [("Mul", True), ("Div", False)])
def test_zero_by_data_is_no_constant(kind: str, holds: bool) -> None:
    text = "(float[3] x) => (float[3] y) <float z = {{0}}> {{ u = Mul(x, z)  {body}  y = Add(q, x) }}"
    pair = [text.format(body=each) for each in (f"q = {kind}(u, x)", "q = Identity(u)")]
    assert is_proved(*pair, _step("crosses", "y", "y", step=1)) is holds


@pytest.mark.parametrize(("kind", "identity"), [("Max", "crosses"), ("Clip", "same bounds")])
@pytest.mark.parametrize(("number", "holds"), [("1e-34", True), ("1e-37", False)])
def test_constants_keep_their_digits(kind: str, identity: str, number: str, holds: bool) -> None:
    scaled = float(np.float32(number) * np.float32(2.0**-8))
    head = f"(float[3] x) => (float[3] y) <float c = {{{number}}}, float d = {{{scaled!r}}}, float k = {{{2.0**-8}}}, "
    head += f"float i = {{{2.0**8}}}, float o = {{1}}> {{"
    source, result = f"m = {kind}(x, c)", f"u = Mul(x, k)  v = {kind}(u, d)  m = Mul(v, i)"
    pair = [f"{head} {each}  y = Div(o, m) }}" for each in (source, result)]
    assert is_proved(*pair, _step(identity, "v", "m", step=1)) is holds
