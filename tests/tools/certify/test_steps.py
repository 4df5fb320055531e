"""Pairs of models for which steps are searched: they are found and hold, or a condition is violated
and none does.
"""

from __future__ import annotations

import numpy as np
import pytest
from irc import certify
from irc import compile as compile_model

from .pairs import is_found, model

ONE = "(float[1, 2, 4, 4] x) => (float[N, C, H, W] y)"


@pytest.mark.parametrize(
    ("limit", "scale", "weight", "holds"),
    [
        ("Relu(a)", "0.0, 2.0", "0.0, 10.0", True),
        ("Relu(a)", "0.0, 2.0", "3.0, 10.0", False),  # the weight sees data that the scale removed
        ("Relu(a)", "1.0, -2.0", "3.0, -10.0", False),  # the bound changes places
        ("Clip(a, one)", "0.0, 2.0", "0.0, 10.0", False),  # the bound limits the zeros
    ],
)
def test_scales_that_are_zero_pass_a_clamp(
    limit: str, scale: str, weight: str, holds: bool
) -> None:
    head = f"""{ONE} <float[2, 1, 1] s = {{{scale}}}, float[1, 2, 1, 1] w = {{3.0, 5.0}}, float one = {{1.0}},
        float[1, 2, 1, 1] v = {{{weight}}}>"""
    result = limit.replace("(a", "(x")
    assert (
        is_found(head, f"a = Mul(x, s) b = {limit} y = Conv(b, w)", f"b = {result} y = Conv(b, v)")
        is holds
    )


@pytest.mark.parametrize(
    ("scale", "low", "high", "holds"),
    [
        ("2.0", "-2.0", "1.0", True),
        ("-2.0", "-3.0", "1.0", False),
        ("-2.0", "-2.0", "1.0", True),
        ("2.0", "-3.0", "1.0", False),
        ("2.0", "-2.0", "2.0", False),
        ("0.0", "1.0", "2.0", False),
    ],
)
def test_clamps_and_affines_in_a_row_are_one_clamp(
    scale: str, low: str, high: str, holds: bool
) -> None:
    head = f"""{ONE} <float s = {{{scale}}}, float a = {{-1.0}}, float b = {{1.0}}, float c = {{-3.0}},
        float low = {{{low}}}, float high = {{{high}}}>"""
    source, result = (
        "u = Clip(x, a, b) v = Mul(u, s) y = Clip(v, c, b)",
        "v = Mul(x, s) y = Clip(v, low, high)",
    )
    assert is_found(head, source, result) is holds


@pytest.mark.parametrize(
    ("operator", "scale", "constant", "holds"),
    [
        ("Where(c, {}, k)", "2.0", "6.0, 10.0", True),
        ("Where(c, {}, k)", "-2.0", "-6.0, -10.0", True),
        ("Where(c, {}, k)", "2.0", "3.0, 5.0", False),
        ("Where(c, {}, k)", "2.0", "6.0, 10.000001", False),
        ("Max({}, k, x)", "2.0", "6.0, 10.0", False),  # an operand without the scale
        ("Max({}, k)", "2.0", "6.0, 10.0", True),
        ("Max({}, k)", "-2.0", "-6.0, -10.0", False),
        ("Sum({}, k, k)", "2.0", "6.0, 10.0", True),
        ("Sum({}, k, k)", "2.0", "7.0, 10.0", False),
        ("Mean(k, k, {})", "2.0", "6.0, 10.0", True),
        ("Concat<axis = 1>({}, k)", "2.0", "6.0, 10.0", True),
        ("Concat<axis = 1>({}, k)", "2.0", "6.0, 9.0", False),
    ],
)
def test_constants_follow_the_data_beside_them(
    operator: str, scale: str, constant: str, holds: bool
) -> None:
    head = f"""(float[1, 2, 1, 1] x, bool[1, 2, 1, 1] c) => (float[N, C, H, W] y)
        <float[1, 2, 1, 1] k = {{3.0, 5.0}}, float[1, 2, 1, 1] m = {{{constant}}}, float s = {{{scale}}}>"""
    source = f"a = Sigmoid(x) b = {operator.format('a').replace('x)', 'a)')} y = Mul(b, s)"
    result = (
        "a = Sigmoid(x) d = Mul(a, s) y ="
        f" {operator.format('d').replace('k', 'm').replace('x)', 'a)')}"
    )
    assert is_found(head, source, result) is holds


