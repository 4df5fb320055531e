"""What follows from extents that a model computes: pairs of models that are equal without a step,
and neighbours that are not.
"""

from __future__ import annotations

import base64

import numpy as np
import pytest

from .pairs import is_proved

HEAD = """(float[B, 4, L] x, float[L, B] z, float[N, M] u, bool b) => ({result} y) <int64[1] c0 = {{0}},
    int64[1] c1 = {{1}}, int64[1] c2 = {{2}}, int64[1] c3 = {{3}}, int64[1] c4 = {{4}},
    int64[1] m1 = {{-1}}, int64[1] m3 = {{-3}}, int64[1] far = {{4611686018427387904}},
    int64[1] back = {{-4611686018427387904}}, int64 one = {{1}}, int64 none = {{0}}, bool t = {{1}},
    int64[2] least = {{0, 2}}, int64[2] most = {{3, 9}}, int64[2] axes = {{0, 1}},
    float three = {{3}}, float half = {{0.5}}, float[0] none_of = {{}},
    float[3] scales = {{1, 1, 3}}, float[3] part = {{1, 1, 1.5}},
    float[8] roi = {{0, 0, 0, 0, 1, 1, 1, 2}}>
    {{ s = Shape(u)  n = Slice(s, c0, c1)  m = Slice(s, c1, c2)  {body} }}"""
"""Values u of N times M elements, and both extents as n and m."""


def holds(source: str, result: str, type_: str = "int64[1]") -> bool:
    return is_proved(*(HEAD.format(result=type_, body=body) for body in (source, result)))


KERNEL = "k = Concat<axis = 0>(c2, c4, c3)  w = ConstantOfShape(k)"
WRAPPED = "a = Mul(n, m)  d = Mul(a, c4)"
SCALAR = "q = Squeeze(n)  r = Squeeze(m)  a = Mul(q, r)  e4 = Squeeze(c4)  d = Mul(a, e4)"
"""A weight, and a product that may not fit its type, as a vector and as a scalar."""

