"""Operators that are one without a step: pairs of models that are equal, and neighbours that are
not.
"""

from __future__ import annotations

import pytest

from .pairs import is_found, is_proved

HEAD = """(int64[N, 3] i, int32[2] j, float[4, 3] t, float16[2] h, float[2] f, int64[K] k)
    => ({result} y) <int64 one = {{1}}, int64 two = {{2}}, int64 minus = {{-1}},
    int64[3] row = {{1, 2, 3}}, int64[2, 1, 3] wide = {{1, 1, 1, 1, 1, 1}}, int32 big = {{2147483647}},
    int32 least = {{-2147483648}}, int64[1] last = {{-1}}, int64[1] first = {{0}},
    int64[1] second = {{1}}, int64[2, 1] places = {{1, 3}}, int64[2] listed = {{1, 3}}, int64[2, 2] pairs = {{1, 0, 3, 2}}>
    {{ {body} }}"""


def holds(source: str, result: str, type_: str) -> bool:
    return is_proved(*(HEAD.format(result=type_, body=body) for body in (source, result)))


INTEGERS = "int64[N, 3]"

SUMS = [
    ("a = Sub(i, one)  y = Add(a, two)", "y = Add(i, one)", INTEGERS, True),
    ("a = Sub(i, one)  y = Add(a, two)", "y = Add(i, two)", INTEGERS, False),
    ("a = Sub(i, one)  y = Sub(a, minus)", "y = Identity(i)", INTEGERS, True),
    ("a = Sub(one, i)  y = Add(a, two)", "y = Add(i, row)", INTEGERS, False),
    ("a = Sub(one, i)  y = Add(a, i)", "y = Add(i, i)", INTEGERS, False),
    ("a = Add(row, i)  y = Sub(a, row)", "y = Identity(i)", INTEGERS, True),
    ("a = Add(row, i)  y = Sub(row, a)", "y = Identity(i)", INTEGERS, False),
    ("a = Add(i, wide)  y = Sub(a, wide)", "y = Identity(i)", "int64[2, N, 3]", False),
    ("a = Add(j, big)  y = Add(a, big)", "a = Add(j, least)  y = Add(a, least)", "int32[2]", False),
    ("a = Add(j, least)  y = Add(a, least)", "y = Identity(j)", "int32[2]", True),
    ("a = Mul(i, one)  y = Add(a, two)", "y = Mul(i, two)", INTEGERS, False),
]


@pytest.mark.parametrize(("source", "result", "type_", "is_equal"), SUMS)
def test_constants_that_are_added_to_integers_are_one(
    source: str, result: str, type_: str, is_equal: bool
) -> None:
    assert holds(source, result, type_) is is_equal


ROWS = [
    ("a = Unsqueeze(k, last)  y = GatherND(t, a)", "y = Gather(t, k)", True),
    ("a = Unsqueeze(k, last)  y = GatherND(t, a)", "y = Gather<axis = 1>(t, k)", False),
    ("a = Unsqueeze(k, last)  y = GatherND(t, a)", "a = Neg(k)  y = Gather(t, a)", False),
    ("a = Unsqueeze(k, first)  y = GatherND(t, a)", "y = Gather(t, k)", False),
    ("y = GatherND(t, places)", "y = Gather(t, listed)", True),
    ("y = GatherND(t, places)", "y = Gather(t, first)", False),
]


@pytest.mark.parametrize(("source", "result", "is_equal"), ROWS)
def test_rows_of_a_gather_nd_are_those_of_a_gather(
    source: str, result: str, is_equal: bool
) -> None:
    assert holds(source, result, "float[R, S]") is is_equal


POSITIONS = [
    ("a = Gather(t, one)  y = Unsqueeze(a, first)", "y = Gather(t, second)", True),
    ("a = Gather(t, minus)  y = Unsqueeze(a, first)", "y = Gather(t, last)", True),
    ("a = Gather(t, one)  y = Unsqueeze(a, first)", "y = Gather(t, first)", False),
    ("a = Gather(t, one)  y = Unsqueeze(a, last)", "y = Gather<axis = 1>(t, second)", False),
    ("a = Gather<axis = 1>(t, one)  y = Unsqueeze(a, second)", "y = Gather<axis = 1>(t, second)",
     True),
    ("a = Gather<axis = 1>(t, one)  y = Unsqueeze(a, first)", "y = Gather<axis = 1>(t, second)",
     False),
    ("a = Gather(t, one)  y = Unsqueeze(a, last)",
     "a = Gather(t, second)  y = Transpose(a)", True),
]  # fmt: skip


