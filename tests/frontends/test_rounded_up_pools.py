"""Extents after pools that round up (`ceil_mode`).

onnx's shape inference is asked where runtimes count as it does.

LRN stands for the operators whose types only that inference knows. A Shape behind it is a constant
if they are known.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import Graph, check
from harness import run
from irc.frontends.onnx import shape_inference
from irc.frontends.onnx.shape_inference import infer_shapes
from onnx import ModelProto

PADS = ([0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0])


def pooled(size: int | str, pads: list[int], *, times: int = 1, op: str = "MaxPool") -> ModelProto:
    """x -> pool -> LRN for each of the `times`, then times the number of its elements."""
    graph = Graph()
    value = graph.input("x", [1, 3, size, size])
    for i in range(times):
        value = graph.node(
            op, [value], f"pool{i}", kernel_shape=[2, 2], strides=[2, 2], pads=pads, ceil_mode=1
        )
        value = graph.node("LRN", [value], f"lrn{i}", size=3)
    numbers = graph.node("Cast", [graph.node("Shape", [value])], to=1)
    graph.node("Mul", [value, graph.node("ReduceProd", [numbers], keepdims=0)], "y")
    graph.output("y", None)
    return graph.model()


def extent(inferred: ModelProto | None, name: str) -> int | None:
    """The last extent of a value as inferred, None where it is open."""
    assert inferred is not None
    named = [info.type.tensor_type for info in inferred.graph.value_info if info.name == name]
    shapes = [type_.shape for type_ in named if type_.HasField("shape")]
    return shapes[0].dim[-1].dim_value if shapes else None


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("size", [7, 8, 9, 10])
def test_extents_are_known_exactly_where_onnx_and_onnxruntime_count_alike(
    size: int, pads: list[int], op: str
) -> None:
    """Of 8 elements and 1 of padding onnx counts 5 windows of 2, onnxruntime 4."""
    model = pooled(size, pads, op=op)
    said = extent(onnx.shape_inference.infer_shapes(model), "pool0")
    counted = run(model, {"x": np.ones((1, 3, size, size), np.float32)})["y"].shape[-1]
    assert extent(infer_shapes(model), "lrn0") == (counted if said == counted else None)


@pytest.mark.parametrize(("size", "left"), [(7, 3), ("H", 6)])
def test_a_shape_behind_such_a_pool_is_a_constant(size: int | str, left: int) -> None:
    assert len(check(pooled(size, [0, 0, 1, 1])).model.graph.node) == left


def test_pools_in_a_row_are_counted_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pooled(65, [0, 0, 1, 1], times=3)
    assert [extent(infer_shapes(model), f"lrn{i}") for i in range(3)] == [33, 17, 9]
    monkeypatch.setattr(shape_inference, "MAX_POOLS_IN_A_ROW", 2)
    assert [extent(infer_shapes(model), f"lrn{i}") for i in range(3)] == [33, 17, None]
