"""Shapes that are computed from open extents: what is known of them in part, and what is not."""

from __future__ import annotations

from itertools import pairwise

import irc
import numpy as np
import pytest
from computed_shapes import ASSIGNMENTS, EMPTY, grow, runs_alike
from graphs import operators
from harness import session
from onnx.parser import parse_model

GRAPHS, BLOCKS = 320, 8


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_models_that_compute_shapes(block: int) -> None:
    size = GRAPHS // BLOCKS
    runs = sum(runs_alike(grow(seed), EMPTY) for seed in range(block * size, (block + 1) * size))
    assert runs > size  # of 4 for each model


HEAD = """<ir_version: 9, opset_import: ["": 18]> g (float[B,4,L] x, float[L,B] z) => (float[a,b,c] y)
<float zero = {0}, int64[1] one = {1}, int64[1] four = {4}, int64[1] nought = {0}, int64[1] two = {2}>
{ b = Shape<start = 0, end = 1>(x)  n = Shape<start = 2, end = 3>(x)
"""

KNOWN = {
    "an extent of an Expand": """t = Concat<axis = 0>(b, four, one) e = Expand(zero, t)
        s = Shape(e) g = Gather(s, one) h = Div(g, two) y = Slice(x, nought, h, one)""",
    "an extent of a ConstantOfShape": """t = Concat<axis = 0>(n, four, b) e = ConstantOfShape(t)
        s = Shape(e) g = Gather(s, one) h = Div(g, two) y = Slice(x, nought, h, one)""",
    "an extent of a Reshape": """t = Concat<axis = 0>(b, n, four) r = Reshape(x, t)
        s = Shape(r) g = Gather(s, two) h = Div(g, two) y = Slice(x, nought, h, one)""",
    "a zero that copies": """t = Concat<axis = 0>(b, nought, n) r = Reshape(x, t)
        s = Shape(r) g = Gather(s, one) h = Div(g, two) y = Slice(x, nought, h, one)""",
}


@pytest.mark.parametrize("which", KNOWN)
def test_a_number_beside_open_extents_is_known(which: str) -> None:
    made = parse_model(HEAD + KNOWN[which] + "}")
    assert operators(irc.compile(made).model) == ["Slice"]
    assert runs_alike(made) == len(ASSIGNMENTS)


SWAPPED = """t = Concat<axis = 0>(n, four, b) r = Reshape<allowzero = {}>(x, t)
    y = Expand(r, t)"""


@pytest.mark.parametrize("allowzero", [0, 1])
def test_a_symbol_in_a_target_is_the_extent_unless_a_zero_may_copy_another(allowzero: int) -> None:
    made = parse_model(HEAD + SWAPPED.format(allowzero) + "}")
    assert ("Expand" in operators(irc.compile(made).model)) == (allowzero == 0)
    assert runs_alike(made) == len(ASSIGNMENTS) - (1 - allowzero)


POOLED = """p = {}<{}, strides = [2]>(x) r = Softmax<axis = 1>(p) {}
    t = Concat<axis = 0>(b, four, h) e = ConstantOfShape(t) y = Concat<axis = 2>(e, r)"""

WINDOWS = ("kernel_shape = [1]", "kernel_shape = [3], pads = [1, 1]")


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("arithmetic", "is_read"),
    [
        ("k = Sub(n, one) d = Div(k, two) h = Add(d, one)", True),
        ("k = Add(n, one) h = Div(k, two)", False),
    ],
)
def test_a_pool_over_empty_data_has_one_window_that_other_arithmetic_lacks(
    op: str, window: str, arithmetic: str, is_read: bool
) -> None:
    made = parse_model(HEAD + POOLED.format(op, window, arithmetic) + "}")
    assert ("Div" not in operators(irc.compile(made).model)) == is_read
    assignments = (*ASSIGNMENTS, {"B": 0, "L": 0})
    assert runs_alike(made, assignments) == len(assignments)


