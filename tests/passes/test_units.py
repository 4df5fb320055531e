"""Operators that a runtime fuses stay together.

It finds every fused operator in the result that it found before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import F32, Graph, compiled, operators, reasons
from irc.passes.affine.units import activation_units, units
from onnx import ModelProto
from oracle import assert_same_in_runtime

ROOT, TANH = math.sqrt(2), math.sqrt(2 / math.pi)
WIDTH = 4

FUSED = {
    "Gelu",
    "FastGelu",
    "BiasGelu",
    "QuickGelu",
    "HardSigmoid",
    "HardSwish",
    "LayerNormalization",
    "SkipLayerNormalization",
    "SimplifiedLayerNormalization",
    "RMSNormalization",
}
"""Operators that onnxruntime makes of several."""

Operand = str | float
Form = Callable[[Graph, str], str]


def op(graph: Graph, name: str, *operands: Operand) -> str:
    """Add an operator; a number becomes a scalar constant."""
    return graph.node(
        name, [o if isinstance(o, str) else graph.initializer(np.array(o, F32)) for o in operands]
    )


def erf(graph: Graph, x: str, *, inverse: bool = False) -> str:
    """1 + erf(x / sqrt(2)), with a Mul in the place of the Div if `inverse`."""
    inner = op(graph, "Mul", x, 1 / ROOT) if inverse else op(graph, "Div", x, ROOT)
    return op(graph, "Add", op(graph, "Erf", inner), 1.0)


def tanh(graph: Graph, x: str) -> str:
    """1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)), as torch writes it."""
    cubic = op(graph, "Mul", 0.044715, op(graph, "Pow", x, 3.0))
    return op(
        graph, "Add", 1.0, op(graph, "Tanh", op(graph, "Mul", TANH, op(graph, "Add", x, cubic)))
    )


def tanh_factored(graph: Graph, x: str) -> str:
    """1 + tanh(sqrt(2 / pi) x (1 + 0.044715 x x)), as GPT-2 of other frameworks writes it."""
    square = op(graph, "Add", 1.0, op(graph, "Mul", op(graph, "Mul", x, 0.044715), x))
    return op(
        graph, "Add", 1.0, op(graph, "Tanh", op(graph, "Mul", op(graph, "Mul", x, TANH), square))
    )


def six(graph: Graph, x: str) -> str:
    """clip(x + 3, 0, 6)"""
    return op(graph, "Clip", op(graph, "Add", x, 3.0), 0.0, 6.0)


def row(graph: Graph, value: float | None = None) -> str:
    return graph.initializer(graph.random(WIDTH) if value is None else np.full(WIDTH, value, F32))


def mean(graph: Graph, x: str) -> str:
    return graph.node("ReduceMean", [x, graph.initializer(np.array([-1]))], keepdims=1)


def normalized(graph: Graph, x: str, *, square: str = "Pow", root: str = "Div") -> str:
    """x / sqrt(mean(x^2) + epsilon)"""
    squares = op(graph, "Pow", x, 2.0) if square == "Pow" else op(graph, "Mul", x, x)
    deviation = op(graph, "Sqrt", op(graph, "Add", mean(graph, squares), 1e-5))
    if root == "Div":
        return op(graph, "Div", x, deviation)
    inverse = (
        op(graph, "Reciprocal", deviation)
        if root == "Reciprocal"
        else op(graph, "Div", 1.0, deviation)
    )
    return op(graph, "Mul", x, inverse)


def layer_norm(
    graph: Graph, x: str, gamma: float | None = None, beta: float | None = None, square: str = "Pow"
) -> str:
    centered = op(graph, "Sub", x, mean(graph, x))
    product = op(graph, "Mul", normalized(graph, centered, square=square), row(graph, gamma))
    return op(graph, "Add", product, row(graph, beta))


FORMS: dict[str, Form] = {
    "Gelu x*(1+erf)*0.5": lambda g, x: op(g, "Mul", op(g, "Mul", x, erf(g, x)), 0.5),
    "Gelu (x*0.5)*(1+erf)": lambda g, x: op(g, "Mul", op(g, "Mul", x, 0.5), erf(g, x)),
    "Gelu x*(0.5*(1+erf))": lambda g, x: op(g, "Mul", x, op(g, "Mul", 0.5, erf(g, x))),
    "Gelu 0.5*(x*(1+erf)), Mul inside": lambda g, x: op(
        g, "Mul", 0.5, op(g, "Mul", x, erf(g, x, inverse=True))
    ),
    "Gelu x*(1+erf)/2": lambda g, x: op(g, "Div", op(g, "Mul", x, erf(g, x)), 2.0),
    "Gelu (x*0.5)*(1+tanh)": lambda g, x: op(g, "Mul", op(g, "Mul", 0.5, x), tanh(g, x)),
    "Gelu x*(0.5*(1+tanh))": lambda g, x: op(g, "Mul", x, op(g, "Mul", 0.5, tanh_factored(g, x))),
    "quick Gelu": lambda g, x: op(g, "Mul", x, op(g, "Sigmoid", op(g, "Mul", x, 1.702))),
    "SiLU": lambda g, x: op(g, "Mul", x, op(g, "Sigmoid", x)),
    "Mish": lambda g, x: op(g, "Mul", x, op(g, "Tanh", op(g, "Softplus", x))),
    "HardSigmoid": lambda g, x: op(g, "Div", six(g, x), 6.0),
    "HardSwish x*clip/6": lambda g, x: op(g, "Div", op(g, "Mul", x, six(g, x)), 6.0),
    "HardSwish x*(clip/6)": lambda g, x: op(g, "Mul", x, op(g, "Mul", six(g, x), 1 / 6)),
    "HardSwish x*HardSigmoid": lambda g, x: op(
        g, "Mul", x, g.node("HardSigmoid", [x], alpha=1 / 6, beta=0.5)
    ),
    "LayerNormalization": layer_norm,
    "LayerNormalization, Mul": lambda g, x: layer_norm(g, x, square="Mul"),
    "LayerNormalization, neutral": lambda g, x: layer_norm(g, x, 1.0, 0.0),
    "RMSNormalization": lambda g, x: op(g, "Mul", normalized(g, x), row(g)),
    "RMSNormalization, Reciprocal": lambda g, x: op(
        g, "Mul", normalized(g, x, root="Reciprocal"), row(g)
    ),
    "RMSNormalization, 1 / root": lambda g, x: op(
        g, "Mul", row(g), normalized(g, x, root="Inverse")
    ),
}

UNKNOWN = {
    "Gelu x*(0.5*(1+erf))",
    "Gelu 0.5*(x*(1+erf)), Mul inside",
    "Gelu x*(1+erf)/2",
    "Gelu x*(0.5*(1+tanh))",
    "Mish",
    "HardSigmoid",
    "HardSwish x*clip/6",
    "HardSwish x*(clip/6)",
    "LayerNormalization, Mul",
    "RMSNormalization, Reciprocal",
}
"""Forms that this onnxruntime does not fuse, and others do."""


def model_of(form: Form, *, before: float = 2.0, after: float = 1.5) -> ModelProto:
    """MatMul, Mul, the form, Mul, MatMul: both products fold, and nothing of the form."""
    graph = Graph(opset=18, dtype=F32)
    graph.input("x", [2, 3, WIDTH])
    hidden = op(graph, "MatMul", "x", graph.initializer(graph.random(WIDTH, WIDTH)))
    result = op(graph, "Mul", form(graph, op(graph, "Mul", hidden, before)), after)
    graph.node("MatMul", [result, graph.initializer(graph.random(WIDTH, WIDTH))], "y")
    graph.output("y", [2, 3, WIDTH])
    return graph.model()


def runtime_operators(model: ModelProto, path: Path) -> Counter[str]:
    """Return the operators that onnxruntime makes of a model with all of its optimizations."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    providers = ["CPUExecutionProvider"]
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return Counter(operators(onnx.load(path)))


