"""The work of Relus and Clips that onnxruntime's quantizer removes.

Their range does it, or they are put back.
"""

from __future__ import annotations

from typing import Any

import harness
import int8_models
import irc
import numpy as np
import pytest
from graphs import Array, BatchNorm, Graph, is_valid
from onnx import ModelProto, TensorProto, helper

pytestmark = int8_models.NEEDS_RANGES

Range = tuple[float, float]

INPUTS = np.random.default_rng(0).uniform(-1, 1, (64, 3, 8, 8)).astype(np.float32)
GIVEN: dict[str, Any] = {"input_ranges": {"x": (-1, 1)}, "test_data": {"x": INPUTS}}


def limited(
    graph: Graph, op: str, low: float | None, high: float | None, data: str, out: str
) -> str:
    """A Relu, or a Clip with the ends that are given."""
    if op == "Relu":
        return graph.node("Relu", [data], out, out)
    ends = ["" if end is None else graph.initializer(np.float32(end)) for end in (low, high)]
    return graph.node("Clip", [data, *ends], out, out)


def net(*activations: tuple[str, float | None, float | None], norm: bool = True) -> ModelProto:
    """Conv, activations `r0`, `r1`, ..., BatchNormalization of these data, Conv."""
    graph = Graph(opset=17, ir=8)
    graph.input("x", ["n", 3, 8, 8])
    last = graph.node(
        "Conv", ["x", graph.initializer(graph.random(8, 3, 3, 3))], "c", "c", pads=[1, 1, 1, 1]
    )
    for index, activation in enumerate(activations):
        last = limited(graph, *activation, last, f"r{index}")
    if norm:
        graph.output(last)
        data = harness.run(graph.model(), {"x": INPUTS})[last]
        graph.outputs.clear()
        ones = np.ones(8, np.float32)
        statistics = data.mean((0, 2, 3)), data.var((0, 2, 3))
        last = graph.batch_norm(last, BatchNorm(ones, 0 * ones, *statistics), "b", "bn")
    graph.node("Conv", [last, graph.initializer(graph.random(5, 8, 1, 1))], "y", "d")
    graph.output("y", ["n", 5, 8, 8])
    return graph.model()


def sqnr(model: ModelProto, found: ModelProto, inputs: Array = INPUTS) -> float:
    expected, result = (harness.run(each, {"x": inputs})["y"] for each in (model, found))
    return int8_models.sqnr(expected, result)


def activations(model: ModelProto) -> list[str]:
    """The names of the activations that a quantized model computes."""
    return [node.name for node in model.graph.node if node.op_type in ("Relu", "Clip")]


def left_float(found: irc.Quantized) -> dict[str, str]:
    return {one.node: str(one.reason) for one in found.coverage if not one.quantized}


DONE: dict[str, tuple[list[tuple[str, float | None, float | None]], Range]] = {
    "Relu": ([("Relu", None, None)], (0, 9)),
    "a Clip to what its range has": ([("Clip", -1, 2)], (-1, 2)),
    "a Clip to more than its range has": ([("Clip", -30, 20)], (-9, 9)),
    "a Clip of negative numbers, up to 0": ([("Clip", -3, 0)], (-3, 0)),
    "a Clip without an end": ([("Clip", None, 2)], (-9, 2)),
    "a zero between two numbers of the grid": ([("Clip", -0.37, 2)], (-0.37, 2)),
    "two": ([("Relu", None, None), ("Clip", -1, 2)], (0, 2)),
    "one that does the work of the other": ([("Clip", -1, 2), ("Relu", None, None)], (0, 2)),
}
UNDONE: dict[str, tuple[list[tuple[str, float | None, float | None]], Range]] = {
    "Relu": ([("Relu", None, None)], (-3, 9)),
    "a Clip that is narrower": ([("Clip", -1, 2)], (-4, 4)),
    "a Clip that is narrower below": ([("Clip", 0, 6)], (-0.5, 6)),
    "a Clip that is narrower above": ([("Clip", 0, 2)], (0, 2.5)),
    "a Clip of positive numbers": ([("Clip", 1, 2)], (1, 2)),
    "a Clip of negative numbers": ([("Clip", -3, -1)], (-3, -1)),
    "two": ([("Relu", None, None), ("Clip", -1, 2)], (-1, 2)),
    "ends in the wrong order": ([("Clip", 2, 1)], (0, 2)),
}


