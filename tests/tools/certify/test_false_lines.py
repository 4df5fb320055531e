"""Pairs of models whose affines differ, and that a checker without some condition would take for
equal.
"""

from __future__ import annotations

import base64

import numpy as np
import pytest

from .pairs import is_proved


def _numbers(*numbers: float) -> str:
    return base64.b64encode(np.array(numbers, "<f8").tobytes()).decode()


def _step(identity: str, operation: str, source: str, **rest: object) -> dict[str, object]:
    return {"identity": identity, "at": "result", "operation": operation, "source": source, **rest}


@pytest.mark.parametrize(
    ("scale", "holds"), [(7.0, True), (_numbers(7.0), True), ("", False), (5.0, False)]
)
def test_an_affine_has_numbers(scale: float | str, holds: bool) -> None:
    text = (
        "(float[N] x) => (float[N] y, float[N] z) <float a = {7}> { y = Mul(x, a)  z ="
        " Identity(y) }"
    )
    step = _step("rounded affine", "y", "x", step=1, axis=0, applies=[{"scale": scale}])
    assert is_proved(text, text, step) is holds
    identity = text.replace("Mul(x, a)", "Identity(x)")
    assert not is_proved(identity, text, step)


NORMALIZED = """(float[2, 1] x) => (float[P, Q] y) <float[1] g = {{1}}, float[1] b = {{0}}, float k = {{1}}> {{
    y{further} = {body} }}"""


@pytest.mark.parametrize(
    ("further", "holds"), [("", True), (', "m#1", "n#2", "o#3", "p#4"', False)]
)
def test_an_old_normalization_with_further_results_is_in_training(
    further: str, holds: bool
) -> None:
    source = NORMALIZED.format(
        further=further, body="BatchNormalization<epsilon = 0.0>(x, g, b, b, g)"
    )
    assert is_proved(source, NORMALIZED.format(further="", body="Mul(x, k)"), opset=9) is holds


PADDED = """(float[2] x) => (float[M] y) <float[2] f = {{0.1, 1.2}}, float five = {{5}},
    float value = {{{value}}}, float two = {{2}}, float half = {{0.5}}> {{
    g = Mul(f, f)  pads = Cast<to = 7>(g)  {body} }}"""


@pytest.mark.parametrize(
    ("value", "scales", "holds"),
    [(10, (2, 2, 2), True), (14, (2, 2), False), (14, (2, 2, 2), False)],
)
def test_an_affine_of_a_padded_axis_has_all_its_numbers(
    value: int, scales: tuple[int, ...], holds: bool
) -> None:
    source = PADDED.format(value=value, body="p = Pad(x, pads, five)  y = Identity(p)")
    result = PADDED.format(
        value=value, body="u = Mul(x, two)  p = Pad(u, pads, value)  y = Mul(p, half)"
    )
    computed = [
        {"identity": "constant", "at": at, "operation": name, "rounded": True}
        for at in ("source", "result")
        for name in ("g", "pads")
    ]
    steps = [*computed, _step("crosses", "p", "p", axis=0, applies=[{"scale": _numbers(*scales)}])]
    assert (
        is_proved(source, result, *({"step": i, **step} for i, step in enumerate(steps, 1)))
        is holds
    )


@pytest.mark.parametrize(
    ("pads", "holds"),
    [
        ('auto_pad = "VALID", pads = [1, 0]', False),
        ('auto_pad = "VALID"', True),
        ("pads = [0, 0]", True),
    ],
)
def test_pads_beside_automatic_ones_are_none(pads: str, holds: bool) -> None:
    extent = 4 if holds else 5
    attributes = "kernel_shape = [2], strides = [2], ceil_mode = {mode}, {pads}"
    text = "(float[1, 1, {n}] x) => (float[A, B, C] y) {{ y = MaxPool<" + attributes + ">(x) }}"
    pair = (text.format(n=extent, mode=mode, pads=pads) for mode in (1, 0))
    assert is_proved(*pair, _step("same windows", "y", "y", step=1)) is holds


FAR = """(float[3] x) => (float[3] y{further}) <float k = {{7.888609052210118e-31}}, float o = {{1.0}},
    float t = {{32.0}}, float i = {{1267650600228229401496703205376.0}}, float u = {{0.03125}}, bool s = {{1}}> {{
    {body} }}"""
