"""Operators in a row that are one or none: pairs of models that are equal, and neighbours that are
not.
"""

from __future__ import annotations

import pytest

from .pairs import is_found, is_proved

REDUCED = """(float[2, 3, 4, 5] x, int32[2, 3, 4] n) => ({result} y)
    <int64[1] i = {{1}}, int64[2] j = {{1, 2}}, int64[1] k = {{2}}>"""


@pytest.mark.parametrize(
    ("type_", "source", "result", "holds"),
    [
        (
            "float[2, 1, 1, 5]",
            "a = ReduceMean(x, i)  y = ReduceMean(a, k)",
            "y = ReduceMean(x, j)",
            True,
        ),
        (
            "float[2, 5]",
            "a = ReduceMax<keepdims = 0>(x, i)  y = ReduceMax<keepdims = 0>(a, i)",
            "y = ReduceMax<keepdims = 0>(x, j)",
            True,
        ),
        (
            "float[2, 5]",
            "a = ReduceSum(x, i)  y = ReduceSum<keepdims = 0>(a, j)",
            "y = ReduceSum<keepdims = 0>(x, j)",
            True,
        ),
        (
            "int32[2, 1, 1]",
            "a = ReduceProd(n, i)  y = ReduceProd(a, k)",
            "y = ReduceProd(n, j)",
            True,
        ),
        (
            "int32[2, 1, 1]",
            "a = ReduceMean(n, i)  y = ReduceMean(a, k)",
            "y = ReduceMean(n, j)",
            False,
        ),
        (
            "float[2, 1, 1, 5]",
            "a = ReduceMean(x, i)  y = ReduceMax(a, k)",
            "y = ReduceMax(x, j)",
            False,
        ),
        (
            "float[2, 1, 1, 5]",
            "a = ReduceL1(x, i)  y = ReduceL1(a, k)",
            "y = ReduceL1(x, j)",
            False,
        ),
        (
            "float[P, Q]",
            "a = ReduceMin<keepdims = 0>(x, k)  y = ReduceMin<keepdims = 0>(a, k)",
            "a = ReduceMin<keepdims = 0>(x, i)  y = ReduceMin<keepdims = 0>(a, k)",
            False,
        ),
    ],
)
def test_reductions_in_a_row(type_: str, source: str, result: str, holds: bool) -> None:
    head = REDUCED.format(result=type_)
    assert is_found(head, source, result) is holds
    step = {
        "step": 1,
        "identity": "same reduction",
        "at": "result",
        "operation": "y",
        "source": "y",
    }
    assert is_proved(f"{head} {{ {source} }}", f"{head} {{ {result} }}", step) is holds


RESHAPED = """(float[6, 4] x, float[6, 4] z) => (float[{shape}] y) <int64[3] s = {{2, 3, 4}}, int64[2] t = {{6, 4}},
    int64[2] u = {{4, 6}}, float one = {{2}}, float[4] v = {{1, 2, 3, 4}}, float[3, 1] w = {{1, 2, 3}}>"""


@pytest.mark.parametrize(
    ("shape", "source", "result", "holds"),
    [
        ("6, 4", "a = Reshape(x, s)  b = Tanh(a)  y = Reshape(b, t)", "y = Tanh(x)", True),
        (
            "6, 4",
            (
                "a = Reshape(x, s)  b = Reshape(z, s)  c = Pow(a, one)  d = Max(c, b, v)  y ="
                " Reshape(d, t)"
            ),
            "c = Pow(x, one)  y = Max(c, z, v)",
            True,
        ),
        ("6, 4", "a = Reshape(x, s)  b = Tanh(a)  y = Reshape(b, t)", "y = Tanh(z)", False),
        ("6, 4", "a = Reshape(x, s)  b = Tanh(a)  y = Reshape(b, t)", "y = Sin(x)", False),
        (
            "4, 6",
            "a = Reshape(x, s)  b = Tanh(a)  y = Reshape(b, u)",
            "b = Transpose(x)  y = Tanh(b)",
            False,
        ),
        ("6, 4", "a = Reshape(x, s)  b = Pow(a, v)  y = Reshape(b, t)", "y = Pow(x, one)", False),
        (
            "6, 4",
            "a = Reshape(x, s)  b = Pow(a, w)  y = Reshape(b, t)",
            "r = Constant<value_ints = [6, 1]>()  y = Pow(x, v)",
            False,
        ),
        (
            "6, 4",
            "a = Reshape(x, s)  b = Softmax<axis = 1>(a)  y = Reshape(b, t)",
            "y = Softmax<axis = 1>(x)",
            False,
        ),
    ],
)
def test_operators_on_data_in_another_shape(
    shape: str, source: str, result: str, holds: bool
) -> None:
    head = RESHAPED.format(shape=shape)
    assert is_found(head, source, result) is holds
    step = {"step": 1, "identity": "reshaped", "at": "result", "operation": "y", "source": "b"}
    assert holds or not is_proved(f"{head} {{ {source} }}", f"{head} {{ {result} }}", step)


