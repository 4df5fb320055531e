"""What is computed at compile time, exactly what, and what is left to the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import irc
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
from irc.backends.runtime import evaluator
from irc.backends.runtime.evaluator import RuntimeEvaluator
from irc.support.isolation import Worker
from onnx import helper
from oracle import assert_same_in_runtime

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
    assert same_bits(
        operand(result.model, the(result.model, "Gemm"), 1),
        rounded(wide(weight) * params.scale, F32),
    )
    assert the(result.model, "Gemm").input[1] == "w"


@pytest.mark.parametrize(
    ("op_type", "items", "folds"),
    [
        ("ReduceProd", (2**31, 2**31), True),
        ("ReduceProd", (2**31, 2**31, 2), False),
        ("ReduceProd", (9,) * 64, False),
        ("ReduceSum", (2**62, 2**61), True),
        ("ReduceSum", (2**62, 2**62), False),
        ("ReduceMax", (2**63 - 1, 1), True),
    ],
)
def test_reductions_of_integers_that_overflow_stay(
    op_type: str, items: tuple[int, ...], folds: bool
) -> None:
    """onnxruntime clamps them, others wrap, and ONNX leaves it open."""
    graph = Graph()
    data = graph.input("x", [1], I64)
    graph.node("Add", [data, graph.node(op_type, [ints(graph, *items)], "r", keepdims=0)], "y")
    graph.output("y", [1], I64)
    assert operators(compiled(graph.model()).model) == (["Add"] if folds else [op_type, "Add"])


def test_float64_constants_beside_narrower_data_are_rounded_once() -> None:
    """A shift that no layer takes.

    (x + a) + b is one Add of the rounded sum, beside narrower data.
    """
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
    sessions: list[int] = []
    original = RuntimeEvaluator.evaluate

    def spy(self: RuntimeEvaluator, values: Any, feeds: Any, opset: int) -> Any:
        sessions.append(len(values))
        return original(self, values, feeds, opset)

    monkeypatch.setattr(RuntimeEvaluator, "evaluate", spy)
    return sessions


def exotic(graph: Graph, count: int) -> list[str]:
    """Constant expressions that the op table does not know, or only for other types."""
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
    bad = graph.node(
        "Gather",
        [graph.node("Sigmoid", [graph.initializer(graph.random(3))]), ints(graph, 5, 5, 5)],
    )
    names.insert(3, graph.node("Exp", [graph.node("Einsum", [bad], equation="i->i")]))
    result = compiled(reads_all(graph, names))
    assert operators(result.model) == ["Gather", "Einsum", "Exp", "Max"]
    assert len(sessions) < 12


HOSTILE = [
    ("Erf", "ended by SIGSEGV"),
    ("Softsign", "took more than 1 s"),
    ("Softplus", "exit status 1"),
    ("Sinh", "3"),
]
"""Operators that `hostile_runtime` dies of, and how."""


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "SERVER", "hostile_runtime")
    monkeypatch.setattr(evaluator, "SECONDS", 1)


def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that compiles start."""
    processes: list[Any] = []
    original = Worker._start

    def spy(self: Worker) -> Any:
        processes.append(original(self))
        return processes[-1]

    monkeypatch.setattr(Worker, "_start", spy)
    return processes


@pytest.mark.slow
@pytest.mark.parametrize(("op", "reason"), HOSTILE, ids=[op for op, _ in HOSTILE])
@pytest.mark.usefixtures("hostile")
def test_an_operator_that_ends_the_runtime_stays_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, op: str, reason: str
) -> None:
    processes = started(monkeypatch)
    graph = Graph()
    fine = [graph.node("Log", [graph.initializer(graph.positive(3))]) for _ in range(100)]
    bad = [
        graph.node("Exp", [graph.node(op, [graph.initializer(graph.positive(3))])])
        for _ in range(100)
    ]
    source = reads_all(graph, [name for pair in zip(fine, bad, strict=True) for name in pair])
    result = irc.compile(source)
    assert operators(result.model) == [op, "Exp"] * 100 + ["Max"]
    (warning,) = result.warnings
    assert warning.startswith(f"{op} ")
    assert reason in warning
    assert len(processes) <= 3
    assert all(process.poll() is not None for process in processes)