"""Here k is 2^-100, i 2^100, t 2^5 and u 2^-5."""

BRANCHES = """y = If(s)<then_branch = f () => (float[3] w) {{
    a = Mul(x, {0})  c = Mul(a, {0})  d = Mul(c, {1})  w = Mul(d, {1}) }},
    else_branch = g () => (float[3] v) {{ v = Identity(x) }}>"""


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        ("a = Mul(x, u)  b = Add(a, o)  c = Sub(b, o)  y = Mul(c, t)", True),
        ("a = Mul(x, k)  b = Add(a, o)  c = Sub(b, o)  y = Mul(c, i)", False),
        ("a = Mul(x, k)  b = Mul(a, k)  c = Mul(b, i)  y = Mul(c, i)", False),
        ("a = Mul(x, i)  b = Mul(a, i)  c = Mul(b, k)  y = Mul(c, k)", False),
        ("a = Add(x, i)  y = Sub(a, i)", False),
        (BRANCHES.format("t", "u"), True),
        (BRANCHES.format("k", "i"), False),
    ],
)
def test_no_affine_in_between_is_far_from_the_source(body: str, holds: bool) -> None:
    for further, unused in (
        ("", ""),
        ("", "z = Add(x, i)  r = Relu(z)"),
        (", float[3] z", "z = Add(x, i)"),
    ):
        pair = [
            FAR.format(further=further, body=f"{unused}  {each}")
            for each in ("y = Identity(x)", body)
        ]
        assert is_proved(*pair) is holds


@pytest.mark.parametrize(
    ("kind", "number", "holds"),
    [("float16", 21376, True), ("float16", 30547, False), ("float", 3e4, True)],
)
def test_narrow_types_have_less_room(kind: str, number: float, holds: bool) -> None:
    """The bits 21376 and 30547 are 60 and 30,000 in float16."""
    text = f"({kind}[3] x) => ({kind}[3] y) <{kind} a = {{{number}}}> {{"
    assert (
        is_proved(f"{text} y = Identity(x) }}", f"{text} b = Add(x, a)  y = Sub(b, a) }}") is holds
    )


@pytest.mark.parametrize(("number", "holds"), [("o", True), ("i", False)])
def test_lost_data_stay_lost_behind_another_operator(number: str, holds: bool) -> None:
    body = f"a = Add(x, {number})  b = Sub(a, {number})  c = Mul(b, t)  d = Abs(c)  y = Mul(d, u)"
    pair = [FAR.format(further="", body=each) for each in ("y = Abs(x)", body)]
    assert is_proved(*pair, _step("crosses", "d", "y", step=1)) is holds


@pytest.mark.parametrize(("kind", "holds"), [("Mul", True), ("Div", False)])
def test_zero_by_data_is_no_constant(kind: str, holds: bool) -> None:
    text = (
        "(float[3] x) => (float[3] y) <float z = {{0}}> {{ u = Mul(x, z)  {body}  y = Add(q, x) }}"
    )
    pair = [text.format(body=each) for each in (f"q = {kind}(u, x)", "q = Identity(u)")]
    assert is_proved(*pair, _step("crosses", "y", "y", step=1)) is holds


@pytest.mark.parametrize(("kind", "identity"), [("Max", "crosses"), ("Clip", "same bounds")])
@pytest.mark.parametrize(("number", "holds"), [("1e-34", True), ("1e-37", False)])
def test_constants_keep_their_digits(kind: str, identity: str, number: str, holds: bool) -> None:
    scaled = float(np.float32(number) * np.float32(2.0**-8))
    head = (
        f"(float[3] x) => (float[3] y) <float c = {{{number}}}, float d = {{{scaled!r}}}, float k ="
        f" {{{2.0**-8}}}, "
    )
    head += f"float i = {{{2.0**8}}}, float o = {{1}}> {{"
    source, result = f"m = {kind}(x, c)", f"u = Mul(x, k)  v = {kind}(u, d)  m = Mul(v, i)"
    pair = [f"{head} {each}  y = Div(o, m) }}" for each in (source, result)]
    assert is_proved(*pair, _step(identity, "v", "m", step=1)) is holds