def fused(model: ModelProto, path: Path) -> Counter[str]:
    """Return the fused operators among them."""
    return Counter(
        {name: count for name, count in runtime_operators(model, path).items() if name in FUSED}
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_runtime_fuses_as_much_as_before(form: str, tmp_path: Path) -> None:
    model = model_of(FORMS[form])
    result = compiled(model).model
    found = fused(model, tmp_path / "before.onnx")
    assert bool(found) is (form not in UNKNOWN)
    assert fused(result, tmp_path / "after.onnx") == found
    assert_same_in_runtime(model, result)


@pytest.mark.parametrize("form", FORMS)
def test_affines_around_a_form_fold_and_none_of_it(form: str) -> None:
    alone = Graph(opset=18, dtype=F32)
    FORMS[form](alone, "x")
    inside = [node.op_type for node in alone.nodes]
    assert sorted(operators(compiled(model_of(FORMS[form])).model)) == sorted(
        ["MatMul", *inside, "MatMul"]
    )


NEIGHBOURS: dict[str, tuple[Form, str]] = {
    "another number than 0.5": (lambda g, x: op(g, "Mul", op(g, "Mul", x, erf(g, x)), 0.25), "Mul"),
    "another factor than x": (
        lambda g, x: op(g, "Mul", op(g, "Mul", op(g, "Sin", x), erf(g, x)), 0.5),
        "Mul",
    ),
    "another bound than 6": (
        lambda g, x: op(g, "Div", op(g, "Clip", op(g, "Add", x, 3.0), 0.0, 5.0), 6.0),
        "Div",
    ),
    "a mean of another power": (
        lambda g, x: op(
            g,
            "Mul",
            op(g, "Div", x, op(g, "Sqrt", op(g, "Add", mean(g, op(g, "Pow", x, 4.0)), 1e-5))),
            row(g),
        ),
        "Mul",
    ),
}
"""Forms that are nearly a unit, each with the operator at its end, which folds."""


@pytest.mark.parametrize("form", NEIGHBOURS)
def test_a_form_that_no_runtime_fuses_is_folded(form: str) -> None:
    build, last = NEIGHBOURS[form]
    alone = Graph(opset=18, dtype=F32)
    build(alone, "x")
    inside = Counter(node.op_type for node in alone.nodes)
    model = model_of(build)
    result = compiled(model)
    assert Counter(operators(result.model))[last] == inside[last] - 1
    assert_same_in_runtime(model, result.model)


def test_the_reason_names_the_unit() -> None:
    result = compiled(model_of(FORMS["Gelu x*(1+erf)*0.5"]))
    assert Counter(reasons(result).values()) == {"folded": 2, "kept: fused_unit": 3}


def test_a_batch_normalization_before_a_hard_swish_folds() -> None:
    graph = Graph(opset=13, dtype=F32)
    graph.input("x", [1, WIDTH, 5, 5])
    data = graph.node("Conv", ["x", graph.initializer(graph.random(WIDTH, WIDTH, 1, 1))])
    params = [graph.initializer(graph.positive(WIDTH)) for _ in range(4)]
    data = graph.node("BatchNormalization", [data, *params])
    data = op(graph, "Div", op(graph, "Mul", data, six(graph, data)), 6.0)
    graph.node("Conv", [data, graph.initializer(graph.random(WIDTH, WIDTH, 1, 1))], "y")
    graph.output("y", [1, WIDTH, 5, 5])
    result = compiled(graph.model()).model
    assert operators(result) == ["Conv", "Add", "Clip", "Mul", "Div", "Conv"]
    assert_same_in_runtime(graph.model(), result)


def attention(where: str, last: str) -> ModelProto:
    """Scores with a scale `where`, masked, and `last` in the place of Softmax."""
    graph = Graph(opset=18, dtype=F32)
    graph.input("x", [2, 3, WIDTH])
    graph.input("mask", [2, 3, 3])
    query, key, value = (
        op(graph, "MatMul", "x", graph.initializer(graph.random(WIDTH, WIDTH))) for _ in range(3)
    )
    query, key = (
        op(graph, "Mul", each, 0.7) if where == "operands" else each for each in (query, key)
    )
    scores = op(graph, "MatMul", query, graph.node("Transpose", [key], perm=[0, 2, 1]))
    scores = op(graph, "Div", scores, 2.0) if where == "result" else scores
    graph.node("MatMul", [op(graph, last, op(graph, "Add", scores, "mask")), value], "y")
    graph.output("y", [2, 3, WIDTH])
    return graph.model()


@pytest.mark.parametrize(("where", "count"), [("result", 1), ("operands", 3)])
def test_the_scale_of_attention_stays_where_a_runtime_fuses_it(
    where: str, count: int, tmp_path: Path
) -> None:
    model = attention(where, "Softmax")
    result = compiled(model).model
    assert Counter(operators(result)) == Counter(operators(model))
    path = tmp_path / "optimized.onnx"
    before, after = (runtime_operators(each, path) for each in (model, result))
    assert before["FusedMatMul"] == count
    assert after == before
    assert_same_in_runtime(model, result)


@pytest.mark.parametrize("where", ["result", "operands"])
def test_a_scale_that_no_softmax_reads_passes_a_product_of_computed_operands(where: str) -> None:
    model = attention(where, "Tanh")
    result = compiled(model).model
    assert not {"Div", "Mul"} & set(operators(result))
    assert_same_in_runtime(model, result)


def test_the_search_for_units_names_every_gate_and_function_of_an_activation() -> None:
    assert tuple(activation_units._FORMS) == units._GATES
    assert tuple(activation_units._FUNCTIONS) == units._ARITHMETIC
