"""The work of Relus and Clips that onnxruntime's quantizer removes: their range does it, or they are put back."""

from __future__ import annotations

from typing import Any

import harness
import irc
import numpy as np
import onnxruntime
import pytest
from graphs import Array, BatchNorm, Graph
from onnx import ModelProto

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27),
    reason="quantize_static takes no ranges before onnxruntime 1.27",
)

INPUTS = np.random.default_rng(0).uniform(-1, 1, (64, 3, 8, 8)).astype(np.float32)
GIVEN: dict[str, Any] = {"input_ranges": {"x": (-1, 1)}, "test_data": {"x": INPUTS}}


def limited(graph: Graph, op: str, low: float | None, high: float | None, data: str, out: str) -> str:
    """A Relu, or a Clip with the ends that are given."""
    if op == "Relu":
        return graph.node("Relu", [data], out, out)
    ends = ["" if end is None else graph.initializer(np.float32(end)) for end in (low, high)]
    return graph.node("Clip", [data, *ends], out, out)


def net(*activations: tuple[str, float | None, float | None], norm: bool = True) -> ModelProto:
    """Conv, activations `r0`, `r1`, ..., BatchNormalization with the statistics of its data, Conv."""
    graph = Graph(opset=17, ir=8)
    graph.input("x", ["n", 3, 8, 8])
    last = graph.node("Conv", ["x", graph.initializer(graph.random(8, 3, 3, 3))], "c", "c", pads=[1, 1, 1, 1])
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
    expected, result = (harness.run(each, {"x": inputs})["y"].astype(np.float64) for each in (model, found))
    return float(10 * np.log10(np.square(expected).sum() / np.square(result - expected).sum()))


@pytest.mark.parametrize("passes", [None, "default", "none"])
@pytest.mark.parametrize("activation", [("Relu", None, None), ("Clip", 0, 6), ("Clip", -1, 2), ("Clip", None, 1)])
def test_a_batch_norm_behind_an_activation(activation: tuple[str, float | None, float | None], passes: str) -> None:
    model = net(activation)
    found = irc.quantize(model, passes=passes, **GIVEN)
    assert sqnr(model, found.model) > 25
    assert "Relu" not in [node.op_type for node in found.model.graph.node]