@pytest.mark.parametrize(
    ("extents", "made", "holds"),
    [("1, 2, 1, 1", "1, 2, 1, 1", True), ("", "1, 2, 1, 1", True), ("", "5, 2, 1, 1", False)],
)
def test_a_constant_grows_to_the_extents_of_the_result_at_most(
    extents: str, made: str, holds: bool
) -> None:
    count = 10 if made.startswith("5") else 2
    old = (
        f"float{f'[{extents}]' if extents else ''} k ="
        f" {{{', '.join(['3.0'] * (2 if extents else 1))}}}"
    )
    new = f"float[{made}] m = {{{', '.join(['6.0'] * count)}}}"
    head = (
        f"(float[1, 2, 4, 4] x, bool[1, 2, 4, 4] c) => (float[N, C, H, W] y) <{old}, {new}, float s"
        " = {2.0}>"
    )
    result = "d = Mul(x, s) y = Where(c, d, m)"
    assert is_found(head, "a = Where(c, x, k) y = Mul(a, s)", result) is holds


@pytest.mark.parametrize(
    ("scale", "inner", "value", "holds"),
    [
        ("2.0, 3.0, 5.0, 7.0", "3.0, 5.0", "0.0", True),
        ("2.0, 3.0, 5.0, 7.0", "2.0, 3.0", "0.0", False),  # the scales of other channels
        ("2.0, 3.0, 5.0, 7.0", "3.0, 5.0", "1.0", False),  # the border has scales, too
        ("1.0, 3.0, 5.0, 1.0", "3.0, 5.0", "1.0", True),
        ("1.0, 3.0, 5.0, 2.0", "3.0, 5.0", "1.0", False),
    ],
)
def test_scales_pass_a_pad_of_channels(scale: str, inner: str, value: str, holds: bool) -> None:
    head = f"""{ONE} <int64[8] p = {{0, 1, 0, 0, 0, 1, 0, 0}}, float v = {{{value}}},
        float[4, 1, 1] s = {{{scale}}}, float[2, 1, 1] t = {{{inner}}}>"""
    assert (
        is_found(head, "a = Pad(x, p, v) y = Mul(a, s)", "a = Mul(x, t) y = Pad(a, p, v)") is holds
    )


@pytest.mark.parametrize(
    ("scale", "inner", "constant", "holds"),
    [
        ("2.0, 3.0, 5.0", "2.0, 3.0", "20.0", True),
        ("2.0, 3.0, 5.0", "2.0, 3.0", "12.0", False),
        ("2.0, 3.0, 5.0", "3.0, 5.0", "20.0", False),
    ],
)
def test_a_part_of_a_concat_takes_the_affine_of_its_channels(
    scale: str, inner: str, constant: str, holds: bool
) -> None:
    head = f"""(float[1, 2, 1, 1] x) => (float[N, C, H, W] y) <float[1, 1, 1, 1] k = {{4.0}},
        float[1, 1, 1, 1] m = {{{constant}}}, float[3, 1, 1] s = {{{scale}}}, float[2, 1, 1] t = {{{inner}}}>"""
    source, result = (
        "a = Concat<axis = 1>(x, k) y = Mul(a, s)",
        "a = Mul(x, t) y = Concat<axis = 1>(a, m)",
    )
    assert is_found(head, source, result) is holds


