"""A constant of several folds is rounded once, though FoldConstant writes it in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from graphs import (
    BF16,
    F16,
    F32,
    Array,
    BatchNorm,
    Graph,
    all_graphs,
    batch_norm,
    compiled,
    onnx_dtype,
    operand,
    the,
    wide,
)
from graphs import rounded as once
from harness import operators
from onnx import ModelProto, helper

TWICE = "FoldScaleAxis,FoldConstant,SimplifyInference,FoldScaleAxis,FoldConstant"
"""The second pass folds a BatchNormalization, which is no affine before."""

DTYPES = pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=["float32", "float16", "bfloat16"])
CHANNELS = pytest.mark.parametrize("channels", [16, 72])
"""Weights of 72 channels are computed when they are written, those of 16 at once."""


def factors(graph: Graph, channels: int) -> Array:
    """Factors that are not powers of two, exact in the element type of the graph."""
    return np.asarray(graph.rng.uniform(0.5, 2, channels)).astype(graph.dtype)


def normalized(graph: Graph, x: str, channels: int) -> tuple[str, BatchNorm]:
    """A BatchNormalization of `x`, and its parameters."""
    params = batch_norm(channels, seed=graph.seed + 1, dtype=graph.dtype)
    return graph.batch_norm(x, params), params


def assert_once(model: ModelProto, op: str, *expected: Array) -> None:
    """Hold constants of the first `op`, from input 1 on, against float64 rounded once."""
    bodies = map(helper.make_model, all_graphs(model))
    body = next(body for body in bodies if op in [node.op_type for node in body.graph.node])
    for index, numbers in enumerate(expected, start=1):
        found = operand(body, the(body, op), index)
        wanted = once(np.asarray(numbers), found.dtype)
        off = int((wide(found).reshape(-1) != wide(wanted).reshape(-1)).sum())
        assert not off, (
            f"input {index}: {off} of {found.size} numbers are not the exact ones rounded once"
        )


@DTYPES
@CHANNELS
@pytest.mark.parametrize(
    "passes", [TWICE, TWICE.removesuffix(",FoldConstant")], ids=["computed", "as written"]
)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
def test_affines_of_a_result(
    op: str, passes: str, channels: int, dtype: np.dtype[np.generic]
) -> None:
    graph = Graph(dtype=dtype)
    spatial = (1, 1) if op.startswith("Conv") else ()
    x = graph.input("x", [2, channels, *(3 for _ in spatial)])
    weight, bias = graph.random(channels, channels, *spatial), graph.random(channels)
    factor = factors(graph, channels)
    operands = [
        x,
        graph.initializer(weight),
        *([] if op == "MatMul" else [graph.initializer(bias)]),
    ]
    scaled = graph.node(
        "Mul", [graph.node(op, operands), graph.initializer(factor.reshape(-1, *spatial))]
    )
    result, params = normalized(graph, scaled, channels)
    graph.output(result)
    after = compiled(graph.model(), passes).model
    rows = (-1, 1, *spatial) if op == "Conv" else (-1, *spatial)
    total = wide(weight) * wide(factor).reshape(rows) * params.scale.reshape(rows)
    if op == "MatMul":
        assert operators(after) == ["MatMul", "Add"]
        assert_once(after, "MatMul", total)
        assert_once(after, "Add", params.bias())
    else:
        assert operators(after) == [op]
        assert_once(after, op, total, params.bias(wide(bias) * wide(factor)))


@DTYPES
@CHANNELS
@pytest.mark.parametrize("op", ["Conv", "Gemm"])
def test_affines_on_both_sides(op: str, channels: int, dtype: np.dtype[np.generic]) -> None:
    graph = Graph(dtype=dtype)
    spatial = (1, 1) if op == "Conv" else ()
    x = graph.input("x", [2, channels, *(3 for _ in spatial)])
    before, params = normalized(graph, x, channels)
    weight, bias = graph.random(channels, channels, *spatial), graph.random(channels)
    factor = factors(graph, channels)
    y = graph.node(op, [before, graph.initializer(weight), graph.initializer(bias)])
    graph.output(graph.node("Mul", [y, graph.initializer(factor.reshape(-1, *spatial))]))
    after = compiled(graph.model(), TWICE).model
    assert operators(after) == [op]
    matrix = wide(weight).reshape(channels, channels)
    matrix = matrix if op == "Conv" else matrix.T
    outer = wide(factor)[:, np.newaxis] * matrix
    total = outer * params.scale
    assert_once(
        after,
        op,
        total if op == "Conv" else total.T,
        wide(bias) * wide(factor) + outer @ params.bias(),
    )


MERGED: dict[str, tuple[str, str, Callable[[Array, Array], tuple[Array, Array]]]] = {
    "products": ("Mul", "Mul", lambda a, b: (a * b, 0 * a)),
    "quotients": ("Div", "Div", lambda a, b: (1 / a / b, 0 * a)),
    "mixed": ("Div", "Mul", lambda a, b: (b / a, 0 * a)),
    "sums": ("Add", "Add", lambda a, b: (1 + 0 * a, a + b)),
}


@DTYPES
@pytest.mark.parametrize("case", MERGED)
def test_merged_operators_that_fold(case: str, dtype: np.dtype[np.generic]) -> None:
    first, second, affine = MERGED[case]
    channels, graph = 16, Graph(dtype=dtype)
    a, b = factors(graph, channels), factors(graph, channels)
    weight, bias = graph.random(channels, channels), graph.random(channels)
    inner = graph.node(first, [graph.input("x", [2, channels]), graph.initializer(a)])
    outer = graph.node(second, [inner, graph.initializer(b)])
    graph.output(graph.node("Gemm", [outer, graph.initializer(weight), graph.initializer(bias)]))
    model = graph.model()
    merged = compiled(model, "SimplifyExpr,FoldConstant").model
    assert len(operators(merged)) == 2
    after = compiled(model, "SimplifyExpr,FoldConstant,FoldScaleAxis,FoldConstant").model
    assert operators(after) == ["Gemm"]
    scale, shift = affine(wide(a), wide(b))
    assert_once(
        after, "Gemm", wide(weight) * scale[:, np.newaxis], wide(bias) + shift @ wide(weight)
    )


@DTYPES
def test_sum_that_takes_a_shift_and_merges(dtype: np.dtype[np.generic]) -> None:
    channels, graph = 16, Graph(dtype=dtype)
    a, b, c = graph.random(channels), graph.random(channels), graph.random(1)
    total = graph.node("Add", [graph.input("x", [2, 3, channels]), graph.initializer(a)])
    total = graph.node("Sub", [total, graph.initializer(b)])
    mean = graph.node("ReduceMean", [total, graph.initializer(np.array([2]))])
    graph.output(graph.node("Add", [mean, graph.initializer(c)]))
    model = graph.model()
    after = compiled(model, "FoldScaleAxis,FoldConstant,SimplifyExpr,FoldConstant").model
    assert operators(after) == ["Add", "ReduceMean"]
    assert_once(after, "Add", wide(a) - wide(b) + wide(c))


@DTYPES
def test_batch_normalization_that_takes_an_affine_and_folds(dtype: np.dtype[np.generic]) -> None:
    channels, graph = 16, Graph(dtype=dtype)
    normal, params = normalized(graph, graph.input("x", [2, channels]), channels)
    factor, term = factors(graph, channels), graph.random(channels)
    scaled = graph.node("Mul", [normal, graph.initializer(factor)])
    moved = graph.node("Add", [scaled, graph.initializer(term)])
    weight, bias = graph.random(channels, channels), graph.random(channels)
    graph.output(graph.node("Gemm", [moved, graph.initializer(weight), graph.initializer(bias)]))
    model = graph.model()
    first = "SimplifyInference,FoldScaleAxis{forward=false},FoldConstant"
    assert operators(compiled(model, first).model) == ["BatchNormalization", "Gemm"]
    after = compiled(model, f"{first},FoldScaleAxis,FoldConstant").model
    assert operators(after) == ["Gemm"]
    scale, shift = params.scale * wide(factor), params.bias() * wide(factor) + wide(term)
    assert_once(
        after, "Gemm", wide(weight) * scale[:, np.newaxis], wide(bias) + shift @ wide(weight)
    )


@DTYPES
def test_normalization_that_takes_two_affines(dtype: np.dtype[np.generic]) -> None:
    channels, graph = 16, Graph(dtype=dtype)
    x = graph.input("x", [2, channels])
    gamma, beta, factor = graph.random(channels), graph.random(channels), factors(graph, channels)
    normal = graph.node(
        "LayerNormalization", [x, graph.initializer(gamma), graph.initializer(beta)]
    )
    result, params = normalized(
        graph, graph.node("Mul", [normal, graph.initializer(factor)]), channels
    )
    graph.output(result)
    after = compiled(graph.model(), TWICE).model
    assert operators(after) == ["LayerNormalization"]
    total = wide(gamma) * wide(factor) * params.scale
    assert_once(after, "LayerNormalization", total, params.bias(wide(beta) * wide(factor)))


@DTYPES
def test_layer_in_the_branch_of_an_if(dtype: np.dtype[np.generic]) -> None:
    channels, graph = 16, Graph(dtype=dtype)
    x, condition = graph.input("x", [2, channels]), graph.input("condition", [], np.dtype(np.bool_))
    weight, bias, factor = (
        graph.random(channels, channels),
        graph.random(channels),
        factors(graph, channels),
    )
    then, other = Graph(dtype=dtype, seed=5), Graph(dtype=dtype, seed=6)
    operands = [
        then.initializer(array, name) for array, name in ((weight, "w"), (bias, "b"), (factor, "f"))
    ]
    scaled = then.node("Mul", [then.node("Gemm", [x, *operands[:2]], "g"), operands[2]], "scaled")
    result, params = normalized(then, scaled, channels)
    kept = other.node("Relu", [x], "kept")
    branches = [
        helper.make_graph(
            each.nodes,
            name,
            [],
            [helper.make_tensor_value_info(out, onnx_dtype(dtype), [2, channels])],
            each.initializers,
        )
        for each, name, out in ((then, "then", result), (other, "else", kept))
    ]
    graph.output(graph.node("If", [condition], then_branch=branches[0], else_branch=branches[1]))
    after = compiled(graph.model(), TWICE).model
    total = wide(weight) * wide(factor) * params.scale
    assert_once(after, "Gemm", total, params.bias(wide(bias) * wide(factor)))


@DTYPES
def test_constant_that_rounds_to_a_neutral_one_goes(dtype: np.dtype[np.generic]) -> None:
    # 3 * fl(1 / 3) is not 1, but rounds to it.
    third = np.asarray(1 / 3).astype(dtype)
    graph = Graph(dtype=dtype)
    x = graph.input("x", [2, 4])
    inner = graph.node("Mul", [x, graph.initializer(np.asarray(3.0).astype(dtype))])
    graph.output(graph.node("Exp", [graph.node("Mul", [inner, graph.initializer(third)])]))
    neutral = once(np.asarray(3 * wide(third)), dtype) == 1
    left = operators(compiled(graph.model(), "(SimplifyExpr,FoldConstant)*").model)
    assert left == (["Exp"] if neutral else ["Mul", "Exp"])
