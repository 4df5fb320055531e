"""Pairs of models that the checker proves equal without a step, and neighbours in which a condition
does not hold.
"""

from __future__ import annotations

import pytest

from .pairs import is_found, is_proved

EXPANDED = """(float[N, 3] x, float[1, 3] y, float[{extents}] z) => (float[K, 3] out) {{
    s = Shape(z)  w = {expand}  out = Mul(x, w) }}"""


@pytest.mark.parametrize(
    ("extents", "holds"), [("N, 3", True), ("M, 3", False), ("1, N, 3", False)]
)
def test_an_operand_is_expanded_to_what_another_is_anyway(extents: str, holds: bool) -> None:
    pair = (
        EXPANDED.format(extents=extents, expand=expand)
        for expand in ("Expand(y, s)", "Identity(y)")
    )
    assert is_proved(*pair) is holds


CHAIN = (
    "(float[N, T, 8] x) => (float[A, B, C, D] out) <int64[4] s = {{{first}}}, int64[4] t ="
    " {{{second}}}> {{ {body} }}"
)


@pytest.mark.parametrize(
    ("first", "body", "holds"),
    [
        ("0, 0, 2, 4", "a = Reshape(x, s)  out = Transpose<perm = [0, 2, 1, 3]>(a)", False),
        (
            "0, -1, 2, 4",
            "a = Reshape(x, s)  b = Transpose<perm = [0, 1, 2, 3]>(a)  out = Identity(b)",
            True,
        ),
        ("0, -1, 4, 2", "a = Reshape(x, s)  out = Identity(a)", False),
        ("-1, 0, 2, 4", "a = Reshape(x, s)  out = Identity(a)", True),
        (
            "0, 0, 2, 4",
            (
                "a = Reshape(x, s)  b = Transpose<perm = [1, 0, 3, 2]>(a)  out = Transpose<perm ="
                " [1, 0, 3, 2]>(b)"
            ),
            True,
        ),
        (
            "0, 0, 2, 4",
            (
                "a = Reshape(x, s)  b = Transpose<perm = [1, 2, 3, 0]>(a)  out = Transpose<perm ="
                " [1, 2, 3, 0]>(b)"
            ),
            False,
        ),
    ],
)
def test_views_are_equal_if_they_keep_the_parts_of_axes_in_one_order(
    first: str, body: str, holds: bool
) -> None:
    source = CHAIN.format(first=first, second="0, 0, 2, 4", body=body)
    result = CHAIN.format(first=first, second="0, 0, 2, 4", body="out = Reshape(x, t)")
    assert is_proved(source, result) is holds


SIZES = """(float[N, T] x, float[M] y) => (float[A] out)
    <int64 i = {{{place}}}, int64[1] axes = {{0}}, int64[1] two = {{2}}> {{
    s = Shape({of})  n = Gather(s, i)  m = Unsqueeze(n, axes)  k = {count}  out = ConstantOfShape(k) }}"""


@pytest.mark.parametrize(
    ("first", "second", "holds"),
    [
        (("0", "x", "Mul(m, two)"), ("0", "x", "Mul(two, m)"), True),
        (("0", "x", "Mul(m, two)"), ("0", "x", "Add(m, two)"), False),
        (("0", "x", "Identity(m)"), ("1", "x", "Identity(m)"), False),
        (("0", "x", "Identity(m)"), ("0", "y", "Identity(m)"), False),
        (("0", "x", "Div(m, two)"), ("0", "x", "Div(two, m)"), False),
    ],
)
def test_integers_are_equal_as_expressions_of_extents(
    first: tuple[str, str, str], second: tuple[str, str, str], holds: bool
) -> None:
    pair = (SIZES.format(place=place, of=of, count=count) for place, of, count in (first, second))
    assert is_proved(*pair) is holds