NUMBERS = [
    ("a = Add(n, m)  y = Sub(a, n)", "y = Identity(m)", True),
    ("a = Add(n, m)  y = Sub(a, n)", "y = Identity(n)", False),
    ("a = Add(n, c2)  d = Mul(a, m)  e = Mul(m, c2)  y = Sub(d, e)", "y = Mul(m, n)", True),
    ("a = Mul(n, m)  y = Div(a, m)", "y = Identity(n)", True),
    ("a = Add(n, m)  y = Div(a, m)", "y = Identity(n)", False),
    ("a = Mul(n, c4)  d = Add(a, c3)  y = Div(d, c4)", "y = Identity(n)", True),
    ("a = Mul(n, c4)  d = Add(a, c4)  y = Div(d, c4)", "y = Identity(n)", False),
    ("a = Sub(n, c1)  y = Div(a, c2)", "a = Div(n, c2)  y = Sub(a, c1)", False),
    ("a = Div(n, c2)  y = Div(a, c3)", "a = Add(c3, c3)  y = Div(n, a)", True),
    ("a = Add(n, c3)  y = Div(a, m3)", "a = Div(n, m3)  y = Sub(a, c1)", False),
    ("a = Mod(n, c4)  d = Div(n, c4)  e = Mul(d, c4)  y = Add(a, e)", "y = Identity(n)", True),
    ("y = Mod(m3, c2)", "y = Identity(c1)", True),
    ("y = Mod<fmod = 1>(m3, c2)", "y = Identity(c1)", False),
    ("a = Mul(n, m)  d = Mul(a, c4)  e = Mul(d, n)  y = Sub(e, e)", "y = Identity(c0)", True),
    ("a = Mul(n, m)  d = Mul(a, c4)  y = Div(d, m)", "y = Mul(n, c4)", False),
    ("a = Mul(n, m)  d = Mul(a, c4)  y = Max(d, c0)", "a = Mul(n, m)  y = Mul(a, c4)", False),
    ("a = Neg(n)  y = Abs(a)", "y = Identity(n)", True),
    ("a = Sub(n, c1)  y = Abs(a)", "y = Sub(n, c1)", False),
    ("y = Max(n, c0)", "y = Identity(n)", True),
    ("y = Max(n, c1)", "y = Identity(n)", False),
    ("y = Max(n, m, n)", "a = Max(m, n)  y = Identity(a)", True),
    ("a = Max(n, m)  d = Min(m, n)  y = Add(a, d)", "y = Add(m, n)", True),
    ("y = Clip(n, none, one)", "y = Min(n, c1)", True),
    ("y = Clip(n, one, one)", "y = Min(n, c1)", False),
    ("a = Concat<axis = 0>(n, m)  y = ReduceProd(a)", "a = Size(u)  y = Unsqueeze(a, c0)", True),
    ("a = Concat<axis = 0>(n, m)  y = ReduceSum(a)", "y = Add(m, n)", True),
    ("a = Concat<axis = 0>(n, m)  y = ReduceSum(a)", "y = Mul(m, n)", False),
    ("v = Concat<axis = 0>(n, m)  h = OneHot(c2, c3, v)  f = Squeeze(h, c0)  y = ReduceProd(f)",
     "a = Mul(n, n)  y = Mul(a, m)", True),
    ("v = Concat<axis = 0>(n, m)  h = OneHot(m1, c2, v)  y = Squeeze(h, c0)",
     "y = Concat<axis = 0>(n, m)", True),
    ("v = Concat<axis = 0>(n, m)  h = OneHot(c0, c2, v)  y = Squeeze(h, c0)",
     "y = Concat<axis = 0>(n, m)", False),
    ("v = Concat<axis = 0>(n, m)  h = OneHot(m3, c2, v)  y = Squeeze(h, c0)",
     "y = Concat<axis = 0>(n, n)", True),
    ("v = Concat<axis = 0>(n, m)  h = OneHot<axis = 0>(c1, c2, v)  y = Squeeze(h, c1)",
     "y = Concat<axis = 0>(n, m)", True),
    ("a = Less(n, c0)  y = Where(a, m, n)", "y = Identity(n)", True),
    ("a = Less(n, c1)  y = Where(a, m, n)", "y = Identity(n)", False),
    ("a = Add(n, c1)  d = Greater(a, n)  y = Where(d, m, n)", "y = Identity(m)", True),
    ("a = LessOrEqual(n, m)  d = Greater(n, m)  e = Or(a, d)  y = Where(e, m, n)",
     "y = Identity(m)", True),
    ("a = Cast<to = 6>(n)  y = Cast<to = 7>(a)", "y = Identity(n)", True),
    ("d = Mul(n, m)  a = Cast<to = 6>(d)  y = Cast<to = 7>(a)", "y = Mul(n, m)", False),
    ("d = MaxPool<kernel_shape = [3], pads = [1, 1], strides = [2]>(x)  y = Shape<start = 2>(d)",
     "a = Shape<start = 2>(x)  d = Sub(a, c1)  e = Div(d, c2)  y = Add(e, c1)", True),
    ("d = MaxPool<kernel_shape = [3], pads = [1, 1], strides = [2]>(x)  y = Shape<start = 2>(d)",
     "a = Shape<start = 2>(x)  d = Add(a, c1)  y = Div(d, c2)", False),
    (f"{KERNEL}  d = Conv<pads = [1, 1], strides = [2]>(x, w)  y = Shape<start = 2>(d)",
     "a = Shape<start = 2>(x)  d = Add(a, c1)  y = Div(d, c2)", True),
    (f"{KERNEL}  d = Conv<pads = [1, 1], strides = [2]>(x, w)  y = Shape<start = 2>(d)",
     "a = Shape<start = 2>(x)  y = Div(a, c2)", False),
    (f"{KERNEL}  d = Conv<pads = [1, 1]>(x, w)  y = Shape<start = 2>(d)",
     "y = Shape<start = 2>(x)", True),
    (f"{KERNEL}  d = Conv<pads = [1, 1], dilations = [2]>(x, w)  y = Shape<start = 2>(d)",
     "y = Shape<start = 2>(x)", False),
    (f"{KERNEL}  d = Conv<pads = [1, 1]>(x, w)  y = Shape<start = 1, end = 2>(d)",
     "y = Identity(c2)", True),
    ("d = Resize(x, none_of, scales)  y = Shape<start = 2>(d)",
     "a = Shape<start = 2>(x)  y = Mul(a, c3)", True),
    ("d = Resize(x, none_of, scales)  y = Shape<start = 2>(d)",
     "a = Shape<start = 2>(x)  y = Mul(a, c4)", False),
    ("d = Resize(x, none_of, part)  y = Shape<start = 2>(d)",
     "a = Shape<start = 2>(x)  e = Mul(a, c3)  y = Div(e, c2)", False),
    (f"{WRAPPED}  y = Div(d, m)", f"{SCALAR}  e = Div(d, r)  y = Unsqueeze(e, c0)", True),
    (f"{WRAPPED}  y = Div(d, m)", f"{SCALAR}  e = Div(d, q)  y = Unsqueeze(e, c0)", False),
    (f"{WRAPPED}  y = Div(d, m)", f"{SCALAR}  e = Mod(d, r)  y = Unsqueeze(e, c0)", False),
    (f"{WRAPPED}  e = Div(d, m)  y = Max(e, c0)", f"{WRAPPED}  y = Div(d, m)", False),
]  # fmt: skip


