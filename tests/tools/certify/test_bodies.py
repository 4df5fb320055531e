"""Types of the values that loops carry: what the checker knows of them, and where it
knows nothing.
"""

from __future__ import annotations

import numpy as np
import pytest
from irc import Rejected, certify
from onnx import ModelProto, numpy_helper, parser

from .forgeries import sealed
from .pairs import is_proved
from .test_certificates import certified

LOOP = """(float[{extents}] x, int64 n, bool go) => (float[A, B] out, float[C, D, E] all) <int64[2] t = {{2, 3}}> {{
    y, all = Loop (n, go, x) <body: graph = body (int64 i, bool on, float state) => (bool next, float z, float w)
    {{ next = Identity(on)  z = {body}  w = {inner} }}>
    out = {outer} }}"""


@pytest.mark.parametrize(
    ("extents", "body", "holds"),
    [
        ("2, 3", "Relu(state)", True),
        ("2, 3", "Add(state, x)", True),
        ("N, 3", "Relu(state)", False),
        ("2, 3", "Concat<axis = 0>(state, state)", False),
        ("2, 3", "Transpose(state)", False),
        ("2, 3", "Unsqueeze(state, t)", False),
        ("1, 3", "Relu(state)", False),
    ],
)
@pytest.mark.parametrize("place", ["inner", "outer"])
def test_a_carried_value_keeps_its_extents_if_the_body_does(
    extents: str, body: str, holds: bool, place: str
) -> None:
    plain = {"inner": "Identity(state)", "outer": "Identity(y)"}
    reshaped = {**plain, place: plain[place].replace("Identity", "Reshape").replace(")", ", t)")}
    pair = (LOOP.format(extents=extents, body=body, **each) for each in (reshaped, plain))
    assert is_proved(*pair) is holds


SCAN = """(float[{extents}] x, float[K, {extents}] items) => (float[A, B] state, float[C, D, E] all)
    <int64[2] t = {{2, 3}}> {{
    state, all = Scan <num_scan_inputs = 1, body: graph = body (float before, float item) => (float state, float w)
    {{ s = Add(before, item)  state = Relu(s)  w = {inner} }}> (x, items) }}"""


@pytest.mark.parametrize(("extents", "holds"), [("2, 3", True), ("2, M", False), ("M, 3", False)])
def test_a_value_of_a_body_may_have_the_name_of_one_outside(extents: str, holds: bool) -> None:
    pair = (SCAN.format(extents=extents, inner=inner) for inner in ("Reshape(s, t)", "Identity(s)"))
    assert is_proved(*pair) is holds


GAINS = """<ir_version: 8, opset_import: ["": 18]> g (float[N, T, 4] x, int64 n, bool go) => (float[N, T, 4] y)
    <float half = {0.5}> {
    y = Loop (n, go, x) <body: graph = body (int64 i, bool on, float state) => (bool next, float z)
    <float[4] g = {0.5, 2, 1.5, 3}, float[4] b = {1, 2, 3, 4}> {
    next = Identity(on)  r = Sqrt(state)  s = Mul(r, g)  t = Add(s, b)  h = Mul(t, half)  z = Add(h, x) }> }"""
"""A loop in which scales meet if the rank of the state is known."""


def test_affines_meet_inside_a_body_and_forged_constants_are_refused() -> None:
    source, result, document = certified(
        parser.parse_model(GAINS.replace("float state", "float[N, T, 4] state"))
    )
    assert certify(source, result, document)
    loop = next(node for node in result.graph.node if node.op_type == "Loop")
    assert [node.op_type for node in loop.attribute[0].g.node].count("Mul") == 1
    for place in range(len(loop.attribute[0].g.initializer)):
        forged = ModelProto()
        forged.CopyFrom(result)
        body = next(node for node in forged.graph.node if node.op_type == "Loop").attribute[0].g
        array = numpy_helper.to_array(body.initializer[place])
        nearest = np.nextafter(array, np.float32(9)).astype(np.float32)
        body.initializer[place].CopyFrom(
            numpy_helper.from_array(nearest, body.initializer[place].name)
        )
        with pytest.raises(Rejected):
            certify(source, forged, sealed(document, source, forged))
