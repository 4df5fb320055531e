"""Values that a Loop hands from run to run: their types, their number, and folds by them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import irc
import pytest
from computed_shapes import ASSIGNMENTS, inputs_of, runs_alike
from graphs import operators
from harness import session
from onnx import ModelProto
from onnx.parser import parse_model

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[B,4,L] x, float[L,B] z) => (float y, int64 k{listed})
<int64 none = {{0}}, int64 two = {{2}}, int64 three = {{3}}, int64[1] zero = {{0}}, int64[1] m = {{-1}},
 int64[3] own = {{0, 4, -1}}, int64[2] rows = {{-1, 4}}, float[4,4] w = {{1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}},
 float[4] s = {{1,2,3,4}}, float[4] b = {{4,3,2,1}}>
{{ {before}
  k, v{listed_value} = Loop({count}, "", two, {start}) <body: graph = body
    (int64 i, bool c, int64 j, float a) => (bool d, int64 l, float e{listed_result})
    {{ d = {condition} l = Add(j, three) {body} }}>
  {after} }}"""


WITHOUT_EMPTY = len(ASSIGNMENTS) - 1
"""The runs of a model that reshapes to -1: without elements they fail."""


def model(
    body: str,
    after: str = "y = Relu(v)",
    *,
    start: str = "x",
    before: str = "",
    count: str = "three",
    condition: str = "Identity(c)",
    listed: bool = False,
) -> ModelProto:
    text = MODEL.format(
        body=body,
        after=after,
        start=start,
        before=before,
        count=count,
        condition=condition,
        listed=", float[?,?,?,?] r" if listed else "",
        listed_value=", q" if listed else "",
        listed_result=", float f" if listed else "",
    )
    made = parse_model(text)
    # The text declares scalars where it declares no shapes.
    (loop,) = [node for node in made.graph.node if node.op_type == "Loop"]
    inner = loop.attribute[0].g
    for info in (made.graph.output[0], *inner.input[3:], *inner.output[2:]):
        info.type.tensor_type.ClearField("shape")
    return made


def inside(made: ModelProto) -> list[str]:
    """Return the operators in the body of the Loop of a compiled model, without Identity."""
    loops = [node for node in irc.compile(made).model.graph.node if node.op_type == "Loop"]
    return [node.op_type for node in loops[0].attribute[0].g.node if node.op_type != "Identity"]


NORMALIZED = "t = Transpose<perm = [0, 2, 1]>(a) p = MatMul(t, w) q = Mul(p, s) e = {}"


def test_a_scale_folds_into_a_matmul_of_a_carried_value() -> None:
    made = model(NORMALIZED.format("Transpose<perm = [0, 2, 1]>(q)"))
    assert inside(made) == ["Add", "Transpose", "MatMul", "Transpose"]
    assert runs_alike(made) == len(ASSIGNMENTS)


def test_an_extent_that_every_run_keeps_is_known_behind_the_loop() -> None:
    """A Reshape to (0, 4, -1) changes nothing: the last axis grows, the others stay."""
    made = model("e = Concat<axis = 2>(a, a)", "y = Reshape(v, own)")
    assert operators(irc.compile(made).model) == ["Loop"]
    assert runs_alike(made) == WITHOUT_EMPTY


def test_an_extent_that_a_run_changes_is_not_claimed() -> None:
    made = model("e = Concat<axis = 1>(a, a)", "y = Reshape(v, own)")
    assert operators(irc.compile(made).model) == ["Loop", "Reshape"]
    assert runs_alike(made) == WITHOUT_EMPTY


def test_a_rank_that_a_run_changes_is_not_claimed() -> None:
    made = model("e = Unsqueeze(a, zero)", "u = Shape(v) y = Expand(s, u)")
    assert operators(irc.compile(made).model) == ["Loop", "Shape", "Expand"]
    assert runs_alike(made) == 1


@pytest.mark.parametrize(
    ("count", "condition", "left"),
    [
        ("three", "Identity(c)", ["Loop", "Reshape"]),
        ("three", "Less(l, three)", ["Loop", "Div", "Unsqueeze", "Concat", "Reshape"]),
        ("h", "Identity(c)", ["Shape", "Squeeze", "Loop", "Concat", "Reshape"]),
    ],
)
def test_a_counter_is_known_if_the_number_of_runs_is(
    count: str, condition: str, left: Sequence[str]
) -> None:
    """After three runs the counter is 2 + 3 * 3, unless a condition ends the Loop before."""
    before = "p = Shape<start = 2, end = 3>(x) h = Squeeze(p)" if count == "h" else ""
    reshaped = (
        "n = Div(k, three) u = Unsqueeze(n, zero) t = Concat<axis = 0>(m, u) y = Reshape(v, t)"
    )
    made = model("e = Neg(a)", reshaped, count=count, condition=condition, before=before)
    assert operators(irc.compile(made).model) == left


@pytest.mark.parametrize("is_typed", [True, False])
def test_a_list_of_no_results_keeps_its_rank(is_typed: bool) -> None:
    """Runtimes take the rank from the body, in which a rewrite may hide it."""
    made = model(
        "t = Reshape(a, own) f = Abs(t) e = Identity(t)",
        "y = Relu(v) r = Transpose<perm = [0, 3, 1, 2]>(q)",
        count="none",
        listed=True,
    )
    if not is_typed:
        made.graph.node[0].attribute[0].g.output[-1].ClearField("type")
    assert inside(made) == ["Add", "Abs"]
    results = [
        session(each).run(None, inputs_of(ASSIGNMENTS[2]))
        for each in (made, irc.compile(made).model)
    ]
    assert [result[2].ndim for result in results] == [4, 4]


@pytest.mark.parametrize("inputs", [0, 1, 2])
def test_a_body_without_results_is_left_alone(inputs: int) -> None:
    """It is no valid Loop: that is for onnx's checker to say."""
    made = model("e = Neg(a)")
    loop = made.graph.node[0]
    assert loop.op_type == "Loop"
    del loop.input[2:], loop.output[1:], made.graph.node[1:], made.graph.output[1:]
    loop.attribute[0].g.ClearField("output")
    del loop.attribute[0].g.input[inputs:], loop.attribute[0].g.node[:]
    made.graph.output[0].name = loop.output[0]
    assert operators(irc.compile(made).model) == ["Loop"]


STEPS = (
    "Abs(@)",
    "Mul(@, two_)",
    "Concat<axis = 0>(@, @)",
    "Concat<axis = -1>(@, @)",
    "Transpose(@)",
    "Unsqueeze(@, zero)",
    "ReduceMean<keepdims = 1>(@, m)",
    "Reshape(@, own)",
    "Reshape(@, rows)",
    "Expand(@, shape_)",
)


def chain(rng: random.Random, data: str, result: str) -> str:
    """Return operators in a row, in the text language of onnx."""
    names = [data, *[f"{result}{i}" for i in range(rng.randint(1, 3))], result]
    lines = [f"{b} = " + rng.choice(STEPS).replace("@", a) for a, b in pairwise(names)]
    return " ".join(lines)


@pytest.mark.parametrize("block", range(4))
def test_random_loops(block: int) -> None:
    runs = 0
    for seed in range(40 * block, 40 * block + 40):
        rng = random.Random(seed)
        made = model(
            chain(rng, "a", "e"),
            chain(rng, "v", "y"),
            before="two_ = Cast<to = 1>(two) shape_ = Shape(x) " + chain(rng, "x", "o"),
            start=rng.choice(["x", "o"]),
            count=rng.choice(["none", "two", "three"]),
        )
        runs += runs_alike(made)
    assert runs > 30
