"""The default pipeline is a fixpoint, and finds what opens a fold before the fold."""

from __future__ import annotations

import irc
import numpy as np
import pytest
from graphs import F32, F64, Graph, batch_norm, compiled, operators
from harness import ROOT
from irc.passes import parse_pipeline
from irc.passes.pipelines import DEFAULT_STAGES
from onnx import ModelProto, helper
from oracle import assert_same_in_runtime
from random_graphs import grow


def network(hidden: str, *, scale: float = 1.0) -> ModelProto:
    """A Conv with BatchNormalization, whose gamma `hidden` computes of a constant."""
    graph = Graph(dtype=F32)
    graph.input("x", [1, 4, 3, 3])
    params = batch_norm(4, 1, F32)
    data = graph.node("Conv", ["x", graph.initializer(graph.random(4, 4, 1, 1))])
    gamma = graph.node(hidden, [graph.initializer(np.full(4, scale, F32))])
    others = [graph.initializer(array) for array in (params.beta, params.mean, params.var)]
    graph.node("BatchNormalization", [data, gamma, *others], "y")
    graph.output("y", [1, 4, 3, 3])
    return graph.model()


@pytest.mark.parametrize("hidden", ["Exp", "Sigmoid", "Softplus"])
def test_parameters_that_only_the_runtime_computes_fold(hidden: str) -> None:
    model = network(hidden)
    result = compiled(model)
    assert operators(result.model) == ["Conv"]
    assert [source["status"] for source in result.fold_map.sources] == ["folded"]
    assert_same_in_runtime(model, result.model)


def test_parameters_that_nobody_may_compute_stay() -> None:
    assert operators(compiled(network("RandomUniformLike")).model)[-1] == "BatchNormalization"


def product(shape: list[int], scale: list[float]) -> ModelProto:
    """(x W) (x V)^T times a constant."""
    graph = Graph(dtype=F32)
    graph.input("x", [2, 3, 4])
    q, k = (graph.node("MatMul", ["x", graph.initializer(graph.random(4, 4))]) for _ in range(2))
    scores = graph.node("MatMul", [q, graph.node("Transpose", [k], perm=[0, 2, 1])])
    graph.node("Mul", [scores, graph.initializer(np.reshape(np.array(scale, F32), shape))], "y")
    graph.output("y", [2, 3, 3])
    return graph.model()


def test_one_number_passes_a_product_of_computed_operands() -> None:
    model = product([], [0.5])
    result = compiled(model)
    assert operators(result.model) == ["MatMul", "MatMul", "Transpose", "MatMul"]
    assert_same_in_runtime(model, result.model)


def test_a_number_for_each_column_does_not() -> None:
    assert "Mul" in operators(compiled(product([3], [0.5, 1.0, 2.0])).model)


def dead_channel(beta: float) -> ModelProto:
    graph = Graph(dtype=F32)
    graph.input("x", [1, 1, 4, 4])
    data = graph.node(
        "Conv", ["x", graph.initializer(np.array([1.0, 1e-3], F32).reshape(2, 1, 1, 1))]
    )
    gamma = graph.initializer(np.array([1.0, 1e-41], F32))
    shift = graph.initializer(np.array([1.0, beta], F32))
    rest = [graph.initializer(np.zeros(2, F32)), graph.initializer(np.ones(2, F32))]
    graph.node("BatchNormalization", [data, gamma, shift, *rest], "y")
    graph.output("y", [1, 2, 4, 4])
    return graph.model()


def test_a_channel_may_vanish_beside_its_bias() -> None:
    assert operators(compiled(dead_channel(1e-8)).model) == ["Conv"]


def test_a_channel_without_a_bias_may_not_vanish() -> None:
    result = compiled(dead_channel(0.0))
    assert operators(result.model) == ["Conv", "BatchNormalization"]
    (source,) = result.fold_map.sources
    assert source["reason"] == "underflow"
    assert "channel 1" in source["detail"]


