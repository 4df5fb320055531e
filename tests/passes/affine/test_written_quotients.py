"""ceil(cast(n) / 3 / 5) is a whole number of n; one product by 1/15 rounds otherwise.

A size that is one too large is a wrong model.
"""

from __future__ import annotations

import irc
import numpy as np
import onnx
import pytest
from harness import run
from onnx import ModelProto

PASSES = (None, "SimplifyInference,FoldScaleAxis", "SimplifyExpr")
N = np.arange(1, 4000)


def model(body: str, source: str = "int64[N] x", result: str = "int64[N] y") -> ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({source}) => ({result})'
        " <float a = {3.0}, float b = {5.0}, float c = {0.7}, float two = {2.0}, float w = {4.0}>"
        f" {{ {body} }}"
    )


def operators(made: ModelProto, passes: str | None = None) -> list[str]:
    return [node.op_type for node in irc.compile(made, passes).model.graph.node]


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize(
    "middle",
    [
        "p = Div(f, a) q = Div(p, b) r = Ceil(q)",
        "p = Div(f, b) q = Div(p, a) r = Floor(q)",
        "p = Div(f, a) m = Add(p, c) q = Div(m, b) r = Ceil(q)",
        "p = Div(f, a) q = Div(p, b) m = Add(q, c) r = Floor(m)",
        "p = Mul(f, c) q = Div(p, c) r = Ceil(q)",
        "p = Div(f, a) q = Div(p, b) r = Identity(q)",
    ],
)
def test_quotients_of_whole_numbers_stay(middle: str, passes: str | None) -> None:
    made = model(f"f = Cast<to = 1>(x) {middle} y = Cast<to = 7>(r)")
    compiled = irc.compile(made, passes).model
    (expected,), (found,) = run(made, {"x": N}).values(), run(compiled, {"x": N}).values()
    assert (found == expected).all()
    kept = [node.op_type for node in compiled.graph.node]
    arithmetic = ("Div", "Mul", "Add")
    assert sum(map(kept.count, arithmetic)) == sum(
        node.op_type in arithmetic for node in made.graph.node
    )


def test_a_size_that_two_divisions_give_is_right() -> None:
    """45 / 3 / 5 is 3; 45 * float32(1/15) is more, and its Ceil would be 4."""
    made = model(
        "s = Shape(x) f = Cast<to = 1>(s) p = Div(f, a) q = Div(p, b) r = Ceil(q)"
        " n = Cast<to = 7>(r) y = Expand(a, n)",
        "float[N] x",
        "float[M] y",
    )
    (y,) = run(irc.compile(made).model, {"x": np.ones(45, np.float32)}).values()
    assert y.shape == (3,)


@pytest.mark.parametrize(
    ("body", "source", "result", "expected"),
    [
        # Exact: powers of 2, and sums of whole numbers.
        (
            "f = Cast<to = 1>(x) p = Div(f, two) q = Div(p, w) r = Ceil(q) y = Cast<to = 7>(r)",
            "int64[N] x",
            "int64[N] y",
            ["Cast", "Mul", "Ceil", "Cast"],
        ),
        # Not rounded to whole numbers.
        (
            "f = Cast<to = 1>(x) p = Div(f, a) q = Div(p, b) y = Sin(q)",
            "int64[N] x",
            "float[N] y",
            ["Cast", "Mul", "Sin"],
        ),
        # Pixels, and floats, are data.
        (
            "f = Cast<to = 1>(x) p = Div(f, a) q = Div(p, b) r = Ceil(q) y = Cast<to = 7>(r)",
            "uint8[N] x",
            "int64[N] y",
            ["Cast", "Mul", "Ceil", "Cast"],
        ),
        (
            "p = Div(x, a) q = Div(p, b) y = Ceil(q)",
            "float[N] x",
            "float[N] y",
            ["Mul", "Ceil"],
        ),
    ],
)
def test_other_quotients_become_one(
    body: str, source: str, result: str, expected: list[str]
) -> None:
    assert operators(model(body, source, result)) == expected
