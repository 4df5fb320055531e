"""Regressions of the types that import takes from onnx's shape inference."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import Graph, check
from harness import operators
from irc.frontends.onnx import from_model
from onnx import TensorProto, helper


@pytest.mark.parametrize("declared", [[], ["axes"], ["starts", "ends", "axes", "steps"]])
def test_declared_bounds_of_a_slice_do_not_move_it_to_the_first_axis(declared: list[str]) -> None:
    """An initializer `axes` in value_info was taken for absent: irc thought that the first axis is sliced."""
    graph = sliced()
    graph.output("y")
    model = graph.model()
    model.graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in declared)
    model.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["N", 1, 8]))
    module = from_model(model)
    assert not module.misdeclared
    made = next(node for node in module.graph if node.op == "strided_slice")
    assert str(made.output.type) == "f32[N,1,8]"
    assert operators(check(model).model) == ["Einsum", "Slice", "Relu"]


def test_axes_that_are_a_result_keep_their_meaning() -> None:
    """An initializer that the model returns is declared among its outputs."""
    graph = sliced()
    graph.output("y", ["N", 1, 8])
    graph.output("axes", [1], np.dtype(np.int64))
    module = from_model(graph.model())
    made = next(node for node in module.graph if node.op == "strided_slice")
    assert str(made.output.type) == "f32[N,1,8]"


def sliced() -> Graph:
    """x -> Einsum, whose type onnx infers -> Slice of the second axis -> Relu -> y."""
    graph = Graph(opset=21)
    graph.input("x", ["N", 4, 8])
    bounds = {"starts": -1, "ends": 2**63 - 1, "axes": 1, "steps": 1}
    names = [graph.initializer(np.asarray([number], np.int64), name) for name, number in bounds.items()]
    product = graph.node("Einsum", ["x", graph.initializer(graph.random(8, 8))], equation="bti,ij->btj")
    graph.node("Relu", [graph.node("Slice", [product, *names], "h")], "y")
    return graph