def test_equal_operators_are_merged_and_equal_constants_stay() -> None:
    graph = Graph(dtype=F32)
    graph.input("x", [2, 3])
    parts = [
        graph.node("Pow", ["x", graph.initializer(np.array(power, F32))])
        for power in (3.0, 3.0, 5.0)
    ]
    graph.node("Concat", parts, "y", axis=1)
    graph.output("y", [2, 9])
    model = compiled(graph.model()).model
    assert operators(model) == ["Pow", "Pow", "Concat"]


def test_constant_operators_become_initializers_where_the_ir_has_them() -> None:
    def model(ir: int) -> ModelProto:
        graph = Graph(dtype=F32, ir=ir, opset=8)
        graph.input("x", [2, 3])
        graph.node("Pow", ["x", graph.constant(np.array([3.0], F32), "value")], "y")
        graph.output("y", [2, 3])
        return graph.model()

    for ir, expected in ((4, ["Pow"]), (3, ["Constant", "Pow"])):
        assert [node.op_type for node in compiled(model(ir)).model.graph.node] == expected


def called(op_type: str) -> ModelProto:
    """A Conv before a call of a function with one operator that reads four vectors, or none."""
    graph = Graph(dtype=F32, opset=17, domains={"com.acme": 1})
    graph.input("x", [1, 4, 3, 3])
    names = ["s", "b", "m", "v"] if op_type == "BatchNormalization" else []
    body = [helper.make_node(op_type, ["a", *names], ["r"])]
    graph.functions.append(
        helper.make_function(
            "com.acme", "F", ["a", *names], ["r"], body, [helper.make_opsetid("", 17)]
        )
    )
    data = graph.node("Conv", ["x", graph.initializer(graph.random(4, 4, 1, 1))])
    params = [graph.initializer(graph.positive(4)) for _ in names]
    graph.node("F", [data, *params], "y", domain="com.acme")
    graph.output("y", [1, 4, 3, 3])
    return graph.model()


def test_a_call_that_holds_back_a_fold_is_inlined() -> None:
    assert operators(compiled(called("BatchNormalization")).model) == ["Conv"]


def test_other_calls_stay() -> None:
    assert operators(compiled(called("Sigmoid")).model)[:2] == ["Conv", "F"]


def test_the_type_of_a_result_that_became_known_opens_rewrites() -> None:
    """The rank is known once the Reshape is gone, and by inference of the whole after it."""
    graph = Graph(dtype=F32, opset=17, domains={"com.acme": 1})
    body = [helper.make_node("Sigmoid", ["a"], ["b"])]
    graph.functions.append(
        helper.make_function("com.acme", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    )
    data = graph.node("Abs", [graph.input("x", ["N", "T", 4])])
    data = graph.node(
        "F", [graph.node("Reshape", [data, graph.node("Shape", [data])])], domain="com.acme"
    )
    data = graph.node("Neg", [graph.node("Add", [data, graph.input("g", [4])])])
    graph.node("Mul", [data, graph.initializer(np.array(3.0, F32))], "y")
    graph.output("y", None)
    result = irc.compile(graph.model()).model
    assert operators(result) == ["Abs", "F", "Add", "Mul"]
    assert irc.compile(result).model == result


@pytest.mark.parametrize("block", range(4))
def test_compiling_the_result_again_changes_nothing(block: int) -> None:
    for seed in range(block, 200, 4):
        once = irc.compile(grow(seed, F32 if seed % 8 == 7 else F64)).model
        text = once.SerializeToString(deterministic=True)
        again = irc.compile(ModelProto.FromString(text)).model
        assert again.SerializeToString(deterministic=True) == text, seed


def test_repeated_passes_as_text() -> None:
    text = "(SimplifyExpr{affines=keep},FoldConstant)*,SimplifyInference"
    pipeline = parse_pipeline(text)
    assert str(pipeline) == text
    assert [pass_.name for pass_ in pipeline.flat] == [
        "SimplifyExpr",
        "FoldConstant",
        "SimplifyInference",
    ]


def test_the_docs_have_the_passes_of_the_default_pipeline_with_their_reasons() -> None:
    rows = [
        f"| {'' if place else stage.purpose} | `{step}` | {step.reason} |"
        for stage in DEFAULT_STAGES
        for place, step in enumerate(stage.steps)
    ]
    assert "\n".join(rows) in (ROOT / "docs" / "passes.md").read_text("utf-8")