@pytest.mark.parametrize(("source", "result", "is_equal"), NUMBERS)
def test_integers_have_one_normal_form(source: str, result: str, is_equal: bool) -> None:
    assert holds(source, result) is is_equal


FLOATS = [
    ("f = Div(e, three)  g = Floor(f)  y = Cast<to = 7>(g)", "y = Div(d, c3)", "512", True),
    ("f = Div(e, three)  y = Cast<to = 7>(f)", "y = Div(d, c3)", "4194304", True),
    ("f = Div(e, three)  y = Cast<to = 7>(f)", "y = Div(d, c3)", "4194305", False),
    ("f = Mul(e, half)  y = Cast<to = 7>(f)", "y = Div(d, c2)", "512", True),
    ("f = Div(e, three)  g = Ceil(f)  y = Cast<to = 7>(g)", "y = Div(d, c3)", "512", False),
    ("f = Div(e, three)  g = Div(f, three)  h = Floor(g)  y = Cast<to = 7>(h)",
     "k = Div(d, c3)  y = Div(k, c3)", "512", False),
]  # fmt: skip


@pytest.mark.parametrize(("source", "result", "limit", "is_equal"), FLOATS)
def test_integers_pass_floats_that_are_exact(
    source: str, result: str, limit: str, is_equal: bool
) -> None:
    head = f"i = Constant<value = int64[1] {{{limit}}}>()  d = Min(n, i)  e = Cast<to = 1>(d)  "
    assert holds(head + source, head + result) is is_equal


BATCH = "a = Concat<axis = 0>(u, u)  e = Unsqueeze(a, c1)  f = Transpose<perm = [0, 2, 1]>(e)"
COUNT = "f = Squeeze(n)  j = Range(none, f, one)  g = Squeeze(m)  w = Range(none, g, one)"
"""2 N products of a column and a row of M elements, and vectors of N and of M elements."""

SHAPES = [
    ("v = Concat<axis = 0>(u, u)", "y = Mul(n, c2)", True),
    ("v = Concat<axis = 0>(u, u)", "y = Mul(m, c2)", False),
    ("q = Concat<axis = 0>(c1, c0, c2, c0)  v = Pad(u, q)", "y = Add(n, c3)", True),
    ("q = Concat<axis = 0>(c1, c0, m1, c0)  v = Pad(u, q)", "y = Identity(n)", True),
    ("q = Concat<axis = 0>(m1, c0, m1, c0)  v = Pad(u, q)", "y = Sub(n, c2)", False),
    ("q = Concat<axis = 0>(m, c1)  v = Tile(u, q)", "y = Mul(m, n)", True),
    ("v = Slice(u, c0, c3, c0)", "y = Min(n, c3)", True),
    ("v = Slice(u, m3, far, c0)", "y = Min(n, c3)", True),
    ("v = Slice(u, c1, far, c0)", "a = Sub(n, c1)  y = Max(a, c0)", True),
    ("v = Slice(u, c1, far, c0)", "y = Sub(n, c1)", False),
    ("v = Slice(u, c0, far, c0, c2)", "a = Add(n, c1)  y = Div(a, c2)", True),
    ("v = Slice(u, m1, back, c0, m1)", "y = Identity(n)", True),
    ("v = Slice(u, m1, c0, c0, m1)", "y = Identity(n)", False),
    ("q = Concat<axis = 0>(n, m)  v = ConstantOfShape(q)", "y = Identity(n)", True),
    ("q = Squeeze(n)  v = Range(none, q, one)", "y = Identity(n)", True),
    ("v = Gather(u, axes)", "y = Identity(c2)", True),
    ("q = Div(n, c2)  d = Sub(n, q)  e = Concat<axis = 0>(q, d)  v, w = Split(u, e)",
     "y = Div(n, c2)", True),
    ("e = Transpose(u)  q = Concat<axis = 0>(m, n)  v = Expand(e, q)", "y = Identity(m)", True),
    (f"{BATCH}  v = MatMul(f, e)", "y = Mul(n, c2)", True),
    (f"{BATCH}  v = MatMul(f, e)", "y = Identity(m)", False),
    (f"{BATCH}  g = Shape(u)  h = MatMul(f, u)  v = Transpose<perm = [2, 1, 0]>(h)",
     "y = Identity(m)", True),
    (f"{COUNT}  q = Slice(j, c0, c3)  v = Add(j, q)", "y = Identity(n)", True),
    (f"{COUNT}  q = Slice(j, c0, c3)  v = Add(q, j)", "y = Identity(n)", True),
    (f"{COUNT}  q = Slice(w, c0, c3)  v = Add(j, q)", "y = Identity(n)", False),
    (f"{COUNT}  q = Slice(j, c0, c3)  v = Add(q, w)", "y = Identity(n)", False),
]  # fmt: skip


