"""Pairs of models that compute different results, and that a checker without some condition would
accept.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from irc import Rejected, certify
from irc.tools.certify.checker.document import FORMAT, VERSION
from onnx import TensorProto, helper, numpy_helper

from .forgeries import sealed
from .pairs import is_proved, model

LOOP = """(float[2, 3] x) => (float[P, Q] y) <int64 m = {{3}}> {{
    y = Loop(m, , x) <body = outer (int64 i, bool c, float[A, B] a) => (bool d, float[C, D] e) {{
        d = Identity(c)
        w = Loop(m, , x) <body = inner (int64 j, bool k, float[E, F] b) => (bool l, float[G, H] n) {{
            l = Identity(k)  n = Add(b, {read}) }}>
        e = Add(w, a) }}> }}"""


def test_parameters_of_an_inner_loop_are_its_own() -> None:
    assert is_proved(LOOP.format(read="a"), LOOP.format(read="a"))
    assert not is_proved(LOOP.format(read="a"), LOOP.format(read="b"))


OVERRIDABLE = """(float[6] x{given}) => (int64[2] y, float[P, Q] r) <int64[2] s = {{2, 3}}, int64[2] k = {{2, 3}}> {{
    r = Reshape(x, s)  y = {shape} }}"""


@pytest.mark.parametrize(("given", "holds"), [("", True), (", int64[2] s", False)])
def test_a_default_that_callers_may_override_is_no_shape(given: str, holds: bool) -> None:
    pair = (OVERRIDABLE.format(given=given, shape=shape) for shape in ("Shape(r)", "Identity(k)"))
    assert is_proved(*pair) is holds


def test_a_constant_beside_joined_data_keeps_its_extents() -> None:
    text = (
        "(float[1, 1] x) => (float[1, N] y) <float[1, {n}] c = {{{numbers}}}> {{ y = Concat<axis ="
        " 1>(x, c) }}"
    )
    step = {"step": 1, "identity": "crosses", "at": "result", "operation": "y", "source": "y"}
    assert not is_proved(text.format(n=1, numbers="7"), text.format(n=2, numbers="7, 7"), step)


@pytest.mark.parametrize(
    "source",
    [
        (
            "(float[2] x) => (float[N] y) <float[2] c = {1, 2}, int64[0] e = {}>"
            "{ k = ReduceSum<noop_with_empty_axes = 1>(c, e)  y = Mul(x, k) }"
        ),
        (
            "(float[2] x) => (float[N] y) <float[2] c = {1, 2}, int64[1] s = {-10}, int64[1] e ="
            " {-100}, int64[1] a = {0}, int64[1] p = {-1}> { k = Slice(c, s, e, a, p)  y = Mul(x,"
            " k) }"
        ),
    ],
)
def test_constants_are_computed_as_onnx_says(source: str) -> None:
    step = {"step": 1, "identity": "constant", "at": "source", "operation": "k"}
    assert not is_proved(
        source, "(float[2] x) => (float[N] y) <float[1] k = {3}> { y = Mul(x, k) }", step
    )


ADDED = """(float[3] x) => (float[3] y) <float a = {{{far}}}, float b = {{0.4}}> {{
    u = Add(x, a)  v = Add(u, b)  y = Sub(v, a) }}"""


@pytest.mark.parametrize("far", ["1099511627776.0", "1e30"])
def test_sums_that_drown_the_data_are_no_identity(far: str) -> None:
    assert not is_proved("(float[3] x) => (float[3] y) { y = Identity(x) }", ADDED.format(far=far))


def test_a_normalization_without_a_mean_drops_no_shift() -> None:
    head = "(float[2, 3] x) => (float[2, 3] y) <float[3] g = {1, 1, 1}, float t = {5}> "
    step = {"step": 1, "identity": "layer", "at": "result", "operation": "y", "source": "y"}
    for kind, holds in (("LayerNormalization", True), ("RMSNormalization", False)):
        source, result = (
            f"{{ v = Add(x, t)  y = {kind}<axis = -1>(v, g) }}",
            f"{{ y = {kind}<axis = -1>(x, g) }}",
        )
        assert is_proved(head + source, head + source, opset=23)
        assert is_proved(head + source, head + result, step, opset=23) is holds


def test_the_greatest_number_is_no_lower_bound() -> None:
    greatest = "340282346638528859811704183484516925440.0"
    text = "(float[3] x) => (float[3] y) <float m = {{{low}}}> {{ y = {body} }}"
    step = {"step": 1, "identity": "same bounds", "at": "result", "operation": "y", "source": "y"}
    pair = [text.format(low=low, body="Clip(x, m)") for low in (greatest, f"-{greatest}")]
    assert not is_proved(*pair, step)
    assert is_proved(pair[1], pair[1])


def _constants(*names: str, **further: object) -> tuple[dict[str, object], ...]:
    return tuple(
        {"identity": "constant", "at": "source", "operation": name, **further} for name in names
    )


def _at(identity: str, operation: str = "y", **further: object) -> dict[str, object]:
    return {
        "identity": identity,
        "at": "result",
        "operation": operation,
        "source": operation,
        **further,
    }


@dataclass(frozen=True)
class Pairs:
    """Graphs with one head: the steps prove a source and a result, and no other source
    and result.
    """

    head: str
    proved: tuple[str, str]
    refused: tuple[str, str]
    steps: tuple[dict[str, object], ...] = ()
    opset: int = 18


KEPT = {"identity": "equal operand", "at": "source", "operation": "y"}
MOVED = _at("same elements", **{"from": ["x"]})
EXTENTS = "(float[N] a, float[M] b, float[K] c) => (int64[1] y) "
FAR = "(float[3] x) => (float[3] y) <float far = {1e30}, float t = {10000000000.0}, float o = {1}>"
LEAST = """(int32[2] x) => (int32[2] y) <int32[1] l = {-2147483648}, int32[1] t = {2}, int32[1] h = {100},
    int32[1] half = {-1073741824}, int32[1] other = {1073741824}, int32[1] z = {0}, int32[1] o = {1}>"""

LOOPS = """(float[{extents}, 3] x) => (float[P, Q] y, int64[V] u, float[R, S] z, int64[W] w) <int64 m = {{2}}> {{
    y, u = Loop(m, , x) <body = one (int64 i, bool c, float[A, B] a) => (bool d, float[C, D] e, int64 n) {{
        d = Identity(c)  e = Relu(a)  n = Size(a) }}>
    z, w = Loop(m, , x) <body = two (int64 j, bool k, float[E, F] f) => (bool l, float[G, H] g, int64 o) {{
        l = Identity(k)  g = Concat<axis = 0>(f, f)  o = Size({read}) }}> }}"""
DRAWN = """(float[2] x) => (float[P] y, float[Q, R] z) <int64 m = {{3}}, float h = {{0.5}}, bool t = {{1}}> {{ {before}
    y, z = Loop(m, , x) <body = one (int64 i, bool c, float[A] a) => (bool d, float[C] e, float[D] f) {{
        d = Identity(c)  {inside}  e = Add(a, {drawn})  f = Identity({drawn}) }}> }}"""
UNNAMED = """(float[M] x) => (int64[1] y, float[N] z) <int64 m = {{2}}, float[2] s = {{1, 1}}, int64[1] k = {{2}}> {{
    , z = Loop(m, , s, s) <body = one (int64 i, bool c, float[A] a, float[B] b) => (bool d, float[C] e, float[D] f) {{
        d = Identity(c)  e = Identity(a)  f = Identity(b) }}>
    "z#{number}" = Relu({data})  y = {shape} }}"""
SEQUENCE = """(float[N] x) => (int64[1] y, seq(float[5]) q) <int64 z = {{0}}, int64[1] k = {{5}}> {{
    q = SequenceConstruct(x)  t = SequenceAt(q, z)  y = {shape} }}"""
CARRIED = """(float[N] x) => (int64[R, S] y) <int64 m = {{1}}, int64 z = {{0}}, int64[1] k = {{5}}> {{
    q = SequenceConstruct(x)
    e, y = Loop(m, , q) <body = one (int64 i, bool c, seq(float[5]) a) => (bool d, seq(float[5]) b, int64[W] w) {{
        d = Identity(c)  t = SequenceAt(a, z)  w = {shape}  b = Identity(a) }}> }}"""
DECIDED = """(float[3] x) => (float[3] y) <float a = {100000000.0}, float o = {1}> {
    u = Add(a, o)  v = Sub(u, a)  c = Equal(v, o)
    y = If(c) <then_branch = one () => (float[3] t) { t = Relu(x) },
        else_branch = two () => (float[3] e) { e = Neg(x) }> }"""
NEGATED = "(float[3] x) => (float[3] y) { y = Neg(x) }"
INSERTED = """(float[2] x, float[3] z, int64 i) => (int64[1] y) <int64[1] k = {{2}}, int64 m = {{1}}> {{
    s = SequenceConstruct(x)
    t = Loop(m, , s) <body = one (int64 n, bool c, seq(float) a) => (bool d, seq(float) e) {{
        d = Identity(c)  e = SequenceInsert(a, z) }}>
    u = SequenceAt({read}, i)  y = {shape} }}"""
FREE = """(float[1, 2, 1, 1] x) => (float[1, C, 1, 1] y) <float[1, 2, 1, 1] s = {{1, 0}},
    float[1, 2, 1, 1] t = {{0, 1}}, float[2] z = {{0, 0}}, float[2] one = {{1, 1}}, float[1, 2, 1, 1] w = {{1, {own}}},
    float[1] b = {{{shift}}}, float[2] g = {{1, {own}}}, float[2] h = {{0, {shift}}}> {{
    u = Mul(x, s)  v = Add(u, t)  y = {body} }}"""
LAYER, NORMALIZATION = "Conv(v, w, b)", "BatchNormalization<epsilon = 0.0>(v, g, h, z, one)"
CHAIN = "(double[1] x) => (double[1] y) <double k = {{{factor}}}> {{ {body} }}"
ULP = base64.b64encode(zlib.compress(np.array(1, "<i2").tobytes())).decode()


def _sliced(operands: str, after: str) -> str:
    scaled = (
        "v = Mul(x, f)  q = Mul(z, f)  "
        if after == "Identity(b)"
        else "v = Identity(x)  q = Identity(z)  "
    )
    return f"{scaled} c = Slice(v, s, e, {operands})  b = Add(c, q)  y = {after}"


def _free(own: float, shift: float, body: str) -> str:
    return FREE.format(own=own, shift=shift, body=body)


def _chain(factor: str, count: int) -> str:
    products = "  ".join(f"v{i + 1} = Mul(v{i}, k)" for i in range(count))
    return CHAIN.format(factor=factor, body=f"v0 = Identity(x)  {products}  y = Identity(v{count})")


PAIRS = {
    "a constant that has no class": Pairs(
        "(float[3] x) => (float[3] y) ",
        (
            "<float[3] y = {7, 8, 9}, float[3] c = {7, 8, 9}> {}",
            "<float[3] c = {7, 8, 9}> { y = Concat<axis = 0>(c) }",
        ),
        ("<float[3] y = {7, 8, 9}, float[3] c = {7, 8, 9}> {}", "{ y = Relu(x) }"),
        (_at("same elements", **{"source": "c", "from": ["c"]}),),
    ),
    "a name like that of a result that has none": Pairs(
        "",
        tuple(
            UNNAMED.format(number=9, data="s", shape=shape)
            for shape in ('Shape("z#9")', "Identity(k)")
        ),
        tuple(
            UNNAMED.format(number=0, data="x", shape=shape)
            for shape in ('Shape("z#0")', "Identity(k)")
        ),
    ),
    "extents cast to truth values": Pairs(
        "(float[5, M] x) => (int64[2] y) ",
        ("y = Shape(x)", "s = Shape(x)  b = Cast<to = 6>(s)  y = Cast<to = 7>(b)"),
        (
            "y = Shape(x)",
            "s = Shape(x)  b = Cast<to = 9>(s)  t = Cast<to = 7>(b)  r = ConstantOfShape(t)  y = Shape(r)",
        ),
    ),
    "extents in a matrix": Pairs(
        "(float[N, M] x) => (int64[K] y) <int64[1] z = {0}, int64 o = {0}>",
        ("y = Shape(x)", "s = Shape(x)  u = Unsqueeze(s, z)  y = Gather(u, o)"),
        (
            "y = Shape<end = 1>(x)",
            "s = Shape(x)  u = Unsqueeze(s, z)  g = Gather(u, o)  r = ConstantOfShape(g)  y = Shape(r)",
        ),
    ),
    **{
        f"a {kind} of extents that int32 wraps": Pairs(
            EXTENTS,
            (
                f"s = Shape(a)  t = Shape(b)  y = {kind}(s, t)",
                f"s = Shape(a)  t = Shape(b)  y = {kind}(t, s)",
            ),
            (
                f"s = Shape(a)  t = Shape(b)  y = {kind}(s, t)",
                f"s = Shape(a)  t = Shape(b)  u = Cast<to = 6>(s)  v = Cast<to = 6>(t)  w = {kind}(u, v)  "
                "y = Cast<to = 7>(w)",
            ),
        )
        for kind in ("Mul", "Add")
    },
    "a product of extents cast to int32": Pairs(
        EXTENTS,
        ("y = Shape(a)", "s = Shape(a)  u = Cast<to = 6>(s)  y = Cast<to = 7>(u)"),
        (
            "s = Shape(a)  t = Shape(b)  y = Mul(s, t)",
            "s = Shape(a)  t = Shape(b)  w = Mul(s, t)  u = Cast<to = 6>(w)  y = Cast<to = 7>(u)",
        ),
    ),
    "a quotient of a product that int64 wraps": Pairs(
        EXTENTS,
        ("y = Shape(a)", "s = Shape(a)  t = Shape(b)  u = Mul(s, t)  y = Div(u, t)"),
        (
            "s = Shape(a)  t = Shape(b)  y = Mul(s, t)",
            "s = Shape(a)  t = Shape(b)  u = Mul(s, t)  v = Shape(c)  w = Mul(u, v)  y = Div(w, v)",
        ),
    ),
    "an integer that bfloat16 does not have": Pairs(
        "(float[256] a, float[257] b) => (int64[1] y) ",
        ("y = Shape(a)", "s = Shape(a)  f = Cast<to = 16>(s)  y = Cast<to = 7>(f)"),
        ("y = Shape(b)", "s = Shape(b)  f = Cast<to = 16>(s)  y = Cast<to = 7>(f)"),
    ),
    "an extent that int8 makes negative": Pairs(
        "(float[N] a) => (bool[1] y) <int64[1] k = {-56}, bool[1] n = {0}>",
        ("y = Identity(n)", "s = Shape(a)  y = Equal(s, k)"),
        (
            "y = Identity(n)",
            "s = Shape(a)  b = Cast<to = 3>(s)  c = Cast<to = 7>(b)  y = Equal(c, k)",
        ),
    ),
    **{
        f"two loops that share {title} of a parameter": Pairs(
            "",
            (LOOPS.format(extents=extents, read="x"), LOOPS.format(extents=extents, read="x")),
            (LOOPS.format(extents=extents, read="x"), LOOPS.format(extents=extents, read="f")),
        )
        for title, extents in (("numbers", 2), ("symbols", "N"))
    },
    **{
        f"{kind} once or in each run": Pairs(
            "",
            (DRAWN.format(before="", inside=f"r = {draw}", drawn="r"),) * 2,
            (
                DRAWN.format(before="", inside=f"r = {draw}", drawn="r"),
                DRAWN.format(before=f'"y/body/r" = {draw}', inside="", drawn='"y/body/r"'),
            ),
        )
        for kind, draw in (
            ("RandomNormal", "RandomNormal<shape = [2]>()"),
            ("Dropout", "Dropout(x, h, t)"),
        )
    },
    "an old Dropout, once or twice": Pairs(
        "(float[4] x) => (float[4] y) ",
        (
            "a = Dropout<is_test = 1>(x)  y = Sub(a, a)",
            "a = Dropout<is_test = 1>(x)  b = Dropout<is_test = 1>(x)  y = Sub(a, b)",
        ),
        ("a = Dropout(x)  y = Sub(a, a)", "a = Dropout(x)  b = Dropout(x)  y = Sub(a, b)"),
        opset=6,
    ),
    "a Split with an output less": Pairs(
        "(float[6] x) => (float[N] y) ",
        ("a, b = Split<num_outputs = 2>(x)  y = Concat<axis = 0>(a, b)", "y = Identity(x)"),
        ("a, b = Split<num_outputs = 3>(x)  y = Concat<axis = 0>(a, b)", "y = Identity(x)"),
        (KEPT,),
    ),
    "a Split with an unnamed output": Pairs(
        "(float[4] x) => (float[N] y) ",
        ("y = Split<axis = 0>(x)", "y = Identity(x)"),
        ('y, "" = Split<axis = 0>(x)', "y = Identity(x)"),
        (KEPT,),
        opset=13,
    ),
    "the axis of an old Concat": Pairs(
        """(float x) => (int64[R, S] y) <int64[1, 2] a = {1, 2}, int64[1, 2] b = {3, 4},
        int64[1, 4] wide = {1, 2, 3, 4}, int64[2, 2] high = {1, 2, 3, 4}>""",
        ("y = Concat(a, b)", "y = Identity(wide)"),
        ("y = Concat(a, b)", "y = Identity(high)"),
        _constants("y"),
        3,
    ),
    "the axis of an old Add": Pairs(
        """(float x) => (int64[R, S] y) <int64[2, 2] a = {0, 0, 0, 0}, int64[2] b = {1, 2},
        int64[2, 2] c = {1, 1, 2, 2}, int64[2, 2] rows = {1, 2, 1, 2}, int64[2, 2] columns = {1, 1, 2, 2}>""",
        ("y = Add(a, c)", "y = Identity(columns)"),
        ("y = Add<axis = 0, broadcast = 1>(a, b)", "y = Identity(rows)"),
        _constants("y"),
        6,
    ),
    "the least integer": Pairs(
        LEAST,
        ("k = Div(l, t)  y = Max(x, k)", "y = Max(x, half)"),
        ("k = Div(l, t)  y = Max(x, k)", "y = Max(x, other)"),
        _constants("k"),
    ),
    "a least divisor": Pairs(
        LEAST,
        ("k = Div(h, l)  y = Max(x, k)", "y = Max(x, z)"),
        ("k = Div(h, l)  y = Max(x, k)", "y = Max(x, o)"),
        _constants("k"),
    ),
    "a product that int32 does not hold": Pairs(
        """(int32[1] x) => (int32[1] y) <int32[2] small = {2, 3}, int32[2] large = {65536, 65536}, int32[1] six = {6},
        int32[1] zero = {0}>""",
        ("k = ReduceProd(small)  y = Max(x, k)", "y = Max(x, six)"),
        ("k = ReduceProd(large)  y = Max(x, k)", "y = Max(x, zero)"),
        _constants("k"),
    ),
    "a sum of integers that a runtime computes in floats": Pairs(
        """(int64[1] x) => (int64[1] y) <int64[2] small = {2, 3}, int64[2] large = {9007199254740993, 2},
        int64[1] five = {5}, int64[1] sum = {9007199254740995}, int64[1] a = {0}>""",
        ("k = ReduceSum(small, a)  y = Max(x, k)", "y = Max(x, five)"),
        ("k = ReduceSum(large, a)  y = Max(x, k)", "y = Max(x, sum)"),
        _constants("k"),
    ),
    "the greater of a number and none": Pairs(
        """(float x) => (bool[1] y) <float[1] z = {0}, float[1] o = {1}, float[1] two = {2}, bool[1] t = {1},
        bool[1] f = {0}>""",
        ("n = Div(o, o)  m = Max(n, o)  y = Less(m, two)", "y = Identity(t)"),
        ("n = Div(z, z)  m = Max(n, o)  y = Less(m, two)", "y = Identity(f)"),
        _constants("n", "m", "y"),
    ),
    "a sum that float32 does not hold": Pairs(
        "(float[1] x) => (float[1] y) <float small = {1}, float large = {3e38}, float half = {0.5}>",
        ("u = Add(small, small)  k = Mul(u, half)  y = Max(x, k)", "y = Max(x, small)"),
        ("u = Add(large, large)  k = Mul(u, half)  y = Max(x, k)", "y = Max(x, large)"),
        _constants("u", "k"),
    ),
    "a leaf without axes beside a batch": Pairs(
        "(float[N] b, float x) => (float[] y) <int64[1] o = {1}>",
        ("s = Relu(b)  y = Identity(s)", "s = Relu(b)  y = Transpose<perm = [0]>(s)"),
        ("s = Relu(x)  y = Identity(s)", "s = Relu(x)  y = Expand(s, o)"),
        (_at("same elements", **{"from": ["b", "s"]}),),
    ),
    "a Resize that rounds half a position up": Pairs(
        "(float[1, 1, 1, 4] x) => (float[1, 1, 1, 4] y) <float[0] r = {}, float[4] s = {1, 1, 1, 1}>",
        (
            'y = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "ceil">(x, r, s)',
            "y = Identity(x)",
        ),
        (
            'y = Resize<coordinate_transformation_mode = "tf_half_pixel_for_nn", nearest_mode = "ceil">(x, r, s)',
            "y = Identity(x)",
        ),
        (KEPT,),
        11,
    ),
    "a Squeeze by an empty list": Pairs(
        "(float[1, 3] x) => (float[P] y) <int64[1] z = {0}, int64[0] e = {}, int64[1] n = {3}>",
        ("y = Squeeze(x, z)", "y = Reshape(x, n)"),
        ("y = Identity(x)", "y = Squeeze(x, e)"),
        (MOVED,),
    ),
    "a Cast through floats": Pairs(
        "(int8[3] x) => (int16[3] y) ",
        ("y = Cast<to = 5>(x)", "f = Cast<to = 1>(x)  y = Cast<to = 5>(f)"),
        ("y = Cast<to = 2>(x)", "f = Cast<to = 1>(x)  y = Cast<to = 2>(f)"),
    ),
    "the declared extents of a sequence": Pairs(
        "",
        tuple(SEQUENCE.format(shape=shape) for shape in ("Shape(t)", "Shape(x)")),
        tuple(SEQUENCE.format(shape=shape) for shape in ("Shape(t)", "Identity(k)")),
    ),
    "the declared extents of a body's sequence": Pairs(
        "",
        tuple(CARRIED.format(shape=shape) for shape in ("Shape(t)", "Shape(t)")),
        tuple(CARRIED.format(shape=shape) for shape in ("Shape(t)", "Identity(k)")),
    ),
    "a sequence into which a Loop inserts": Pairs(
        "",
        tuple(INSERTED.format(read="s", shape=shape) for shape in ("Shape(u)", "Identity(k)")),
        tuple(INSERTED.format(read="t", shape=shape) for shape in ("Shape(u)", "Identity(k)")),
    ),
    "data that are drowned and restored": Pairs(
        FAR,
        ("y = Identity(x)", "u = Add(x, o)  y = Sub(u, o)"),
        ("dead = Add(x, far)  y = Identity(x)", "u = Add(x, t)  y = Sub(u, t)"),
    ),
    "data that a step says are restored": Pairs(
        FAR,
        ("y = Relu(x)", "u = Add(x, o)  v = Sub(u, o)  y = Relu(v)"),
        ("dead = Add(x, far)  y = Relu(x)", "u = Add(x, t)  v = Sub(u, t)  y = Relu(v)"),
        (_at("rounded affine", "v", source="x"),),
    ),
    "a layer that takes a drowning shift away": Pairs(
        """(float[1, 1, 3] x) => (float[1, 1, 3] y) <float far = {1e30}, float o = {1}, float t = {10000000000.0},
        float[1, 1, 1] w = {1}, float[1] b = {0}, float[1] near = {-1}, float[1] p = {-10000000000.0}>""",
        ("y = Conv(x, w, b)", "v = Add(x, o)  y = Conv(v, w, near)"),
        ("dead = Add(x, far)  y = Conv(x, w, b)", "v = Add(x, t)  y = Conv(v, w, p)"),
        (_at("layer"),),
    ),
    "shifts of both operands of a sum": Pairs(
        "(float[3] a, float[3] b) => (float[3] y) <float o = {1}, float t = {10000000000.0}>",
        ("y = Add(a, b)", "u = Add(a, o)  v = Sub(b, o)  y = Add(u, v)"),
        ("y = Add(a, b)", "u = Add(a, t)  v = Sub(b, t)  y = Add(u, v)"),
        (_at("crosses"),),
    ),
    **{
        f"{operand} of a Slice that are an input": Pairs(
            """(float[2, 4] x, int64[1] p, float[2, 4] z) => (float[2, P] y) <float[1, 4] f = {1, 10, 100, 1000},
            int64[1] s = {0}, int64[1] e = {4}, int64[1] a = {1}, int64[1] o = {1}>""",
            tuple(_sliced("a, o", after) for after in ("Identity(b)", "Mul(b, f)")),
            tuple(_sliced(operands, after) for after in ("Identity(b)", "Mul(b, f)")),
            (_at("crosses", "c"), _at("crosses", "b")),
        )
        for operand, operands in (("axes", "p, o"), ("steps", "a, p"))
    },
    **{
        f"weights of constant data of a {body[:4]}": Pairs(
            "",
            (_free(3, 5, body), _free(4, 4, body)),
            (_free(3, 5, body), _free(2.0**60, -(2.0**60), body)),
            (_at("layer" if body == LAYER else "rounded affine"),),
        )
        for body in (LAYER, NORMALIZATION)
    },
    "an exponential of zero that a runtime rounds": Pairs(
        "(float[2] x) => (float[2] y) <float h = {0.25}, float z = {0}, float up = {1.28402554988861083984375}, "
        "float one = {1.00000011920928955078125}>",
        ("e = Exp(h)  y = Add(x, e)", "y = Add(x, up)"),
        ("e = Exp(z)  y = Add(x, e)", "y = Add(x, one)"),
        _constants("e", ulps=ULP),
    ),
    "float64 factors within the slack of float32": Pairs(
        "",
        (_chain("1", 30), _chain("1", 0)),
        (_chain("1.00000000000022737367544323205948", 30), _chain("1", 0)),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_is_refused_where_its_neighbour_is_proved(name: str) -> None:
    pairs = PAIRS[name]
    steps = [{"step": number, **step} for number, step in enumerate(pairs.steps, 1)]
    for pair, holds in ((pairs.proved, True), (pairs.refused, False)):
        texts = [pairs.head + (each if "{" in each else f"{{ {each} }}") for each in pair]
        assert is_proved(*texts, *steps, opset=pairs.opset) is holds


CALL = """<ir_version: 8, opset_import: ["": 17, "local": 1]> g (float[3] x) => (float[3] y) {{ y = {call}(x) }}
    <domain: "{domain}", opset_import: ["": {opset}]> {name} (a) => (b) {{ b = {kind}(a) }}"""


@pytest.mark.parametrize(
    ("domain", "name", "opset", "holds"),
    [("local", "f", 17, True), ("local", "f", 12, False), ("", "Relu", 17, False)],
)
def test_functions_are_those_that_a_runtime_calls(
    domain: str, name: str, opset: int, holds: bool
) -> None:
    call = f"{domain}.{name}" if domain else name
    called = CALL.format(call=call, domain=domain, name=name, opset=opset, kind="Neg")
    assert is_proved(called, NEGATED, opset=17) is holds
    other = CALL.format(call=call, domain=domain, name=name, opset=opset, kind="Abs")
    assert not is_proved(called, other, opset=17)


@pytest.mark.parametrize(
    ("imports", "holds"), [('"": 13', True), ('"": 11, "ai.onnx": 13', False), ('"": 11', False)]
)
def test_a_domain_is_imported_once(imports: str, holds: bool) -> None:
    text = (
        "<ir_version: 8, opset_import: [{}]> g (float[2, 2, 2] x) => (float[2, 2, 2] y) {{ y ="
        " Softmax(x) }}"
    )
    assert is_proved(text.format('"": 13'), text.format(imports)) is holds


@pytest.mark.parametrize("is_rounded", [False, True])
@pytest.mark.parametrize("kind", ["Neg", "Relu"])
def test_numbers_decide_once_they_are_rounded(is_rounded: bool, kind: str) -> None:
    rounded = {"rounded": True} if is_rounded else {}
    steps = (*_constants("u", "v", **rounded), *_constants("c"))
    result = NEGATED.replace("Neg", kind)
    numbered = ({"step": number, **step} for number, step in enumerate(steps, 1))
    assert is_proved(DECIDED, result, *numbered) is (is_rounded and kind == "Neg")


@pytest.mark.parametrize("numbers", [[1.0], [1.0, 5.0], [5.0, 1.0]])
def test_a_default_is_stored_once(numbers: list[float]) -> None:
    text = "(float[80] x, float[80] k) => (float[80] y) { y = Add(x, k) }"
    pair = model(text), model(text)
    for made, given in zip(pair, ([1.0], numbers), strict=True):
        made.graph.initializer.extend(
            numpy_helper.from_array(np.full(80, each, np.float32), "k") for each in given
        )
    document = sealed({"format": FORMAT, "version": VERSION, "rewrites": [], "steps": []}, *pair)
    if len(numbers) == 1:
        assert certify(*pair, document) == 0
    else:
        with pytest.raises(Rejected, match="one name"):
            certify(*pair, document)


@pytest.mark.parametrize(
    ("kind", "first", "holds"), [(1, "", True), (17, "", False), (17, ", saturate = 0", True)]
)
def test_a_cast_of_an_extent_keeps_its_attributes(kind: int, first: str, holds: bool) -> None:
    text = """(float[3000] x) => (float[1] y) {{ s = Shape(x)  u = Cast<to = {}{}>(s)  y = Cast<to = 1>(u) }}"""
    source, result = (
        text.format(kind, first),
        text.format(kind, "" if kind == 1 else ", saturate = 0"),
    )
    assert is_proved(source, result, opset=19) is holds


IMPORTED = """<ir_version: 8, opset_import: [{}"local": 1]> g (float[2, 2, 2] x) => (float[2, 2, 2] y) {{
    y = local.f(x) }}
    <domain: "local", opset_import: ["": {}]> f (a) => (b) {{ b = Softmax<axis = 1>(a) }}"""


@pytest.mark.parametrize(
    ("imports", "opset", "holds"), [('"": 13, ', 13, True), ("", 13, False), ("", 11, False)]
)
def test_operators_of_functions_are_of_the_opset_of_the_model(
    imports: str, opset: int, holds: bool
) -> None:
    assert is_proved(IMPORTED.format(imports, 13), IMPORTED.format(imports, opset)) is holds


@pytest.mark.parametrize("kind", ["value", "sparse_value"])
@pytest.mark.parametrize("is_external", [False, True])
def test_elements_in_another_file_are_not_compared_by_its_name(
    kind: str, is_external: bool
) -> None:
    values = numpy_helper.from_array(np.ones(4, np.float32), "v")
    if is_external:
        values.data_location = TensorProto.EXTERNAL
        values.external_data.add(key="location", value="w.bin")
    places = numpy_helper.from_array(np.arange(4), "p")
    sparse = helper.make_sparse_tensor(values, places, [4])
    made = model("(float[4] x) => (float[4] y) { k = Constant()  y = Add(x, k) }")
    made.graph.node[0].attribute.append(
        helper.make_attribute(kind, values if kind == "value" else sparse)
    )
    document = sealed(
        {"format": FORMAT, "version": VERSION, "rewrites": [], "steps": []}, made, made
    )
    if is_external:
        with pytest.raises(Rejected, match="another file"):
            certify(made, made, document)
    else:
        assert certify(made, made, document) == 0


@pytest.mark.parametrize(
    ("number", "other"), [("1", "1.0"), ("[1, 2]", "[1.0, 2.0]"), ("0.0", "-0.0"), ("1", "[1]")]
)
def test_numbers_of_attributes_have_types_and_signs(number: str, other: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 18, "c": 1]> g (float[3] x) => (float[3] y) {{
        y = c.Foreign<number = {}>(x) }}"""
    assert is_proved(text.format(number), text.format(number))
    assert not is_proved(text.format(number), text.format(other))