@pytest.mark.parametrize(
    ("factor", "constant", "holds"),
    [("0.5", "1.5", True), ("0.5", "3.0", False), ("1.0", "1.5", False)],
)
def test_a_mean_with_a_constant_is_an_affine(factor: str, constant: str, holds: bool) -> None:
    head = f"{ONE} <float k = {{3.0}}, float s = {{{factor}}}, float t = {{{constant}}}>"
    assert is_found(head, "y = Mean(x, k)", "a = Mul(x, s) y = Add(a, t)") is holds


REGION = 'coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = {}'


@pytest.mark.parametrize(
    ("attributes", "scales", "region", "holds"),
    [
        ("axes = [2, 3]", "2.0, 2.0", "", True),
        ("axes = [-1, -2]", "2.0, 2.0", "", True),
        ("axes = [1, 2]", "2.0, 2.0", "", False),
        (
            REGION.format("0.0"),
            "1.0, 1.0, 2.0, 2.0",
            "0.0, 0.0, 0.1, 0.2, 1.0, 1.0, 1.3, 0.9",
            True,
        ),
        (
            REGION.format("1.0"),
            "1.0, 1.0, 2.0, 2.0",
            "0.0, 0.0, 0.1, 0.2, 1.0, 1.0, 1.3, 0.9",
            False,
        ),
        (
            REGION.format("0.0"),
            "1.0, 1.0, 2.0, 2.0",
            "0.0, 0.5, 0.1, 0.2, 1.0, 1.0, 1.3, 0.9",
            False,
        ),
    ],
)
def test_scales_pass_a_resize_that_keeps_channels(
    attributes: str, scales: str, region: str, holds: bool
) -> None:
    count = 2 if "axes" in attributes else 4
    given = f", float[8] r = {{{region}}}" if region else ""
    head = f"{ONE} <float[{count}] f = {{{scales}}}, float[2, 1, 1] s = {{2.0, 3.0}}{given}>"
    if "1, 2" in attributes:
        head = head.replace(
            "float[2, 1, 1] s = {2.0, 3.0}",
            "float[4, 1, 1] s = {2.0, 2.0, 3.0, 3.0}, float[2, 1, 1] t = {2.0, 3.0}",
        )
    resize = f'Resize<mode = "linear", {attributes}>'
    roi = "r" if region else ""
    scale = "t" if "1, 2" in attributes else "s"
    source, result = (
        f"a = {resize}(x, {roi}, f) y = Mul(a, s)",
        f"a = Mul(x, {scale}) y = {resize}(a, {roi}, f)",
    )
    assert is_found(head, source, result, opset=19) is holds


@pytest.mark.parametrize(
    ("scale", "made", "holds"),
    [
        ("2.0, 2.0, 3.0, 3.0", "2.0, 6.0", True),
        ("2.0, 3.0, 2.0, 3.0", "2.0, 6.0", False),
        ("2.0, 2.0, 3.0, 3.0", "2.0, 3.0", False),
    ],
)
def test_a_normalization_of_groups_takes_scales_of_groups(
    scale: str, made: str, holds: bool
) -> None:
    head = f"""(float[1, 4, 2, 2] x) => (float[N, C, H, W] y) <float[2] g = {{1.0, 2.0}}, float[2] b = {{0.0, 0.0}},
        float[2] h = {{{made}}}, float[4, 1, 1] s = {{{scale}}}>"""
    layer = "GroupNormalization<num_groups = 2>"
    assert is_found(head, f"a = {layer}(x, g, b) y = Mul(a, s)", f"y = {layer}(x, h, b)") is holds


@pytest.mark.parametrize(
    ("height", "kernel", "holds"), [(4, 2, True), (5, 2, False), (4, 3, False)]
)
def test_a_shift_passes_same_padding_where_nothing_is_padded(
    height: int, kernel: int, holds: bool
) -> None:
    weight = ", ".join(["1.0"] * kernel * kernel)
    head = f"""(float[1, 1, {height}, 4] x) => (float[N, C, H, W] y) <float t = {{3.0}},
        float[1, 1, {kernel}, {kernel}] w = {{{weight}}}, float[1] b = {{{3.0 * kernel * kernel}}}>"""
    layer = 'Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>'
    assert is_found(head, f"a = Add(x, t) y = {layer}(a, w)", f"y = {layer}(x, w, b)") is holds