@pytest.mark.parametrize(("source", "result", "is_equal"), SHAPES)
def test_extents_of_results_follow_from_those_of_operands(
    source: str, result: str, is_equal: bool
) -> None:
    assert holds(f"{source}  p = Shape(v)  y = Slice(p, c0, c1)", result) is is_equal


IMAGE = "e = Unsqueeze(u, axes)  k = Shape(e)"
PARTS = "e = Slice(u, c0, c2)  f = Slice(u, c2, far)  g = Slice(u, c3, far)"

VALUES = [
    (f"{KERNEL}  v = Conv(x, w)  a = Slice(v, c0, far, c2)  y = Slice(a, c0, c1, c1)",
     f"{KERNEL}  v = Conv(x, w)  y = Slice(v, c0, c1, c1)", True),
    (f"{KERNEL}  v = Conv(x, w)  a = Slice(v, c1, far, c2)  y = Slice(a, c0, c1, c1)",
     f"{KERNEL}  v = Conv(x, w)  y = Slice(v, c0, c1, c1)", False),
    ("q = Squeeze(n)  r = Range(none, q, one)  y = Gather(u, r)", "y = Identity(u)", True),
    ("q = Squeeze(m)  r = Range(none, q, one)  y = Gather(u, r)", "y = Identity(u)", False),
    ("q = Squeeze(n)  r = Range(none, q, one)  y = Gather<axis = 1>(u, r)", "y = Identity(u)",
     False),
    ("a = Sub(n, c1)  q = Squeeze(a)  r = Range(none, q, one)  y = Gather(u, r)",
     "a = Sub(n, c1)  d = Max(a, c0)  y = Slice(u, c0, d, c0)", True),
    ("y = Slice(u, least, most, axes)", "a = Slice(u, c2, most9, c1)  y = Slice(a, c0, c3, c0)",
     True),
    ("y = Slice(u, least, most, axes)", "a = Slice(u, c2, most9, c1)  y = Slice(a, c0, c3, c1)",
     False),
    ("q = Div(n, c2)  d = Sub(n, q)  e = Concat<axis = 0>(q, d)  y, w = Split(u, e)",
     "q = Div(n, c2)  y = Slice(u, c0, q, c0)", True),
    ("q = Div(n, c2)  d = Sub(n, q)  e = Concat<axis = 0>(q, d)  w, y = Split(u, e)",
     "q = Div(n, c2)  y = Slice(u, c0, q, c0)", False),
    ("q = Div(n, c2)  d = Sub(n, q)  e = Concat<axis = 0>(q, d)  f = SplitToSequence(u, e)"
     "  y = SequenceAt(f, one)",
     "q = Div(n, c2)  d = Sub(n, q)  e = Concat<axis = 0>(q, d)  w, y = Split(u, e)", True),
    ("q = Div(n, c2)  d = Sub(n, q)  e = Concat<axis = 0>(q, d)  f = SplitToSequence(u, e)"
     "  y = SequenceAt(f, none)",
     "q = Div(n, c2)  d = Sub(n, q)  e = Concat<axis = 0>(q, d)  w, y = Split(u, e)", False),
    ("q = Concat<axis = 0>(n, m)  y = Expand(u, q)", "y = Identity(u)", True),
    ("q = Concat<axis = 0>(n, c1)  d = ConstantOfShape<value = float[1] {2}>(q)"
     "  e = Concat<axis = 0>(c1, m)  y = Expand(d, e)",
     "e = Concat<axis = 0>(n, m)  y = ConstantOfShape<value = float[1] {2}>(e)", True),
    ("q = Concat<axis = 0>(n, c1)  d = ConstantOfShape<value = float[1] {2}>(q)"
     "  e = Concat<axis = 0>(c1, m)  y = Expand(d, e)",
     "e = Concat<axis = 0>(n, m)  y = ConstantOfShape<value = float[1] {3}>(e)", False),
    ("q = Concat<axis = 0>(n, c1)  d = ConstantOfShape<value = float[1] {2}>(q)"
     "  e = Concat<axis = 0>(c1, m)  y = Expand(d, e)",
     "e = Concat<axis = 0>(m, n)  y = ConstantOfShape<value = float[1] {2}>(e)", False),
    ("a = Unsqueeze(u, c0)  y = Gather(a, none)", "y = Identity(u)", True),
    ("a = Unsqueeze(u, c1)  y = Gather<axis = 1>(a, none)", "y = Identity(u)", True),
    ("a = Unsqueeze(u, c1)  b1 = Gather<axis = 1>(a, m1)  y = Squeeze(b1, c1)", "y = Identity(u)",
     True),
    ("a = Concat<axis = 0>(u, u)  e = Unsqueeze(a, c0)  y = Gather(e, none)", "y = Identity(u)",
     False),
    ("a = Unsqueeze(u, c0)  e = Concat<axis = 0>(a, a)  y = Gather(e, none)", "y = Identity(u)",
     False),
    (f"{PARTS}  y = Concat<axis = 0>(e, f)", "y = Identity(u)", True),
    (f"{PARTS}  y = Concat<axis = 0>(f, e)", "y = Identity(u)", False),
    (f"{PARTS}  y = Concat<axis = 0>(e, g)", "y = Identity(u)", False),
    (f"{PARTS}  y = Concat<axis = 0>(u, e, f, e)", "y = Concat<axis = 0>(u, u, e)", False),
    (f"{PARTS}  y = Concat<axis = 0>(e, f, u, e)", f"{PARTS}  y = Concat<axis = 0>(u, u, e)", True),
    (f"{PARTS}  h = Slice(f, c0, c2)  y = Concat<axis = 0>(e, h, u)",
     f"{PARTS}  h = Slice(u, c0, c4)  y = Concat<axis = 0>(h, u)", False),
    (f"{PARTS}  h = Slice(u, c2, c3)  y = Concat<axis = 0>(e, h, u)",
     f"{PARTS}  h = Slice(u, c0, c3)  y = Concat<axis = 0>(h, u)", False),
    (f"{IMAGE}  r = Resize(e, none_of, , k)  y = Squeeze(r, axes)", "y = Identity(u)", True),
    (f"{IMAGE}  r = Resize<mode = \"cubic\">(e, none_of, , k)  y = Squeeze(r, axes)",
     "y = Identity(u)", True),
    (f"{IMAGE}  q = Transpose<perm = [0, 1, 3, 2]>(e)  l = Shape(q)"
     "  r = Resize(e, none_of, , l)  y = Squeeze(r, axes)", "y = Identity(u)", False),
    (f"{IMAGE}  r = Resize<coordinate_transformation_mode = \"tf_crop_and_resize\">(e, roi, , k)"
     "  y = Squeeze(r, axes)", "y = Identity(u)", False),
]  # fmt: skip


