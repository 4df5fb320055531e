"""x + 1.5 * 2**23 - 1.5 * 2**23 rounds to whole numbers.

What looks like two shifts is a function of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import irc
import numpy as np
import onnx
import pytest
from graphs import rounded
from harness import run
from onnx import ModelProto, numpy_helper

WHOLE = 1.5 * 2.0**23
PASSES = (None, "SimplifyInference,FoldScaleAxis", "SimplifyExpr")


def model(
    body: str, constants: Mapping[str, object], dtype: type = np.float32, opset: int = 17
) -> ModelProto:
    name = {np.float32: "float", np.float16: "float16", np.float64: "double"}[dtype]
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g ({name}[N,2,4,4] x) => ({name}[N,2,4,4] y)'
        f" {{ {body} }}"
    )
    arrays = {key: np.asarray(value, dtype) for key, value in constants.items()}
    made.graph.initializer.extend(
        numpy_helper.from_array(array, key) for key, array in arrays.items()
    )
    return made


def operators(made: ModelProto, passes: str | None = None) -> list[str]:
    return [node.op_type for node in irc.compile(made, passes).model.graph.node]


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize(
    "body",
    ["a = Add(x, k) y = Sub(a, k)", "a = Sub(x, k) y = Add(a, k)", "a = Add(k, x) y = Add(a, m)"],
)
def test_a_sum_that_rounds_stays(body: str, passes: str | None) -> None:
    made = model(body, {"k": WHOLE, "m": -WHOLE})
    assert len(operators(made, passes)) == 2
    x = np.linspace(-9, 9, 64, dtype=np.float32).reshape(2, 2, 4, 4)
    (y,) = run(irc.compile(made, passes).model, {"x": x}).values()
    assert (y == np.rint(x)).all()


@pytest.mark.parametrize(("dtype", "whole"), [(np.float16, 1536.0), (np.float64, 1.5 * 2.0**52)])
def test_a_sum_that_rounds_stays_in_other_types(dtype: type, whole: float) -> None:
    assert operators(model("a = Add(x, k) y = Sub(a, k)", {"k": whole}, dtype)) == ["Add", "Sub"]


def test_a_sum_that_rounds_per_channel_stays() -> None:
    k = np.array([1.0, WHOLE]).reshape(2, 1, 1)
    assert operators(model("a = Add(x, k) y = Sub(a, k)", {"k": k})) == ["Add", "Sub"]


@pytest.mark.parametrize("k", [3.0, 1e6])
def test_other_sums_that_undo_each_other_go(k: float) -> None:
    assert operators(model("a = Add(x, k) b = Sub(a, k) y = Relu(b)", {"k": k})) == ["Relu"]


def test_a_large_sum_that_stays_large_folds() -> None:
    weights = {"w": np.ones((2, 2, 1, 1)), "k": WHOLE}
    assert operators(model("c = Conv(x, w) y = Add(c, k)", weights)) == ["Conv"]


def test_a_large_sum_beside_a_sum_of_data_folds() -> None:
    body = "r = Relu(x) c = Conv(x, w) a = Add(c, r) y = Add(a, k)"
    assert sorted(operators(model(body, {"w": np.ones((2, 2, 1, 1)), "k": WHOLE}))) == [
        "Add",
        "Conv",
        "Relu",
    ]


PARAMETERS = {
    "w": np.arange(4.0).reshape(2, 2, 1, 1),
    "g": [2, 0.5],
    "b": [0.25, 1],
    "m": [0.5, 2],
    "v": [1, 4],
}


def test_a_batch_norm_in_front_folds_and_the_sums_stay() -> None:
    body = "c = Conv(x, w) n = BatchNormalization(c, g, b, m, v) a = Add(n, k) y = Sub(a, k)"
    assert operators(model(body, {**PARAMETERS, "k": WHOLE})) == ["Conv", "Add", "Sub"]


@pytest.mark.parametrize("first", ["a = Mul(x, s)", "c = Conv(x, w) a = Mul(c, s)"])
def test_no_scale_passes_the_sums(first: str) -> None:
    """Fake quantization: the grid would be another."""
    body = f"{first} p = Add(a, k) q = Sub(p, k) y = Div(q, s)"
    made = model(body, {"w": np.eye(2).reshape(2, 2, 1, 1), "s": [[[3.0]], [[7.0]]], "k": WHOLE})
    assert operators(made)[-3:] == ["Add", "Sub", "Div"]
    x = rounded(np.linspace(-9, 9, 64).reshape(2, 2, 4, 4), np.dtype(np.float32))
    (y,), (expected,) = (run(each, {"x": x}).values() for each in (irc.compile(made).model, made))
    assert (y == expected).all()


def test_no_scale_passes_the_sums_forward() -> None:
    body = "a = Mul(x, s) p = Add(a, k) q = Sub(p, k) y = Conv(q, w)"
    made = model(body, {"w": np.ones((2, 2, 1, 1)), "s": [[[3.0]], [[7.0]]], "k": WHOLE})
    assert operators(made) == ["Mul", "Add", "Sub", "Conv"]
