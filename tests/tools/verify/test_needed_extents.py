"""Extents of open dimensions are those that the operators of a model need."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import pytest
from irc.support.errors import SourceError
from irc.tools.verify.comparison import Comparison
from irc.tools.verify.needed_extents import Need, find_extents
from onnx import ModelProto, numpy_helper
from verification import text, verdict


def with_weights(body: str, **shapes: Sequence[int]) -> ModelProto:
    model, rng = text(body), np.random.default_rng(0)
    for name, shape in shapes.items():
        model.graph.initializer.append(
            numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        )
    return model


MODELS = {
    "a kernel": with_weights(
        "g (float[N,1,L] x) => (y) { a = Conv(x, w) y = Relu(a) }", w=(1, 1, 400)
    ),
    "kernels in a row": with_weights(
        "g (float[N,1,L] x) => (y) { a = Conv<strides=[2]>(x, w) b = Relu(a) y ="
        " Conv<dilations=[3]>(b, w) }",
        w=(1, 1, 300),
    ),
    "time first": with_weights(
        """g (float[T,4] x) => (y) <int64[3] s = {1, 4, -1}> {
        a = Transpose<perm=[1, 0]>(x) b = Reshape(a, s) y = Conv(b, w) }""",
        w=(2, 4, 300),
    ),
    "a dense layer": with_weights(
        """g (float[N,1,H,W] x) => (y) { a = Conv(x, w) b = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(a)
        c = Flatten(b) y = Gemm(c, k) }""",
        w=(4, 1, 5, 5),
        k=(4 * 12 * 12, 10),
    ),
    "positions": with_weights(
        "g (float[N,T,8] x) => (y) { a = MatMul(x, w) y = Concat<axis=0>(a, p) }",
        w=(8, 8),
        p=(1, 77, 8),
    ),
    "a pool": text(
        "g (float[1,3,H,W] x) => (y) { a = Relu(x) y = AveragePool<kernel_shape=[230, 230]>(a) }"
    ),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_source_runs_at_extents_that_its_operators_need(model: ModelProto) -> None:
    comparison = Comparison(model)
    sizes = [
        sum(map(prod, (array.shape for array in stimulus.feeds.values())))
        for stimulus in comparison.inputs
    ]
    assert max(sizes) <= 1 << 19
    assert not verdict(model, model, inputs=comparison.inputs[:1])


def test_what_runs_at_no_extent_is_refused() -> None:
    model = text(
        "g (float[N,C,L] x) => (y) <int64[1] i = {7}> { a = Shape(x) b = Gather(a, i) y ="
        " Reshape(x, b) }"
    )
    with pytest.raises(SourceError, match="runs on no generated inputs"):
        Comparison(model)


def test_needs_are_satisfied_in_order_and_by_the_least_extents() -> None:
    shapes = {
        "a": lambda first, other: (first, (other - 4) // 2),
        "b": lambda first, other: (2 * first - 1, 7) if other >= 104 else None,
    }
    needs = [Need("a", 1, 50), Need("b", 0, 9), Need("b", 1, 8), Need("b", None, 60)]
    assert find_extents(needs, lambda name, *extents: shapes[name](*extents), 1 << 12) == (5, 104)
    assert find_extents([], lambda *_: None, 8) == (1, 1)