@pytest.mark.parametrize(("source", "result", "is_equal"), VALUES)
def test_values_of_computed_extents_are_equal(source: str, result: str, is_equal: bool) -> None:
    result = "most9 = Constant<value = int64[1] {9}>()  " + result
    assert holds(source, result, "float[P, Q]") is is_equal


BRANCHES = """d = If(b) <then_branch = f () => (float[N, M] p) {{ p = {0}(u) }},
    else_branch = g () => (float[N, M] q) {{ q = {1}(u) }}>"""

CONTROL = [
    (f"{BRANCHES.format('Abs', 'Abs')}  y = Neg(d)", "d = Abs(u)  y = Neg(d)", True),
    (f"{BRANCHES.format('Abs', 'Neg')}  y = Neg(d)", "d = Abs(u)  y = Neg(d)", False),
    (f"k = Less(n, c0)  b1 = Squeeze(k)  {BRANCHES.format('Abs', 'Exp').replace('(b)', '(b1)')}"
     "  y = Neg(d)", "d = Exp(u)  y = Neg(d)", True),
    (f"k = Less(n, c1)  b1 = Squeeze(k)  {BRANCHES.format('Abs', 'Exp').replace('(b)', '(b1)')}"
     "  y = Neg(d)", "d = Exp(u)  y = Neg(d)", False),
]  # fmt: skip

