"""Nodes that no in-house operator means the same as stay foreign, and come back as they were."""

from __future__ import annotations

import pytest
from irc.compiler import compile as compile_model
from irc.frontends.onnx import from_model
from irc.frontends.onnx.lowering import lower
from irc.ir.attributes import Attribute, AttributeRef
from irc.ir.graph import Value
from irc.ir.ops.row import NodeView
from irc.ir.types import UNKNOWN
from irc.ir.verifier import verify
from onnx import TensorProto, helper

F, B = TensorProto.FLOAT, TensorProto.BOOL
NODES = {
    "limited broadcast": (6, helper.make_node("And", ["b", "b"], ["y"], broadcast=1, axis=0)),
    "a type by name": (5, helper.make_node("Cast", ["x"], ["y"], to="FLOAT")),
    "one operand of two": (14, helper.make_node("Add", ["x"], ["y"])),
    "two operands in place of one": (14, helper.make_node("Relu", ["x", "x"], ["y"])),
    "an operand left out": (14, helper.make_node("Add", ["", "x"], ["y"])),
    "a result too many": (14, helper.make_node("Relu", ["x"], ["y", "z"])),
    "no first result": (7, helper.make_node("Dropout", ["x"], ["", "y"])),
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_stays_foreign(name: str) -> None:
    opset, node = NODES[name]
    inputs = [helper.make_tensor_value_info(*info) for info in (("x", F, [2, 3]), ("b", B, [2, 3]))]
    graph = helper.make_graph(
        [node], "main", inputs, [helper.make_tensor_value_info("y", F, [2, 3])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    module = from_model(model)
    assert [found.op for found in module.graph] == [f"::{node.op_type}"]
    verify(module)
    assert compile_model(model).model == model


X = Value(None, 0, UNKNOWN, "x")
REFUSED: dict[str, tuple[str, tuple[Value | None, ...], tuple[str, ...], dict[str, Attribute], str]] = {
    "attribute of a function": (
        "LeakyRelu", (X,), ("y",), {"alpha": AttributeRef("a", "FLOAT")}, "an attribute is a parameter of the function"
    ),
    "too few inputs": ("Add", (X,), ("y",), {}, "it lacks its input rhs"),
    "an absent input": ("Add", (X, None), ("y",), {}, "it lacks its input rhs"),
    "too many results": ("Relu", (X,), ("y", "z"), {}, "2 results"),
    "an attribute of another kind": ("LeakyRelu", (X,), ("y",), {"alpha": "steep"}, "alpha is of another kind"),
    "no result": ("Relu", (X,), (), {}, "its first result has no name"),
    "a result without a name": ("Relu", (X,), ("",), {}, "its first result has no name"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_lowered_has_a_reason(case: str) -> None:
    op_type, inputs, outputs, attrs, detail = REFUSED[case]
    op, refusal = lower("", op_type, NodeView(14, attrs, inputs, outputs))
    assert op is None
    assert refusal is not None
    assert refusal.detail.startswith(detail)


def test_what_is_lowered_has_none() -> None:
    assert lower("", "Add", NodeView(14, {}, (X, X), ("y",))) == ("add", None)
    assert lower("", "LeakyRelu", NodeView(14, {"alpha": 0.5}, (X,), ("y",))) == (
        "nn.leaky_relu",
        None,
    )
