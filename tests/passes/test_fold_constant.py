"""What is computed at compile time, exactly what, and what is left to the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from float64 import evaluate
from graphs import (
    F32,
    F64,
    Graph,
    batch_norm,
    check,
    compiled,
    operand,
    operators,
    rounded,
    same_bits,
    the,
    wide,
)
from onnx import helper

I64 = np.int64


def ints(graph: Graph, *items: int) -> str:
    """An int64 vector."""
    return graph.initializer(np.asarray(items, I64))


# the size rule


def test_a_folded_weight_of_any_size_is_computed() -> None:
    graph = Graph()
    graph.input("x", [1, 300])
    weight, params = graph.random(300, 100), batch_norm(100)
    graph.node("Gemm", ["x", graph.initializer(weight, "w")], "h", "fc")
    graph.batch_norm("h", params, "y")
    graph.output("y", [1, 100])
    result = check(graph.model(), ["Gemm"])
    assert same_bits(operand(result.model, the(result.model, "Gemm"), 1), rounded(wide(weight) * params.scale, F32))
    assert the(result.model, "Gemm").input[1] == "w"


def test_float64_constants_beside_narrower_data_are_rounded_once() -> None:
    """A shift that no layer takes: (x + a) + b is one Add of the rounded sum, beside narrower data."""
    graph = Graph()
    graph.input("x", [2, 3])
    a, b = np.float32(0.1), np.float32(0.7)
    graph.node("Add", [graph.node("Add", ["x", graph.initializer(a)]), graph.initializer(b)], "y")
    graph.output("y", [2, 3])
    result = check(graph.model(), ["Add"])
    assert operand(result.model, the(result.model, "Add"), 1) == np.float32(float(a) + float(b))
    assert operand(result.model, the(result.model, "Add"), 1).dtype == F32
    assert F64 != F32


# what a runtime computes


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of results of each session that FoldConstant asks for."""
    from irc.backends import runtime

    sessions: list[int] = []
    original = runtime.evaluate

    def spy(values: Any, feeds: Any, opset: int) -> Any:
        sessions.append(len(values))
        return original(values, feeds, opset)

    monkeypatch.setattr(runtime, "evaluate", spy)
    return sessions


def exotic(graph: Graph, count: int) -> list[str]:
    """Constant expressions of operators that the op table does not know, or only for other types."""
    made = []
    for i in range(count):
        number = graph.initializer(graph.positive(3))
        chain = [("Sigmoid", "Log"), ("Softplus", "Tanh"), ("Relu", "Erf")][i % 3]
        for op in chain:
            number = graph.node(op, [number])
        made.append(number)
    return made


def reads_all(graph: Graph, names: Sequence[str]) -> Any:
    """A model that adds up all of `names` and x."""
    graph.input("x", [3])
    graph.node("Max", ["x", *names], "y")
    graph.output("y", [3])
    return graph.model()


def test_foreign_operators_are_computed_in_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    model = reads_all(graph, exotic(graph, 12))
    result = compiled(model)
    assert operators(result.model) == ["Max"]
    assert sessions == [12]
    inputs = {"x": np.full(3, -9, np.float32)}
    assert np.allclose(evaluate(model, inputs)["y"], evaluate(result.model, inputs)["y"], rtol=1e-6)


def test_no_session_where_nothing_is_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    model = reads_all(graph, [graph.node("Sigmoid", ["x"])])
    assert compiled(model).model == model
    assert not sessions


def test_what_fails_does_not_take_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    names = exotic(graph, 7)
    bad = graph.node("Gather", [graph.node("Sigmoid", [graph.initializer(graph.random(3))]), ints(graph, 5, 5, 5)])
    names.insert(3, graph.node("Exp", [graph.node("Einsum", [bad], equation="i->i")]))
    result = compiled(reads_all(graph, names))
    assert operators(result.model) == ["Gather", "Einsum", "Exp", "Max"]
    assert len(sessions) < 12


def test_results_of_the_graph_and_of_unknown_type_are_left_to_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    graph.input("x", [3])
    graph.node("Sigmoid", [graph.initializer([1, 2, 3])], "c")
    nonzero = graph.node("NonZero", [graph.initializer([1, 0, 3])])
    graph.node("Add", ["x", graph.node("Cast", [graph.node("ReduceMax", [nonzero], keepdims=0)], to=1)], "y")
    graph.output("y", [3])
    graph.output("c", [3])
    model = graph.model()
    result = compiled(model)
    assert sorted(operators(result.model)) == sorted(operators(model))
    assert not sessions or max(sessions) <= 1


def test_the_size_rule_holds_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    graph.input("x", [300, 300])
    wide = graph.node("EyeLike", [graph.node("Expand", [graph.initializer([1.0]), ints(graph, 300, 300)])])
    graph.node("Max", ["x", wide], "y")
    graph.output("y", [300, 300])
    model = graph.model()
    assert compiled(model).model == model
    assert not sessions


def test_an_operator_of_a_model_function_is_no_standard_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph(domains={"com.acme": 1})
    body = [helper.make_node("RandomUniformLike", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 21)]
    graph.functions.append(helper.make_function("com.acme", "Sigmoid", ["a"], ["b"], body, imports))
    model = reads_all(graph, [graph.node("Sigmoid", [graph.initializer([1, 2, 3])], domain="com.acme")])
    assert compiled(model).model == model
    assert not sessions


def test_grouped_transposed_convolutions_and_batch_normalization_are_right() -> None:
    """onnx.reference is wrong on both, which is why it is not used."""
    graph = Graph()
    weight = graph.initializer(graph.random(4, 1, 2, 2))
    hidden = graph.node("ConvTranspose", [graph.initializer(graph.random(1, 4, 2, 2)), weight], group=2)
    params = batch_norm(2)
    graph.batch_norm(hidden, params, "c")
    graph.input("x", [1, 2, 3, 3])
    graph.node("Max", ["x", "c"], "y")
    graph.output("y", [1, 2, 3, 3])
    model = graph.model()
    result = compiled(model)
    assert operators(result.model) == ["Max"]
    inputs = {"x": np.full((1, 2, 3, 3), -99, np.float32)}
    assert np.allclose(evaluate(model, inputs)["y"], evaluate(result.model, inputs)["y"], rtol=1e-5, atol=1e-6)