@pytest.mark.parametrize(("source", "result", "is_equal"), POSITIONS)
def test_one_position_is_gathered_with_its_axis_or_without(
    source: str, result: str, is_equal: bool
) -> None:
    assert holds(source, result, "float[R, S]") is is_equal


DEEP = """(float[{batch}, 2, 4, {columns}] x) => (float[A, B, C, D] y) <int64[2] axes = {{2, 3}},
    int64[2] e = {{2147483647, 2147483647}}, int64[2] s = {{2, 2}}, int64[2] p = {{0, 0}}, int64[2] q = {{0, 1}},
    int64[2] r = {{1, 0}}, int64[2] t = {{1, 1}}, int64[8] k = {{0, 1, 4, 5, 2, 3, 6, 7}}>"""
PARTS = "  ".join(f"{name}0 = Slice(x, {name}, e, axes, s)" for name in "pqrt")


@pytest.mark.parametrize(
    ("batch", "columns", "order", "result", "is_equal"),
    [
        (1, 6, "pqrt", "y = SpaceToDepth<blocksize = 2>(x)", True),
        ("N", 6, "pqrt", "y = SpaceToDepth<blocksize = 2>(x)", True),
        (1, 2, "pqrt", "y = SpaceToDepth<blocksize = 2>(x)", True),
        ("N", 6, "prqt", "y = SpaceToDepth<blocksize = 2>(x)", False),
        ("N", 6, "prqt", "d = SpaceToDepth<blocksize = 2>(x)  y = Gather<axis = 1>(d, k)", True),
        ("N", 6, "pqrt", "d = SpaceToDepth<blocksize = 2>(x)  y = Gather<axis = 1>(d, k)", False),
        ("N", "W", "pqrt", "y = SpaceToDepth<blocksize = 2>(x)", True),
        ("N", "W", "prqt", "y = SpaceToDepth<blocksize = 2>(x)", False),
        ("N", "W", "prqt", "d = SpaceToDepth<blocksize = 2>(x)  y = Gather<axis = 1>(d, k)", True),
        ("N", "W", "pqrt", "d = SpaceToDepth<blocksize = 2>(x)  y = Gather<axis = 1>(d, k)", False),
    ],
)
def test_parts_of_blocks_are_channels(
    batch: object, columns: object, order: str, result: str, is_equal: bool
) -> None:
    head = DEEP.format(batch=batch, columns=columns)
    parts = ", ".join(f"{name}0" for name in order)
    assert is_found(head, f"{PARTS}  y = Concat<axis = 1>({parts})", result) is is_equal


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("y = Slice(x, p, e, axes, s)", 2),
        ("a = Slice(x, p, e, axes, s)  b = Slice(x, q, e, axes, s)  y = Concat<axis = 1>(a, b)", 4),
    ],
)
def test_blocks_cover_the_data_of_the_source(source: str, count: int) -> None:
    """These also run with an odd number of rows, which SpaceToDepth refuses."""
    head = DEEP.format(batch="N", columns="W").replace("float[N, 2, 4, W]", "float[N, 2, H, W]")
    head = head.replace("int64[8] k = {0, 1, 4, 5, 2, 3, 6, 7}", f"int64[{count}] k = {{{{}}}}")
    head = head.replace("{{}}", "{" + str(list(range(count)))[1:-1] + "}")
    assert not is_found(
        head, source, "d = SpaceToDepth<blocksize = 2>(x)  y = Gather<axis = 1>(d, k)"
    )


def test_rows_are_gathered_of_no_batch() -> None:
    head = "(float[2, 3] t, int64[2, K] k) => (float[2, K] y) <int64[1] last = {-1}> {"
    source = f"{head} a = Unsqueeze(k, last)  y = GatherND<batch_dims = 1>(t, a) }}"
    assert not is_proved(source, f"{head} y = Gather(t, k) }}")
    assert is_proved(
        source, f"{head} a = Unsqueeze(k, last)  y = GatherND<batch_dims = 1>(t, a) }}"
    )