PAIRS = """(float[2, 3] x, float[3] r, int64[2, 3] n, bool[2, 3] p, bool[4, 2, 3] q, uint8[2, 3] u) => ({result} y)"""


@pytest.mark.parametrize(
    ("result", "source", "kept", "holds"),
    [
        ("float[2, 3]", "a = Ceil(x)  y = Floor(a)", "y = Ceil(x)", True),
        ("float[2, 3]", "a = Ceil(x)  b = Neg(a)  y = Round(b)", "a = Ceil(x)  y = Neg(a)", True),
        ("float[2, 3]", "a = Sign(x)  b = Abs(a)  y = Sign(b)", "a = Sign(x)  y = Abs(a)", True),
        ("float[2, 3]", "a = Abs(x)  b = Floor(a)  y = Abs(b)", "a = Abs(x)  y = Floor(a)", True),
        ("float[2, 3]", "a = Cast<to = 1>(n)  y = Round(a)", "y = Cast<to = 1>(n)", True),
        ("uint8[2, 3]", "y = Abs(u)", "y = Identity(u)", True),
        ("float[2, 3]", "a = Abs(x)  y = Floor(a)", "y = Abs(x)", False),
        ("float[2, 3]", "a = Abs(x)  b = Neg(a)  y = Abs(b)", "a = Abs(x)  y = Neg(a)", False),
        ("float[2, 3]", "a = Floor(x)  y = Sign(a)", "y = Floor(x)", False),
        ("int64[2, 3]", "a = Abs(n)  b = Sign(a)  y = Abs(b)", "a = Abs(n)  y = Sign(a)", False),
        (
            "float[2, 3]",
            "a = Cast<to = 7>(x)  b = Cast<to = 1>(a)  y = Abs(b)",
            "a = Cast<to = 7>(x)  y = Cast<to = 1>(a)",
            False,
        ),
        ("bool[2, 3]", "a = Not(p)  y = Not(a)", "y = Identity(p)", True),
        ("int64[2, 3]", "a = Neg(n)  y = Neg(a)", "y = Identity(n)", True),
        ("int64[2, 3]", "a = Neg(n)  b = Abs(a)  y = Neg(b)", "y = Identity(n)", False),
        ("bool[2, 3]", "a = And(p, p)  y = Or(a, a)", "y = Identity(p)", True),
        ("bool[2, 3]", "y = Xor(p, p)", "y = Identity(p)", False),
        ("float[2, 3]", "y = Max(x, r, x)", "y = Max(x, r)", True),
        ("float[2, 3]", "y = Sum(x, r, x)", "y = Sum(x, r)", False),
        ("float[2, 3]", "y = Mean(x, r, x)", "y = Mean(x, r)", False),
        ("float[2, 3]", "y = Where(p, x, x)", "y = Identity(x)", True),
        (
            "float[4, 2, 3]",
            "y = Where(q, x, x)",
            "s = Constant<value_ints = [4, 2, 3]>()  y = Expand(x, s)",
            False,
        ),
        (
            "float[2, 3]",
            "e = Constant<value_ints = [1]>()  y = ReduceSum<noop_with_empty_axes = 1>(x)",
            "y = Identity(x)",
            True,
        ),
    ],
)
def test_operators_that_leave_a_value_as_it_is(
    result: str, source: str, kept: str, holds: bool
) -> None:
    assert is_found(PAIRS.format(result=result), source, kept) is holds


