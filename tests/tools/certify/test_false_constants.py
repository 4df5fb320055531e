"""Pairs of models whose constants, or constant channels, differ, and that a checker without some
condition accepts.
"""

from __future__ import annotations

import base64
import math

import numpy as np
import pytest

from .pairs import is_proved


def _numbers(*numbers: float) -> str:
    return base64.b64encode(np.array(numbers, "<f8").tobytes()).decode()


def _steps(*steps: tuple[str, str, str, list[dict[str, object]]]) -> list[dict[str, object]]:
    return [
        {
            "step": i,
            "identity": identity,
            "at": "result",
            "operation": operation,
            "source": source,
            "applies": applies,
        }
        for i, (identity, operation, source, applies) in enumerate(steps, 1)
    ]


COUNTED = """(float[3] x) => (float[3] y) <float zero = {{0}}, float end = {{{end}}},
    float step = {{{step}}}, float[3] a = {{1, 5, 9}}, float low = {{2}}, float[3] k = {{{k}}}>
    {{ {body} }}"""


@pytest.mark.parametrize(
    ("operator", "end", "step", "k", "holds"),
    [
        ("Range(zero, end, step)", 3, 1, "0, 1, 2", True),
        ("Range(zero, end, step)", 5, 2, "0, 2, 4", True),
        ("Range(zero, end, step)", 3, 1, "0, 1, 3", False),
        ("Range(zero, end, step)", 1.5, 0.5, "0, 0.5, 1", False),  # runtimes may count otherwise
        ("Range(zero, end, step)", 3e7, 1e7, "0, 1e7, 2e7", False),
        ("Clip(a, low)", 0, 1, "2, 5, 9", True),
        ("Clip(a, , low)", 0, 1, "1, 2, 2", True),
        ("Clip(a, , low)", 0, 1, "2, 5, 9", False),
    ],
)
def test_floats_are_counted_and_clipped(
    operator: str, end: float, step: float, k: str, holds: bool
) -> None:
    bodies = f"c = {operator}  y = Mul(x, c)", "y = Mul(x, k)"
    pair = (COUNTED.format(end=end, step=step, k=k, body=body) for body in bodies)
    constant = {"step": 1, "identity": "constant", "at": "source", "operation": "c"}
    assert is_proved(*pair, constant) is holds


COMPUTED = """(float[2, 2] x) => (float[2, 2] y) <{kind}[2, 2] a = {{1, 2, 2, 4}},
    {kind}[1, 2] b = {{2, 3}}, int64[1] axes = {{1}}, int64[2] s = {{1, 2}}, float[1, 2] k = {{{k}}}>
    {{ {body} }}"""


@pytest.mark.parametrize(
    ("operator", "numbers"),
    [
        ("MatMul(b, a)", (8.0, 16.0)),
        ("ReduceL1(a, axes)", (3.0, 6.0)),
        ("ReduceL2(a, axes)", (5.0**0.5, 20.0**0.5)),
        ("ReduceMean(a, axes)", (1.5, 3.0)),
        ('Einsum<equation = "ij,kj->i">(a, b)', (8.0, 16.0)),
        ("Sin(b)", (math.sin(2), math.sin(3))),
        ("Cos(b)", (math.cos(2), math.cos(3))),
    ],
)
@pytest.mark.parametrize("ulps", [0, 1])
def test_sums_of_constants_are_rounded_once(
    operator: str, numbers: tuple[float, float], ulps: int
) -> None:
    exact = np.array(numbers, np.float32)
    exact[1] += ulps * np.spacing(exact[1])
    k = ", ".join(repr(float(each)) for each in exact)
    body = f"r = {operator}  c = Reshape(r, s)  y = Mul(x, c)"
    pair = (COMPUTED.format(kind="float", k=k, body=each) for each in (body, "y = Mul(x, k)"))
    steps = [
        {"step": i, "identity": "constant", "at": "source", "operation": each}
        for i, each in enumerate("rc", 1)
    ]
    assert is_proved(*pair, *steps) is (ulps == 0)


