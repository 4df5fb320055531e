"""What an operator costs in float32: its multiplications, and the elements of its results."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import Graph
from irc.frontends.onnx import from_model
from irc.passes.float16.regions import OPEN_EXTENT, work_of


@pytest.mark.parametrize(("transposed", "shape"), [(0, (8, 4)), (1, (4, 8))])
def test_a_gemm_costs_the_same_with_a_transposed_weight(
    transposed: int, shape: tuple[int, int]
) -> None:
    graph = Graph()
    weight = graph.initializer(np.ones(shape, np.float32))
    graph.node("Gemm", [graph.input("x", ["N", 8]), weight], "y", transB=transposed)
    graph.output("y", ["N", 4])
    (gemm,) = from_model(graph.model()).graph.operators()
    assert work_of(gemm) == OPEN_EXTENT * 4 * (8 + 1)