ORDERED = """(float[1, 1, 3] x) => (float[1, 1, M] y) <float k = {{2}}, float h = {{0.5}}> {{
    {before}  v = {kind}<{order}>({data})  {after} }}"""


@pytest.mark.parametrize("kind", ["LpPool", "GlobalLpPool"])
@pytest.mark.parametrize(
    ("order", "holds"), [(1, True), (2, True), (3, True), (-1, True), (0, False), (64, False)]
)
def test_a_norm_knows_scales_by_its_order(kind: str, order: int, holds: bool) -> None:
    """Of order zero each number that is not zero counts as one; of order 64 numbers beyond 4
    overflow.
    """
    given = {
        "kind": kind,
        "order": f"p = {order}" + (", kernel_shape = [1]" if kind == "LpPool" else ""),
    }
    source = ORDERED.format(before="", data="x", after="y = Identity(v)", **given)
    result = ORDERED.format(before="u = Mul(x, k)", data="u", after="y = Mul(v, h)", **given)
    assert is_proved(source, result, _step("crosses", "v", "v", step=1)) is holds


FILLED = """(float[1, 1, {extent}] x) => (float[1, 1, M] y) <float k = {{2}}, float h = {{0.5}}> {{
    {before}  v = {kind}<kernel_shape = [2], {windows}>({data})  {after} }}"""


@pytest.mark.parametrize(
    ("kind", "pair"), [("MaxPool", ("Mul", "Div")), ("AveragePool", ("Add", "Sub"))]
)
@pytest.mark.parametrize(
    ("extent", "windows", "holds"),
    [
        ("1", "pads = [1, 1]", True),
        ("2", "dilations = [2], pads = [1, 1]", True),
        ("N", "dilations = [2]", True),
        ("1", "dilations = [2], pads = [1, 1]", False),
        ("N", "dilations = [2], pads = [1, 1]", False),
        ("N", 'dilations = [2], auto_pad = "SAME_UPPER"', False),
    ],
)
def test_windows_without_data_have_numbers_of_their_own(
    kind: str, pair: tuple[str, str], extent: str, windows: str, holds: bool
) -> None:
    given = {"extent": extent, "kind": kind, "windows": windows}
    source = FILLED.format(before="", data="x", after="y = Identity(v)", **given)
    result = FILLED.format(
        before=f"u = {pair[0]}(x, k)", data="u", after=f"y = {pair[1]}(v, k)", **given
    )
    assert is_proved(source, result, _step("crosses", "v", "v", step=1), opset=22) is holds


SLOPED = """(float[3] x) => (float[3] y) <float s = {{{scale}}}, float far = {{1e30}}> {{
    {body}  y = Mul(v, far) }}"""


@pytest.mark.parametrize(
    ("scale", "product", "holds"), [("1e-30", "1e-30", True), ("9.8e-45", "9.8e-45", False)]
)
def test_slopes_keep_their_digits(scale: str, product: str, holds: bool) -> None:
    source = SLOPED.format(
        scale=scale, body="u = Mul(x, s)  v = HardSigmoid<alpha = 1.0, beta = 0.0>(u)"
    )
    result = SLOPED.format(scale=scale, body=f"v = HardSigmoid<alpha = {product}, beta = 0.0>(x)")
    assert is_proved(source, result, _step("crosses", "v", "v", step=1)) is holds


