"""Affines that move across pools, means, slices, pads and clamps, each with neighbours that break a
condition.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from irc import Rejected, certify
from irc.tools.certify.checker.document import FORMAT, VERSION

from .forgeries import sealed
from .pairs import is_found, is_proved, model


@pytest.mark.parametrize(
    ("first", "between", "holds"),
    [
        ("Relu(x)", "Dropout(a)", True),
        ("Relu(x)", "Expand(a, o)", True),
        ("Abs(x)", "Flatten(a)", True),
        ("Relu(x)", "Neg(a)", False),
        ("Identity(x)", "Expand(a, o)", False),
    ],
)
def test_a_clamp_behind_values_that_are_equal_has_no_effect(
    first: str, between: str, holds: bool
) -> None:
    head = "(float[2, 3] x) => (float[A, B] y) <int64[2] o = {1, 1}>"
    source = f"a = {first} b = {between} c = Relu(b) y = Sigmoid(c)"
    result = (
        f"a = {first} y = Sigmoid(a)"
        if "Neg" not in between
        else f"a = {first} b = {between} y = Sigmoid(b)"
    )
    assert is_found(head, source, result) is holds


@pytest.mark.parametrize(
    ("attributes", "holds"),
    [
        ("kernel_shape = [1], strides = [1]", True),
        ("kernel_shape = [2], strides = [2]", True),
        (
            "kernel_shape = [2], strides = [3]",
            False,
        ),  # a window of ceil_mode reaches beyond the data
        ("kernel_shape = [2], strides = [1], pads = [1, 1]", False),
    ],
)
def test_a_mean_that_counts_padding_takes_a_shift_where_there_is_none(
    attributes: str, holds: bool
) -> None:
    head = "(float[2, 2, 4] x) => (float[A, B, C] y) <float k = {2}>"
    pool = f"AveragePool<ceil_mode = 1, count_include_pad = 1, {attributes}>"
    source, result = (
        f"a = Add(x, k) b = {pool}(a) y = Sigmoid(b)",
        f"a = {pool}(x) b = Add(a, k) y = Sigmoid(b)",
    )
    assert is_found(head, source, result) is holds


@pytest.mark.parametrize(
    ("place", "axis", "factor", "holds"),
    [(1, 1, "k", True), (2, 1, "k", False), (1, 2, "k", False), (1, 1, "m", False)],
)
def test_a_factor_passes_a_gather_that_keeps_its_axis(
    place: int, axis: int, factor: str, holds: bool
) -> None:
    head = f"""(float[2, 4, 3] x) => (float[A, B, C] y) <float k = {{2}}, float m = {{3}},
    int64 i = {{1}}, int64[1] j = {{{place}}}, int64[1] a = {{1}}>"""
    source = "s = Mul(x, k)  g = Gather<axis = 1>(s, i)  u = Unsqueeze(g, a)  y = Sigmoid(u)"
    result = f"u = Gather<axis = {axis}>(x, j)  v = Mul(u, {factor})  y = Sigmoid(v)"
    assert is_found(head, source, result) is holds


MEAN = """(float[2, 2, 2] x) => (float[A, B, C] y) <float[2] k = {{1, 5}}, float[2] two = {{2, {scale}}},
    float m = {{{mean}}}, float one = {{2}}, int64[1] last = {{2}}>"""


@pytest.mark.parametrize(
    ("mean", "reduction", "scale", "holds"),
    [
        (3, "GlobalAveragePool(b)", 2, True),
        (3, "ReduceMean(b, last)", 2, True),
        (6, "ReduceSum(b, last)", 2, True),
        (4, "GlobalAveragePool(b)", 2, False),
        (3, "GlobalAveragePool(b)", 3, False),
        (3, "ReduceSum(b, last)", 2, False),
        (3, "GlobalMaxPool(b)", 2, False),
        (3, "ReduceMax(b, last)", 2, False),
    ],
)
def test_a_mean_takes_the_mean_of_shifts_and_a_single_scale(
    mean: int, reduction: str, scale: int, holds: bool
) -> None:
    head = MEAN.format(mean=mean, scale=scale)
    source = f"a = Mul(x, two) b = Add(a, k) c = {reduction} y = Sigmoid(c)"
    result = f"c = {reduction.replace('(b', '(x')} d = Mul(c, one) e = Add(d, m) y = Sigmoid(e)"
    assert is_found(head, source, result) is holds


@pytest.mark.parametrize(
    ("attributes", "numbers", "holds"),
    [
        ("kernel_shape = [1, 2], strides = [3, 1]", "2, 5", True),
        ("kernel_shape = [1, 2], strides = [3, 1]", "2, 3", False),
        ("kernel_shape = [2, 2], strides = [2, 1]", "2, 4", False),
        ('kernel_shape = [1, 2], strides = [3, 1], auto_pad = "SAME_UPPER"', "2, 5", False),
    ],
)
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_windows_of_one_position_take_its_affine(
    attributes: str, numbers: str, holds: bool, pool: str
) -> None:
    head = f"""(float[1, 1, 4, 4] x) => (float[A, B, C, D] y)
        <float[4, 1] k = {{2, 3, 4, 5}}, float[2, 1] l = {{{numbers}}}>"""
    window = f"{pool}<{attributes}>"
    source, result = (
        f"a = Mul(x, k) b = {window}(a) y = Relu(b)",
        f"b = {window}(x) c = Mul(b, l) y = Relu(c)",
    )
    assert is_found(head, source, result) is holds


@pytest.mark.parametrize(("extent", "holds"), [("3", True), ("2", True), ("N", False)])
def test_extents_behind_an_output_in_the_middle_are_known(extent: str, holds: bool) -> None:
    head = (
        f"(float[1, 1, {extent}] x) => (float[A, B, C] p, float[D, E, F] y) <int64[3] s = {{1, 1,"
        " 2}>"
    )
    pool = "p = MaxPool<kernel_shape = [2], strides = [2], ceil_mode = 1>(x) a = Relu(p)"
    source = f"{pool} y = Expand(a, s)"
    assert is_found(head, source, f"{pool} y = Identity(a)") is (holds and extent == "3")
    assert is_found(head, source.replace("1, 1, 2", "1, 1, 1"), f"{pool} y = Expand(a, s)")


CUT = """(float[2, 4] x) => (float[A, B] y) <float[4] k = {{2, 3, 4, 5}}, float[2] l = {{3, {last}}},
    int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] axis = {{1}}, int64[1] back = {{-1}},
    int64[1] zero = {{0}}>"""


@pytest.mark.parametrize(
    ("last", "first", "second", "whole", "holds"),
    [
        (
            5,
            "Slice(x, one, four, axis)",
            "Slice(b, zero, four, axis, two)",
            "Slice(x, one, four, axis, two)",
            True,
        ),
        (
            4,
            "Slice(x, one, four, axis)",
            "Slice(b, zero, four, axis, two)",
            "Slice(x, one, four, axis, two)",
            False,
        ),
        (
            5,
            "Slice(x, zero, four, axis)",
            "Slice(b, zero, four, axis, two)",
            "Slice(x, one, four, axis, two)",
            False,
        ),
        (
            5,
            "Slice(x, one, four, axis)",
            "Slice(b, four, one, axis, back)",
            "Slice(x, four, one, axis, back)",
            False,
        ),
    ],
)
def test_slices_in_a_row_with_affines_between_are_one(
    last: int, first: str, second: str, whole: str, holds: bool
) -> None:
    head = CUT.format(last=last)
    between = "b = Mul(a, m)" if "(x, one" in first else "b = Mul(a, k)"
    source = f"m = Slice(k, one, four, zero) a = {first} {between} c = {second} y = Relu(c)"
    assert is_found(head, source, f"c = {whole} d = Mul(c, l) y = Relu(d)") is holds


PADDED = """(float[1, 2, 4] x) => (float[A, B, C] y) <int64[6] p = {{0, 0, 1, 0, 0, 1}}, float v = {{{value}}},
    float k = {{2}}, float[2, 2, 1] w = {{1, 2, 3, 4}}, float[2, 2, 1] u = {{2, 4, 6, {last}}}>"""


@pytest.mark.parametrize(("value", "last", "holds"), [(0, 8, True), (1, 8, False), (0, 4, False)])
def test_a_convolution_takes_a_pad_with_a_factor_behind_it(
    value: int, last: int, holds: bool
) -> None:
    source = "a = Pad(x, p, v) b = Mul(a, k) c = Conv(b, w) y = Relu(c)"
    result = "c = Conv<pads = [1, 1]>(x, u) y = Relu(c)"
    assert is_found(PADDED.format(value=value, last=last), source, result) is holds


CHANNELS_LAST = """(float[N, 4, 4, 2] x) => (float[N, 2, A, B] y) <float[2] k = {{2, 4}}, float[2] t = {{0, {t}}},
    int64[8] p = {{0, {row}, 1, {channel}, 0, 0, 1, 0}}, float[2, {inputs}, 1, 2] w = {{{w}}},
    float[2, {inputs}, 1, 2] v = {{{v}}}>"""


@pytest.mark.parametrize(
    ("t", "row", "channel", "pads", "holds"),
    [
        (0, 1, 0, "1, 1, 0, 1", True),
        (0, 1, 0, "1, 1, 1, 0", False),
        (0, 0, 0, "1, 1, 0, 1", False),
        (1, 1, 0, "1, 1, 0, 1", False),
        (0, 1, 1, "1, 1, 0, 1", False),
    ],
)
def test_a_convolution_takes_a_pad_of_channels_that_were_last(
    t: int, row: int, channel: int, pads: str, holds: bool
) -> None:
    inputs = 2 + channel
    w = ", ".join(str(each) for each in range(1, 4 * inputs + 1))
    v = ", ".join(
        str(each * (4 if (each - 1) // 2 % 2 else 2)) for each in range(1, 4 * inputs + 1)
    )
    head = CHANNELS_LAST.format(t=t, row=row, channel=channel, inputs=inputs, w=w, v=v)
    turn = "Transpose<perm = [0, 3, 1, 2]>"
    source = f"s = Mul(x, k)  r = Add(s, t)  q = Pad(r, p)  u = {turn}(q)  y = Conv(u, w)"
    assert is_found(head, source, f"u = {turn}(x)  y = Conv<pads = [{pads}]>(u, v)") is holds


@pytest.mark.parametrize(
    ("scale", "shift", "holds"),
    [
        ("1, 0, 1, 1", "3, 3, 3, 3", True),
        ("1, 2, 1, 1", "3, 3, 3, 3", False),
        ("1, 0, 1, 1", "3, 4, 3, 3", False),
    ],
)
def test_a_constant_row_takes_the_affine_of_the_others(scale: str, shift: str, holds: bool) -> None:
    head = f"""(float[1, 1, 4, 2] x) => (float[A, B, C, D] y) <float[4, 1] k = {{{scale}}}, float[4, 1] t = {{{shift}}},
        float one = {{1}}, float three = {{3}}, float two = {{2}}, float six = {{6}}>"""
    source = "a = Mul(x, k) b = Add(a, t) c = GlobalAveragePool(b) d = Mul(c, two) y = Relu(d)"
    result = "a = Mul(x, k) c = GlobalAveragePool(a) d = Mul(c, two) e = Add(d, six) y = Relu(e)"
    assert is_found(head, source, result) is (holds or scale == "1, 2, 1, 1")
    clamped = "a = Mul(x, k) m = Max(a, three) b = {} c = GlobalMaxPool(b) d = {} y = Relu(d)"
    pair = (
        clamped.format("Add(m, t)", "Identity(c)"),
        clamped.format("Identity(m)", "Add(c, three)"),
    )
    assert is_found(head, *pair) is (shift == "3, 3, 3, 3")


@pytest.mark.parametrize(("bias", "holds"), [("0, 0", True), ("0, 1", False)])
def test_a_bias_of_zeros_is_none(bias: str, holds: bool) -> None:
    head = (
        "(float[1, 2, 4] x) => (float[A, B, C] y) <float[2, 2, 1] w = {1, 2, 3, 4}, float[2] b ="
        f" {{{bias}}}>"
    )
    assert (
        is_proved(
            f"{head} {{ c = Conv(x, w, b) y = Relu(c) }}",
            f"{head} {{ c = Conv(x, w) y = Relu(c) }}",
        )
        is holds
    )


@pytest.mark.parametrize(("beta", "holds"), [("2.0", True), ("inf", False)])
def test_a_bias_of_zeros_that_is_multiplied_by_infinity_is_not_none(beta: str, holds: bool) -> None:
    head = "(float[1, 2] x) => (float[A, B] y) <float[2, 2] w = {1, 2, 3, 4}, float[2] b = {0, 0}>"
    gemm = (
        model(f"{head} {{ y = Gemm<beta = 2.0>(x, w, b) }}"),
        model(f"{head} {{ y = Gemm<beta = 2.0>(x, w) }}"),
    )
    for made in gemm:
        made.graph.node[0].attribute[0].f = float(beta)
    document = sealed({"format": FORMAT, "version": VERSION, "rewrites": [], "steps": []}, *gemm)
    with nullcontext() if holds else pytest.raises(Rejected):
        certify(*gemm, document)


@pytest.mark.parametrize(
    ("inner", "order", "holds"),
    [("1", "a, b, d", True), ("1", "a, d, b", False), ("0", "a, b, d", False)],
)
def test_a_factor_passes_concats_that_are_one_in_the_result(
    inner: str, order: str, holds: bool
) -> None:
    head = "(float[2, 2] x) => (float[A, B] y) <float two = {2}, float half = {0.5}>"
    source = f"""a = Relu(x)  b = LeakyRelu(x)  i = Concat<axis = {inner}>(b, x)  m = Identity(i)
        n = Concat<axis = 1>(a, m)  y = Softplus(n)"""
    if inner == "0":
        source = source.replace("a = Relu(x)", "r = Relu(x)  a = Concat<axis = 0>(r, r)")
    result = f"""d = Mul(x, two)  a = Relu(d)  b = LeakyRelu(d)  n = Concat<axis = 1>({order})
        e = Mul(n, half)  y = Softplus(e)"""
    assert is_found(head, source, result) is holds