CUT = """(float[N, 8, T] x) => (float[A, B, C, D] out)
    <int64[3] s = {{0, 2, -1}}, int64[1] i = {{2}}, int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] zero = {{0}},
     int64[4] t = {{{target}}}> {{
    a = Reshape(x, s)  b = InstanceNormalization(a, g, h)  g = Constant<value_floats = [1.0, 2.0]>()
    h = Constant<value_floats = [0.5, 0.25]>()  n = Shape(x)  k = Gather(n, i)
    u = Concat<axis = 0>(zero, two, four, k)  out = Reshape(b, {by}) }}"""


@pytest.mark.parametrize(
    ("target", "holds"),
    [("0, 2, 4, -1", True), ("0, 2, -1, 4", False), ("0, -1, 2, 4", False), ("0, 2, 2, -1", False)],
)
def test_an_extent_is_cut_whatever_its_factors_are(target: str, holds: bool) -> None:
    pair = (CUT.format(target=target, by=by) for by in ("u", "t"))
    assert is_proved(*pair) is holds


UNRANKED = """(float[N, 4, 1, 1] x, int64[{length}] s, float[2, 3] w) => (float[A] out) <int64[2] t = {{-1, 1}}> {{
    a = {move}(x, s)  b = MatMul(a, w)  c = {first}  d = {second}  e = Identity(d)  out = Flatten<axis = 0>(e) }}"""


@pytest.mark.parametrize(
    ("move", "length", "order", "holds"),
    [
        ("Reshape", "2", "[1, 0]", True),
        ("Reshape", "2", "[0, 1]", False),
        ("Reshape", "L", "[1, 0]", False),
    ],
)
def test_the_length_of_a_target_is_the_rank_of_the_result(
    move: str, length: str, order: str, holds: bool
) -> None:
    """Two exchanges of axes are none, which is known only with the rank."""
    turned = f"Transpose<perm = {order}>"
    source = UNRANKED.format(move=move, length=length, first="Transpose(b)", second=f"{turned}(c)")
    result = UNRANKED.format(move=move, length=length, first="Identity(b)", second="Identity(c)")
    assert is_proved(source, result) is holds


@pytest.mark.parametrize(
    ("operand", "numbers", "holds"),
    [
        ("float[1, 3]", "2, 2, 2", True),
        ("float[3]", "2, 2, 2", True),
        ("float[3]", "2, 3, 2", False),
        ("float[2, 3]", "2, 2, 2, 2, 2, 2", False),
        ("float[1]", "2", True),
    ],
)
def test_a_constant_of_one_number_is_a_scalar_where_it_enlarges_nothing(
    operand: str, numbers: str, holds: bool
) -> None:
    """A constant [2, 3] is not read as a scalar beside [N, 3], where N may be 1."""
    text = (
        "(float[N, 3] x, bool[N, 3] c) => (float[A, B] out) <{} k = {{{}}}> {{ out = Where(c, x,"
        " k) }}"
    )
    assert is_proved(text.format(operand, numbers), text.format("float", "2")) is holds


@pytest.mark.parametrize(("number", "holds"), [("5.0", True), ("6.0", False)])
def test_an_integer_of_extents_is_cast_to_a_constant(number: str, holds: bool) -> None:
    """Div by the size of an axis, which is known."""
    source = """(float[N, 5] x) => (float[N, 5] out) <int64 i = {1}> {
        s = Shape(x)  n = Gather(s, i)  k = Cast<to = 1>(n)  out = Div(x, k) }"""
    result = f"(float[N, 5] x) => (float[N, 5] out) <float k = {{{number}}}> {{ out = Div(x, k) }}"
    assert is_proved(source, result) is holds