@pytest.mark.parametrize("name", DONE)
@pytest.mark.parametrize("with_data", [False, True])
def test_a_range_does_the_work(name: str, with_data: bool) -> None:
    row, span = DONE[name]
    model = net(*row, norm=False)
    options = {"data": {"x": INPUTS}} if with_data else {}
    found = irc.quantize(
        model, passes="none", ranges={f"r{len(row) - 1}": span}, **(GIVEN | options)
    )
    assert activations(found.model) == []
    assert left_float(found) == {}
    assert sqnr(model, found.model) > 20


@pytest.mark.parametrize("name", UNDONE)
@pytest.mark.parametrize("with_data", [False, True])
def test_what_no_range_does_is_computed(name: str, with_data: bool) -> None:
    row, span = UNDONE[name]
    model = net(*row, norm=False)
    options = {"data": {"x": INPUTS}} if with_data else {}
    found = irc.quantize(
        model, passes="none", ranges={f"r{len(row) - 1}": span}, **(GIVEN | options)
    )
    assert is_valid(found.model) is None
    names = [f"r{index}" for index in range(len(row))]
    assert activations(found.model) == names
    assert left_float(found) == {name: f"no range does its work for {name!r}" for name in names}
    assert sqnr(model, found.model) > 20


@pytest.mark.parametrize("with_data", [False, True])
def test_ranges_that_nobody_gave(with_data: bool) -> None:
    model = net(("Clip", 1, 2), norm=False)
    found = irc.quantize(
        model, passes="none", **(GIVEN | ({"data": {"x": INPUTS}} if with_data else {}))
    )
    assert activations(found.model) == ["r0"]
    assert any(one.quantized for one in found.coverage) == with_data
    assert sqnr(model, found.model) > 20


def test_computed_bounds() -> None:
    graph = Graph(opset=17, ir=8)
    graph.input("x", ["n", 3, 8, 8])
    conv = graph.node("Conv", ["x", graph.initializer(graph.random(8, 3, 3, 3))], "c", "c")
    bound = graph.node("ReduceMean", ["x"], "bound", "bound", keepdims=0)
    clip = graph.node("Clip", [conv, bound], "r", "r")
    graph.node("Conv", [clip, graph.initializer(graph.random(5, 8, 1, 1))], "y", "d")
    graph.output("y", ["n", 5, 6, 6])
    found = irc.quantize(graph.model(), ranges=dict.fromkeys("cr", (-9, 9)), **GIVEN)
    assert left_float(found)["r"] == "its bounds are computed"
    assert sqnr(graph.model(), found.model) > 20


def test_data_that_a_body_reads() -> None:
    graph = Graph(opset=17, ir=8)
    graph.input("x", ["n", 3, 8, 8])
    conv = graph.node(
        "Conv", ["x", graph.initializer(graph.random(8, 3, 3, 3))], "c", "c", pads=[1, 1, 1, 1]
    )
    graph.node("Relu", [conv], "r", "r")
    branches = {}
    for name, op in (("then_branch", "Neg"), ("else_branch", "Identity")):
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        branches[name] = helper.make_graph(
            [helper.make_node(op, ["c"], [name])], name, [], [result]
        )
    where = graph.node(
        "Greater", [graph.node("ReduceMean", ["x"], keepdims=0), graph.initializer(np.float32(0))]
    )
    graph.node("If", [where], "i", "i", **branches)
    graph.node("Sub", ["r", "i"], "y", "s")
    graph.output("y", ["n", 8, 8, 8])
    found = irc.quantize(graph.model(), ranges={"c": (-9, 9), "r": (0, 9)}, **GIVEN)
    assert left_float(found)["r"] == "onnxruntime would clip the value 'c' to its range"
    assert sqnr(graph.model(), found.model) > 20


@pytest.mark.parametrize("passes", [None, "default", "none"])
@pytest.mark.parametrize(
    "activation", [("Relu", None, None), ("Clip", 0, 6), ("Clip", -1, 2), ("Clip", None, 1)]
)
def test_a_batch_norm_behind_an_activation(
    activation: tuple[str, float | None, float | None], passes: str
) -> None:
    model = net(activation)
    found = irc.quantize(model, passes=passes, **GIVEN)
    assert sqnr(model, found.model) > 25
    assert "Relu" not in [node.op_type for node in found.model.graph.node]