@pytest.mark.usefixtures("hostile")
def test_operators_of_many_types_that_end_the_runtime_do_so_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluator, "MAX_CRASHES", 3)
    processes = started(monkeypatch)
    graph = Graph()
    names = [
        graph.node(op, [graph.initializer(graph.positive(3))])
        for op in ("Erf", "Sinh", "Softplus", "Log")
    ]
    result = irc.compile(reads_all(graph, names))
    assert operators(result.model) == ["Erf", "Sinh", "Softplus", "Log", "Max"]
    assert len(processes) == 3
    assert len(result.warnings) == 3
    assert "too often" in result.warnings[-1]


@pytest.mark.usefixtures("hostile")
def test_an_operator_that_ends_the_runtime_in_a_branch_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = started(monkeypatch)
    branches: dict[str, Any] = {}
    for name, op in (("then_branch", "Erf"), ("else_branch", "Log")):
        inner = Graph()
        inner.node(
            "Add", ["x", inner.node(op, [inner.initializer(inner.positive(3))])], f"{name}.y"
        )
        inner.output(f"{name}.y", [3])
        branches[name] = inner.model().graph
    graph = Graph()
    graph.input("x", [3])
    graph.input("c", [], np.bool_)
    graph.node("If", ["c"], "y", **branches)
    graph.output("y", [3])
    result = irc.compile(graph.model())
    (node,) = result.model.graph.node
    assert [[inner.op_type for inner in attribute.g.node] for attribute in node.attribute] == [
        ["Add"],
        ["Erf", "Add"],
    ]
    assert len(result.warnings) == 1
    assert len(processes) <= 3


def test_one_process_serves_a_compile_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = started(monkeypatch)
    graph = Graph()
    model = reads_all(graph, exotic(graph, 12))
    passes = "FoldConstant{max_bytes=0},FoldConstant,default,FoldConstant"
    assert operators(irc.compile(model, passes).model) == ["Max"]
    (process,) = processes
    assert process.poll() is not None


def test_a_split_of_which_one_result_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime's Split crashes where a result has no name."""
    for op_set in (13, 21):
        graph = Graph(opset=op_set)
        first = graph.node(
            "Split", [graph.initializer(graph.random(2, 4)), ints(graph, 2, 2)], ["a", "b"], axis=1
        )
        result = irc.compile(reads_all(graph, [first]))
        assert operators(result.model) == ["Max"]
        assert not result.warnings


def test_results_of_unknown_type_are_left_to_the_runtime_and_results_of_the_graph_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    graph.input("x", [3])
    graph.node("Sigmoid", [graph.initializer([1, 2, 3])], "c")
    unique = graph.node("Unique", [ints(graph, 1, 0, 3)])
    graph.node(
        "Add", ["x", graph.node("Cast", [graph.node("ReduceMax", [unique], keepdims=0)], to=1)], "y"
    )
    graph.output("y", [3])
    graph.output("c", [3])
    model = graph.model()
    result = compiled(model)
    assert sorted(operators(result.model)) == sorted(set(operators(model)) - {"Sigmoid"})
    assert sessions


def test_the_size_rule_holds_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = counted(monkeypatch)
    graph = Graph()
    graph.input("x", [300, 300])
    wide = graph.node(
        "EyeLike", [graph.node("Expand", [graph.initializer([1.0]), ints(graph, 300, 300)])]
    )
    graph.node("Max", ["x", wide], "y")
    graph.output("y", [300, 300])
    model = graph.model()
    assert compiled(model).model == model
    assert not sessions


@pytest.mark.parametrize(("rows", "left"), [(2796, ["Add"]), (2797, ["Gather", "Add"])])
def test_the_size_rule_counts_the_constants_that_go(rows: int, left: list[str]) -> None:
    graph = Graph()
    graph.input("x", [rows, 8])
    table = graph.random(49, 8)
    taken = graph.node("Gather", [graph.initializer(table), ints(graph, *[7] * rows)])
    graph.node("Add", ["x", taken], "y")
    graph.output("y", [rows, 8])
    result = compiled(graph.model()).model
    # 32 bytes a row for 8, and the table is 1568: 64 KiB more for 2796 rows
    assert operators(result) == left
    assert irc.compile(result).model == result


def test_an_operator_of_a_model_function_is_no_standard_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions = counted(monkeypatch)
    graph = Graph(domains={"com.acme": 1})
    body = [helper.make_node("RandomUniformLike", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 21)]
    graph.functions.append(helper.make_function("com.acme", "Sigmoid", ["a"], ["b"], body, imports))
    model = reads_all(
        graph, [graph.node("Sigmoid", [graph.initializer([1, 2, 3])], domain="com.acme")]
    )
    assert compiled(model).model == model
    assert not sessions


