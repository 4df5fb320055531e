"""Rounding inside the bodies of control flow and functions.

What is right passes, what is wrong is accused.
"""

from __future__ import annotations

import irc
import numpy as np
import pytest
from irc.tools.verify import Stimulus
from irc.tools.verify.comparison import Comparison
from onnx import ModelProto, helper, numpy_helper
from verification import text, verdict, verified

CONV = "c = Conv({}, w) t = BatchNormalization(c, one, zero, mean, var)"
THEN = (
    "then_branch = a () => (float[2,8,6,6] t) {{ {} }}, else_branch = b () => (float[2,8,6,6] u) {{"
    " u = Mul(q, q) }}"
)
LOOP = "body = a (int64 i, bool p) => (bool o, float[2,8,6,6] t) {{ o = Identity(p) {} }}"
SCAN = "body = a (float[2,64,8,8] s) => (float[2,8,6,6] t) {{ {} }}, num_scan_inputs = 1"
BODIES = {
    "If": f"y = If(k) <{THEN.format(CONV.format('h'))}>",
    "Loop": f"y = Loop(n, k) <{LOOP.format(CONV.format('h'))}>",
    "Scan": f"v = Unsqueeze(h, z) y = Scan(v) <{SCAN.format(CONV.format('s'))}>",
}