GROUPED = """(float[1, 2, 8] x) => (float[1, 2, 8] y) <float[2] g = {{1, 1}}, float t = {{{far}}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("kind", "far", "holds"),
    [
        ("GroupNormalization", 100, True),
        ("GroupNormalization", 1000, False),
        ("InstanceNormalization", 1000, True),
    ],
)
def test_shifts_do_not_drown_the_data_where_their_squares_are_subtracted(
    kind: str, far: int, holds: bool
) -> None:
    call = f"{kind}{'<num_groups = 2>' if kind[0] == 'G' else ''}"
    plain, shifted = (
        GROUPED.format(far=far, body=each)
        for each in (f"y = {call}(x, g, g)", f"u = Add(x, t)  y = {call}(u, g, g)")
    )
    step = _step("crosses", "y", "y", step=1)
    assert is_proved(plain, shifted, step, opset=21) is holds
    assert is_proved(shifted, plain, step, opset=21)


@pytest.mark.parametrize("kind", ["Max", "Min", "Mean", "Sum"])
@pytest.mark.parametrize(
    ("opset", "body", "holds"),
    [(8, "{}(x, a)", True), (7, "{}(x, a)", False), (7, "{}(x, b)", True), (8, "{}(x, b)", True)],
)
def test_operands_are_broadcast_since_an_opset(
    kind: str, opset: int, body: str, holds: bool
) -> None:
    text = (
        "(float[2, 2] x) => (float[2, 2] y) <float a = {{5}}, float[2, 2] b = {{5, 5, 5, 5}}> {{ y"
        " = {} }}"
    )
    assert (
        is_proved(text.format(f"{kind}(x, b)"), text.format(body.format(kind)), opset=opset)
        is holds
    )


DIGITS = """(uint8[1, 1, 4] q, float[4, 1] x) => ({} y) <float s = {{0.1}}, float16 t = {{11878}}, float[1] g = {{0.1}},
    float16[1] h = {{11878}}, float[1] z = {{0}}, float16[1] n = {{0}}, float[1] o = {{1}}> {{ {} }}"""
SLOPE = "d = DequantizeLinear(q, {})  r = HardSigmoid(d)  y = Cast<to = 1>(r)"
POOL = "d = DequantizeLinear(q, {})  r, y = MaxPool<kernel_shape = [2], strides = [2]>(d)"
NORMAL = "y = BatchNormalization<epsilon = 0.0>(x, {}, z, o)"


@pytest.mark.parametrize(
    ("kind", "source", "result", "steps", "holds"),
    [
        ("float[1, 1, 4]", SLOPE.format("s"), SLOPE.format("s"), {}, True),
        (
            "float[1, 1, 4]",
            SLOPE.format("s"),
            SLOPE.format("t"),
            {"d": "layer", "r": "crosses"},
            False,
        ),
        ("int64[1, 1, 2]", POOL.format("s"), POOL.format("s"), {}, True),
        (
            "int64[1, 1, 2]",
            POOL.format("s"),
            POOL.format("t"),
            {"d": "layer", "r": "crosses"},
            False,
        ),
        ("float[4, 1]", "y = Mul(x, s)", NORMAL.format("g, z"), {"y": "rounded affine"}, True),
        ("float[4, 1]", "y = Mul(x, s)", NORMAL.format("h, n"), {"y": "rounded affine"}, False),
    ],
)
def test_no_type_has_fewer_digits(
    kind: str, source: str, result: str, steps: dict[str, str], holds: bool
) -> None:
    """The bits 11878 are 0.1 in float16."""
    pair = (DIGITS.format(kind, each) for each in (source, result))
    named = (
        _step(identity, name, name, step=i) for i, (name, identity) in enumerate(steps.items(), 1)
    )
    assert is_proved(*pair, *named, opset=19) is holds


UNIT = """(float[1, 2, 3] x) => (float[1, 2, 3] y) <float[2, 1] k = {{{numbers}}}> {{
    {before}  v = LpNormalization<axis = 1, p = 2>({data})  {after} }}"""


@pytest.mark.parametrize(
    ("numbers", "op", "after", "holds"),
    [
        ("2, 2", "Mul", "Identity", True),
        ("-2, -2", "Mul", "Neg", True),
        ("-2, -2", "Mul", "Identity", False),
        ("2, 3", "Mul", "Identity", False),
        ("2, 2", "Add", "Identity", False),
        ("0, 0", "Mul", "Identity", False),
        ("1e30, 1e30", "Mul", "Identity", False),
    ],
)
def test_a_normalization_without_an_epsilon_drops_one_number(
    numbers: str, op: str, after: str, holds: bool
) -> None:
    source = UNIT.format(numbers=numbers, before="", data="x", after="y = Identity(v)")
    result = UNIT.format(
        numbers=numbers, before=f"u = {op}(x, k)", data="u", after=f"y = {after}(v)"
    )
    assert is_proved(source, result, _step("crosses", "v", "v", step=1)) is holds