def test_grouped_transposed_convolutions_and_batch_normalization_are_right() -> None:
    """onnx.reference is wrong on both, which is why it is not used."""
    graph = Graph()
    weight = graph.initializer(graph.random(4, 1, 2, 2))
    hidden = graph.node(
        "ConvTranspose", [graph.initializer(graph.random(1, 4, 2, 2)), weight], group=2
    )
    params = batch_norm(2)
    graph.batch_norm(hidden, params, "c")
    graph.input("x", [1, 2, 3, 3])
    graph.node("Max", ["x", "c"], "y")
    graph.output("y", [1, 2, 3, 3])
    model = graph.model()
    result = compiled(model)
    assert operators(result.model) == ["Max"]
    inputs = {"x": np.full((1, 2, 3, 3), -99, np.float32)}
    assert np.allclose(
        evaluate(model, inputs)["y"], evaluate(result.model, inputs)["y"], rtol=1e-5, atol=1e-6
    )


def position_bias(window: int, heads: int, *, gemm: bool = False) -> Any:
    """The position bias of SwinV2.

    Two layers of 512 channels on coordinates, of which 16 * sigmoid is gathered.
    """
    graph = Graph()
    places = (2 * window - 1) ** 2
    grid = graph.initializer(graph.random(places, 2))
    first, bias, second = (
        graph.initializer(graph.random(*shape)) for shape in [(2, 512), (512,), (512, heads)]
    )
    if gemm:
        hidden = graph.node("Gemm", [grid, first, bias])
    else:
        hidden = graph.node("Add", [graph.node("MatMul", [grid, first]), bias])
    table = graph.node("MatMul", [graph.node("Relu", [hidden]), second])
    rows = graph.node(
        "Gather", [graph.node("Sigmoid", [table]), ints(graph, *[i % places for i in range(64)])]
    )
    graph.input("x", [64, heads])
    graph.node("Add", ["x", graph.node("Mul", [rows, graph.initializer(np.float32(16))])], "y")
    graph.output("y", [64, heads])
    return graph.model()


@pytest.mark.parametrize(("window", "heads"), [(4, 2), (8, 6), (16, 32)])
@pytest.mark.parametrize("gemm", [False, True])
def test_a_small_result_folds_though_what_it_is_made_of_is_large(
    window: int, heads: int, gemm: bool
) -> None:
    model = position_bias(window, heads, gemm=gemm)
    result = compiled(model).model
    assert operators(result) == ["Add"]
    assert_same_in_runtime(model, result)


def reduced(rows: int, *, large: bool = False) -> Any:
    """The maxima of Exp(row * Sigmoid(1)) of a square, with `large` beside the square itself."""
    graph = Graph()
    one = graph.node("Sigmoid", [graph.initializer([1.0])], "one")
    square = graph.node("Expand", [one, ints(graph, rows, rows)])
    graph.node("Exp", [square], "large")
    graph.input("x", [1, rows])
    graph.node("Max", ["x", graph.node("ReduceMax", ["large"], axes=[0])], "y")
    graph.output("y", [1, rows])
    if large:
        graph.node("Max", ["x", "large"], "z")
        graph.output("z", [rows, rows])
    return graph.model()


@pytest.mark.parametrize(
    ("rows", "left"), [(200, ["Max"]), (2100, ["Expand", "Exp", "ReduceMax", "Max"])]
)
def test_what_a_small_result_is_made_of_has_a_limit_of_its_own(rows: int, left: list[str]) -> None:
    model = reduced(rows)
    model.opset_import[0].version = 17
    assert operators(compiled(model).model) == left


def test_a_large_result_that_is_read_stays_and_what_is_made_of_it_is_computed() -> None:
    model = reduced(200, large=True)
    model.opset_import[0].version = 17
    result = compiled(model).model
    assert operators(result) == ["Expand", "Exp", "Max", "Max"]
    assert irc.compile(result).model == result


def test_the_budget_bounds_what_the_runtime_makes_of_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = reduced(1000)
    model.opset_import[0].version = 17
    assert operators(compiled(model).model) == ["Max"]
    limited = irc.compile(model, limits=irc.Limits(max_constant_bytes=1 << 20))
    assert operators(limited.model)[-4:] == ["Expand", "Exp", "ReduceMax", "Max"]
