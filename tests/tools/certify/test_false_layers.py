"""Pairs of models whose layers, clamps or windows differ, and that a checker without some condition
would accept.
"""

from __future__ import annotations

import pytest

from .pairs import is_proved


def _step(identity: str, operation: str = "y", **further: object) -> dict[str, object]:
    return {
        "step": 1,
        "identity": identity,
        "at": "result",
        "operation": operation,
        "source": operation,
        **further,
    }


GEMM = """(float[1, 2] x) => (float[1, 2] y) <float[2, 2] w = {{{w}}}, float[2, 2] v = {{{w}}}, float[2] b = {{{b}}},
    int32[2] q = {{{q}}}, float s = {{0.01}}> {{ d = DequantizeLinear(q, s)  y = Gemm<{factors}>({data}, {bias}) }}"""


def _gemm(
    factors: str, w: str = "1, 2, 3, 4", b: str = "5, 6", q: str = "49, 490", **names: str
) -> str:
    return GEMM.format(factors=factors, w=w, b=b, q=q, **{"data": "x, w", "bias": "b", **names})


@pytest.mark.parametrize(
    ("source", "result", "holds"),
    [
        (_gemm("alpha = 2.0"), _gemm("alpha = 1.0", w="2, 4, 6, 8"), True),
        (_gemm("alpha = 1.0"), _gemm("alpha = inf", w="0, 0, 0, 0"), False),
        (_gemm("alpha = 1.0"), _gemm("alpha = 1e-30", w="1e30, 2e30, 3e30, 4e30"), False),
        (_gemm("beta = 2.0"), _gemm("beta = 1.0", b="10, 12"), True),
        (_gemm("beta = 1.0"), _gemm("beta = inf", b="0, 0"), False),
        (_gemm("beta = 1.0", data="x, x"), _gemm("beta = 1.0", data="x, x", b="5, 6"), True),
        (_gemm("beta = 2.0", data="x, x"), _gemm("beta = 1.0", data="x, x", b="10, 12"), True),
        (_gemm("beta = 1.0", data="x, x"), _gemm("beta = inf", data="x, x", b="0, 0"), False),
        (_gemm("beta = 2.0", bias="d"), _gemm("beta = 2.0", bias="d"), True),
        (_gemm("beta = 1.0", bias="d"), _gemm("beta = 1000.0", bias="d", q="0, 0"), False),
        (_gemm("beta = 0.001", bias="d"), _gemm("beta = 1.0", bias="d", q="0, 0"), False),
    ],
)
def test_factors_of_a_layer_take_no_digits_from_its_constants(
    source: str, result: str, holds: bool
) -> None:
    if "x, x" in source:
        source, result = (text.replace("float[1, 2]", "float[2, 2]") for text in (source, result))
    assert is_proved(source, result, _step("layer")) is holds


@pytest.mark.parametrize(("weight", "holds"), [("3", True), ("inf", False)])
def test_an_infinite_weight_of_zeros_is_not_free(weight: str, holds: bool) -> None:
    text = """(float[1, 2] x) => (float[1, 1] y) <float[1, 2] s = {{1, 0}}, float[2, 1] w = {{1, {weight}}}> {{
        v = Mul(x, s)  y = MatMul(v, w) }}"""
    assert is_proved(text.format(weight=weight), text.format(weight=5), _step("layer")) is holds


FAR = "999999995904.0"


@pytest.mark.parametrize(
    ("rows", "far", "shift", "other"),
    [(1, f"{FAR}, 0", "0.4, 0.4", "0.8"), (2, f"0, {FAR}, 0, 0", "0.4, 0.8", "0.4")],
)
def test_the_bound_of_one_channel_is_not_that_of_another(
    rows: int, far: str, shift: str, other: str
) -> None:
    head = f"""(float[{rows}, 2] x) => (float[{rows}, 2] y) <float[{rows}, 2] far = {{{far}}},
        float[1, 2] shift = {{{shift}}}, float other = {{{other}}}>"""
    source = head + "{ u = Add(x, far)  w = Sub(u, far)  v = Add(w, shift)  y = Relu(v) }"
    step = _step("crosses", perm=[0, 1])
    assert is_proved(source, source, step)
    assert not is_proved(source, head + "{ v = Add(x, other)  y = Relu(v) }", step)


@pytest.mark.parametrize(("kind", "holds"), [("float", True), ("double", False)])
def test_the_greatest_float_limits_doubles(kind: str, holds: bool) -> None:
    head, step = f"({kind}[2] x) => ({kind}[2] y) ", _step("same bounds")
    assert (
        is_proved(head + "{ v = Clip(x)  y = Relu(v) }", head + "{ y = Relu(x) }", step, opset=10)
        is holds
    )


@pytest.mark.parametrize(
    ("pads", "holds"),
    [
        ('auto_pad = "SAME_UPPER"', True),
        ('auto_pad = "VALID", pads = [0, 0]', True),
        ("pads = [1, 0]", True),
    ]
    + [
        (f'auto_pad = "{auto}", pads = [{pads}]', False)
        for auto, pads in (("SAME_UPPER", "0, 0"), ("VALID", "1, 0"))
    ],
)
def test_pads_are_stated_once(pads: str, holds: bool) -> None:
    text = f"""(float[1, 1, 5] x) => (int64[3] y) <int64[3] k = {{1, 1, 5}}> {{
        v = MaxPool<kernel_shape = [2], {pads}>(x)  y = Shape(v) }}"""
    assert is_proved(text, text) is holds
    if 'VALID", pads = [1' in pads or "SAME" in pads:
        assert is_proved(text, text.replace("Shape(v)", "Identity(k)")) is holds


