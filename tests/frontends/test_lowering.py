"""Nodes that no in-house operator means the same as stay foreign, and come back as they were."""

from __future__ import annotations

import pytest
from irc.backends.compiler import compile as compile_model
from irc.frontends.onnx import from_model
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
    graph = helper.make_graph([node], "main", inputs, [helper.make_tensor_value_info("y", F, [2, 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    module = from_model(model)
    assert [found.op for found in module.graph] == [f"::{node.op_type}"]
    verify(module)
    assert compile_model(model).model == model