SCORES = """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1]> g (float[4, 2] x) => (int64[2] y)
    <int64[2] e = {{4, {}}}> {{
    label, score = ai.onnx.ml.LinearClassifier<coefficients = [1.0, 2.0], classlabels_ints = [0, 1]>(x)  y = {} }}"""


@pytest.mark.parametrize(
    ("count", "read", "holds"), [(2, "Shape(score)", True), (0, "Identity(e)", False)]
)
def test_a_classifier_has_no_scores_by_its_intercepts(count: int, read: str, holds: bool) -> None:
    assert is_proved(SCORES.format(count, "Shape(score)"), SCORES.format(count, read)) is holds


UNIMPORTED = """<ir_version: 8, opset_import: [{}"ai.onnx.ml": 2]> g (float[1, 2] x) => (float[A, B] y)
    <float[4] r = {{1, 1, 1, 1}}, float[2] s = {{1, {}}}> {{ y = {} }}"""


@pytest.mark.parametrize(
    ("imports", "scale", "holds"), [('"": 18, ', 1, True), ("", 1, False), ("", 2, False)]
)
def test_operators_of_no_opset_are_not_looked_at(imports: str, scale: int, holds: bool) -> None:
    """Runtimes take those of their newest opset."""
    pair = (UNIMPORTED.format(imports, scale, each) for each in ("Resize(x, r, s)", "Identity(x)"))
    assert is_proved(*pair, {"step": 1, **KEPT}) is holds