def test_two_products_too_long_to_be_known_are_not_taken_for_equal() -> None:
    dims = [f"D{i}" for i in range(18)]
    first, second = [*range(1, 10)], [0, *range(10, 18)]
    made = parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[{",".join(dims)}] x) => (float[a,b] y)
        {{ {" ".join(f"n{i} = Shape<start = {i}, end = {i + 1}>(x)" for i in range(18))}
        {_product("p", first)} {_product("q", second)}
        t = Concat<axis = 0>(p, q) y = Reshape<allowzero = 1>(x, t) }}"""
    )
    x = np.arange(6, dtype=np.float32).reshape(
        [2 if i == 0 else 3 if i == 9 else 1 for i in range(18)]
    )
    result = irc.compile(made).model
    assert [session(each).run(None, {"x": x})[0].shape for each in (made, result)] == [(3, 2)] * 2


def _product(name: str, axes: list[int]) -> str:
    """The product of the extents of some axes, in the text language of onnx."""
    steps = [f"{name}{axes[0]} = Identity(n{axes[0]})"]
    steps += [f"{name}{b} = Mul({name}{a}, n{b})" for a, b in pairwise(axes)]
    return " ".join([*steps, f"{name} = Identity({name}{axes[-1]})"])


def test_a_negative_element_is_no_extent() -> None:
    made = parse_model(
        HEAD
        + """m = Neg(one) t = Concat<axis = 0>(n, m, b) r = Reshape(x, t) s = Shape<start = 1, end = 2>(r)
        e = Expand(one, s) f = Cast<to = 1>(e) w = Concat<axis = 0>(one, s, one) g = Reshape(f, w)
        y = Add(x, g) }"""
    )
    assert runs_alike(made) == len(ASSIGNMENTS) - 1


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceProd"])
def test_the_shape_of_a_scalar_has_no_elements_to_reduce(op: str) -> None:
    made = parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float x) => (int64 y)
        {{ s = Shape(x) y = {op}<keepdims = 0>(s) }}"""
    )
    assert operators(irc.compile(made).model)[-1] == op


def test_a_minus_one_beside_an_extent_of_zero_is_not_claimed_with_allowzero() -> None:
    made = parse_model(
        HEAD.replace("float[a,b,c] y", "int64[a] y")
        + """m = Neg(one) t = Concat<axis = 0>(m, b) r = Reshape<allowzero = 1>(z, t)
        k = Shape<start = 0, end = 1>(r) l = Shape<start = 0, end = 1>(z)
        y = Concat<axis = 0>(l, k, two) }"""
    )
    assert runs_alike(made, [{"B": 2, "L": 3}]) == 1
    if not runs_alike(made, [{"B": 0, "L": 0}]):
        pytest.skip("this onnxruntime refuses a Reshape to [-1, 0], as ONNX does")


def test_a_scalar_that_becomes_a_vector_stands_for_no_scalar() -> None:
    made = parse_model(
        HEAD.replace("float[a,b,c] y", "int64[a] y")
        + """p = Squeeze(n) q = Add(p, p) r = Max(q, p) u = Max(q, r) v = Unsqueeze(u, nought)
        w = Squeeze(v) k = Add(p, w) i = Unsqueeze(w, nought) j = Unsqueeze(k, nought)
        y = Concat<axis = 0>(v, i, j) }"""
    )
    assert runs_alike(made) == len(ASSIGNMENTS)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        # Sizes of which nothing is known are not the axes that a scalar does not have.
        ("float[N] x", "s = Shape(x) f = Cast<to = 1>(s) n = Cast<to = 7>(f)", ["Expand"]),
        ("int64[2] x", "n = Abs(x)", ["Expand"]),
        # A 1 on such an axis is one: the result is one constant.
        ("float[N,1] x", "n = Shape<start = 1>(x)", []),
    ],
)
def test_an_expand_of_a_scalar_to_an_unknown_size_stays(
    source: str, target: str, expected: list[str]
) -> None:
    made = parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g ({source}) => (float y)'
        f" <float a = {{3}}> {{ {target} y = Expand(a, n) }}"
    )
    made.graph.output[0].type.tensor_type.ClearField("shape")
    assert operators(irc.compile(made).model)[-1:] == expected