FILLED = "(float[N, 3] x, float16 h) => ({kind}[K, L] y)"


@pytest.mark.parametrize(
    ("kind", "value", "cast", "result", "holds"),
    [
        ("float16", "float[1] v {1.5}", "Cast<to = 10>(c)", "float16[1] v {15872}", True),
        ("float16", "float[1] v {1.5}", "CastLike(c, h)", "float16[1] v {15872}", True),
        ("float16", "float[1] v {1.5}", "Cast<to = 10>(c)", "float16[1] v {15873}", False),
        ("int64", "float[1] v {2.5}", "Cast<to = 7>(c)", "int64[1] v {2}", True),
        ("int64", "float[1] v {2.5}", "Cast<to = 7>(c)", "int64[1] v {3}", False),
        (
            "int64",
            "float[1] v {1e30}",
            "Cast<to = 7>(c)",
            "int64[1] v {-9223372036854775808}",
            False,
        ),
    ],
)
def test_a_cast_of_a_filled_tensor(
    kind: str, value: str, cast: str, result: str, holds: bool
) -> None:
    source = f"s = Shape(x)  c = ConstantOfShape<value: tensor = {value}>(s)  y = {cast}"
    made = f"s = Shape(x)  y = ConstantOfShape<value: tensor = {result}>(s)"
    assert is_found(FILLED.format(kind=kind), source, made) is holds


DROPPED = """(float[2, 3] x) => (float[2, 3] y, bool[2, 3] n)
    <float zero = {{0}}, float half = {{0.5}}, bool t = {{1}}, bool[2, 3] f = {{{mask}}}>"""


@pytest.mark.parametrize(
    ("ratio", "mask", "holds"),
    [
        ("zero", "0, 0, 0, 0, 0, 0", True),
        ("half", "0, 0, 0, 0, 0, 0", False),
        ("zero", "0, 0, 0, 0, 0, 1", False),
    ],
)
def test_a_dropout_that_drops_nothing(ratio: str, mask: str, holds: bool) -> None:
    source = f"d, m = Dropout(x, {ratio}, t)  y = Sin(d)  n = Not(m)"
    assert is_found(DROPPED.format(mask=mask), source, "y = Sin(x)  n = Identity(f)") is holds


@pytest.mark.parametrize(("extents", "holds"), [("N, 3", True), ("M, 3", False), ("N, 1", True)])
def test_an_expansion_to_the_own_shape(extents: str, holds: bool) -> None:
    head = f"(float[{extents}] z, float[N, 3] x) => (float[A, B] y) <int64[1] i = {{0}}>"
    assert is_found(head, "s = Shape(z)  y = Expand(x, s)", "y = Identity(x)") is holds
    assert (
        is_found(head, "s = Shape(z)  k = Gather(s, i)  y = Expand(x, k)", "y = Identity(x)")
        is False
    )


RESIZED = "(float[1, 4, h, w] x, float[1, 4, i, j] b) => (float[N, C, H, W] y)"


@pytest.mark.parametrize(
    ("policy", "holds"),
    [("", True), ('<keep_aspect_ratio_policy = "not_larger">', False)],
)
def test_a_resize_has_the_sizes_that_it_is_given(policy: str, holds: bool) -> None:
    source = f"""e = Shape<end = 2>(b)  f = Shape<start = 2>(x)  s = Concat<axis = 0>(e, f)
        r = Resize{policy}(b, , , s)
        n = Shape<end = 2>(r)  t = Concat<axis = 0>(n, f)  y = Resize(r, , , t)"""
    result = f"s = Shape(x)  r = Resize{policy}(b, , , s)  y = Resize(r, , , s)"
    assert is_found(RESIZED, source, result) is holds
