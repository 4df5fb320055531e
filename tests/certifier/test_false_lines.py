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
