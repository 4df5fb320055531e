"""Casts of infinities and NaN to integers, of which ONNX leaves the number open.

What a Where masks is no obstacle.
"""

from __future__ import annotations

import irc
import numpy as np
import pytest
from graphs import operators
from harness import random_inputs
from onnx import ModelProto, helper
from onnx.parser import parse_model
from oracle import run


def model(body: str, *, opset: int = 18, result: str = "int64[4]", **constants: str) -> ModelProto:
    """A model that adds x and c.

    `open` is infinite, not a number, or too large in places 0, 1 and 2, and 7 in 3.
    """
    given = "".join(
        f", {kind.replace('_', '[') + ']'} {name} = {{{text}}}"
        for name, (kind, text) in constants.items()
    )
    made = parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]> g ({result} x) => ({result} y)
        <bool[4] masked = {{1, 1, 1, 0}}, bool[4] partly = {{1, 0, 1, 0}}, int64[4] four = {{1, 2, 3, 4}},
         int64[1] one = {{1}}{given}>
        {{ f = Identity(floats)
           o = Cast<to = 7>(f)
           {body}
           y = Add(x, c) }}"""
    )
    floats = np.array([-np.inf, np.nan, 1e30, 7.5], np.float32)
    made.graph.initializer.append(helper.make_tensor("floats", 1, [4], floats))
    return made


def assert_same_bits(made: ModelProto) -> None:
    """The compiled model and its source give the same results in onnxruntime."""
    inputs = random_inputs(made)
    found, wanted = (run(each, inputs)["y"] for each in (irc.compile(made).model, made))
    assert np.array_equal(found, wanted)


def left(made: ModelProto) -> list[str]:
    result = irc.compile(made).model
    assert irc.compile(result).model == result
    return operators(result)


FOLD = {
    "at once": "c = Where(masked, four, o)",
    "the other way round": "n = Not(masked) c = Where(n, o, four)",
    "arithmetic": "a = Add(o, four) b = Sub(a, one) d = Mul(b, four) c = Where(masked, four, d)",
    "a limit, as in T5": "a = Add(o, four) b = Min(a, four) c = Where(masked, four, b)",
    "a cast back": "a = Cast<to = 1>(o) b = Cast<to = 7>(a) c = Where(masked, four, b)",
    "a comparison": (
        "a = Less(o, four) n = And(a, masked) d = Where(masked, four, o) c = Where(masked, d, four)"
    ),
    "a move": (
        """s = Constant<value_ints = [3, 2, 1, 0]>() r = Gather(o, s) m = Gather(masked, s)
        d = Where(m, four, r) c = Gather(d, s)"""
    ),
    "two axes": (
        """s = Constant<value_ints = [2, 2]>() r = Reshape(o, s) m = Reshape(masked, s) k = Reshape(four, s)
        t = Transpose<perm = [1, 0]>(r) u = Transpose<perm = [1, 0]>(m) l = Transpose<perm = [1, 0]>(k)
        d = Where(u, l, t) e = Transpose<perm = [1, 0]>(d) q = Constant<value_ints = [4]>() c = Reshape(e, q)"""
    ),
    "two masks": "d = Where(partly, four, o) n = Not(partly) c = Where(n, four, d)",
    "its shape alone": "c = Shape(o)",
}


@pytest.mark.parametrize("how", FOLD)
def test_what_a_constant_where_masks_folds(how: str) -> None:
    made = model(FOLD[how])
    assert left(made) == ["Add"]
    assert_same_bits(made)


STAY = {
    "no mask": "c = Identity(o)",
    "a mask of some": "c = Where(partly, four, o)",
    "an open condition": "a = Less(o, four) c = Where(a, four, one)",
    "a sum over them": "a = ReduceMax(o) c = Where(masked, four, a)",
    "moved behind the mask": (
        """s = Constant<value_ints = [3, 0, 1, 2]>() a = Gather(o, s)
        c = Where(masked, four, a)"""
    ),
    "spread": (
        "s = Constant<value_ints = [0]>() a = Gather(o, s) b = Add(a, four) c = Where(masked,"
        " four, b)"
    ),
    "a mask that is data": "m = Less(x, four) c = Where(m, four, o)",
    "an index": "a = Where(partly, one, o) i = Mod(a, four) c = Gather(four, i)",
}


@pytest.mark.parametrize("how", STAY)
def test_what_no_constant_where_masks_stays(how: str) -> None:
    assert "Cast" in left(model(STAY[how]))


def buckets(size: int, *, both: bool = True) -> ModelProto:
    """The relative position bias of T5 for a sequence of `size`."""
    both_sides, one_side = (
        "r = Abs(d) s = Less(zero, d) t = Cast<to = 7>(s) side = Mul(t, most)",
        "n = Neg(d) r = Max(n, zero)",
    )
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[1,2,{size},{size}] x) => (float[1,2,{size},{size}] y)
    <int64 half = {{4}}, int64 most = {{7}}, float wide = {{4.0}}, float span = {{2.772588}}, float scale = {{4.0}},
     int64 zero = {{0}}>
    {{ {both_sides if both else one_side}
       small = Less(r, half) f = Cast<to = 1>(r) q = Div(f, wide) l = Log(q) v = Div(l, span) w = Mul(v, scale)
       i = Cast<to = 7>(w) j = Add(i, half) k = Min(j, most) bucket = Where(small, r, k)
       {"all = Add(bucket, side)" if both else "all = Identity(bucket)"}
       e = Gather(table, all) p = Transpose<perm = [2, 0, 1]>(e) o = Constant<value_ints = [0]>()
       bias = Unsqueeze(p, o) y = Add(x, bias) }}"""
    made = parse_model(text)
    distance = np.arange(size)[None, :] - np.arange(size)[:, None]
    table = np.linspace(-1, 1, 32, dtype=np.float32)
    made.graph.initializer.append(helper.make_tensor("d", 7, [size, size], distance.ravel()))
    made.graph.initializer.append(helper.make_tensor("table", 1, [16, 2], table))
    return made


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("size", [5, 40])
def test_the_position_bias_of_t5_is_one_constant(size: int, both: bool) -> None:
    made = buckets(size, both=both)
    assert left(made) == ["Add"]
    assert_same_bits(made)
