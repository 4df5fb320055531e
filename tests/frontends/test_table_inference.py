"""Types by the operator table alone.

As much as onnx's shape inference knows, which is asked for no other model.
"""

from __future__ import annotations

from typing import Any

import irc
import numpy as np
import pytest
from exporter_graphs import export
from graphs import F32, Graph
from harness import operators, shared_models
from irc.frontends.onnx import from_model, importer, read_model
from irc.ir.text.parser import parse
from irc.ir.type_inference import infer_types
from irc.ir.types import TensorType, Type
from onnx import ModelProto, helper
from random_graphs import grow

Node = tuple[str, tuple[int | str, ...], list[Any], dict[str, Any]]
"""Operator, extents of its data, other operands and attributes."""

BY_TABLE: dict[str, tuple[Node, str]] = {
    "Relu": (("Relu", ("N", -1, 4), [], {}), "f32[N,?,4]"),
    "Conv, open extents": (
        ("Conv", (-1, 2, -1), [np.ones((3, 2, 3), np.float32)], {}),
        "f32[?,3,?]",
    ),
    "Conv, SAME_UPPER": (
        (
            "Conv",
            (1, 2, 7),
            [np.ones((3, 2, 3), np.float32)],
            {"auto_pad": "SAME_UPPER", "strides": [2]},
        ),
        "f32[1,3,4]",
    ),
    "Conv, VALID": (
        (
            "Conv",
            (1, 2, 7),
            [np.ones((3, 2, 3), np.float32)],
            {"auto_pad": "VALID", "strides": [2]},
        ),
        "f32[1,3,3]",
    ),
    "MaxPool, SAME_LOWER": (
        ("MaxPool", (1, 2, 7), [], {"auto_pad": "SAME_LOWER", "kernel_shape": [3], "strides": [3]}),
        "f32[1,2,3]",
    ),
    "Tile": (("Tile", (2, "N", -1), [np.array([3, 1, 2])], {}), "f32[6,N,?]"),
    "Tile, unknown repeats": (("Tile", (2, 3), ["counts"], {}), "f32[?,?]"),
    "DepthToSpace": (("DepthToSpace", ("N", 8, 3, -1), [], {"blocksize": 2}), "f32[N,2,6,?]"),
    "SpaceToDepth": (("SpaceToDepth", ("N", 2, 6, -1), [], {"blocksize": 2}), "f32[N,8,3,?]"),
    "Reshape, target of known length": (("Reshape", (2, 3), ["counts"], {}), "f32[?,?]"),
    "Expand, target of known length": (("Expand", (1, 3), ["counts"], {}), "f32[?,3]"),
    "Shape, some extents": (("Shape", ("N", 3, 4, 5), [], {"start": 1, "end": -1}), "i64[2]"),
    "Shape, no extents": (("Shape", ("N", 3), [], {"start": 2}), "i64[0]"),
    "QuantizeLinear": (("QuantizeLinear", ("N", 3), [np.float32(0.5), np.int8(0)], {}), "i8[N,3]"),
    "QuantizeLinear, no zero point": (
        ("QuantizeLinear", ("N", 3), [np.float32(0.5)], {}),
        "u8[N,3]",
    ),
    "Squeeze without extents of 1": (("Squeeze", (2, 3), [], {}), "f32[2,3]"),
    "Slice, unknown bounds": (("Slice", (4, 3), ["counts", "counts"], {}), "f32[?,?]"),
    "Resize, unknown sizes": (("Resize", ("N", 3), ["", "", "counts"], {}), "f32[?,?]"),
    "Resize by axes": (("Resize", (2, 3), ["", "", np.array([6])], {"axes": [1]}), "f32[2,6]"),
    "Resize that stretches": (
        (
            "Resize",
            ("N", 3),
            ["", "", np.array([4, 6])],
            {"keep_aspect_ratio_policy": "stretch"},
        ),
        "f32[4,6]",
    ),
}
"""Nodes whose types follow from the table, with the type of the first result."""