@pytest.mark.parametrize(
    ("target", "holds"),
    [("1, 2, 3, 4", True), ("1, 2, 12, 1", True), ("1, 4, 3, 2", False), ("2, 1, 4, 3", False)],
)
def test_a_reshape_keeps_the_affine_of_leading_axes(target: str, holds: bool) -> None:
    head = f"""(float[1, 2, 4, 3] x) => (float[N, C, H, W] y) <int64[4] r = {{{target}}},
        float[2, 1, 1] s = {{2.0, 3.0}}, float[1, 2, 1, 1] w = {{5.0, 7.0}}, float[1, 2, 1, 1] v = {{10.0, 21.0}}>"""
    if not target.startswith("1, 2"):
        head = head.replace(
            "float[1, 2, 1, 1] w = {5.0, 7.0}", "float[1, 1, 1, 1] w = {1.0}"
        ).replace("v = {10.0, 21.0}", "v = {2.0, 3.0}")
        assert not is_found(
            head, "a = Mul(x, s) y = Reshape(a, r)", "a = Reshape(x, r) y = Mul(a, w)"
        )
        return
    assert (
        is_found(
            head,
            "a = Mul(x, s) b = Reshape(a, r) y = Conv(b, w)",
            "b = Reshape(x, r) y = Conv(b, v)",
        )
        is holds
    )


def test_convolutions_have_the_channels_of_their_weights_whatever_the_data_are() -> None:
    head = """(float x) => (float[N, C, H, W] y) <float[2, 1, 1, 1] w = {1.0, 2.0}, float[2, 1, 1] s = {3.0, 5.0},
        float[2, 1, 1, 1] v = {3.0, 10.0}, float[2, 1, 1, 1] u = {3.0, 6.0}>"""
    head = head.replace("float x", "float[A, B, C, D] x")
    assert is_found(head, "a = Conv(x, w) y = Mul(a, s)", "y = Conv(x, v)")
    assert not is_found(head, "a = Conv(x, w) y = Mul(a, s)", "y = Conv(x, u)")


GEMM = """(float[3, 2] x) => (float[M, N] y) <float[2, 3] w = {{1.0, 2.0, 3.0, 4.0, 5.0, 6.0}}, float s = {{2.0}},
    float[2] b = {{1.0, 2.0}}, float[2, 3] v = {{2.0, 4.0, 6.0, 8.0, 10.0, 12.0}}, float[{extents}] c = {{{bias}}},
    float[2, 1] r = {{2.0, 3.0}}>"""


@pytest.mark.parametrize(
    ("extents", "bias", "scale", "holds"),
    [
        ("2", "2.0, 4.0", "s", True),
        ("1, 2", "2.0, 4.0", "s", True),
        ("2, 1", "2.0, 4.0", "s", False),  # a column is no row
        ("2", "2.0, 3.0", "s", False),
        ("2, 2", "2.0, 4.0, 2.0, 4.0", "s", True),
        ("2, 2", "2.0, 4.0, 2.0, 5.0", "s", False),
        ("2", "2.0, 4.0", "r", False),  # scales of rows, of which there is one bias
    ],
)
def test_a_bias_has_the_axes_of_the_result(
    extents: str, bias: str, scale: str, holds: bool
) -> None:
    """The weights are on the left, so that the outputs of the layer are rows."""
    head = GEMM.format(extents=extents, bias=bias)
    result = "y = Gemm(v, x, c)"
    assert is_found(head, f"a = MatMul(w, x) d = Add(a, b) y = Mul(d, {scale})", result) is holds


@pytest.mark.parametrize(("beta", "holds"), [("0.0", True), ("1.0", False)])
def test_a_bias_that_is_multiplied_by_zero_is_none(beta: str, holds: bool) -> None:
    head = GEMM.format(extents="1, 2", bias="5.0, 7.0")
    layer = f"Gemm<beta = {beta}>"
    assert is_found(head, f"a = {layer}(w, x, c) y = Mul(a, s)", f"y = {layer}(v, x, c)") is holds