NORM_OF_CONSTANT = """(float[2, 2, 2] x) => (float[2, 2, 2] y) <float[2, 2, 2] w = {{1, 3, 2, 10, 5, 7, 4, 0}},
    float[2] g = {{1, 2}}, float[2] b = {{0.5, -1}}, float[2] v = {{4, 1}}, float[2, 2, 2] k = {{{k}}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("operator", "mean", "variance"),
    [
        ("c = BatchNormalization<epsilon = 0.0>(w, g, b, b, v)", (0.5, -1), (4, 1)),
        (
            "c, m, n = BatchNormalization<epsilon = 0.0, training_mode = 1>(w, g, b, b, v)",
            (4, 4),
            (5, 14),
        ),
    ],
)
@pytest.mark.parametrize("ulps", [0, 1])
def test_normalizations_of_constants_are_rounded_once(
    operator: str, mean: tuple[float, float], variance: tuple[float, float], ulps: int
) -> None:
    w = np.array((1, 3, 2, 10, 5, 7, 4, 0), np.float64).reshape(2, 2, 2)
    view = [np.reshape(each, (2, 1)) for each in (mean, variance, (1, 2), (0.5, -1))]
    exact = ((w - view[0]) / np.sqrt(view[1]) * view[2] + view[3]).astype(np.float32)
    exact[1, 1, 1] += ulps * np.spacing(exact[1, 1, 1])
    k = ", ".join(repr(float(each)) for each in exact.flat)
    bodies = (f"{operator}  y = Mul(x, c)", "y = Mul(x, k)")
    pair = (NORM_OF_CONSTANT.format(k=k, body=each) for each in bodies)
    step = {"step": 1, "identity": "constant", "at": "source", "operation": "c"}
    assert is_proved(*pair, step) is (ulps == 0)


def test_the_statistics_of_a_constant_are_not_each_other() -> None:
    body = "c, m, n = BatchNormalization<training_mode = 1>(w, g, b, b, v)  y = Mul(x, {})"
    pair = (
        NORM_OF_CONSTANT.format(k="0, 0, 0, 0, 0, 0, 0, 0", body=body.format(each)) for each in "mn"
    )
    step = {"step": 1, "identity": "constant", "at": "source", "operation": "c"}
    assert not is_proved(*pair, step)


@pytest.mark.parametrize("operator", ["MatMul(b, a)", "ReduceMean(a, axes)"])
def test_sums_of_integers_that_types_may_wrap_are_not_computed(operator: str) -> None:
    body = f"r = {operator}  c = Cast<to = 1>(r)  y = Mul(x, c)"
    source = COMPUTED.format(kind="int32", k="0, 0", body=body)
    step = {"step": 1, "identity": "constant", "at": "source", "operation": "r"}
    assert not is_proved(source, source, step)


CHANNEL = """(float[2, 2] x) => (float[2, 2] y) <float[1, 2] z = {{0, 1}}, float[1, 2] o = {{1, 0}}, float two = {{2}},
    float half = {{0.5}}, float[1, 2] p = {{{p}, 0}}, float[1, 2] q = {{{q}, 0}}, float[1, 2] r = {{{r}, 0}},
    float far = {{1e15}}> {{ m = Mul(x, z)  a = Add(m, o)  i = Add(x, far)  s = Sigmoid(i)  {body} }}"""


def _channel(body: str, p: float = 0, q: float = 0, r: float = 0) -> str:
    return CHANNEL.format(body=body, p=p, q=q, r=r)


@pytest.mark.parametrize(("far", "holds"), [(1024.0, True), (2.0**40, False)])
def test_a_constant_channel_is_not_lost_beside_a_great_constant(far: float, holds: bool) -> None:
    source = _channel("l = LeakyRelu(a)  y = Add(l, s)")
    body = (
        "u = Add(a, p)  v = Sub(u, p)  d = Mul(v, two)  e = LeakyRelu(d)  l = Mul(e, half)  y ="
        " Add(l, s)"
    )
    assert is_proved(source, _channel(body, p=far), *_steps(("crosses", "e", "l", []))) is holds


@pytest.mark.parametrize(
    ("far", "near", "holds"), [(20000.0, 10000.0, True), (5e8, 25000.0, False)]
)
def test_a_constant_channel_is_not_lost_in_a_row_of_shifts(
    far: float, near: float, holds: bool
) -> None:
    body = "u = Add(a, p)  v = Sub(u, q)  w = Sub(v, r)  y = Relu(w)"
    shifts = [[{"shift": _numbers(shift, 0)}] for shift in (far, near)]
    steps = _steps(
        *(
            ("rounded affine", name, "a", shift)
            for name, shift in zip("uvw", [*shifts, []], strict=True)
        )
    )
    assert (
        is_proved(_channel("y = Relu(a)"), _channel(body, far, far - near, near), *steps) is holds
    )


NORMALIZED = """(float[2, 2] x) => (float[2, 2] y) <float t = {{{shift}}}, float three = {{3}},
    float[1, 2] z = {{0, 1}}, float[1, 2] o = {{60, 0}}, float[2] g = {{{gamma}, 1}}, float[2] b = {{{beta}}},
    float[2] n = {{{mean}}}, float[2] v = {{1, 1}}, float far = {{{far}}}> {{
    {body}  i = Add(x, far)  s = Sigmoid(i)  y = Add(r, s) }}"""
NORMALIZATION = "BatchNormalization<epsilon = 0.0>({}, g, b, n, v)"


@pytest.mark.parametrize(
    ("mean", "shift", "far", "holds"),
    [(100.0, 30000.0, 0.0, True), (2.0**29, 30000.0, 0.0, False), (2.0**29, 30000.0, 1e6, True)],
)
def test_data_are_not_lost_in_means_far_beyond_the_shifts(
    mean: float, shift: float, far: float, holds: bool
) -> None:
    beta = mean + shift
    given = {
        "shift": shift,
        "gamma": 1,
        "beta": f"{beta}, {beta}",
        "mean": f"{mean}, {mean}",
        "far": far,
    }
    result = f"u = {NORMALIZATION.format('x')}  w = Sub(u, t)  r = Relu(w)"
    pair = [NORMALIZED.format(body=each, **given) for each in ("r = Relu(x)", result)]
    steps = _steps(
        ("rounded affine", "u", "x", [{"shift": shift}]), ("rounded affine", "w", "x", [])
    )
    assert is_proved(*pair, *steps) is holds


@pytest.mark.parametrize(
    ("mean", "shift", "holds"), [(1000.0, 20000.0, True), (2.0**31, 40000.0, False)]
)
def test_data_are_not_lost_in_means_far_beyond_sums(mean: float, shift: float, holds: bool) -> None:
    given = {
        "shift": shift,
        "gamma": 1,
        "beta": f"{mean + 3}, {mean + 3}",
        "mean": f"{mean}, {mean}",
        "far": 1e15,
    }
    result = f"p = Add(x, t)  q = Sub(p, t)  u = {NORMALIZATION.format('q')}  r = Relu(u)"
    pair = [
        NORMALIZED.format(body=each, **given) for each in ("u = Add(x, three)  r = Relu(u)", result)
    ]
    assert is_proved(*pair, *_steps(("rounded affine", "u", "u", []))) is holds


@pytest.mark.parametrize(("gamma", "mean", "holds"), [(2.0, 1.0, True), (65536.0, 2.0**15, False)])
def test_a_constant_channel_is_not_lost_in_a_mean(gamma: float, mean: float, holds: bool) -> None:
    beta = np.float32(mean * gamma + 60 - 60 * gamma)
    given = {"shift": 0, "gamma": gamma, "beta": f"{beta}, 0", "mean": f"{mean}, 0", "far": 1e15}
    head = "m = Mul(x, z)  a = Add(m, o)  "
    body = f"{head} u = {NORMALIZATION.format('a')}  r = Relu(u)"
    pair = [NORMALIZED.format(body=each, **given) for each in (f"{head} r = Relu(a)", body)]
    assert is_proved(*pair, *_steps(("rounded affine", "u", "a", []))) is holds


@pytest.mark.parametrize(("value", "holds"), [(10.0, True), (1e6, False)])
def test_free_weights_of_constant_data_drown_no_other(value: float, holds: bool) -> None:
    text = f"""(float[1, 3, 2] x) => (float[1, 1, 2] y) <float[1, 3, 1] m = {{1, 0, 0}},
        float[1, 3, 1] c = {{0, {value}, {value}}}, float[1, 3, 1] w = {{1, 0, 0}},
        float[1, 3, 1] u = {{1, 500, -500}}> {{
        p = Mul(x, m)  q = Add(p, c)  y = Conv(q, w) }}"""
    assert (
        is_proved(text, text.replace("Conv(q, w)", "Conv(q, u)"), *_steps(("layer", "y", "y", [])))
        is holds
    )


TINY = """(double[2, 1] x, double[2, 1] w, uint8[2, 1] q) => (double[2, 1] y) <double t = {1e-200}, double g = {1e200},
    double z = {0}, double[1] s = {1e-200}, double[1] n = {0}, double[1] v = {1e-300}, double[1, 1] k = {1e-200},
    double[1, 1] l = {0}> { """
SCALED = ("layer", "p", "p", [{"of": "c"}])


@pytest.mark.parametrize(
    ("source", "result", "step"),
    [
        (
            "a = Mul(x, t)  b = Mul(a, t)  c = Mul(b, g)  y = Relu(c)",
            "a = Mul(x, z)  y = Relu(a)",
            None,
        ),
        (
            "a = Mul(x, g)  b = Abs(a)  y = Mul(b, z)",
            "a = Mul(x, t)  y = Abs(a)",
            ("crosses", "y", "b", []),
        ),
        (
            "a = Mul(x, w)  b = Mul(a, g)  y = Mul(b, z)",
            "a = Mul(x, t)  b = Mul(w, t)  y = Mul(a, b)",
            ("crosses", "y", "a", []),
        ),
        (
            "p = Mul(x, t)  y = Abs(p)",
            "p = BatchNormalization<epsilon = 0.0>(x, n, n, n, v)  y = Abs(p)",
            ("rounded affine", "p", "p", []),
        ),
        ("p = MatMul(x, k)  c = Mul(p, t)  y = Abs(c)", "p = MatMul(x, l)  y = Abs(p)", SCALED),
        (
            "a = Mul(x, t)  p = MatMul(a, k)  y = Abs(p)",
            "p = MatMul(x, l)  y = Abs(p)",
            ("layer", "p", "p", []),
        ),
        ("p = Gemm(x, k)  c = Mul(p, t)  y = Abs(c)", "p = Gemm(x, l)  y = Abs(p)", SCALED),
        (
            "p = LayerNormalization(x, s, n)  c = Mul(p, t)  y = Abs(c)",
            "p = LayerNormalization(x, n, n)  y = Abs(p)",
            SCALED,
        ),
        (
            "p = DequantizeLinear(q, t)  c = Mul(p, t)  y = Abs(c)",
            "p = DequantizeLinear(q, z)  y = Abs(p)",
            SCALED,
        ),
    ],
)
def test_a_scale_too_small_for_float64_is_not_zero(
    source: str, result: str, step: tuple[str, str, str, list[dict[str, object]]] | None
) -> None:
    steps = [] if step is None else _steps(step)
    pair = [f"{TINY}{body} }}" for body in (source, result)]
    assert not is_proved(*pair, *steps, opset=21)
    zeros = [text.replace("1e-200", "0") for text in pair]
    assert is_proved(*zeros, *steps, opset=21) is (
        "Dequantize" not in source
    )  # which takes no scale of zero


@pytest.mark.parametrize(
    "body", ["a = Mul(x, z)  y = Gemm<alpha = {}>(a, w, c)", "y = Gemm<alpha = {}>(x, v, c)"]
)
@pytest.mark.parametrize(("alpha", "holds"), [("2.0", True), ("inf", False)])
def test_a_layer_of_zeros_times_infinity_is_no_bias(body: str, alpha: str, holds: bool) -> None:
    head = """(float[2, 2] x) => (float[2, 2] y) <float z = {0}, float[2, 2] w = {1, 2, 3, 4},
        float[2, 2] v = {0, 0, 0, 0}, float[2] c = {5, 6}> {"""
    pair = [f"{head} {body.format(number)} }}" for number in ("1.0", alpha)]
    assert is_proved(*pair, *_steps(("same constant", "y", "y", []))) is holds


@pytest.mark.parametrize(("kind", "holds"), [("Mul", True), ("Div", False)])
def test_a_quotient_of_zeros_is_no_constant(kind: str, holds: bool) -> None:
    text = """(float[2] x, float[2] z, float[2] v) => (float[2] y) <float o = {{0}}> {{
        k = Mul(x, o)  w = {}({}, v)  y = Add(z, {}) }}"""
    steps = _steps(("crosses", "w", "w", []), ("crosses", "y", "y", []))
    assert is_proved(text.format(kind, "x", "k"), text.format(kind, "k", "w"), *steps) is holds


DECLARED = """<ir_version: 8, opset_import: ["": 18]> g (float[N] x, bool c) => (int64[M] y) <{}> {{
    v = Relu(x)  y = If(c) <then_branch = t () => ({} a) <{}> {{ b = Abs(v)  a = Shape(b) }},
    else_branch = e () => (int64[M] d) {{ d = Shape(v) }}> }}"""


@pytest.mark.parametrize(
    ("source", "result", "holds"),
    [
        (("", "int64[1]", ""), ("", "int64[1]", ""), True),
        (("", "int64[1]", ""), ("float[N] v", "int64[1]", "float[N] b"), True),
        (("", "int64[1]", ""), ("float[5] v", "int64[1]", ""), False),
        (("float[5] v", "int64[1]", ""), ("float[5] v", "int64[1]", ""), True),
        (("", "int64[1]", ""), ("", "int64[1]", "float[5] b"), False),
        (("", "int64[1]", ""), ("", "int64[2]", ""), False),
    ],
)
def test_a_result_declares_no_extents_that_do_not_follow(
    source: tuple[str, ...], result: tuple[str, ...], holds: bool
) -> None:
    assert is_proved(DECLARED.format(*source), DECLARED.format(*result)) is holds


@pytest.mark.parametrize(("extent", "holds"), [("N", True), ("5", False)])
@pytest.mark.parametrize(
    "body",
    [
        """w = If(c) <then_branch = t () => (float[{}] a) {{ a = Abs(x) }}, else_branch = e () => (float[{}] d) {{
            d = Relu(x) }}>  y = Shape(w)""",
        """w, y = Loop(n, c, x, o) <body = b (int64 i, bool k, float[{}] a, int64[1] z) => (bool l, float[N] d,
            int64[1] s) {{ l = Identity(k)  d = Relu(a)  s = Shape(a) }}>""",
    ],
)
def test_bodies_of_a_result_declare_no_extents_that_do_not_follow(
    body: str, extent: str, holds: bool
) -> None:
    head = "(float[N] x, bool c, int64 n) => (int64[M] y) <int64[1] o = {0}> {"
    assert is_proved(*(f"{head} {body.format(each, each)} }}" for each in ("N", extent))) is holds


@pytest.mark.parametrize(
    ("tile", "opset", "holds"),
    [("Tile(c, n)", 6, True), ("Tile(c, n)", 13, True), ("Tile(c, k, a)", 5, False)],
)
def test_the_first_tile_repeats_an_axis(tile: str, opset: int, holds: bool) -> None:
    text = """(float[P, Q] x) => (float[P, R] y) <float[2, 2] c = {{1, 2, 3, 4}}, int64[2] n = {{1, 2}},
        float[1] k = {{2}}, float[1] a = {{0}}, float[2, 4] t = {{1, 2, 1, 2, 3, 4, 3, 4}}> {{ {} }}"""
    pair = text.format(f"t1 = {tile}  y = MatMul(x, t1)"), text.format("y = MatMul(x, t)")
    step = {"step": 1, "identity": "constant", "at": "source", "operation": "t1"}
    assert is_proved(*pair, step, opset=opset) is holds


CALLED = """<ir_version: 9, opset_import: ["": 18, "c": 1]> g (float[2] x) => (float[2] y) {{ {call} }}
    <domain: "c", opset_import: ["": 18]> f <slope: float = 0.5> (a) => (b) {{
        b = LeakyRelu<alpha: float = @slope>(a) }}
    <domain: "c", opset_import: ["": 18, "c": 1]> h <{outer}> (a) => (b) {{ b = c.f{passed}(a) }}"""


@pytest.mark.parametrize(
    ("call", "outer", "passed", "slopes"),
    [
        ("y = c.f(x)", "other", "", [0.5]),
        ("y = c.f<slope = 0.25>(x)", "other", "", [0.25]),
        ("y = c.h(x)", "other", "", [0.5]),
        ("y = c.h<other = 0.25>(x)", "other", "<slope: float = @other>", []),
        ("y = c.h(x)", "other", "<slope: float = @other>", []),
        ("y = c.h(x)", "other: float = 0.75", "<slope: float = @other>", [0.75]),
    ],
)
def test_functions_have_the_defaults_of_their_attributes(
    call: str, outer: str, passed: str, slopes: list[float]
) -> None:
    result = CALLED.format(call=call, outer=outer, passed=passed)
    text = (
        '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) {{ y ='
        " LeakyRelu<alpha = {}>(x) }}"
    )
    assert [
        each for each in (0.01, 0.25, 0.5, 0.75) if is_proved(text.format(each), result)
    ] == slopes


DRAWN = """(float[{extent}] a, float[3] b, float[1, 1, 10, 10] x) => (int64[M] y) <
    float[4] s = {{1, 1, {scale}, {scale}}}, int64[1] one = {{1}}, int64[1] three = {{3}},
    int64[4] e = {{1, 1, 12, 12}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "extent", "scale", "constant", "holds"),
    [
        ("u = Add(a, b)  y = Shape(u)", 1, 1.25, "three", True),
        ('u = Einsum<equation = "i,i->i">(a, b)  y = Shape(u)', 3, 1.25, "three", True),
        ('u = Einsum<equation = "i,i->i">(a, b)  y = Shape(u)', 1, 1.25, "one", False),
        ("u = PRelu(b, a)  y = Shape(u)", 1, 1.25, "three", True),
        ("u = PRelu(a, b)  y = Shape(u)", 1, 1.25, "one", False),
        ("u = Resize(x, , s)  y = Shape(u)", 1, 1.25, "e", True),
        ("u = Resize(x, , s)  y = Shape(u)", 1, 1.3, "e", False),
    ],
)
def test_extents_that_runtimes_compute_otherwise_are_unknown(
    body: str, extent: int, scale: float, constant: str, holds: bool
) -> None:
    texts = (
        DRAWN.format(body=each, extent=extent, scale=scale)
        for each in (body, f"y = Identity({constant})")
    )
    assert is_proved(*texts) is holds


@pytest.mark.parametrize(("end", "holds"), [(-9, True), (9223372036854775807, False)])
def test_a_slice_backward_ends_within_the_data(end: int, holds: bool) -> None:
    text = f"""(float[3] x) => (float[N] y) <float[3] c = {{{{1, 2, 3}}}}, int64[1] s = {{{{-1}}}},
        int64[1] e = {{{{{end}}}}}, int64[1] a = {{{{0}}}}, float z = {{{{{6 if end < 0 else 0}}}}}> {{{{
        u = Slice(c, s, e, a, s)  {{}} }}}}"""
    pair = [
        text.format(body)
        for body in ("t = ReduceSum<keepdims = 0>(u)  y = Add(x, t)", "y = Add(x, z)")
    ]
    steps = [
        {"step": i, "identity": "constant", "at": "source", "operation": name}
        for i, name in enumerate("ut", 1)
    ]
    assert is_proved(*pair, *steps) is holds


@pytest.mark.parametrize(
    ("outer", "holds"), [("", False), ("b = Transpose<perm = [2, 0, 1]>(x)", True)]
)
def test_an_operator_in_a_branch_says_nothing_of_values_outside(outer: str, holds: bool) -> None:
    head, rest = (
        "(float[] x, bool c) => (int64[M] y, float[] z) <int64[1] k = {3}> {",
        f"""{outer}
        z = If(c) <then_branch = t () => (float[] a) {{ a = Transpose<perm = [0, 2, 1]>(x) }},
        else_branch = e () => (float[] d) {{ d = Relu(x) }}> }}""",
    )
    assert (
        is_proved(f"{head} u = Shape(x)  y = Shape(u)  {rest}", f"{head} y = Identity(k)  {rest}")
        is holds
    )


@pytest.mark.parametrize(
    ("data", "leaf", "holds"), [("b", "r", True), ("r", "r", False), ("r", "w", False)]
)
def test_elements_of_two_values_are_told_apart(data: str, leaf: str, holds: bool) -> None:
    text = """(float[2, 3] x, float[2, 3] b) => (float[3, 2] y) <bool c = {{1}}> {{
        w = If(c) <then_branch = t () => (float[] a) {{ a = Relu(x) }},
        else_branch = e () => (float[] d) {{ d = ReduceSum<keepdims = 0>(x) }}>  v = Abs(w)  r = Relu(x)
        u = Transpose<perm = [1, 0]>({})  y = Identity(u) }}"""
    steps = [
        {**_steps(("same elements", "u", "u", []))[0], "step": 1, "from": [leaf, "b"]},
    ]
    assert is_proved(text.format("b"), text.format(data), *steps) is holds


@pytest.mark.parametrize(
    ("kind", "far", "holds"),
    [("float", 1e38, True), ("float", 3e38, False), ("double", 3e38, True)],
)
@pytest.mark.parametrize("scale", [0, 1])
def test_sums_that_overflow_whatever_the_data_are_are_refused(
    kind: str, far: float, scale: int, holds: bool
) -> None:
    head = (
        f"({kind}[2] x) => ({kind}[2] y) <{kind} s = {{{scale}}}, {kind} c = {{{far}}}> {{ m ="
        " Mul(x, s)  a = Add(m, c)"
    )
    assert (
        is_proved(
            f"{head}  y = Relu(a) }}", f"{head}  b = Add(a, c)  d = Sub(b, c)  y = Relu(d) }}"
        )
        is holds
    )