BY_ONNX: dict[str, tuple[Node, str]] = {
    "Tile, repeats below zero": (("Tile", (2, 3), [np.array([-1, 2])], {}), "f32[?,6]"),
    "Reshape of nothing": (("Reshape", (0, 3, 4), [np.array([-1, 0, 4])], {}), "f32[0,3,4]"),
    "Resize that keeps the aspect ratio": (
        (
            "Resize",
            ("N", 3),
            ["", "", np.array([6])],
            {"axes": [1], "keep_aspect_ratio_policy": "not_larger"},
        ),
        "f32[?,6]",
    ),
    "ArgMax": (("ArgMax", ("N", 4), [], {"axis": 1}), "i64[N,1]"),
    "MaxPool, window larger than the data": (
        ("MaxPool", (1, 2, 2), [], {"kernel_shape": [3], "strides": [3]}),
        "f32[1,2,1]",
    ),
    "Conv, SAME_UPPER with dilations": (
        (
            "Conv",
            (1, 2, 7),
            [np.ones((3, 2, 3), np.float32)],
            {"auto_pad": "SAME_UPPER", "dilations": [2]},
        ),
        "f32[1,3,7]",
    ),
}
"""Nodes of which onnx may know more."""


DTYPES = {"f32": F32, "i64": np.dtype(np.int64), "i8": np.dtype(np.int8), "u8": np.dtype(np.uint8)}


def model_of(node: Node, expected: str) -> ModelProto:
    """Return a model of one node, whose second input `counts` holds two integers.

    Its output has an element type.
    """
    op, extents, operands, attributes = node
    graph = Graph(opset=19)
    graph.input("x", ["N"])
    graph.input("counts", [2], np.dtype(np.int64))
    named = [
        each if isinstance(each, str) else graph.initializer(np.asarray(each)) for each in operands
    ]
    graph.node(op, ["x", *named], "y", **attributes)
    graph.output("y", None, DTYPES[expected.partition("[")[0]])
    model = graph.model()
    declared = helper.make_tensor_type_proto(1, [each if each != -1 else None for each in extents])
    model.graph.input[0].type.CopyFrom(declared)
    return model