def cancelling(body: str, mean: float = 460.0) -> ModelProto:
    """A convolution before BatchNormalization of a great mean, in a body that reads `h`."""
    model = text(f"""g (float[2,64,8,8] x, bool k) => (float[A,B,C,D,E] y)
        <int64 n = {{2}}, int64[1] z = {{0}}> {{ h = Abs(x) q = Conv(h, e) {body} }}""")
    rng = np.random.default_rng(0)
    weight = np.abs(rng.standard_normal((8, 64, 3, 3)))
    arrays = {
        "w": weight,
        "e": weight,
        "one": np.ones(8),
        "zero": np.zeros(8),
        "mean": np.full(8, mean),
    }
    arrays["var"] = np.full(8, np.pi)
    model.graph.initializer.extend(
        numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def function() -> ModelProto:
    """The same in a function."""
    model = cancelling("y = Identity(q)")
    operands = ["h", "w", "one", "zero", "mean", "var"]
    nodes = list(text(f"g () => () {{ {CONV.format('h')} }}").graph.node)
    model.functions.append(
        helper.make_function("local", "F", operands, ["t"], nodes, [helper.make_opsetid("", 17)])
    )
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.graph.node[-1].CopyFrom(helper.make_node("F", operands, ["y"], domain="local"))
    return model


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_what_rounding_does_in_a_body_is_not_accused(body: str) -> None:
    """The fold takes the average away before the sum.

    What that loses is what noise in the body moves.
    """
    model = cancelling(body)
    compiled = irc.compile(model)
    assert compiled.count() == {"folded": 1}
    greatest = verified(model).verdicts[-1].greatest
    assert 0 < greatest < 0.5
    inputs = [Stimulus(s.name, {**s.feeds, "k": np.array(True)}) for s in Comparison(model).inputs]
    assert verdict(model, cancelling(body, 460.01), inputs=inputs) == {"y"}


def test_what_rounding_does_in_a_function_is_not_accused() -> None:
    verdicts = verified(function(), "InlineFunctions,default").verdicts
    assert 0 < verdicts[-1].greatest < 0.1
    assert verdict(function(), cancelling(CONV.format("h").replace("t =", "y ="), 460.01)) == {"y"}


def test_bodies_that_use_a_name_for_different_things() -> None:
    """Of types that two bodies do not agree on nothing is made.

    What is in one of them is accused all the same.
    """
    body = """g (float[4] x, bool k) => (float[M] y) {{ h = Sin(x) y = If(k) <
        then_branch = a () => (float[4] t) {{ d = Cast<to=11>(h) e = Exp(d) t = Cast<to=1>(e) }},
        else_branch = b () => (float[4] t) {{ d = Add(h, h) e = {}(d) t = Identity(e) }}> }}"""
    right, wrong = text(body.format("Cos")), text(body.format("Sin"))
    assert not verdict(right, right)
    assert verdict(right, wrong) == {"y"}


def test_the_number_of_a_run_gets_no_noise() -> None:
    """Positions are computed from it, and with noise a loop would have other shapes."""
    model = text(
        """g (float[6] x) => (float[6] y) <int64 n = {3}, float half = {0.5}, int64[1] z = {0}> {
        k = Constant<value_int=1>() c = Cast<to=9>(k) h = Abs(x)
        v = Loop(n, c, h) <body = b (int64 i, bool p, float[6] s) => (bool o, float[6] t) {
            o = Identity(p) f = Cast<to=1>(i) g = Mul(f, half) e = Floor(g) d = Cast<to=7>(e) j = Add(d, d)
            m = Unsqueeze(j, z) r = Gather(h, m) t = Add(s, r) }>
        y = Neg(v) }"""
    )
    rows = [row for row, _ in Comparison(model).differences(model)]
    assert not any(row.deviates or row.undecided for row in rows)


GROWING = "p = Mul(h, big) t = Mul(p, small)"
SMALL = "q = Mul(h, small) t = Mul(q, big)"
WRONG = "q = Mul(h, small) m = Neg(q) t = Mul(m, big)"
PLACES = {
    "If": (
        "y = If(k) <then_branch=a () => (float[M] t) {{ {} }}, else_branch=b () => (float[M] u) {{"
        " u = Neg(x) }}>"
    ),
    "Loop": (
        "y = Loop(times, k) <body = a (int64 i, bool r) => (bool o, float[2] t) {{ o = Identity(r)"
        " {} }}>"
    ),
    "Scan": "y = Scan(h2) <num_scan_inputs = 1, body = a (float[2] h) => (float[2] t) {{ {} }}>",
}


def grown(place: str, body: str) -> ModelProto:
    """Products in a body, or in a function before a Relu, and values computed of them."""
    inner = body if place == "function" else PLACES[place].format(body)
    model = text(
        f"""g (float[2] x, bool k) => (float[A,B] z) <float big = {{1e30}}, float small = {{1e-6}},
        int64 times = {{2}}, int64[1] axis = {{0}}> {{
        h = Abs(x) h2 = Unsqueeze(h, axis) {"y = Identity(h)" if place == "function" else inner} z = Sigmoid(y) }}"""
    )
    if place == "function":
        nodes = [
            *text(f"g () => () {{ {body} }}").graph.node,
            helper.make_node("Relu", ["t"], ["v"]),
        ]
        operands = ["h", "big", "small"]
        function = helper.make_function(
            "local", "F", operands, ["v"], nodes, [helper.make_opsetid("", 17)]
        )
        model.functions.append(function)
        model.opset_import.append(helper.make_opsetid("local", 1))
        model.graph.node[2].CopyFrom(helper.make_node("F", operands, ["y"], domain="local"))
    return model


@pytest.mark.parametrize("place", [*PLACES, "function"])
def test_what_overflows_inside_is_undecided(place: str) -> None:
    inputs = [Stimulus("large", {"x": np.full(2, 1e9, np.float32), "k": np.array(True)})]
    model = grown(place, GROWING)
    rows = [row for row, _ in Comparison(model, inputs=inputs).differences(grown(place, SMALL))]
    assert not any(row.deviates for row in rows)
    assert {row.tensor for row in rows if row.is_undecided} == {"y", "z"}
    assert "y" in verdict(grown(place, SMALL), model, inputs=inputs), (
        "a compile that overflows is accused"
    )
    assert "y" in verdict(model, grown(place, WRONG))


@pytest.mark.parametrize("place", [*PLACES, "function"])
@pytest.mark.parametrize("maker", ["Log", "Reciprocal"])
def test_infinities_inside_that_are_no_overflow_are_compared(place: str, maker: str) -> None:
    """A mask may be made beside products: of what is computed from it something is said."""
    model = grown(place, f"zero = Sub(h, h) l = {maker}(zero) m = Sum(h, l) t = Mul(m, big)")
    inputs = [Stimulus("given", {"x": np.ones(2, np.float32), "k": np.array(True)})]
    comparison = Comparison(model, inputs=inputs)
    assert not any(row.deviates for row, _ in comparison.differences(model))
    assert not comparison.source.overflow(inputs[0]).overflown
