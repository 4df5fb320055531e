"""Raising the opset of a model: attributes become operands, other meanings are refused."""

from __future__ import annotations

from typing import Any

import harness
import numpy as np
import onnx
import pytest
from graphs import Graph, is_valid
from irc.frontends.onnx.raising import raise_opset
from onnx import ModelProto, helper

NEW = 21
X = np.random.default_rng(0).normal(size=(2, 1, 4, 6)).astype(np.float32)


def one(opset: int, op: str, results: int = 1, **attributes: Any) -> ModelProto:
    """A model of one operator on x, [2, 1, 4, 6]."""
    graph = Graph(opset=opset, ir=7)
    graph.input("x", list(X.shape))
    names = [f"y{i}" for i in range(results)]
    scaled = op in ("Resize", "Upsample")
    scales = [graph.initializer(np.array([1, 1, 2, 2], np.float32))] if scaled else []
    node = helper.make_node(op, ["x", *scales], names, "op", **attributes)
    graph.nodes.append(node)
    for name in names:
        is_index = op == "TopK" and name == "y1"
        graph.output(name, dtype=np.dtype(np.int64 if is_index else np.float32))
    return graph.model()


def raised(model: ModelProto) -> ModelProto:
    """Raise a model, and check that its results keep their bits."""
    before = harness.run(model, {"x": X})
    assert raise_opset(model, NEW) is None
    model.ir_version = 10
    assert is_valid(model) is None
    assert model.opset_import[0].version == NEW
    after = harness.run(model, {"x": X})
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])
    return model


@pytest.mark.parametrize(
    ("opset", "op", "attributes"),
    [
        *(
            (17, f"Reduce{kind}", {"axes": [-1, 2], "keepdims": 0})
            for kind in ["L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"]
        ),
        (13, "ReduceMean", {}),
        (11, "ReduceSum", {"axes": [2]}),
        (12, "Squeeze", {"axes": [1]}),
        (12, "Squeeze", {}),
        (12, "Unsqueeze", {"axes": [0, 5]}),
        (12, "Split", {"axis": 3, "split": [2, 4], "results": 2}),
        (12, "Split", {"axis": 3, "results": 3}),
        (17, "Split", {"axis": 3, "results": 3}),
        (9, "Slice", {"axes": [2, 3], "starts": [0, 1], "ends": [-1, 2**31 - 1]}),
        (9, "TopK", {"axis": 3, "k": 2, "results": 2}),
        (10, "Clip", {"min": -0.5}),
        (10, "Pad", {"pads": [0, 0, 1, 0, 0, 0, 0, 2], "value": 2.5}),
        (10, "Pad", {"pads": [0, 0, 1, 0, 0, 0, 0, 2], "mode": "reflect"}),
        (10, "Dropout", {"ratio": 0.5}),
        (18, "ReduceMean", {}),
    ],
)
def test_an_attribute_that_became_an_operand(
    opset: int, op: str, attributes: dict[str, Any]
) -> None:
    raised(one(opset, op, **attributes))


def test_the_limits_of_a_float64_clip_are_float64() -> None:
    model = one(10, "Clip", min=-0.1)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    assert raise_opset(model, NEW) is None
    low, high = map(onnx.numpy_helper.to_array, model.graph.initializer)
    limits = {low.dtype, high.dtype}
    assert limits == {np.dtype(np.float64)}
    assert {float(low), float(high)} == {float(np.float32(-0.1)), float(np.finfo(np.float32).max)}


@pytest.mark.parametrize(
    ("opset", "op", "attributes"),
    [
        (12, "Softmax", {"axis": 1}),
        (12, "Hardmax", {}),
        (9, "Upsample", {}),
        (6, "PRelu", {}),
        (10, "RoiAlign", {}),
        (10, "OneHot", {}),
        (10, "Resize", {}),
        (9, "Dropout", {"results": 2}),
        (6, "Dropout", {"is_test": 1}),
        (6, "Add", {"broadcast": 1, "axis": 1}),
    ],
)
def test_another_meaning_is_refused(opset: int, op: str, attributes: dict[str, Any]) -> None:
    model = one(opset, op, **attributes)
    before = model.SerializeToString()
    assert raise_opset(model, NEW) == (
        f"{op} 'op' means something else in opset {NEW} than in opset {opset}"
    )
    assert model.SerializeToString() == before


def test_an_empty_list_is_refused() -> None:
    model = one(13, "ReduceMean", axes=[1])
    del model.graph.node[0].attribute[0].ints[:]
    assert raise_opset(model, NEW) is not None


def test_a_float16_clip_is_refused() -> None:
    """The limit 0.1 is no float16."""
    model = one(10, "Clip", min=0.1)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert raise_opset(model, NEW) is not None


def test_bodies_are_raised() -> None:
    body = one(13, "ReduceMean", axes=[2], keepdims=0).graph
    del body.input[:]
    other = one(13, "ReduceMax", axes=[3], keepdims=0).graph
    del other.input[:]
    other.node[0].input[0] = "x"
    graph = Graph(opset=13, ir=7)
    graph.input("x", list(X.shape))
    condition = graph.initializer(np.array(True), "c")
    graph.node("If", [condition], "y", "if", then_branch=body, else_branch=other)
    graph.output("y")
    model = graph.model()
    raised(model)
    assert all(
        not each.g.node[0].attribute or len(each.g.node[0].input) == 2
        for each in model.graph.node[0].attribute
    )


def test_a_function_keeps_its_opset() -> None:
    """A function imports an opset of its own, in which the axes are still an attribute."""
    node = helper.make_node("ReduceMean", ["a"], ["b"], "op", axes=[1])
    function = helper.make_function(
        "acme", "f", ["a"], ["b"], [node], [helper.make_opsetid("", 13)]
    )
    model = one(13, "Relu")
    model.functions.append(function)
    assert raise_opset(model, NEW) is not None