@pytest.mark.parametrize(
    ("source", "weight", "bias", "holds"),
    [
        ("a = Pad(x, p) b = Add(a, t)", "1.0", "12.0", True),  # the border takes the shift
        ("a = Pad(x, p) b = Mul(a, t)", "3.0", "0.0", True),
        ("b = Add(x, t) a = Pad(b, p)", "1.0", "12.0", False),  # the border is zero
        ("d = Add(x, t) b = Pad(d, p)", "1.0", "12.0", False),
        ("d = Mul(x, t) b = Pad(d, p)", "3.0", "0.0", True),
    ],
)
def test_affines_between_a_pad_and_a_convolution(
    source: str, weight: str, bias: str, holds: bool
) -> None:
    head = f"""(float[1, 1, 4, 4] x) => (float[N, C, H, W] y) <int64[8] p = {{0, 0, 1, 1, 0, 0, 1, 1}},
        float t = {{3.0}}, float[1, 1, 2, 2] w = {{1.0, 1.0, 1.0, 1.0}}, float[1] c = {{{bias}}},
        float[1, 1, 2, 2] v = {{{", ".join([weight] * 4)}}}>"""
    last = "a" if source.endswith("a = Pad(b, p)") else "b"
    result = "y = Conv<pads = [1, 1, 1, 1]>(x, v, c)"
    assert is_found(head, f"{source} y = Conv({last}, w)", result) is holds


@pytest.mark.parametrize(("shift", "holds"), [("3.0, 3.0", True), ("3.0, 4.0", False)])
def test_a_normalization_takes_scales_and_loses_a_shift(shift: str, holds: bool) -> None:
    head = f"""(float[2, 2] x) => (float[M, N] y) <float[2] t = {{{shift}}}, float[2] g = {{1.0, 2.0}},
        float[2] h = {{-1.0, -2.0}}>"""
    layer = "LayerNormalization"
    assert (
        is_found(head, f"a = Add(x, t) b = {layer}(a, g) y = Neg(b)", f"y = {layer}(x, h)") is holds
    )


@pytest.mark.parametrize(
    ("sizes", "shift", "holds"),
    [("2, 1, 8, 4", "1.0, 2.0", True), ("4, 1, 8, 4", "1.0, 2.0, 1.0, 2.0", False)],
)
def test_affines_of_the_batch_pass_a_resize_that_keeps_it(
    sizes: str, shift: str, holds: bool
) -> None:
    count = len(shift.split(","))
    head = f"""(float[2, 1, 4, 4] x) => (float[N, C, H, W] y) <int64[4] n = {{{sizes}}},
        float[2, 1, 1, 1] s = {{1.0, 2.0}}, float[{count}, 1, 1, 1] t = {{{shift}}}>"""
    resize = 'Resize<mode = "linear">'
    assert (
        is_found(head, f"a = {resize}(x,,,n) y = Mul(a, t)", f"a = Mul(x, s) y = {resize}(a,,,n)")
        is holds
    )


@pytest.mark.parametrize(
    ("limit", "affine", "low", "holds"),
    [
        ("Abs", "Sub(a, t)", "-3.0", True),
        ("Abs", "Sub(a, t)", "-2.0", False),
        ("Abs", "Sub(t, a)", "-3.0", False),
        ("Relu", "Mul(a, t)", "0.0", True),
        ("Tanh", "Mul(a, t)", "-3.0", False),
    ],
)
def test_a_clamp_beyond_the_limits_of_its_data_is_none(
    limit: str, affine: str, low: str, holds: bool
) -> None:
    head = f"{ONE} <float t = {{3.0}}, float low = {{{low}}}>"
    source, result = f"a = {limit}(x) b = {affine} y = Clip(b, low)", f"a = {limit}(x) y = {affine}"
    assert is_found(head, source, result) is holds


