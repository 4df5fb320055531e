"""Normalizations of data that are multiplied by a number, which goes into their epsilon."""

from __future__ import annotations

import irc
import pytest

from .pairs import is_found, model

LAYER = "(float[N,4] x) => (float[N,4] y) <float[4] g = {1, 2, 3, 4}, float[4] h = {-1, -2, -3, -4}"
CASES = {
    "a number": ("{2}", "LayerNormalization<epsilon = 0.4>", "g", "0.1", True),
    "another epsilon": ("{2}", "LayerNormalization<epsilon = 0.4>", "g", "0.4", False),
    "the epsilon of the number": ("{2}", "LayerNormalization<epsilon = 0.4>", "g", "0.2", False),
    "a negative number": ("{-2}", "LayerNormalization<epsilon = 0.4>", "h", "0.1", True),
    "the sign is lost": ("{-2}", "LayerNormalization<epsilon = 0.4>", "g", "0.1", False),
    "minus one": ("{-1}", "LayerNormalization<epsilon = 0.4>", "h", "0.4", True),
    "no epsilon": ("{2}", "LayerNormalization<epsilon = 0.0>", "g", "0.0", True),
    "far away": ("{131072}", "LayerNormalization<epsilon = 0.0>", "g", "0.0", False),
    "near zero": ("{0.0000076}", "LayerNormalization<epsilon = 0.0>", "g", "0.0", False),
    "no normal number": ("{1024}", "LayerNormalization<epsilon = 1e-33>", "g", "0.0", False),
}


@pytest.mark.parametrize(("number", "norm", "gamma", "epsilon", "holds"), CASES.values(), ids=CASES)
def test_a_number_goes_into_epsilon(
    number: str, norm: str, gamma: str, epsilon: str, holds: bool
) -> None:
    source = f"a = Mul(x, s)  y = {norm}(a, g)"
    result = f"y = LayerNormalization<epsilon = {epsilon}>(x, {gamma})"
    assert is_found(f"{LAYER}, float s = {number}>", source, result) == holds


def test_numbers_of_channels_stay() -> None:
    head = f"{LAYER}, float[4] s = {{2, 2, 2, 3}}>"
    source = "a = Mul(x, s)  y = LayerNormalization<epsilon = 0.4>(a, g)"
    assert not is_found(head, source, "y = LayerNormalization<epsilon = 0.1>(x, g)")


@pytest.mark.parametrize(
    ("norm", "holds"), [("LayerNormalization", True), ("RMSNormalization", False)]
)
def test_only_a_mean_takes_a_shift(norm: str, holds: bool) -> None:
    head = f"{LAYER}, float s = {{2}}, float t = {{1}}>"
    body = f"a = Mul(x, s)  b = Add(a, t)  y = {norm}<epsilon = 0.4>(b, g)"
    assert is_found(head, body, f"y = {norm}<epsilon = 0.1>(x, g)", 23) == holds
    assert is_found(head, body.replace("(b,", "(a,"), f"y = {norm}<epsilon = 0.1>(x, g)", 23)


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("number", [2, 0.5, 3])
def test_a_compile_is_proved(kind: str, number: float) -> None:
    source = model(
        f"""({kind}[N,4] x) => ({kind}[N,4] y) <{kind}[4] g = {{1, 2, 3, 4}}, {kind} s = {{{number}}}> {{
        a = Mul(x, s)  y = LayerNormalization<epsilon = 0.4>(a, g) }}"""
    )
    result = irc.compile(source, certificate=True)
    assert irc.certify(source, result.model, result.certificate()) >= 0
    assert result.operators == 2 - (kind == "float" or number != 3)


@pytest.mark.parametrize(("bits", "epsilon", "holds"), [(16384, 0.1, True), (14336, 1.6, False)])
def test_squares_of_narrow_numbers_grow_no_more(bits: int, epsilon: float, holds: bool) -> None:
    """The bits of float16 are those of 2 and of 1/2: then the data are larger than before."""
    head = f"""(float16[N,4] x) => (float16[N,4] y)
    <float16[4] g = {{15360, 15360, 15360, 15360}}, float16 s = {{{bits}}}>"""
    source = "a = Mul(x, s)  y = LayerNormalization<epsilon = 0.4>(a, g)"
    assert is_found(head, source, f"y = LayerNormalization<epsilon = {epsilon}>(x, g)") == holds
