"""Provenance that nobody writes.

An affine is `kept` if and only if a node that computes it is still there.

The oracle reads the models and not the bookkeeping. Every node of the source gets a name of its
own. An affine whose node is gone from the result, by name and kind, may not be `kept`; one whose
node is there with the very constants that it had must be. A node that is there with other constants
computes something else, of which the affine may be a part.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import pytest
from graphs import Graph, all_graphs, all_nodes, batch_norm, compiled, operators
from harness import shared_models
from irc.ir import Module, Node, Rewriter
from irc.ir.graph import flatten_origins
from irc.passes import Pass, PassContext, Sequential, parse_pipeline
from irc.result import Result
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from random_graphs import grow
from scale_axis import CASES

CSE = "EliminateCommonSubexpr"
KIND = {
    "Mul": "scale",
    "Div": "scale",
    "Neg": "scale",
    "Add": "shift",
    "Sub": "shift",
    "Sum": "shift",
    "Mean": "mean",
    "BatchNormalization": "both",
}
"""Operators that compute an affine, by its kind: one in the place of two in a row may be another of
its kind.
"""
PIPELINES = (
    "default",
    f"default,{CSE},DeadCodeElimination",
    f"{CSE},default",
    "SimplifyExpr,FoldConstant",
    "SimplifyExpr,default",
    "SimplifyInference,FoldScaleAxis{partial=always},CanonicalizeOps,SimplifyExpr,FoldConstant",
    "SimplifyInference,SimplifyExpr,FoldScaleAxis{forward=false},SimplifyExpr,FoldConstant",
    "default,FoldScaleAxis,FoldConstant",
)


def named(model: ModelProto) -> ModelProto:
    """Return a copy of `model` in which every node has a name of its own."""
    made = copy.deepcopy(model)
    for i, node in enumerate(all_nodes(made)):
        node.name = f"node {i}"
    for function in made.functions:
        for i, node in enumerate(function.node):
            node.name = f"{function.name} {i}"
    return made


def constants_of(model: ModelProto) -> dict[str, bytes]:
    """Return the constants of all graphs by name, as text that equal constants share."""
    found: dict[str, TensorProto] = {}
    for graph in all_graphs(model):
        found.update({tensor.name: tensor for tensor in graph.initializer})
        constants = [
            node
            for node in graph.node
            if node.op_type == "Constant" and node.attribute[0].HasField("t")
        ]
        found.update({node.output[0]: node.attribute[0].t for node in constants})
    return {name: numpy_helper.to_array(tensor).tobytes() for name, tensor in found.items()}


def operands(node: NodeProto, constants: dict[str, bytes]) -> list[bytes | None]:
    """Return the operands of `node`, of which those that are not constant are None."""
    return [constants.get(name) for name in node.input]


def hold(source: ModelProto, result: Result) -> None:
    """Assert for every affine of `source` that its status is what the compiled model says."""
    before = {node.name: node for node in all_nodes(source)}
    after = {node.name: node for node in all_nodes(result.model)}
    old, new = constants_of(source), constants_of(result.model)
    for affine in result.fold_map.sources:
        name = affine["node"]["name"]
        if name not in before:  # inside a function
            continue
        node = after.get(name)
        if node is None or KIND.get(node.op_type) != KIND.get(before[name].op_type):
            assert affine["status"] != "kept", affine
        elif node.op_type == before[name].op_type and operands(before[name], old) == operands(
            node, new
        ):
            assert affine["status"] in ("kept", "partial"), affine


def assert_accounted(module: Module) -> None:
    """Assert that every imported node is emitted, or went into one that is, or was dropped."""
    emitted = {
        origin
        for node in module.walk()
        for origin in flatten_origins((node.origins, node.inherited))
    }
    dropped = set(flatten_origins(tuple(module.provenance.dropped)))
    assert emitted | dropped == set(range(module.next_origin))


def check(models: Iterable[ModelProto], pipelines: Sequence[str] = PIPELINES) -> None:
    """Compile each model with one of the pipelines in turn, by default and else."""
    for i, model in enumerate(models):
        source = named(model)
        for pipeline in {pipelines[0], pipelines[i % len(pipelines)]}:
            result = compiled(source, pipeline)
            hold(source, result)
            assert_accounted(result.module)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_rule_cases(block: int) -> None:
    check(case.model() for case in CASES[block::8])


def test_random_graphs() -> None:
    check(grow(seed, np.dtype(np.float32)) for seed in range(160))


@pytest.mark.shared
@pytest.mark.slow
def test_shared_models() -> None:
    paths = [path for path in shared_models() if path.stat().st_size < 5 << 20]
    check(onnx.load(str(path)) for path in paths)


# by hand


def chain(*operators: tuple[str, Sequence[float] | None], twice: bool = False) -> ModelProto:
    """Return relu(x), then the operators, each with a constant per channel or none, then a relu."""
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    value = first = graph.node("LeakyRelu", ["x"])
    ends = []
    for _ in range(2 if twice else 1):
        value = first
        for op, constant in operators:
            given = (
                []
                if constant is None
                else [graph.initializer(np.reshape(constant, (-1, 1, 1)).astype(np.float32))]
            )
            value = graph.node(op, [value, *given])
        ends.append(value)
    graph.node("Concat", ends, "y", axis=1)
    graph.output("y", None)
    return named(graph.model())


def statuses(result: Result) -> list[tuple[str, str]]:
    """Return kind and status of every affine, in the order of the source."""
    return [(source["kind"], source["status"]) for source in result.fold_map.sources]


def test_common_subexpressions_are_merged() -> None:
    source = chain(("Mul", (2, 3, 4)), twice=True)
    result = compiled(source, CSE)
    assert statuses(result) == [("mul", "kept"), ("mul", "merged")]
    assert CSE in result.fold_map.sources[1]["detail"]
    hold(source, result)


def test_neutral_elements_are_merged() -> None:
    source = chain(("Mul", (1, 1, 1)), ("Add", (1, 2, 3)), ("Add", (0, 0, 0)))
    result = compiled(source, "SimplifyExpr")
    assert statuses(result) == [("mul", "merged"), ("add", "kept"), ("add", "merged")]
    removed = "it has no effect; dropped by SimplifyExpr.drop_neutral"
    assert [affine["detail"] == removed for affine in result.fold_map.sources] == [
        True,
        False,
        True,
    ]
    hold(source, result)


def test_what_undoes_itself_is_removed() -> None:
    source = chain(("Neg", None), ("Neg", None))
    result = compiled(source, "FoldScaleAxis")
    assert statuses(result) == [("neg", "merged"), ("neg", "merged")]
    assert all(
        affine["detail"].startswith("it has no effect; ") for affine in result.fold_map.sources
    )
    hold(source, result)


def test_constants_in_a_row_are_merged_into_the_last() -> None:
    source = chain(("Add", (1, 2, 3)), ("Add", (1, 1, 1)))
    result = compiled(source, "SimplifyExpr")
    assert statuses(result) == [("add", "merged"), ("add", "kept")]
    assert (
        result.fold_map.sources[0]["detail"]
        == "went into another operator by SimplifyExpr.merge_affines"
    )
    hold(source, result)


def test_a_sum_that_becomes_a_bias_is_merged() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    product = graph.node("MatMul", ["x", graph.initializer(np.ones((3, 4), np.float32))])
    graph.node("Add", [product, graph.initializer([1, 2, 3, 4])], "y")
    graph.output("y", [2, 4])
    source = named(graph.model())
    result = compiled(source, "SimplifyExpr")
    assert statuses(result) == [("add", "merged")]
    assert "add_to_dense" in result.fold_map.sources[0]["detail"]
    hold(source, result)


def test_an_affine_of_constants_is_merged() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    table = graph.node(
        "Mul", [graph.node("Add", [graph.initializer([1, 2, 3]), graph.initializer([1])]), "two"]
    )
    graph.initializer([2], "two")
    graph.node("Add", ["x", table], "y")
    graph.output("y", [2, 3])
    source = named(graph.model())
    result = compiled(source, "FoldConstant")
    assert all(
        source["status"] != "kept" or source["kind"] == "add" for source in result.fold_map.sources
    )
    hold(source, result)


def test_what_nobody_reads_is_dead() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.node("Mul", ["x", graph.initializer([1, 2, 3])])
    graph.node("Relu", ["x"], "y")
    graph.output("y", [2, 3])
    source = named(graph.model())
    assert statuses(compiled(source, "DeadCodeElimination")) == [("mul", "dead")]


def test_a_batch_norm_that_others_go_into_is_kept() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    value = graph.batch_norm(graph.node("LeakyRelu", ["x"]), batch_norm(3))
    value = graph.node("Mul", [value, graph.initializer(np.full((3, 1, 1), 2, np.float32))])
    graph.node("LeakyRelu", [value], "y")
    graph.output("y", [2, 3, 4, 4])
    source = named(graph.model())
    result = compiled(source)
    assert statuses(result) == [("batch_norm", "kept"), ("mul", "merged")]
    hold(source, result)


@pytest.mark.parametrize("passes", ["SimplifyExpr", "DeadCodeElimination"])
def test_what_stands_in_a_branch_is_accounted_for(passes: str) -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.initializer(np.asarray(True), "c")
    branches = []
    for op in ("Neg", "Exp"):
        nodes = [
            helper.make_node("Sin", ["x"], [f"{op} 1"]),
            helper.make_node(op, [f"{op} 1"], [f"{op} 2"]),
        ]
        branches.append(
            helper.make_graph(nodes, op, [], [helper.make_tensor_value_info(f"{op} 2", 1, [2, 3])])
        )
    chosen = graph.node("If", ["c"], then_branch=branches[0], else_branch=branches[1])
    graph.node("Relu", [chosen if passes == "SimplifyExpr" else "x"], "y")
    graph.output("y", [2, 3])
    result = compiled(named(graph.model()), passes)
    assert all(node.op_type != "If" for node in all_nodes(result.model))
    assert_accounted(result.module)


# a rule that a user writes


@dataclass(frozen=True)
class DoubleNegation(Pass):
    """Remove two negations in a row: negative(negative(x)) -> x"""

    name: ClassVar[str] = "DoubleNegation"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        for node in module.graph:
            drop_double_negation(node, rewriter)
        return rewriter.changed


def drop_double_negation(node: Node, rewriter: Rewriter) -> bool:
    """negative(negative(x)) -> x"""
    inner = node.inputs[0].node if node.op == "negative" and node.inputs[0] is not None else None
    if inner is None or inner.op != "negative":
        return False
    data = inner.inputs[0]
    return data is not None and rewriter.forward(node.output, data)


@pytest.mark.parametrize("of_input", [False, True])
@pytest.mark.parametrize("read_twice", [False, True])
def test_a_rule_without_provenance_code(of_input: bool, read_twice: bool) -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    data = "x" if of_input else graph.node("LeakyRelu", ["x"])
    inner = graph.node("Neg", [data])
    outer = graph.node("LeakyRelu", [graph.node("Neg", [inner])])
    graph.node("Concat", [outer, inner if read_twice else outer], "y", axis=0)
    graph.output("y", [4, 3])
    source = named(graph.model())
    result = compiled(source, Sequential([DoubleNegation()]))
    assert statuses(result) == [("neg", "kept" if read_twice else "merged"), ("neg", "merged")]
    assert "DoubleNegation" in result.fold_map.sources[1]["detail"]
    hold(source, result)


def test_a_second_pass_keeps_what_the_first_recorded() -> None:
    source = chain(("Add", (1, 2, 3)), ("Add", (1, 1, 1)), twice=True)
    result = compiled(
        source, Sequential([*parse_pipeline("SimplifyExpr").passes, *parse_pipeline(CSE).passes])
    )
    assert statuses(result) == [
        ("add", "merged"),
        ("add", "kept"),
        ("add", "merged"),
        ("add", "merged"),
    ]
    assert "merge_affines" in result.fold_map.sources[0]["detail"]
    hold(source, result)


def test_a_layer_that_equals_one_of_the_source_once_it_is_folded_has_a_name() -> None:
    """Conv(x, 2 w) / 2 is Conv(x, w), which nobody changed and which has no name in the source."""
    graph = Graph()
    graph.input("x", [1, 2, 4, 4])
    weight = graph.random(3, 2, 1, 1)
    plain = graph.node("Conv", ["x", graph.initializer(weight)])
    doubled = graph.node("Conv", ["x", graph.initializer(2 * weight)])
    half = graph.node("Div", [doubled, graph.initializer(np.float32(2))])
    graph.node("Add", [plain, graph.node("Sigmoid", [half])], "y")
    graph.output("y", [1, 3, 4, 4])
    model = graph.model()
    for node in model.graph.node:
        node.name = ""
    result = compiled(model)
    assert operators(result.model) == ["Conv", "Sigmoid", "Add"]
    (layer,) = result.fold_map.layers
    assert layer["node"]["name"] == result.model.graph.node[0].name != ""