SPLIT = """(float[1, 2, 4, 4] x) => (float[N, C, H, W] y, float[M, B, U, V] z) <int64[2] n = {{1, 1}},
    float k = {{0.3}}, float s = {{0.1}}, float[2, 1, 1] t = {{{shift}}}, float[2, 1, 1] u = {{{scale}}}>"""


EXACT_SUMS = np.cumsum(np.array([0.3, 0.1], np.float32).astype(np.float64))


@pytest.mark.parametrize(
    ("shift", "scale", "holds"),
    [
        ("0.3, 0.40000000596", "1.0, 1.0", True),
        ("0.40000000596, 0.3", "1.0, 1.0", False),  # the shift of the other part
        ("0.3, 0.4000001", "1.0, 1.0", False),
        ("0.3, 0.40000000596", "1.0, 2.0", False),
    ],
)
def test_parts_of_a_split_have_affines_of_their_own(shift: str, scale: str, holds: bool) -> None:
    head = SPLIT.format(shift=shift, scale=scale)
    source = "a = Sigmoid(x) b = Add(a, k) y, c = Split<axis = 1>(b, n) z = Add(c, s)"
    result = "a = Sigmoid(x) d = Mul(a, u) b = Add(d, t) y, z = Split<axis = 1>(b, n)"
    assert is_found(head, source, result, exact={"t": EXACT_SUMS}) is holds


@pytest.mark.parametrize(
    ("number", "extents", "holds"),
    [
        ("0.40000000596, 0.5, 0.6, 0.70000000596", "[1, 2, 2, 1]", True),
        ("0.40000000596, 0.5, 0.6, 0.7000001", "[1, 2, 2, 1]", False),
        ("0.40000000596, 0.6, 0.5, 0.70000000596", "[1, 2, 2, 1]", False),
    ],
)
def test_numbers_vary_along_several_axes(number: str, extents: str, holds: bool) -> None:
    """Two sums become one, the constants of which are rounded, behind operators that put elements
    in another order.
    """
    head = f"""(float[1, 2, 2, 4] x) => (float[N, M] y) <float[2, 1, 1] k = {{0.3, 0.5}},
        float[2, 1] j = {{0.1, 0.2}}, float{extents} t = {{{number}}}, float s = {{3.0}}, float r = {{0.5}}>"""
    source = "a = Sigmoid(x) b = Add(a, k) c = Add(b, j) y = Flatten(c)"
    assert is_found(head, source, "a = Sigmoid(x) c = Add(a, t) y = Flatten(c)") is holds


@pytest.mark.parametrize(
    ("shift", "holds"), [("-0.70000000596", True), ("0.3", False), ("-0.7000002", False)]
)
def test_a_shift_moves_over_a_difference(shift: str, holds: bool) -> None:
    head = f"""{ONE} <float s = {{0.7}}, float t = {{{shift}}}, float one = {{1.0}}>"""
    source = "a = Sigmoid(x) b = Tanh(x) c = Sub(a, b) y = Add(c, s)"
    assert is_found(head, source, "a = Sigmoid(x) b = Tanh(x) d = Add(b, t) y = Sub(a, d)") is holds


@pytest.mark.parametrize(
    ("factors", "holds"),
    [((0, 0, 1, 1), True), ((0, 1, 0, 1), False), ((1, 1, 0, 0), False), ((0, 0, 0, 1), False)],
)
def test_scales_behind_a_view_move_to_the_elements_that_they_scale(
    factors: tuple[int, ...], holds: bool
) -> None:
    first, second = np.array([0.1, 0.7, 0.3, 0.9], np.float32), np.array([1.1, 2.3], np.float32)
    exact = first.astype(np.float64) * second[list(factors)]
    rounded = (first, second, exact.astype(np.float32))
    numbers = [", ".join(map(repr, array.tolist())) for array in rounded]
    head = f"""(float[1, 4, 6] x) => (float[1, 2, 2, 6] y) <int64[4] t = {{1, 2, 2, 6}},
        float[4, 1] s = {{{numbers[0]}}}, float[2, 1, 1] u = {{{numbers[1]}}}, float[4, 1] v = {{{numbers[2]}}}>"""
    source, result = (
        "a = Mul(x, s) b = Reshape(a, t) y = Mul(b, u)",
        "a = Mul(x, v) y = Reshape(a, t)",
    )
    assert is_found(head, source, result, exact={"v": exact}) is holds


