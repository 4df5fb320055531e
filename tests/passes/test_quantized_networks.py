"""Random networks of quantized layers, judged in float64 and in integer arithmetic.

With scales in float64 nothing is rounded but integer biases. So a network whose biases become float
must compute the same to 1e-12. The network whose biases stay integers must have the same weights,
and biases within half a step of the float ones.
"""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from graphs import F64, Array, Graph, compiled
from harness import operators
from irc.result import Result
from onnx import ModelProto, numpy_helper
from oracle import assert_same_function, assert_sound
from scale_axis.build import Step, add, binary, bn, chain, mul, op
from scale_axis.quantized import layer

EXAMPLES = int(os.environ.get("IRC_EXAMPLES", "120"))
SEED = int(os.environ.get("IRC_SEED", "0"))
PIPELINE = "(SimplifyInference,FoldScaleAxis{%s},CanonicalizeOps,SimplifyExpr,FoldConstant)*"
TYPES: list[dict[str, Any]] = [
    {"dtype": np.int8},
    {"dtype": np.int8, "low": -128, "high": -100},
    {"dtype": np.uint8, "zero_point": 128},
    {"dtype": np.uint8, "zero_point": 3, "low": 0, "high": 6},
    {"dtype": np.int16},
    {"dtype": ml_dtypes.int4},
    {"dtype": ml_dtypes.uint4, "zero_point": 8},
    {"dtype": ml_dtypes.float8_e4m3fn, "low": -15, "high": 15},
]


def affines(rng: np.random.Generator, n: int, rank: int) -> Step:
    """What stands behind a layer.

    BatchNormalization, or Mul, Add, Sub and Div, and an activation in between.
    """
    tail = (1,) * (rank - 2)
    sign = "+" if rng.random() < 0.4 else "±"
    uniform = float(rng.choice([2.0, -0.5, 3.0]))
    numbers = rng.choice([-2.0, -1.0, 0.0, 0.5, 3.0], n)
    choices: list[Step] = [
        bn(n, sign),
        chain(mul(n, *tail, sign=sign), add(n, *tail)),
        chain(binary("Sub", n, *tail), binary("Div", n, *tail, sign=sign)),
        mul(c=uniform),
        mul(n, *tail, c=numbers),
        chain(op("Relu"), bn(n, "+", t=0.0)),
        chain(mul(n, *tail, sign=sign), op("Relu"), mul(n, *tail, sign="+")),
    ]
    return choices[rng.integers(len(choices))]


def network(seed: int) -> ModelProto:
    """Two to four quantized layers, each with affines behind it."""
    rng = np.random.default_rng(seed)
    graph = Graph(dtype=F64, seed=seed)
    images = rng.random() < 0.6
    x = graph.input("x", [2, 3, 6, 6] if images else [2, 3])
    channels = 3
    for _ in range(rng.integers(2, 5)):
        kind = str(rng.choice(["Conv", "ConvTranspose"] if images else ["Gemm", "MatMul"]))
        shape = {"Conv": (4, channels, 2, 2), "ConvTranspose": (channels, 4, 2, 2)}.get(
            kind, (channels, 4)
        )
        form: dict[str, Any] = dict(TYPES[rng.integers(len(TYPES))])
        form["axis"] = [-1, -1, None][rng.integers(3)]
        if kind == "MatMul" and rng.random() < 0.3:
            form |= {"axis": 0, "block": int(rng.integers(1, channels + 1))}
        if kind != "MatMul":
            form["bias"] = str(rng.choice(["", "float", "int32", "int32"]))
            form |= {"steps": 4, "step": 2.0 ** -rng.integers(4, 14)} if rng.random() < 0.7 else {}
        if kind == "Gemm" and rng.random() < 0.5:
            form["transB"] = 1
        x = layer(kind, shape=shape, **form)(graph, x)
        channels = 4
        x = affines(rng, 4, 4 if images else 2)(graph, x)
        x = op("Relu")(graph, x) if rng.random() < 0.4 else x
    graph.output(x)
    return graph.model()


def dequantized(model: ModelProto) -> dict[str, tuple[Array, Array]]:
    """Integers and scales of every layer's weight and bias, by layer and operand."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    makers = {node.output[0]: node for node in model.graph.node}
    found: dict[str, tuple[Array, Array]] = {}
    layers = [
        node
        for node in model.graph.node
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
    ]
    for i, node in enumerate(layers):
        for operand in range(1, len(node.input)):
            name = node.input[operand]
            if name in constants:
                found[f"{i}.{operand}"] = (constants[name], np.zeros(()))
            elif makers[name].op_type == "DequantizeLinear":
                found[f"{i}.{operand}"] = (
                    constants[makers[name].input[0]],
                    constants[makers[name].input[1]],
                )
    return found


def fates(result: Result) -> list[object]:
    """What became of every affine."""
    return [
        (source["id"], source["status"], source["layers"]) for source in result.fold_map.sources
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + EXAMPLES))
def test_random_networks(seed: int) -> None:
    model = network(seed)
    allowed = "per_channel=allow" if seed % 2 else "per_channel=refuse"
    passes = PIPELINE % f"{allowed},quantized_bias=float"
    result = compiled(model, passes)
    assert_sound(model, result, passes)
    assert_same_function(model, result.model)
    integer = compiled(model, PIPELINE % allowed)
    assert_sound(model, integer, PIPELINE % allowed)
    if fates(integer) != fates(result):
        return  # a bias that cannot hold a shift, or whose steps cannot follow, stopped a fold
    assert_rounded_once(result.model, integer.model)


@pytest.mark.parametrize("seed", range(8))
def test_a_bias_that_takes_two_shifts_is_rounded_once(seed: int) -> None:
    graph = Graph(dtype=F64, seed=seed)
    steps = chain(add(3, 1, 1), layer(bias="int32", step=2.0**-3, low=1, high=9), add(4, 1, 1))
    graph.output(steps(graph, graph.input("x", [2, 3, 5, 5])))
    exact, rounded = (
        compiled(graph.model(), PIPELINE % option) for option in ("quantized_bias=float", "")
    )
    assert "Add" not in operators(rounded.model)
    assert_rounded_once(exact.model, rounded.model)


def assert_rounded_once(result: ModelProto, integer: ModelProto) -> None:
    """The same weights, and integer biases within half a step of the biases of `result`."""
    exact, rounded = dequantized(result), dequantized(integer)
    assert exact.keys() == rounded.keys()
    for key, (numbers, scale) in rounded.items():
        wanted, width = exact[key]
        if numbers.dtype != np.int32:
            assert np.array_equal(numbers.astype(np.float64), wanted.astype(np.float64)), key
            assert np.array_equal(scale, width), key
            continue
        values = numbers * scale
        held = wanted * width if wanted.dtype == np.int32 else wanted
        assert (
            np.abs(values - held) <= (0.5 + 1e-9) * np.broadcast_to(scale, values.shape)
        ).all(), key


def test_the_networks_fold_and_refuse() -> None:
    statuses = [source for seed in range(40) for source in compiled(network(seed)).fold_map.sources]
    reasons = {source["reason"] for source in statuses}
    assert {None, "quantized_weight", "negative_scale"} <= reasons
    assert sum(source["status"] == "folded" for source in statuses) > len(statuses) / 3
