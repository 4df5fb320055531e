"""Models that are no valid ONNX, and documents that are no certificates: they prove nothing, and
crash neither side.
"""

from __future__ import annotations

from typing import Any

import irc
import numpy as np
import pytest
from irc.tools.certify.checker.document import FORMAT, VERSION
from onnx import ModelProto, TensorProto, numpy_helper

from .forgeries import sealed
from .pairs import model


def said(body: str, *initializers: TensorProto) -> str:
    """Return why the certificate of a compile is refused."""
    head = "(float[1, 2, 3] x) => (float[K] y, float[1, 2, 3] z)"
    source = model(f"{head} {{ {body}  i = Identity(x)  z = Abs(i) }}", 17)
    source.graph.initializer.extend(initializers)
    result = irc.compile(source, certificate=True)
    with pytest.raises(irc.Rejected) as refused:
        irc.certify(source, result.model, result.certificate())
    return str(refused.value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [("y = Conv(x)", "IndexError"), ('y = Constant<value_int = "a">()', "ValueError")],
)
def test_operators_that_onnx_refuses(body: str, reason: str) -> None:
    assert said(body).startswith(f"a model is malformed: {reason}")


@pytest.mark.parametrize("body", ["y = Conv(x)", 'y = Constant<value_int = "a">()'])
def test_models_without_a_rewrite_need_no_step(body: str) -> None:
    source = model(f"(float[1, 2, 3] x) => (float[K] y) {{ {body} }}", 17)
    result = irc.compile(source, certificate=True)
    assert irc.certify(source, result.model, result.certificate()) == 0


def test_elements_that_do_not_fit_their_extents() -> None:
    lying = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**61, 0])
    assert said("y = Concat<axis = 0>(x, w)", lying) == "the elements of 'w' cannot be read"


def test_many_copies_of_nothing() -> None:
    """numpy crashes on them."""
    counts = numpy_helper.from_array(np.int64([2**62]), "n")
    assert said(
        "t = Tile(w, n)  y = Concat<axis = 0>(x, t)",
        numpy_helper.from_array(np.zeros(0, np.float32), "w"),
        counts,
    )


def _nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "damage",
    [
        {"rewrites": None},
        {"rewrites": 5},
        {"rewrites": _nested(20)},
        {"steps": [{"identity": None, "rules": 5, "at": "source", "operation": "y"}]},
        {"steps": [{"identity": _nested(900), "at": "source", "operation": "y"}]},
        {"steps": [{"identity": "constant", "at": "source", "operation": _nested(900)}]},
    ],
)
def test_documents_that_are_no_certificates(damage: dict[str, Any]) -> None:
    source = model("(float[3] x) => (float[3] y) { y = Relu(x) }")
    whole = {"format": FORMAT, "version": VERSION, "rewrites": [], "steps": []}
    result = renamed(source)
    assert irc.certify(source, result, sealed(whole, source, result)) == 0
    with pytest.raises(irc.Rejected):
        irc.certify(source, result, sealed({**whole, **damage}, source, result))


@pytest.mark.parametrize("count", [1, 2])
def test_a_negative_extent_is_unknown(count: int) -> None:
    """onnx's inference of a Slice ends the process there."""
    source = model(
        f"""(float[-1] x) => (float[N] y) <int64[1] s = {{0}}, int64[1] e = {{9}}, int64 n = {{{count}}}> {{
        u = Slice(x, s, e)  y = Loop(n, , u) <body = b (int64 i, bool c, float[-1] a) => (bool d, float[-1] f) {{
            d = Identity(c)  f = Relu(a) }}> }}"""
    )
    document, result = (
        {"format": FORMAT, "version": VERSION, "rewrites": [], "steps": []},
        renamed(source),
    )
    assert irc.certify(source, result, sealed(document, source, result)) == 0


@pytest.mark.parametrize(("operands", "holds"), [("x", True), ("x, x", False)])
def test_a_function_has_as_many_operands_as_a_call(operands: str, holds: bool) -> None:
    source = model(
        f"""<ir_version: 8, opset_import: ["": 18, "c": 1]> g (float[3] x) => (float[3] y) {{
        y = c.f({operands}) }} <domain: "c", opset_import: ["": 18]> f (a) => (b) {{ b = Relu(a) }}"""
    )
    result = renamed(source)
    document = sealed(
        {"format": FORMAT, "version": VERSION, "rewrites": [], "steps": []}, source, result
    )
    if holds:
        assert irc.certify(source, result, document) == 0
    else:
        with pytest.raises(irc.Rejected, match="inlined"):
            irc.certify(source, result, document)


def renamed(source: ModelProto) -> ModelProto:
    """Return a model that computes the same in another message: equal messages need no proof."""
    result = ModelProto()
    result.CopyFrom(source)
    result.producer_name = "another"
    return result


def test_calls_with_too_many_operands() -> None:
    """onnx's inliner ends in an error of C++."""
    source = model(
        """<ir_version: 8, opset_import: ["": 17, "f": 1]>
        g (float[2] x) => (float[2] y, float[2] z) { y = f.One(x, x)  i = Identity(x)  z = Abs(i) }
        <domain: "f", opset_import: ["": 17]> One (a) => (b) { b = Neg(a) }"""
    )
    result = irc.compile(source, certificate=True)
    with pytest.raises(irc.Rejected, match="cannot be inlined"):
        irc.certify(source, result.model, result.certificate())