@pytest.mark.parametrize(
    ("matrix", "addend", "holds"),
    [
        ("float[2, 3] w", "float[3] z = {0.0, 0.0, 0.0}", True),
        ("float[2, 3] w", "float[1] z = {0.0}", True),
        ("float[2, 3] w", "float[1, 3] z = {0.0, 0.0, 0.0}", False),
        ("float[2, 1] w", "float[3] z = {0.0, 0.0, 0.0}", False),
        ("float[2, 3] w", "float[3] z = {0.0, 0.0, 1.0}", False),
        ("float[L, M] w", "float[3] z = {0.0, 0.0, 0.0}", False),
    ],
)
def test_zeros_beside_a_product_of_unknown_rank(matrix: str, addend: str, holds: bool) -> None:
    head = f"(int64[K] n, {matrix}) => (float[A, B] y) <{addend}>"
    product = "x = ConstantOfShape(n) {} = MatMul(x, w)"
    assert is_found(head, f"{product.format('a')} y = Add(a, z)", product.format("y")) is holds


@pytest.mark.parametrize(("order", "holds"), [("1.0, 2.0", True), ("2.0, 1.0", False)])
def test_a_clamp_is_that_of_data_whose_axes_are_permuted(order: str, holds: bool) -> None:
    head = f"""(float[1, 2, 3, 2] x) => (float[N, C, H, W] y)
        <float[2, 2, 1, 1] w = {{1.0, 2.0, 3.0, 4.0}}, float[2] c = {{1.0, 2.0}}, float[2] d = {{{order}}}>"""
    source = """h = Conv(x, w) a = Transpose<perm = [0, 2, 3, 1]>(h) b = Add(a, c) e = Relu(b)
        y = Transpose<perm = [0, 3, 1, 2]>(e)"""
    assert is_found(head, source, "a = Conv(x, w, d) y = Relu(a)") is holds


@pytest.mark.parametrize(
    ("bias", "limit", "holds"),
    [
        ("0.0", "Relu(a)", True),
        ("1.0", "Relu(a)", False),
        ("-1.0", "Clip(a, low)", True),
        ("-2.0", "Clip(a, low)", False),
    ],
)
def test_bounds_limit_the_shift_behind_a_zero_scale(bias: str, limit: str, holds: bool) -> None:
    """The scale of zero leaves -2, of which the bound makes what the convolution adds."""
    head = f"""{ONE} <float[2, 1, 1] s = {{0.0, 1.0}}, float[2, 1, 1] t = {{-2.0, 0.0}}, float low = {{-1.0}},
        float[1, 2, 1, 1] w = {{1.0, 5.0}}, float[1, 2, 1, 1] v = {{0.0, 5.0}}, float[1] b = {{{bias}}}>"""
    made = limit.replace("(a", "(x")
    assert (
        is_found(
            head,
            f"c = Mul(x, s) a = Add(c, t) d = {limit} y = Conv(d, w)",
            f"d = {made} y = Conv(d, v, b)",
        )
        is holds
    )


@pytest.mark.parametrize(
    ("weight", "holds"), [("6.0, 10.0", True), ("6.0, 5.0", False), ("3.0, 10.0", True)]
)
def test_affines_behind_a_zero_scale_are_composed_one_by_one(weight: str, holds: bool) -> None:
    """The weights of a channel of zeros are free."""
    head = f"""{ONE} <float[2, 1, 1] s = {{0.0, 1.0}}, float[2, 1, 1] t = {{2.0, 2.0}},
        float[1, 2, 1, 1] w = {{3.0, 5.0}}, float[1, 2, 1, 1] v = {{{weight}}}>"""
    pool = "MaxPool<kernel_shape = [2, 2]>"
    source = f"a = Mul(x, s) b = Mul(a, t) c = {pool}(b) y = Conv(c, w)"
    assert is_found(head, source, f"a = Mul(x, s) c = {pool}(a) y = Conv(c, v)") is holds