TABLE = """(float[2] x) => (float[2] y) <float[3, 2] t = {{1, 2, 3, 4, 5, 6}}, {places},
    float[2] c = {numbers}>"""


@pytest.mark.parametrize(
    ("places", "numbers", "is_equal"),
    [
        ("int64[2, 2] p = {0, 1, 2, 0}", "{2, 5}", True),
        ("int64[2, 2] p = {0, -1, -1, 0}", "{2, 5}", True),
        ("int64[2, 2] p = {0, 1, 2, 0}", "{5, 2}", False),
        ("int64[2, 2] p = {0, 1, 2, 0}", "{2, 5.0000005}", False),
        ("int64[2, 2] p = {0, 1, 3, 0}", "{2, 5}", False),
    ],
)
def test_elements_of_a_constant_gather_nd_are_computed(
    places: str, numbers: str, is_equal: bool
) -> None:
    head = TABLE.format(places=places, numbers=numbers)
    assert is_found(head, "a = GatherND(t, p)  y = Add(x, a)", "y = Add(x, c)") is is_equal


@pytest.mark.parametrize(("data", "other", "is_equal"), [("f", "t", True), ("f", "h", False)])
def test_a_cast_to_the_type_of_another_value_is_none(data: str, other: str, is_equal: bool) -> None:
    head = "(float[2] f, float16[2] h, float[4] t) => (float[2] y)"
    source = f"a = CastLike({data}, {other})  b = Exp(a)  y = Cast<to = 1>(b)"
    result = f"b = Exp({data})  y = Cast<to = 1>(b)"
    assert is_found(head, source, result, opset=19) is is_equal


def test_one_of_two_equal_constants_may_be_computed() -> None:
    """The result has a sum of the second one, which the source does not compute."""
    head = """(float[2] x) => (float[2] y, float[2] z) <float[2] t = {{3, 4}}, int64[2] p = {{1, 0}},
    float[2] n = {{{}}}>"""
    source = "a = Gather(t, p)  b = Gather(t, p)  y = Add(x, a)  c = Exp(b)  z = Mul(x, c)"
    result = "b = Gather(t, p)  y = Add(x, n)  c = Exp(b)  z = Mul(x, c)"
    for numbers, is_equal in (("4, 3", True), ("3, 4", False)):
        assert is_found(head.format(numbers), source, result) is is_equal


@pytest.mark.parametrize(
    ("rows", "attributes", "is_equal"),
    [
        ("a", "", True),
        ("a", '<reduction = "add">', False),
        ("u", "", False),
    ],
)
def test_what_is_written_into_all_rows_is_the_result(
    rows: str, attributes: str, is_equal: bool
) -> None:
    """The count of rows is computed, and has no name."""
    head = """(float[N, 3] u) => (float[P, 3] y) <int64[1] first = {0}, int64[1] end = {5},
    int64[1] last = {-1}, int64 none = {0}, int64 one = {1}>"""
    source = f"""a = Slice(u, first, end)  s = Shape<end = 1>({rows})  f = Squeeze(s)
    j = Range(none, f, one)  e = Unsqueeze(j, last)  w = Exp(a)  y = ScatterND{attributes}(a, e, w)"""
    assert is_found(head, source, "a = Slice(u, first, end)  y = Exp(a)") is is_equal


@pytest.mark.parametrize(
    ("count", "mode", "epsilon", "is_equal"),
    [(1, 1, 0.5, True), (2, 1, 0.5, False), (1, 0, 0.5, False), (1, 1, 0.25, False)],
)
def test_training_on_one_sample_is_an_instance_normalization(
    count: int, mode: int, epsilon: float, is_equal: bool
) -> None:
    head = f"(float[{count}, 2, N] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[A, B, C] y)"
    source = f"y = BatchNormalization<training_mode = {mode}, epsilon = {epsilon}>(x, s, b, m, v)"
    result = "y = InstanceNormalization<epsilon = 0.5>(x, s, b)"
    assert is_proved(f"{head} {{ {source} }}", f"{head} {{ {result} }}") is is_equal