NORMALIZED = """(float[1, 2] x) => (float[1, 2] y) <float[2] z = {{0, 0}}, float[2] g = {{{gamma}}},
    float[2] b = {{{beta}}}, float[2] m = {{{mean}}}, float[2] v = {{{variance}}}, float s = {{{scale}}},
    float t = {{1e20}}> {{ u = {body}  y = Mul(u, t) }}"""


@pytest.mark.parametrize(
    ("numbers", "holds"),
    [
        (
            {"gamma": "2, 2", "beta": "14, 14", "mean": "7, 7", "variance": "1, 1", "scale": 2.0},
            True,
        ),
        (
            {
                "gamma": "2, 2",
                "beta": "2e20, 2e20",
                "mean": "1e20, 1e20",
                "variance": "1, 1",
                "scale": 2.0,
            },
            False,
        ),
        (
            {
                "gamma": "3e-20, 3e-20",
                "beta": "0, 0",
                "mean": "0, 0",
                "variance": "9, 9",
                "scale": 1e-20,
            },
            True,
        ),
        (
            {
                "gamma": "4.61e-43, 4.61e-43",
                "beta": "0, 0",
                "mean": "0, 0",
                "variance": "1e-45, 1e-45",
                "scale": 1.23e-20,
            },
            False,
        ),
    ],
)
def test_parameters_of_a_normalization_keep_the_digits_of_the_data(
    numbers: dict[str, object], holds: bool
) -> None:
    step = _step("rounded affine", "u")
    source = NORMALIZED.format(body="Mul(x, s)", **numbers)
    assert (
        is_proved(
            source,
            NORMALIZED.format(body="BatchNormalization<epsilon = 0.0>(x, g, b, m, v)", **numbers),
            step,
        )
        is holds
    )


@pytest.mark.parametrize(
    ("identity", "body"),
    [("crosses", "Abs({})"), ("same bounds", "Relu({})"), ("layer", "MatMul({}, w)")],
)
def test_doubles_keep_their_digits_across_an_operator(identity: str, body: str) -> None:
    head = (
        "(double[1, 1] x) => (double[1, 1] y) <double k = {{{}}}, double[1, 1] w = {{3}}> {{ {}"
        " y = " + body + " }}"
    )
    for number, holds in (("1", True), ("1.00000000000011368683772161602974", False)):
        pair = head.format(number, "", "x"), head.format(number, "u = Mul(x, k)", "u")
        assert is_proved(*pair) is holds
        assert holds or not is_proved(*pair, _step(identity))


POOLED = "MaxPool<kernel_shape = [{}], strides = [{}], {}>(x)"
TURNED = "ConvTranspose<strides = [2], {}>(x, w)"


@pytest.mark.parametrize(
    ("extents", "operator", "found", "holds"),
    [
        ("1, 1, 5", POOLED.format(2, 2, "ceil_mode = 1"), "1, 1, 3", True),
        ("1, 1, 3", POOLED.format(2, 3, "ceil_mode = 1"), "1, 1, 2", False),
        (
            "1, 1, 5",
            POOLED.format(2, 1, 'auto_pad = "SAME_UPPER", ceil_mode = 1'),
            "1, 1, 4",
            False,
        ),
        ("1, 1, 5", POOLED.format(2, 1, 'auto_pad = "SAME_UPPER"'), "1, 1, 5", True),
        (
            "1, 1, 5",
            POOLED.format(2, 1, 'auto_pad = "SAME_UPPER", dilations = [2]'),
            "1, 1, 5",
            False,
        ),
        ("1, 1, 5", TURNED.format('auto_pad = "SAME_UPPER"'), "1, 1, 10", True),
        (
            "1, 1, 5",
            TURNED.format('auto_pad = "SAME_UPPER", output_padding = [1]'),
            "1, 1, 11",
            False,
        ),
        ("1, 1, 5", TURNED.format("output_padding = [1]"), "1, 1, 13", True),
        ("1, 1, 5", TURNED.format("output_shape = [10]"), "1, 1, 10", False),
        ("1, 1, 7, 8", "Resize<axes = [2, 3]>(x, , , s)", "1, 1, 5, 9", True),
        (
            "1, 1, 7, 8",
            'Resize<axes = [-2, -1], keep_aspect_ratio_policy = "not_smaller">(x, , , s)',
            "1, 1, 8, 9",
            False,
        ),
        ("1, 16, 1", "STFT(x, h, , h)", "1, 4, 4, 2", False),
        ("1", "Range(i, j, k)", "5", True),
        ("1", "Range(a, b, c)", "44", False),
    ],
)
def test_extents_that_runtimes_compute_otherwise_are_not_believed(
    extents: str, operator: str, found: str, holds: bool
) -> None:
    rank = 1 + found.count(",")
    head = f"""(float[{extents}] x) => (int64[{rank}] y) <int64[{rank}] e = {{{found}}}, int64[2] s = {{5, 9}},
        float[1, 1, 4] w = {{1, 2, 3, 4}}, float a = {{-3.3}}, float b = {{1}}, float c = {{0.1}}, int64 i = {{0}},
        int64 j = {{9}}, int64 k = {{2}}, int64 h = {{4}}> {{ v = {operator} """
    assert is_proved(head + "y = Shape(v) }", head + "y = Identity(e) }") is holds