def imported(model: ModelProto, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Return the type of the result y, and how often onnx's shape inference was run."""
    runs: list[object] = []
    infer = importer.infer_shapes
    with monkeypatch.context() as patch:
        patch.setattr(importer, "infer_shapes", lambda *a, **k: (runs.append(a), infer(*a, **k))[1])
        module = from_model(model)
    return str(module.graph.outputs[0].type), len(runs)


@pytest.mark.parametrize("case", BY_TABLE)
def test_the_table_infers_the_type_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node, expected = BY_TABLE[case]
    model = model_of(node, expected)
    assert imported(model, monkeypatch) == (expected, 0)
    monkeypatch.setattr(importer, "_may_skip_inference", lambda model: False)
    assert imported(model, monkeypatch) == (expected, 1)


@pytest.mark.parametrize("case", BY_ONNX)
def test_onnx_is_asked_where_it_may_know_more(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node, expected = BY_ONNX[case]
    assert imported(model_of(node, expected), monkeypatch) == (expected, 1)


@pytest.mark.parametrize("op", ["Relu", "ArgMax"])
def test_a_declared_extent_of_minus_one_is_no_number(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnx calculated with it.

    A Conv of stride 2 on images [-1, 3, -1, -1] had results of 0 by 0 pixels.
    """
    graph = Graph(opset=13)
    graph.input("x", ["N", 3, "H", "W"])
    weight = graph.initializer(np.ones((4, 3, 3, 3), np.float32))
    graph.node("Conv", ["x", weight], "c", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    graph.node(op, ["c"], "y")
    graph.output("y", None, F32 if op == "Relu" else np.dtype(np.int64))
    model = graph.model()
    for i in (0, 2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[i].dim_value = -1
    module = from_model(model)
    found = next(node.output.type for node in module.graph if node.op == "nn.conv")
    assert str(found) == "f32[?,4,?,?]"


def knows_more(one: Type, other: Type) -> bool:
    """Return whether `one` says more than `other`, or something else."""
    if one == other or not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return one != other
    if one.dtype is not None and one.dtype != other.dtype:
        return True
    if one.shape is None or other.shape is None:
        return one.shape is not None
    if len(one.shape) != len(other.shape):
        return True
    return any(a is not None and a != b for a, b in zip(one.shape, other.shape, strict=True))


def hold(model: ModelProto, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Assert that onnx knows no more than the table; return whether the table alone was asked."""
    with monkeypatch.context() as patch:
        runs: list[object] = []
        infer = importer.infer_shapes
        patch.setattr(importer, "infer_shapes", lambda *a, **k: (runs.append(a), infer(*a, **k))[1])
        by_table = from_model(model)
        if runs:
            return False
        patch.setattr(importer, "_may_skip_inference", lambda model: False)
        by_onnx = from_model(model)
        assert runs
    for ours, theirs in zip(by_table.walk(), by_onnx.walk(), strict=True):
        for value, other in zip(ours.outputs, theirs.outputs, strict=True):
            assert not knows_more(other.type, value.type), (
                f"{ours.description}: {value.type}, by onnx {other.type}"
            )
    return True


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_onnx_knows_no_more_of_exporter_graphs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(hold(export(70_000 + seed), monkeypatch) for seed in range(first, first + 20)) >= 4


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_onnx_knows_no_more_of_random_graphs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        sum(hold(grow(70_000 + seed, F32), monkeypatch) for seed in range(first, first + 20)) >= 4
    )


@pytest.mark.shared
@pytest.mark.slow
def test_onnx_knows_no_more_of_shared_models(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [path for path in shared_models() if path.stat().st_size < 1 << 24]
    asked = sum(hold(read_model(path)[0], monkeypatch) for path in paths)
    assert asked >= len(paths) // 2


CONSTANT = {
    "NonZero": ("NonZero", [np.array([1, 0, 1, 1], np.float32)]),
    "CumSum": ("CumSum", [np.array([2, 1], np.int64), np.int64(0)]),
}
"""Operators that are computed, of constant operands."""


@pytest.mark.parametrize("case", CONSTANT)
def test_types_are_completed_when_the_last_operator_that_reads_elements_is_computed(
    case: str,
) -> None:
    """All types seemed to follow from those of the inputs then, and a second compile knew more."""
    op, operands = CONSTANT[case]
    graph = Graph(opset=13)
    graph.input("x", ["N", 1] if op == "CumSum" else [2, 4])
    found = graph.node(op, [graph.initializer(np.asarray(each)) for each in operands])
    if op == "CumSum":
        data = graph.node("Add", ["x", graph.node("ConstantOfShape", [found])])
    else:
        data = graph.node("Gather", ["x", found], axis=1)
    graph.node("Shape", [graph.node("Relu", [data])], "y")
    graph.output("y", None, np.dtype(np.int64))
    result = irc.compile(graph.model()).model
    assert operators(result) == []
    assert irc.compile(result).model == result


def test_a_rank_that_a_layer_cannot_have_is_corrected_before_its_affine_folds() -> None:
    text = """module {ir_version=8, opsets={"": 17}}
graph @g(%x: f32[N,2,5,5]) {
  %w = constant {value=f32[2,2,1,1] [1.0,2.0,3.0,4.0]}
  %m = constant {value=f32[2,1,1] [1.0,2.0]}
  %one = constant {value=f32[] 1.0}
  %same = multiply(%x, %one) : f32[N,2,5,5]
  %y = nn.conv(%same, %w) : f32[1,2,3]
  %r = multiply(%y, %m) : f32[N,2,5,5]
  return(%r)
}
"""
    passes = "SimplifyExpr,SimplifyInference,FoldScaleAxis,FoldConstant"
    assert operators(irc.compile(irc.parse(text), passes).model) == ["Conv"]


@pytest.mark.parametrize(("extent", "result"), [(1, "f32[3,1,2]"), (3, "f32[3,1,2]")])
def test_an_axis_of_extent_1_is_stretched_by_a_parameter(extent: int, result: str) -> None:
    module = parse(f"""module {{ir_version=9, opsets={{"": 18}}}}

graph @g(%x: f32[{extent},1,2]) {{
  %b = constant {{value=f32[3] [1.0, 2.0, 3.0]}}
  %y = multiply(%x, %b) {{axis=0}} : f32[*]
  return(%y)
}}
""")
    (node,) = module.graph.operators()
    infer_types(node, module.constants)
    assert str(node.output.type) == result
