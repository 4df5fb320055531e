"""Channels that are constant behind zeros, and affines that are equal without a step, each with its
neighbours.
"""

from __future__ import annotations

import pytest

from .pairs import is_found, is_proved

HEAD = """(float[1, 2, 4, 4] x, float[1, 2, 4, 4] z) => (float[N, C, H, W] y) <float[2, 1, 1] s = {{{scale}}},
    float[2, 1, 1] k = {{{shift}}}, float[2, 1, 1] t = {{3.0, 5.0}}, float[2, 1, 1] u = {{7.0, 5.0}}>"""

PADS = "Constant<value_ints = [0, 0, 1, 1, 0, 0, 1, 1]>()"


@pytest.mark.parametrize(
    ("operators", "scale", "shift", "holds"),
    [
        ("b = MaxPool<kernel_shape = [2, 2]>(a)", "0.0, 2.0", "0.0, 1.0", True),
        ("b = MaxPool<kernel_shape = [2, 2]>(a)", "1.0, 2.0", "0.0, 1.0", False),
        ("b = MaxPool<kernel_shape = [2, 2]>(a)", "0.0, 2.0", "1.0, 1.0", False),
        ("b = Relu(a)", "0.0, 2.0", "-1.0, 1.0", True),  # the constant is below the bound
        ("b = Relu(a)", "0.0, 2.0", "1.0, 1.0", False),
        ("b = Add(a, a)", "0.0, 2.0", "0.0, 1.0", True),
        ("b = Add(a, z)", "0.0, 2.0", "0.0, 1.0", False),
        ("b = Mul(z, a)", "0.0, 2.0", "0.0, 1.0", True),
        ("b = Mul(z, a)", "0.0, 2.0", "1.0, 1.0", False),
        ("b = Div(z, a)", "0.0, 2.0", "0.0, 1.0", False),
        (
            "c = Transpose<perm = [1, 0, 3, 2]>(a) b = Transpose<perm = [1, 0, 2, 3]>(c)",
            "0.0, 2.0",
            "0.0, 1.0",
            True,
        ),
        (f"p = {PADS} b = Pad<mode = 'edge'>(a, p)", "0.0, 2.0", "0.0, 1.0", True),
        (
            f"p = {PADS} o = Constant<value_float = 1.0>() b = Pad(a, p, o)",
            "0.0, 2.0",
            "0.0, 1.0",
            False,
        ),
    ],
)
def test_factors_of_a_channel_of_zeros_are_all_the_same(
    operators: str, scale: str, shift: str, holds: bool
) -> None:
    body = (
        f"m = Mul(x, s) a = Add(m, k) {operators.replace(chr(39), chr(34))} d = Mul(b, {{}}) y ="
        " Sigmoid(d)"
    )
    assert (
        is_found(HEAD.format(scale=scale, shift=shift), body.format("t"), body.format("u")) is holds
    )


@pytest.mark.parametrize(
    ("scale", "moved", "holds"),
    [
        ("0.0, 2.0", "0.0, 10.0", True),
        ("0.0, 2.0", "1.0, 10.0", False),
        ("1.0, 2.0", "0.0, 10.0", False),
        ("1.0, 2.0", "3.0, 10.0", True),
    ],
)
def test_a_constant_channel_takes_the_scale_of_the_other_operand(
    scale: str, moved: str, holds: bool
) -> None:
    head = HEAD.format(scale=scale, shift="0.0, 0.0")[:-1] + f", float[2, 1, 1] v = {{{moved}}}>"
    window = "b = MaxPool<kernel_shape = [1, 1]>(a) c = Sigmoid(z)"
    source = f"a = Mul(x, s) {window} d = Add(b, c) y = Mul(d, t)"
    assert is_found(head, source, f"a = Mul(x, v) {window} e = Mul(c, t) y = Add(b, e)") is holds