LOOP = """y = Loop({0}) <body = f (int64 i, bool c, float[N, M] p) => (bool d, float[N, M] q)
    {{ d = Identity(c)  q = Exp(p) }}>"""

ENDING = """y = Loop({0}) <body = f (int64 i, bool c, float[N, M] p) => (bool d, float[N, M] q)
    <bool d = {{0}}> {{ q = Exp(p) }}>"""

CONTROL += [
    (LOOP.format("one, t, u"), "y = Exp(u)", True),
    (LOOP.format('one, "", u'), "y = Exp(u)", True),
    (LOOP.format("one, t, u"), "y = Identity(u)", False),
    (LOOP.format("one, b, u"), "y = Exp(u)", False),
    (LOOP.format("none, t, u"), "y = Identity(u)", True),
    (LOOP.format("none, t, u"), "y = Exp(u)", False),
    ("k = Squeeze(n)  " + LOOP.format("k, t, u"), "y = Exp(u)", False),
    ("k = Squeeze(c2)  " + LOOP.format("k, t, u"), "y = Exp(u)", False),
    ("k = Squeeze(c2)  " + ENDING.format("k, t, u"), "y = Exp(u)", True),
    ("k = Squeeze(n)  " + ENDING.format("k, t, u"), "y = Exp(u)", False),
]


@pytest.mark.parametrize(("source", "result", "is_equal"), CONTROL)
def test_a_body_that_certainly_runs_once_or_never_is_no_body(
    source: str, result: str, is_equal: bool
) -> None:
    assert holds(source, result, "float[N, M]") is is_equal


TILED = "e = Concat<axis = 0>(n, m, c4)  p1 = Unsqueeze(u, c2)  p = Expand(p1, e)"


@pytest.mark.parametrize(
    ("source", "result", "is_equal"),
    [
        ("k = Mul(n, m)  v = Concat<axis = 0>(k, c4)", "v = Concat<axis = 0>(m1, c4)", True),
        ("k = Mul(n, m)  v = Concat<axis = 0>(k, c4)", "v = Concat<axis = 0>(c0, c4)", False),
        ("k = Mul(n, m)  v = Concat<axis = 0>(k, c4)", "v = Concat<axis = 0>(m, c4)", False),
        ("v = Concat<axis = 0>(m1, c4)", "k = Mul(n, m)  v = Concat<axis = 0>(k, c4)", True),
        ("v = Concat<axis = 0>(m1, c4)", "v = Concat<axis = 0>(n, c4)", False),
        ("v = Concat<axis = 0>(n, c4)", "v = Concat<axis = 0>(n, c4)", True),
        ("v = Concat<axis = 0>(n, c4)", "v = Concat<axis = 0>(m1, c4)", True),
    ],
)
def test_a_reshape_of_the_result_keeps_the_number_of_elements(
    source: str, result: str, is_equal: bool
) -> None:
    """Data of N * M * 4 elements: a result that reshapes them to N * 4 fails."""
    pair = [f"{TILED}  {body}  y = Reshape(p, v)" for body in (source, result)]
    assert holds(*pair, type_="float[a,b]") == is_equal


WIDE = """(float[1, 2, L] x, float[1, 3, M] z) => (float[1, 3, K] y) <float[2, 3, 3] w = {{{numbers}}},
    int32[1] two = {{2}}, int32[1] zero = {{0}}, int64[1] first = {{0}}, int64[1] last = {{-1}},
    int64[1] axis = {{2}}, float[1, 3, 1] k = {{1, 2, 3}}, float[2, 3, 3] v = {{{scaled}}}> {{
    t = ConvTranspose<strides = [{stride}]>(x, {weight})  n = Shape<start = 2, end = 3>({counted})
    i = Cast<to = 6>(n)  e = Mul(i, two)  m = Max(e, zero)  end = Cast<to = 7>(m)
    c = Slice(t, first, {end}, axis)  y = {result} }}"""


