"""BatchNormalization and Dropout in every opset.

Which of them are inference, and what their numbers must satisfy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import (
    BF16,
    F16,
    F32,
    F64,
    NEWEST,
    Array,
    BatchNorm,
    Graph,
    batch_norm,
    check,
    check_unchanged,
    operand,
    rounded,
    same_bits,
    the,
    wide,
)

INFERENCE: dict[str, tuple[int, dict[str, Any], list[str]]] = {
    "opset 1, is_test": (1, {}, ["y"]),
    "opset 6, is_test": (6, {}, ["y"]),
    "opset 6, is_test, spatial=1": (6, {"spatial": 1}, ["y"]),
    "opset 6, is_test, spurious spatial=0": (6, {"spatial": 0}, ["y"]),
    "opset 7": (7, {}, ["y"]),
    "opset 7, momentum": (7, {"momentum": 0.5}, ["y"]),
    "opset 7, spurious spatial=0": (7, {"spatial": 0}, ["y"]),
    "opset 8": (8, {}, ["y"]),
    "opset 8, spurious spatial=0": (8, {"spatial": 0}, ["y"]),
    "opset 8, spatial=1": (8, {"spatial": 1}, ["y"]),
    "opset 9": (9, {}, ["y"]),
    "opset 13": (13, {}, ["y"]),
    "opset 14": (14, {}, ["y"]),
    "opset 14, training_mode=0": (14, {"training_mode": 0}, ["y"]),
    "opset 15": (15, {}, ["y"]),
    "opset 15, training_mode=0": (15, {"training_mode": 0}, ["y"]),
    "newest opset": (NEWEST, {}, ["y"]),
}


@pytest.mark.parametrize("case", INFERENCE)
def test_inference_mode_folds(case: str) -> None:
    opset, attrs, outputs = INFERENCE[case]
    graph = Graph(opset=opset)
    graph.input("x", [2, 3, 4, 4])
    weight, params = graph.random(4, 3, 3, 3), batch_norm(4)
    graph.node(
        "Conv",
        ["x", graph.initializer(weight)],
        "h",
        "conv",
        kernel_shape=[3, 3],
        pads=[1, 1, 1, 1],
    )
    graph.batch_norm("h", params, outputs, **attrs)
    graph.output("y", [2, 4, 4, 4])
    conv = the((result := check(graph.model(), ["Conv"])).model, "Conv")
    assert conv.output == ["y"]
    assert conv.name == "conv"
    assert same_bits(
        operand(result.model, conv, 1),
        rounded(wide(weight) * params.scale[:, None, None, None], F32),
    )
    assert same_bits(operand(result.model, conv, 2), rounded(params.bias(), F32))


STATISTICS = ["y", "mean", "var", "saved_mean", "saved_var"]
TRAINING: dict[str, tuple[int, dict[str, Any], list[str]]] = {
    "opset 1, is_test absent": (1, {"is_test": None}, ["y"]),
    "opset 1, is_test=0": (1, {"is_test": 0}, ["y"]),
    "opset 1, is_test=0, 5 outputs": (1, {"is_test": 0}, STATISTICS),
    "opset 6, is_test absent": (6, {"is_test": None}, ["y"]),
    "opset 6, is_test=0": (6, {"is_test": 0}, ["y"]),
    "opset 6, is_test=0, 5 outputs": (6, {"is_test": 0}, STATISTICS),
    "opset 7, 5 outputs": (7, {}, STATISTICS),
    "opset 8, 5 outputs": (8, {}, STATISTICS),
    "opset 9, 5 outputs": (9, {}, STATISTICS),
    "opset 9, 2 outputs": (9, {}, STATISTICS[:2]),
    "opset 9, only the last output": (9, {}, ["y", "", "", "", "saved_var"]),
    "opset 13, 5 outputs": (13, {}, STATISTICS),
    "opset 14, training_mode=1": (14, {"training_mode": 1}, STATISTICS[:3]),
    "opset 14, training_mode=1, 1 output": (14, {"training_mode": 1}, ["y"]),
    "opset 15, training_mode=1": (15, {"training_mode": 1}, STATISTICS[:3]),
    "opset 15, training_mode=1, 1 output": (15, {"training_mode": 1}, ["y"]),
    "newest opset, training_mode=1": (NEWEST, {"training_mode": 1}, STATISTICS[:3]),
}


@pytest.mark.parametrize("case", TRAINING)
def test_training_mode_is_refused(case: str) -> None:
    opset, attrs, outputs = TRAINING[case]
    graph = Graph(opset=opset)
    graph.input("x", [2, 3, 4, 4])
    graph.node(
        "Conv", ["x", graph.initializer(graph.random(4, 3, 3, 3))], "h", "conv", kernel_shape=[3, 3]
    )
    graph.batch_norm("h", batch_norm(4), outputs, "bn", **attrs)
    graph.output("y", [2, 4, 2, 2])
    check_unchanged(graph.model(), "training_mode")


@pytest.mark.parametrize("opset", [6, 7, 8])
def test_parameters_per_element_are_refused(opset: int) -> None:
    graph = Graph(opset=opset)
    graph.input("x", [2, 3, 4, 4])
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 3, 3))], "h", kernel_shape=[3, 3])
    params = BatchNorm(*(graph.positive(4, 2, 2) for _ in range(4)))
    graph.batch_norm("h", params, "y", spatial=0)
    graph.output("y", [2, 4, 2, 2])
    check_unchanged(graph.model(), "per_element")


@pytest.mark.parametrize("layer", [True, False])
@pytest.mark.parametrize("opset", [7, 8])
def test_parameters_per_element_that_are_the_same_all_over_a_channel(
    opset: int, layer: bool
) -> None:
    graph = Graph(opset=opset)
    graph.input("x", [2, 3, 4, 4])
    conv = ["x", graph.initializer(graph.random(4, 3, 3, 3))]
    data = graph.node("Conv", conv) if layer else graph.node("Sigmoid", [graph.node("Conv", conv)])
    params = [np.broadcast_to(graph.positive(4, 1, 1), (4, 2, 2)) for _ in range(4)]
    graph.batch_norm(data, BatchNorm(*params), "y", spatial=0)
    graph.output("y", [2, 4, 2, 2])
    if layer:
        check(graph.model(), ["Conv"])
    else:
        check_unchanged(graph.model())


@pytest.mark.parametrize("opset", [7, 9, 14, NEWEST])
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("input", "no_foldable_neighbour"),
        ("relu", "activation_between"),
        ("pool", "no_foldable_neighbour"),
        ("concat", "multi_consumer"),
    ],
)
def test_without_a_layer_it_comes_back_bit_identical(opset: int, place: str, reason: str) -> None:
    graph = Graph(opset=opset)
    graph.input("x", [2, 3, 4, 4])
    data = {
        "input": lambda: "x",
        "relu": lambda: graph.node("Relu", ["x"]),
        "pool": lambda: graph.node("MaxPool", ["x"], kernel_shape=[2, 2]),
        "concat": lambda: graph.node("Concat", ["x", "x"], axis=2),
    }[place]()
    graph.batch_norm(data, batch_norm(3, epsilon=0.001), "y", "bn", momentum=0.25)
    graph.nodes[-1].doc_string = "kept"
    graph.output("y")
    check_unchanged(graph.model(), reason)


def altered(params: BatchNorm, which: str, index: int, number: float) -> BatchNorm:
    """The parameters with one number changed."""
    arrays: dict[str, Array] = {
        k: getattr(params, k).copy() for k in ("gamma", "beta", "mean", "var")
    }
    arrays[which][index] = number
    return BatchNorm(**arrays, epsilon=params.epsilon)


NUMBERS: dict[str, tuple[BatchNorm, str | None]] = {
    "gamma zero": (altered(batch_norm(4), "gamma", 1, 0.0), None),
    "gamma -0.0": (altered(batch_norm(4), "gamma", 1, -0.0), None),
    "gamma negative": (altered(batch_norm(4), "gamma", 1, -3.0), None),
    "gamma all zero": (BatchNorm(*(np.zeros(4, np.float32),) * 3, np.ones(4, np.float32)), None),
    "variance zero": (altered(batch_norm(4), "var", 2, 0.0), None),
    "variance slightly negative": (altered(batch_norm(4), "var", 2, -9e-6), None),
    "epsilon zero": (batch_norm(4, epsilon=0.0), None),
    "epsilon large": (batch_norm(4, epsilon=2.0), None),
    "variance huge": (altered(batch_norm(4), "var", 0, 3e38), None),
    "epsilon zero, variance zero": (
        altered(batch_norm(4, epsilon=0.0), "var", 2, 0.0),
        "non_positive_variance",
    ),
    "variance negative": (altered(batch_norm(4), "var", 3, -0.5), "non_positive_variance"),
    "variance is -epsilon": (altered(batch_norm(4), "var", 3, -1e-5), "non_positive_variance"),
    "epsilon negative": (batch_norm(4, epsilon=-3.0), "non_positive_variance"),
    "gamma nan": (altered(batch_norm(4), "gamma", 0, np.nan), "nonfinite"),
    "gamma inf": (altered(batch_norm(4), "gamma", 0, np.inf), "nonfinite"),
    "beta nan": (altered(batch_norm(4), "beta", 3, np.nan), "nonfinite"),
    "beta -inf": (altered(batch_norm(4), "beta", 3, -np.inf), "nonfinite"),
    "mean nan": (altered(batch_norm(4), "mean", 0, np.nan), "nonfinite"),
    "mean inf": (altered(batch_norm(4), "mean", 0, np.inf), "nonfinite"),
    "variance nan": (altered(batch_norm(4), "var", 0, np.nan), "nonfinite"),
    "variance inf": (altered(batch_norm(4), "var", 0, np.inf), "nonfinite"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_of_the_parameters(case: str) -> None:
    params, reason = NUMBERS[case]
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    weight = graph.random(4, 3, 1, 1)
    graph.node("Conv", ["x", graph.initializer(weight)], "h", "conv")
    graph.batch_norm("h", params, "y", "bn")
    graph.output("y", [2, 4, 4, 4])
    if reason is not None:
        check_unchanged(graph.model(), reason)
        return
    result = check(graph.model(), ["Conv"])
    conv = the(result.model, "Conv")
    assert same_bits(
        operand(result.model, conv, 1),
        rounded(wide(weight) * params.scale[:, None, None, None], F32),
    )
    bias = params.bias()
    found = operand(result.model, conv, 2) if len(conv.input) > 2 else np.zeros(4, np.float32)
    assert (found == rounded(bias, F32)).all()


DTYPES: dict[str, tuple[np.dtype[Any], np.dtype[Any], np.dtype[Any], int]] = {
    "f16": (F16, F16, F16, 9),
    "f16 at 15": (F16, F16, F16, 15),
    "bf16": (BF16, BF16, BF16, 15),
    "f32": (F32, F32, F32, 9),
    "f64": (F64, F64, F64, 9),
    "f16 with f32 parameters": (F16, F32, F32, 15),
    "f16 with f32 statistics": (F16, F16, F32, 15),
    "f16 with f64 statistics": (F16, F16, F64, 15),
    "bf16 with f32 parameters": (BF16, F32, F32, 15),
    "bf16 with f16 statistics": (BF16, BF16, F16, NEWEST),
    "f32 with f16 parameters": (F32, F16, F16, 15),
    "f32 with f64 statistics": (F32, F32, F64, 15),
    "f64 with f32 statistics": (F64, F64, F32, 15),
    "f64 with f32 parameters": (F64, F32, F32, NEWEST),
}


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("case", DTYPES)
def test_every_floating_type_is_rounded_once(case: str, with_bias: bool) -> None:
    data, first, second, opset = DTYPES[case]
    graph = Graph(opset=opset if data != BF16 else 22, dtype=data)
    graph.input("x", [2, 3, 4, 4])
    weight, bias = graph.random(8, 3, 3, 3), graph.random(8)
    params = batch_norm(8, dtype=F64).astype(first, second)
    extra = [graph.initializer(bias, "b")] if with_bias else []
    graph.node("Conv", ["x", graph.initializer(weight, "w"), *extra], "h", "conv")
    graph.batch_norm("h", params, "y")
    graph.output("y", [2, 8, 2, 2])
    result = check(graph.model(), ["Conv"])
    conv = the(result.model, "Conv")
    assert same_bits(
        operand(result.model, conv, 1),
        rounded(wide(weight) * params.scale[:, None, None, None], data),
    )
    assert same_bits(
        operand(result.model, conv, 2), rounded(params.bias(bias if with_bias else 0.0), data)
    )


def test_one_rounding_where_two_would_differ() -> None:
    """Rounding a product in float32 twice, or bf16 through float32, gives other bits."""
    for dtype in (F32, BF16, F16):
        graph = Graph(dtype=dtype, opset=22, seed=3)
        graph.input("x", [1, 8, 4, 4])
        weight, params = graph.random(64, 8, 3, 3), batch_norm(64, dtype=dtype)
        graph.node("Conv", ["x", graph.initializer(weight)], "h")
        graph.batch_norm("h", params, "y")
        graph.output("y", [1, 64, 2, 2])
        result = check(graph.model(), ["Conv"])
        found = operand(result.model, the(result.model, "Conv"), 1)
        assert same_bits(found, rounded(wide(weight) * params.scale[:, None, None, None], dtype))
        naive = (weight * (params.scale[:, None, None, None]).astype(dtype)).astype(dtype)
        assert (found != naive).any()


def test_bfloat16_is_not_rounded_through_float32() -> None:
    """1 + 2**-8 + 2**-30 is above the middle of 1 and 1 + 2**-7.

    float32 puts it on the middle, which is even below.
    """
    graph = Graph(dtype=BF16, opset=22)
    graph.input("x", [1, 1, 2, 2])
    graph.node("Conv", ["x", graph.initializer([[[[1.0]]]])], "h")
    gamma, one = np.asarray([1 + 2.0**-8 + 2.0**-30]), np.ones(1)
    graph.batch_norm("h", BatchNorm(gamma, gamma, one - 1, one, 0.0), "y")
    graph.output("y", [1, 1, 2, 2])
    result = check(graph.model(), ["Conv"])
    for index in (1, 2):
        assert operand(result.model, the(result.model, "Conv"), index).astype(
            np.float64
        ).ravel() == [1 + 2.0**-7]


def test_a_large_mean_close_to_the_bias_does_not_cancel() -> None:
    """(b - mean) * s + beta: with b*s + (beta - mean*s) the digits of b - mean are lost."""
    graph = Graph()
    graph.input("x", [1, 3, 4, 4])
    bias = (1e6 + np.arange(4) / 16).astype(np.float32)
    mean = (1e6 + np.arange(4)[::-1] / 16).astype(np.float32)
    params = BatchNorm(graph.positive(4), graph.random(4), mean, np.full(4, 1e-4, np.float32))
    graph.node(
        "Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1)), graph.initializer(bias)], "h"
    )
    graph.batch_norm("h", params, "y")
    graph.output("y", [1, 4, 4, 4])
    result = check(graph.model(), ["Conv"])
    assert same_bits(
        operand(result.model, the(result.model, "Conv"), 2), rounded(params.bias(bias), F32)
    )