@pytest.mark.parametrize(
    ("scale", "shift", "bias", "pads", "holds"),
    [
        ("0.0, 2.0", "0.0", "0.0", 0, True),
        ("0.0, 2.0", "0.0", "0.0", 1, True),
        ("1.0, 2.0", "0.0", "0.0", 0, False),
        ("0.0, 2.0", "0.5", "-2.0", 0, True),  # (3 - 7) * 0.5
        ("0.0, 2.0", "0.5", "0.0", 0, False),
        ("0.0, 2.0", "0.5", "-2.0000002", 0, False),
        ("0.0, 2.0", "0.5", "-2.0", 1, False),  # the padding is no such constant
    ],
)
def test_weights_of_a_constant_channel_are_free(
    scale: str, shift: str, bias: str, pads: int, holds: bool
) -> None:
    head = (
        HEAD.format(scale=scale, shift=f"{shift}, 0.0")[:-1]
        + f", float[1] b = {{{bias}}}, float[1] o = {{0.0}}>"
    )
    weights = "i = Constant<value_ints = [1, 2, 1, 1]>() w = Reshape({weights}, i)"
    layer = f"y = Conv<pads = [{pads}, {pads}, {pads}, {pads}]>(a, w, {{bias}})"
    body = f"m = Mul(x, s) a = Add(m, k) {weights} {layer}"
    assert (
        is_found(head, body.format(weights="t", bias="o"), body.format(weights="u", bias="b"))
        is holds
    )


@pytest.mark.parametrize(
    ("operators", "holds"),
    [
        ("a = Neg(x) b = Neg(a)", True),
        ("a = Mul(x, two) b = Mul(a, half)", True),
        ("a = Mul(x, two) b = Mul(a, two)", False),
        ("a = Sub(two, x) b = Sub(two, a)", True),
        ("a = Sub(x, two) b = Sub(two, a)", False),
        (
            (
                "a = Add(x, two) c = Transpose<perm = [1, 0]>(a) d = Sub(c, two) b = Transpose<perm"
                " = [1, 0]>(d)"
            ),
            True,
        ),
        ("a = Add(x, two) c = Transpose<perm = [1, 0]>(a) b = Sub(c, two)", False),
    ],
)
def test_affines_that_cancel_need_no_step(operators: str, holds: bool) -> None:
    head = "(float[3, 3] x) => (float[A, B] y) <float two = {2.0}, float half = {0.5}>"
    assert (
        is_proved(f"{head} {{ {operators} y = Sigmoid(b) }}", f"{head} {{ y = Sigmoid(x) }}")
        is holds
    )


@pytest.mark.parametrize(("factor", "holds"), [("5.0", True), ("5.0000005", False)])
def test_each_part_of_a_split_has_its_affine(factor: str, holds: bool) -> None:
    head = f"""{HEAD.format(scale="3.0, 5.0", shift="0.0, 0.0")[:-1]}, float f = {{3.0}}, float g = {{{factor}}}>"""
    parts = "p, q = Split<axis = 1, num_outputs = 2>({}) "
    source = (
        f"e = Sigmoid(x) a = Mul(e, s) {parts.format('a')} c = Exp(p) d = Exp(q) y = Concat<axis ="
        " 1>(c, d)"
    )
    result = f"e = Sigmoid(x) {parts.format('e')} a = Mul(p, f) b = Mul(q, g) c = Exp(a) d = Exp(b)"
    assert is_found(head, source, f"{result} y = Concat<axis = 1>(c, d)") is holds


@pytest.mark.parametrize(("bound", "holds"), [("0.0", True), ("-1.0", False)])
def test_clamps_are_in_a_row_across_views_that_cancel(bound: str, holds: bool) -> None:
    head = (
        f"{HEAD.format(scale='1, 1', shift='0, 0')[:-1]}, float a = {{-1.0}}, float b = {{1.0}},"
        f" float l = {{{bound}}}>"
    )
    source = "c = Clip(x, a, b) d = Transpose<perm = [0, 1, 2, 3]>(c) y = Relu(d)"
    assert is_found(head, source, "y = Clip(x, l, b)") is holds