PADDED = """(float[1, 2, 4, 4] x, float[3, 2, 3, 3] w) => (float[A, B, C, D] out)
    <int64[8] p = {{{pads}}}, float v = {{{value}}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("pads", "value", "attributes", "holds"),
    [
        ("0, 0, 1, 1, 0, 0, 1, 1", 0, "pads = [1, 1, 1, 1]", True),
        ("0, 0, 1, 1, 0, 0, 1, 1", 1, "pads = [1, 1, 1, 1]", False),
        ("0, 0, 1, 1, 0, 0, 1, 1", 0, "pads = [1, 1, 1, 0]", False),
        ("0, 0, 1, 1, 0, 0, 1, 1", 0, "pads = [1, 1, 1, 1], strides = [2, 2]", False),
        ("0, 0, 1, 1, 0, 0, 1, 1", 0, 'pads = [1, 1, 1, 1], auto_pad = "VALID"', False),
        ("1, 0, 1, 1, 0, 0, 1, 1", 0, "pads = [1, 1, 1, 1]", False),
    ],
)
def test_zeros_that_a_pad_adds_may_be_pads_of_a_conv(
    pads: str, value: int, attributes: str, holds: bool
) -> None:
    """Also where the weight is no constant."""
    source = PADDED.format(pads=pads, value=value, body="y = Pad(x, p, v)  out = Conv(y, w)")
    result = PADDED.format(pads=pads, value=value, body=f"out = Conv<{attributes}>(x, w)")
    step = {"at": "result", "operation": "out", "identity": "same windows", "source": "out"}
    assert is_proved(source, result, step) is holds


POOLED = """(float[1, 2, 4, {extent}] x) => (float[A, B, C, D] out)
    <int64[8] p = {{0, 0, {pads}, 0, 0, {pads}}}> {{ {body} }}"""


@pytest.mark.parametrize(
    ("extent", "pads", "holds"), [(4, "2, 2", True), (4, "0, 3", False), (0, "0, 2", False)]
)
def test_pads_of_a_pool_are_smaller_than_its_window_and_around_elements(
    extent: int, pads: str, holds: bool
) -> None:
    """onnxruntime refuses to run others."""
    bodies = (
        "y = Pad(x, p)  out = AveragePool<kernel_shape = [3, 3]>(y)",
        "out = AveragePool<kernel_shape = [3, 3], count_include_pad = 1,"
        f" pads = [{pads}, {pads}]>(x)",
    )
    pair = [POOLED.format(extent=extent, pads=pads, body=body) for body in bodies]
    step = {"at": "result", "operation": "out", "identity": "same windows", "source": "out"}
    assert is_proved(*pair, step) is holds


COPIED = """(float[N, T, 6] x) => (float[A, B, C] out) <int64[3] t = {{{target}}}, int64[1] i = {{{place}}},
    int64[1] four = {{4}}, int64[1] first = {{0}}> {{
    a = Exp(x)  s = Shape(a)  e = Gather(s, i)  k = Gather(s, first)  u = Concat<axis = 0>(k, e, four)
    out = Reshape(a, {by}) }}"""


@pytest.mark.parametrize(
    ("place", "target", "holds"),
    [(1, "0, 0, 4", True), (0, "0, 0, 4", False), (1, "0, 0, 3", False)],
)
def test_zeros_of_a_target_copy_extents(place: int, target: str, holds: bool) -> None:
    """Also where the extents do not divide one another, as 6 and 4."""
    pair = (COPIED.format(place=place, target=target, by=by) for by in ("u", "t"))
    assert is_proved(*pair) is holds


FILLED = """(float[N, 6] x, float[T, N, 6] z) => ({out} out) {{
    s = Shape({like})  o = ConstantOfShape<value = float[1] {{{number}}}>(s)  m = Mul(x, o)  out = Exp({by}) }}"""


@pytest.mark.parametrize(
    ("like", "number", "holds"), [("x", 1.0, True), ("x", 2.0, False), ("z", 1.0, False)]
)
def test_a_value_times_ones_of_its_own_extents_is_that_value(
    like: str, number: float, holds: bool
) -> None:
    out = "float[A, B, C]" if like == "z" else "float[A, B]"
    pair = (FILLED.format(like=like, number=number, by=by, out=out) for by in ("m", "x"))
    step = {"step": 1, "identity": "equal operand", "at": "source", "operation": "m"}
    assert is_proved(*pair, step) is holds


LONGER = """(float[N, 8, H, W] x) => (float[A, B, C, D, E, F] out) <int64[6] t = {{{target}}}, int64[1] first = {{0}},
    int64[5] rest = {{8, 4, 2, 4, 2}}> {{
    a = Exp(x)  s = Shape(x)  k = Gather(s, first)  u = Concat<axis = 0>(k, rest)  out = Reshape(a, {by}) }}"""


@pytest.mark.parametrize(
    ("target", "holds"),
    [("0, 8, 4, 2, 4, 2", True), ("-1, 8, 4, 2, 4, 2", True), ("0, 8, 4, 4, 2, 2", False)],
)
def test_zeros_of_a_target_of_more_axes_copy_extents(target: str, holds: bool) -> None:
    """mobilevitv2 of timm cuts H and W, which are open, into numbers of blocks."""
    pair = (LONGER.format(target=target, by=by) for by in ("u", "t"))
    assert is_proved(*pair) is holds


@pytest.mark.parametrize(("scale", "holds"), [("Mul(one, two)", True), ("Div(two, third)", False)])
def test_constants_that_are_computed_without_rounding_give_extents(scale: str, holds: bool) -> None:
    text = """(float[1, 3] x) => (float[A, B] out) <float[1] one = {{1.0}}, float[1] two = {{2.0}},
        float[1] third = {{0.7}}, int64[2] t = {{1, {extent}}}> {{
        a = {scale}  s = Concat<axis = 0>(one, a)  y = Resize<mode = "nearest">(x, , s)  out = {result} }}"""
    extent = 6 if holds else 8
    pair = (
        text.format(scale=scale, extent=extent, result=result)
        for result in ("Reshape(y, t)", "Identity(y)")
    )
    assert is_proved(*pair) is holds


@pytest.mark.parametrize(
    ("perm", "extents", "holds"),
    [
        ("0, 2, 1, 3", "1, 1, 4, 3", True),
        ("0, 2, 1, 3", "1, 1, 3, 4", False),
        ("0, 3, 2, 1", "1, 3, 1, 4", False),
    ],
)
def test_reshapes_of_a_value_of_unknown_extents_take_its_elements_in_order(
    perm: str, extents: str, holds: bool
) -> None:
    head = "(float[n] x, int64[k] s) => (float[a, b, c, d] y)"
    source = f"""e = Reshape(x, s)  u = Constant<value_ints = [1, 4, 1, 3]>()  f = Reshape(e, u)
        y = Transpose<perm = [{perm}]>(f)"""
    result = f"e = Reshape(x, s)  v = Constant<value_ints = [{extents}]>()  y = Reshape(e, v)"
    assert is_found(head, source, result) is holds
    assert not is_found(head, source, result.replace("Reshape(x, s)", "Neg(x)"))


@pytest.mark.parametrize(("given", "holds"), [("4, 2", True), ("4, m", False)])
def test_a_weight_that_callers_may_give_has_the_rank_that_its_type_states(
    given: str, holds: bool
) -> None:
    head = f"(float[n] x, int64[k] s, float[{given}] w, float[2] b) => (float[o, p, 1] y)"
    source = """a = Reshape(x, s)  c = Gemm(a, w, b)  i = Constant<value_ints = [2]>()  y = Unsqueeze(c, i)"""
    result = """a = Reshape(x, s)  c = Gemm(a, w, b)  j = Constant<value_ints = [-1, 2, 1]>()  y = Reshape(c, j)"""
    assert is_found(head, source, result) is holds


@pytest.mark.parametrize(
    ("data", "holds"),
    [
        ("b = Flatten(a)", True),
        ("c = Concat<axis = 0>(a, z)  b = Identity(c)", True),
        ("c = Concat<axis = 0>(a, a)  b = Identity(c)", False),
        ("c = ReduceMax<keepdims = 1>(z, s)  b = Add(c, z)", True),
        ("c = ReduceMax<keepdims = 0>(z, s)  b = Add(c, r)", False),
    ],
)
def test_a_product_and_a_sum_are_a_gemm_where_the_rank_follows(data: str, holds: bool) -> None:
    head = """(float[n] x, int64[k] s, float[p, 4] z, float q) => (float[g, h] y)
        <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] v = {1, 2}>"""
    given = f"a = Reshape(x, s)  r = Reshape(q, s)  {data}"
    assert (
        is_found(head, f"{given}  m = MatMul(b, w)  y = Add(m, v)", f"{given}  y = Gemm(b, w, v)")
        is holds
    )


@pytest.mark.parametrize(("perm", "holds"), [("2, 0, 1", True), ("1, 2, 0", False)])
def test_a_transpose_states_the_rank_of_its_data(perm: str, holds: bool) -> None:
    head = "(float[n] x, int64[k] s) => (float[a, b, c] y)"
    source = (
        "d = Reshape(x, s)  e = Transpose<perm = [1, 0, 2]>(d)  y = Transpose<perm = [2, 1, 0]>(e)"
    )
    assert is_found(head, source, f"d = Reshape(x, s)  y = Transpose<perm = [{perm}]>(d)") is holds


@pytest.mark.parametrize(
    ("rows", "attributes", "holds"),
    [
        ("r = Range(none, n, one)  i = Unsqueeze(r, axis)", "", True),
        ("r = Range(none, n, one)  i = Unsqueeze(r, axis)", '<reduction = "add">', False),
        ("r = Range(one, n, one)  i = Unsqueeze(r, axis)", "", False),
        ("r = Range(none, m, one)  i = Unsqueeze(r, axis)", "", False),
        ("i = Constant<value = int64[2, 1] {0, 1}>()", "", False),
    ],
)
def test_a_scatter_of_all_rows_is_what_it_writes(rows: str, attributes: str, holds: bool) -> None:
    text = """(float[N, M] x, float[N, M] y) => (float[N, M] out) <int64 none = {{0}}, int64 one = {{1}},
        int64[1] axis = {{1}}> {{
        a = Shape<start = 0, end = 1>(x)  n = Squeeze(a)  b = Shape<start = 1>(x)  m = Squeeze(b)
        {rows}  s = {result}  out = Relu(s) }}"""
    pair = (
        text.format(rows=rows, result=result)
        for result in (f"ScatterND{attributes}(x, i, y)", "Identity(y)")
    )
    assert is_proved(*pair, {"step": 1, **SCATTER}) is holds


SCATTER = {"at": "source", "operation": "s", "identity": "equal operand"}


STATE = """(float[T, N, 3] x) => (float[A, 2, N, 1] y) <float[2, 4, 3] w = {{{numbers}}},
    float[2, 4, 1] r = {{1, 2, 3, 4, 5, 6, 7, 8}}, int64[1] zero = {{0}}, float none = {{0}},
    float other = {{{other}}}, int64[1] one = {{1}}> {{
    n = Shape<start = 1, end = 2>(x)  e = Concat<axis = 0>(one, n, one)  a = Expand(none, e)
    b = Expand(other, e)  s = Concat<axis = 0>(a, b)
    y = LSTM<hidden_size = 1, direction = "bidirectional">(x, w, r, , , {state}, {state}) }}"""


@pytest.mark.parametrize(("other", "holds"), [("0", True), ("0.5", False)])
def test_states_of_zeros_that_a_concat_joins_are_none(other: str, holds: bool) -> None:
    numbers = ", ".join(map(str, range(24)))
    pair = (STATE.format(numbers=numbers, other=other, state=state) for state in ("s", ""))
    assert is_proved(*pair) is holds