OWNED = """<ir_version: 8, opset_import: ["": 18, "{}": 1]> g (float[3] x) => (float[3] y) {{ y = {}.Gelu(x) }}
    <domain: "{}", opset_import: ["": 18]> Gelu (a) => (b) {{ b = Neg(a) }}"""


@pytest.mark.parametrize(
    ("domain", "holds"), [("own", True), ("com.microsoft", False), ("ai.onnx.preview", False)]
)
def test_functions_are_not_those_of_a_runtime(domain: str, holds: bool) -> None:
    """With its own operators, it computes another Gelu."""
    assert is_proved(OWNED.format(domain, domain, domain), NEGATED) is holds


@pytest.mark.parametrize("is_typed", [True, False])
def test_bodies_have_the_type_of_graphs(is_typed: bool) -> None:
    text = """(float[2] x, bool c) => (float[2] y) {{ v = {}(x)
        y = If(c) <then_branch = t () => (float[2] a) {{ a = Abs(v) }},
        else_branch = e () => (float[2] d) {{ d = Sqrt(v) }}> }}"""
    pair = [model(text.format(kind)) for kind in ("Relu", "Relu" if is_typed else "Neg")]
    for made in pair:
        for item in made.graph.node[1].attribute:
            item.type = item.type if is_typed else item.UNDEFINED
    document = sealed({"format": FORMAT, "version": VERSION, "rewrites": [], "steps": []}, *pair)
    if is_typed:
        assert certify(*pair, document) == 0
    else:
        with pytest.raises(Rejected, match="graph"):
            certify(*pair, document)