@pytest.mark.parametrize(
    ("data", "shift", "holds"),
    [("z", "k", True), ("z", "t", False), ("e", "k", True), ("r", "k", False)],
)
def test_a_constant_is_an_affine_of_every_value(data: str, shift: str, holds: bool) -> None:
    head = HEAD.format(scale="0.0, 0.0", shift="2.0, 4.0")
    body = (
        "e = Sigmoid(z) r = ReduceMean<keepdims = 1>(z) m = Mul({}, s) a = Add(m, {}) y = Sub(e, a)"
    )
    assert is_found(head, body.format("x", "k"), body.format(data, shift)) is holds


CONSTANT = """(float[1, 2, 3] x, float[1, 1, 3] z) => (float[A, B, C] y) <float[1, 2, 1] w = {{{weight}, 0}},
    float n = {{{lower}}}, float u = {{1.5}}, float m = {{-1.5}}, float l = {{-0.5}}, float h = {{0.5}},
    float big = {{1e30}}, float zero = {{0}}, float one = {{1}}>"""


@pytest.mark.parametrize(
    ("weight", "lower", "result", "holds"),
    [
        ("0", 0.5, "c = Clip(a, n, u)", True),
        ("0", 0.5, "b = Mul(z, zero) c = Add(b, h)", True),
        ("0", 0.75, "c = Clip(a, n, u)", False),
        ("0", 0.5, "b = Mul(z, one) c = Add(b, h)", False),
        (
            "0",
            0.5,
            "b = Clip(a, big, big) e = Sub(b, big) c = Add(e, h)",
            False,
        ),  # float32 would lose the sum
        ("0", 0.5, "b = Mul(x, zero) c = Add(b, h)", False),  # of other extents
        ("0", 0.5, "d = Exp(z) b = Mul(d, zero) c = Add(b, h)", False),  # it may be infinite
        ("2", 0.5, "c = Clip(a, n, u)", False),
    ],
)
def test_a_constant_is_that_of_the_source(
    weight: str, lower: float, result: str, holds: bool
) -> None:
    head = CONSTANT.format(weight=weight, lower=lower)
    source = "a = Conv(x, w) b = Clip(a, m, l) y = Neg(b)"
    step = {"step": 1, "identity": "same constant", "at": "result", "operation": "c", "source": "y"}
    result = f"a = Conv(x, w) {result} y = Identity(c)"
    assert is_proved(f"{head} {{ {source} }}", f"{head} {{ {result} }}", step) is holds


LAYER = """(float[2, 2, 3] x) => (float[A, B, C] y) <float[2, 2, 1] k = {{{scale}}}, float[2, 1] f = {{2, 4}},
    float[2, 2, 1] s = {{2, 4, 0, 4}}, float[2, 2, 1] t = {{2, 4, {other}, 4}},
    float[1, 2, 1] w = {{3, 5}}, float[1, 2, 1] u = {{6, {last}}}>"""


@pytest.mark.parametrize(
    ("scale", "other", "last", "holds"),
    [
        ("1, 1, 0, 1", 7, 20, True),
        ("1, 1, 0, 1", 7, 21, False),
        ("1, 1, 1, 1", 7, 20, False),
    ],
)
def test_a_layer_reads_constant_parts_with_the_scale_of_their_channel(
    scale: str, other: int, last: int, holds: bool
) -> None:
    head = LAYER.format(scale=scale, other=other, last=last)
    source = "a = Mul(x, k) b = Mul(a, t) c = Conv(b, w) y = Relu(c)"
    assert is_found(head, source, "a = Mul(x, k) c = Conv(a, u) y = Relu(c)") is holds