@pytest.mark.parametrize(
    ("attributes", "extents", "numbers", "holds"),
    [
        ("spatial = 0", "1, 3, 2", "1, 2, 3, 4, 5, 6", True),
        ("spatial = 0", "1, 3, 2", "1, 2, 3, 4, 6, 5", False),
        ("spatial = 1", "1, 3, 2", "1, 2, 3, 4, 5, 6", False),
        ("spatial = 0", "1, 1, 6", "1, 2, 3, 4, 5, 6", False),
        ("spatial = 0", "6", "1, 2, 3, 4, 5, 6", False),
    ],
)
def test_a_normalization_may_have_parameters_of_each_element(
    attributes: str, extents: str, numbers: str, holds: bool
) -> None:
    ones, zeros = (", ".join([each] * 6) for each in ("1", "0"))
    head = f"""(float[N, 1, 3, 2] x) => (float[N, 1, 3, 2] y) <float[{extents}] g = {{{numbers}}},
        float[{extents}] one = {{{ones}}}, float[{extents}] zero = {{{zeros}}},
        float[1, 3, 2] w = {{1, 2, 3, 4, 5, 6}}>"""
    source = f"y = BatchNormalization<epsilon = 0.0, {attributes}>(x, g, zero, zero, one)"
    assert is_found(head, source, "y = Mul(x, w)", opset=7) is holds


@pytest.mark.parametrize("seed", range(8))
def test_bounds_of_a_clip_behind_several_folds_are_rounded_once(seed: int) -> None:
    """A Clip takes the affine of a MaxPool behind it, then another one: bounds rounded twice would
    be refused.
    """
    rng = np.random.default_rng(seed)
    numbers = [str(each) for each in rng.uniform(0.5, 2.0, 5).astype(np.float32)]
    source = model(
        f"""(float[1, 1, 4, 4] x) => (float[N, C, H, W] y) <float[1, 1, 1, 1] w = {{{numbers[0]}}}, float l = {{-0.3}},
        float h = {{{numbers[1]}}}, float s = {{{numbers[2]}}}, float t = {{{numbers[3]}}}, float k = {{{numbers[4]}}}>
        {{ a = Conv(x, w) b = Clip(a, l, h) c = Mul(b, s) d = MaxPool<kernel_shape = [2, 2]>(c) e = Mul(d, t)
           f = GlobalAveragePool(e) y = Add(f, k) }}""",
    )
    result = compile_model(source, certificate=True)
    assert [node.op_type for node in result.model.graph.node].count("Mul") == 0
    assert certify(source, result.model, result.certificate())


@pytest.mark.parametrize(
    ("bias", "holds"),
    [("0.3, 0.40000000596", True), ("0.40000000596, 0.3", False), ("0.3, 0.4000001", False)],
)
def test_a_layer_takes_affines_of_parts_of_its_result(bias: str, holds: bool) -> None:
    head = f"""(float[3, 2] x) => (float[M, N] y, float[A, B] z) <float[2, 2] w = {{1.0, 2.0, 3.0, 4.0}},
        float[2] k = {{0.3, 0.3}}, float s = {{0.1}}, int64[2] n = {{1, 1}}, float[2] c = {{{bias}}}>"""
    source = "a = MatMul(x, w) b = Add(a, k) y, d = Split<axis = 1>(b, n) z = Add(d, s)"
    result = "b = Gemm(x, w, c) y, z = Split<axis = 1>(b, n)"
    assert is_found(head, source, result, exact={"c": EXACT_SUMS}) is holds