@pytest.mark.parametrize(
    ("stride", "counted", "holds"), [(2, "x", True), (1, "x", False), (2, "z", False)]
)
def test_numbers_in_int32_are_known_where_an_extent_is_never_below_them(
    stride: int, counted: str, holds: bool
) -> None:
    """And a factor passes a Slice of the same positions."""
    numbers, scaled = list(range(1, 19)), [(i // 3 % 3 + 1) * (i + 1) for i in range(18)]
    given = {"numbers": str(numbers)[1:-1], "scaled": str(scaled)[1:-1], "stride": stride}
    pair = (
        WIDE.format(**given, counted=counted, weight=weight, end=end, result=result)
        for weight, end, result in (("w", "end", "Mul(c, k)"), ("v", "last", "Identity(c)"))
    )
    steps = [
        {"step": 1, "at": "result", "operation": "t", "identity": "layer", "source": "t"},
        {"step": 2, "at": "result", "operation": "c", "identity": "crosses", "source": "c"},
    ]
    steps[0]["applies"] = [{"of": "y"}]
    assert is_proved(*pair, *steps) is holds


@pytest.mark.parametrize(("channels", "holds"), [("three", True), ("m", False)])
def test_a_factor_passes_a_slice_of_known_channels_and_computed_rows(
    channels: str, holds: bool
) -> None:
    head = """(float[1, 1, L] x, float[N, M] u) => (float[A, 2, C] y) <float[3, 1, 1] w = {{1, 1, 1}},
    float[3, 1, 1] v = {{1, 2, 3}}, float[2, 1] k = {{2, 3}}, int64[1] three = {{3}},
    int64[2] begin = {{1, 0}}, int64[2] axes = {{1, 2}}> {{ n = Shape<start = 0, end = 1>(u)
    m = Shape<start = 1>(u)  end = Concat<axis = 0>({channels}, n)  {body} }}"""
    bodies = (
        "c = Conv(x, w)  z = Slice(c, begin, end, axes)  y = Mul(z, k)",
        "c = Conv(x, v)  y = Slice(c, begin, end, axes)",
    )
    pair = [head.format(channels=channels, body=body) for body in bodies]
    scale = base64.b64encode(np.array((1, 2, 3), "<f8").tobytes()).decode()
    steps = [
        {"step": 1, "at": "result", "operation": "c", "identity": "layer", "source": "c"},
        {"step": 2, "at": "result", "operation": "y", "identity": "crosses", "source": "z"},
    ]
    steps[0]["applies"] = [{"scale": scale, "shift": 0.0}]
    assert is_proved(*pair, *steps) is holds


def test_sums_in_a_row_of_unknown_rank_are_looked_at_once() -> None:
    """64 sums of a value and itself: 2^64 paths to a value of which nothing is known."""
    head = '<ir_version: 8, opset_import: ["": 18, "other": 1]> g (float[N] x) => (float[M] y)'
    sums = "  ".join(f"a{i + 1} = Add(a{i}, a{i})" for i in range(64))
    body = f"a0 = other.Unknown(x)  {sums}"
    assert is_proved(f"{head} {{ {body}  y = Exp(a64) }}", f"{head} {{ {body}  y = Exp(a64) }}")
    assert not is_proved(f"{head} {{ {body}  y = Exp(a64) }}", f"{head} {{ {body}  y = Exp(a63) }}")


@pytest.mark.parametrize(
    ("quotient", "number", "is_same"),
    [
        ("Div(f, three)", "1.3333334", True),
        ("Div(f, three)", "1.3333336", False),
        ("Mul(f, half)", "2.0", True),
        ("Mul(f, half)", "1.5", False),
    ],
)
def test_quotients_of_known_extents_are_constants(
    quotient: str, number: str, is_same: bool
) -> None:
    source = f"k = Shape<start = 1, end = 2>(x)  f = Cast<to = 1>(k)  y = {quotient}"
    result = f"k = Constant<value_floats = [{number}]>()  y = Identity(k)"
    assert holds(source, result, "float[1]") is is_same