FREE = """(float[1, 2, 3] x) => (float[A, B, C] y) <float[2, 1] scale = {{1, 0}}, float[2, 1] one = {{1, 1}},
    float[2, 1] k = {{1, 9}}, float[1, 2, 1] w = {{3, 3}}, float[1, 2, 1] u = {{3, {weight}}}, float[1] b = {{1}},
    float[1] c = {{{bias}}}>"""


@pytest.mark.parametrize(
    ("weight", "bias", "holds"),
    [(27, 1, True), (5, 23, True), (5, 24, False), (2**24, 28 - 2**24, False)],
)
def test_weights_of_constant_data_are_free_as_far_as_the_source_has_such(
    weight: int, bias: int, holds: bool
) -> None:
    head = FREE.format(weight=weight, bias=bias)
    data = "a = Mul(x, scale) d = Add(a, one)"
    source, result = "e = Mul(d, k) f = Conv(e, w, b) y = Relu(f)", "f = Conv(d, u, c) y = Relu(f)"
    assert is_found(head, f"{data} {source}", f"{data} {result}") is holds


@pytest.mark.parametrize(("scale", "shift", "holds"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_a_layer_of_zeros_gives_its_bias(scale: int, shift: int, holds: bool) -> None:
    head = f"""(float[1, 2, 3] x) => (float[A, B, C] y) <float scale = {{{scale}}}, float shift = {{{shift}}},
        float[1, 2, 1] w = {{3, 4}}, float[1, 2, 1] u = {{5, 6}}, float[1] b = {{-1}}>"""
    body = (
        "a = Mul(x, scale) c = Add(a, shift) d = MaxPool<kernel_shape = [1]>(c) e = Conv<pads = [1,"
        " 1]>(d, {}, b)"
    )
    assert (
        is_found(head, f"{body.format('w')} y = Sigmoid(e)", f"{body.format('u')} y = Sigmoid(e)")
        is holds
    )


CLAMPED = """(float[1, 2, 3] x) => (float[A, B, C] y) <float[2, 1] k = {{{scale}, 1}}, float two = {{2}},
    float low = {{-3}}, float high = {{-1}}, float l = {{{lower}}}, float h = {{-2}},
    float[1, 2, 1] w = {{3, 5}}>"""


@pytest.mark.parametrize(
    ("scale", "lower", "holds"), [(0, -6, True), (0, -5, False), (1, -6, True)]
)
def test_a_clamp_of_constant_channels_takes_the_scale_of_the_others(
    scale: int, lower: int, holds: bool
) -> None:
    head = CLAMPED.format(scale=scale, lower=lower)
    source = (
        "a = Mul(x, k) p = MaxPool<kernel_shape = [1]>(a) b = Clip(p, low, high) c = Mul(b, two) y"
        " = Conv(c, w)"
    )
    result = (
        "a = Mul(x, k) d = Mul(a, two) p = MaxPool<kernel_shape = [1]>(d) c = Clip(p, l, h) y ="
        " Conv(c, w)"
    )
    assert is_found(head, source, result) is holds


BORDERED = """(float[1, 2, 3] x) => (float[A, B, C] y) <int64[6] p = {{0, 0, 1, 0, 0, 1}}, float v = {{{value}}},
    float t = {{3}}, float u = {{5}}, int64[1] first = {{{first}}}, int64[1] end = {{5}}, int64[1] axis = {{2}}>"""


@pytest.mark.parametrize(
    ("value", "mode", "first", "holds"),
    [
        ("0", "constant", 4, True),
        ("1", "constant", 4, False),
        ("0", "edge", 4, False),
        ("0", "constant", 3, False),
    ],
)
def test_the_border_of_a_pad_is_constant(value: str, mode: str, first: int, holds: bool) -> None:
    head = BORDERED.format(value=value, first=first)
    body = (
        f'a = Pad<mode = "{mode}">(x, p, v) b = Slice(a, first, end, axis) d = Mul(b, {{}}) y ='
        " Sigmoid(d)"
    )
    assert is_found(head, body.format("t"), body.format("u")) is holds
