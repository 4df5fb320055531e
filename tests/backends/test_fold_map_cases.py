"""The fold map of every rule case, and of what the rules do not name.

Subgraphs, functions, shared weights, names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import irc
import numpy as np
import pytest
from fold_maps import assert_map, assert_true
from graphs import DISGUISES, F64, Graph, batch_norm, compiled, function_model
from onnx import ModelProto
from oracle import runs_exactly
from scale_axis import CASES

C = 4
BLOCKS = 8


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_rule_case(block: int) -> None:
    for case in CASES[block::BLOCKS]:
        model = case.model(symbolic=False)
        result = compiled(model, case.passes)
        try:
            assert_map(model, result)
            if computable(model):
                assert_true(model, result)
        except Exception as error:
            error.add_note(case.id)
            raise


def computable(model: ModelProto) -> bool:
    """Whether the float64 evaluator knows operators and shapes, and nothing is narrower."""
    known = all(info.type.tensor_type.HasField("shape") for info in model.graph.input)
    return known and runs_exactly(model) and all(not node.domain for node in model.graph.node)


def network() -> tuple[Graph, str, Any]:
    """A graph with an input, its name, and the parameters of a BatchNormalization."""
    graph = Graph(dtype=F64)
    return graph, graph.input("x", [2, 3, 8, 8]), batch_norm(C, dtype=F64)


def weight(graph: Graph, *shape: int, name: str = "w") -> str:
    return graph.initializer(graph.random(*shape), name)


def fold_map_of(graph: Graph, result: Sequence[str], passes: str | None = None) -> irc.FoldMap:
    for name in result:
        graph.output(name)
    model = graph.model()
    compiled_ = compiled(model, passes)
    assert_map(model, compiled_)
    assert_true(model, compiled_)
    return compiled_.fold_map


def test_a_concat_is_many_to_many() -> None:
    graph, x, _ = network()
    parts = [
        graph.node("Conv", [x, weight(graph, n, 3, 1, 1, name=f"w{n}")], f"c{n}", f"conv{n}")
        for n in (2, 3)
    ]
    graph.batch_norm(graph.node("Concat", parts, axis=1), batch_norm(5, dtype=F64), "y", "bn")
    fold_map = fold_map_of(graph, ["y"])
    (source,) = fold_map.sources
    assert len(source["layers"]) == 2
    whole = np.concatenate(
        [fold_map.arrays.get(layer["folds"][0]["scale"]) for layer in fold_map.layers]
    )
    gamma, var = (fold_map.arrays.get(source["params"][key]["value"]) for key in ("gamma", "var"))
    np.testing.assert_allclose(whole, gamma / np.sqrt(var + source["epsilon"]), rtol=1e-15)
    assert all(len(layer["folds"][0]["crossed"]) == 1 for layer in fold_map.layers)
    assert fold_map.statistic("y") is not None


def test_a_shared_weight_is_cloned_and_each_layer_names_its_own() -> None:
    graph, x, _ = network()
    shared = weight(graph, C, 3, 3, 3)
    for i in range(2):
        graph.batch_norm(
            graph.node("Conv", [x, shared], f"c{i}", f"conv{i}"),
            batch_norm(C, i + 1, F64),
            f"y{i}",
            f"n{i}",
        )
    fold_map = fold_map_of(graph, ["y0", "y1"])
    assert {layer["weight"]["original_name"] for layer in fold_map.layers} == {"w"}
    assert len({layer["weight"]["name"] for layer in fold_map.layers}) == 2
    assert all(layer["bias"]["created"] for layer in fold_map.layers)


def test_a_matmul_leaves_its_shift_as_a_remainder() -> None:
    graph = Graph(dtype=F64)
    x = graph.input("x", [2, 3, 3])
    product = graph.node("MatMul", [x, weight(graph, 3, C)], "m", "matmul")
    scaled = graph.node("Mul", [product, graph.initializer(graph.random(C))])
    graph.node("Add", [scaled, graph.initializer(graph.random(C))], "y")
    (layer,) = fold_map_of(graph, ["y"]).layers
    assert layer["remainder"] == {"op_type": "Add", "output": "y"}
    assert (layer["weight"]["out_axis"], layer["bias"]) == (1, None)


@pytest.mark.parametrize("how", sorted(DISGUISES))
def test_parameters_may_come_from_nodes(how: str) -> None:
    graph, x, params = network()
    hidden = graph.node("Conv", [x, weight(graph, C, 3, 3, 3)], "c", "conv")
    graph.batch_norm(hidden, params, "y", "bn", how)
    model = graph.output("y") and graph.model()
    result = compiled(model)
    assert_map(model, result)
    (source,) = result.fold_map.sources
    assert [entry["name"] for entry in source["params"].values()] == list(graph.nodes[-1].input[1:])
    for key, entry in source["params"].items():
        np.testing.assert_allclose(
            result.fold_map.arrays.get(entry["value"]), getattr(params, key), rtol=1e-6
        )


def test_layers_without_a_name_or_with_the_same_get_one() -> None:
    graph, x, _ = network()
    for i, name in enumerate(("", "", "conv", "conv")):
        hidden = graph.node("Conv", [x, weight(graph, C, 3, 3, 3, name=f"w{i}")], f"c{i}", name)
        graph.batch_norm(hidden, batch_norm(C, i + 1, F64), f"y{i}", "bn")
    fold_map = fold_map_of(graph, [f"y{i}" for i in range(4)])
    names = [layer["node"]["name"] for layer in fold_map.layers]
    assert all(names)
    assert len(set(names)) == 4
    assert [layer["node"]["original_name"] for layer in fold_map.layers] == ["", "", "conv", "conv"]


def test_layers_in_subgraphs_say_where() -> None:
    graph, _, _ = network()
    condition = graph.input("condition", [], np.dtype(bool))
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = Graph(dtype=F64)
        hidden = inner.node(
            "Conv", ["x", weight(inner, C, 3, 3, 3, name=f"{name}.w")], f"{name}.c", f"{name}.conv"
        )
        inner.output(
            inner.batch_norm(hidden, batch_norm(C, dtype=F64), f"{name}.y", f"{name}.bn"),
            [2, C, 6, 6],
        )
        branches[name] = inner.model().graph
    graph.output(graph.node("If", [condition], "y", "choice", **branches), [2, C, 6, 6])
    model = graph.model()
    result = compiled(model)
    assert_map(model, result)
    layers = result.fold_map.layers
    assert {step["attribute"] for layer in layers for step in layer["scope"]} == set(branches)
    assert {step["node"] for layer in layers for step in layer["scope"]} == {"choice"}
    assert all(result.fold_map.output_stats(layer["id"]) is not None for layer in layers)


@pytest.mark.parametrize("passes", [None, "InlineFunctions,default"])
def test_layers_in_functions_say_where(passes: str | None) -> None:
    model = function_model(times=2)
    result = compiled(model, passes)
    assert_map(model, result)
    scopes = [layer["scope"] for layer in result.fold_map.layers]
    assert scopes == ([[{"function": "local::Block"}]] if passes is None else [[], []])


def test_what_stays_says_why() -> None:
    graph, x, params = network()
    hidden = graph.node("Conv", [x, weight(graph, C, 3, 3, 3)], "c", "conv")
    graph.batch_norm(hidden, params, "y", "bn")
    (source,) = fold_map_of(graph, ["y", "c"]).sources
    assert (source["status"], source["reason"], source["layers"]) == ("kept", "graph_output", [])
    assert "'c'" in source["detail"]
    assert source["notes"]


def test_a_shift_left_in_another_add_is_listed_where_that_add_goes() -> None:
    """The scale goes into the first Conv, the shift into the Add, and the Add forward."""
    graph = Graph(dtype=F64)
    x = graph.input("x", [2, 2, 2, 1])
    rows = graph.initializer(np.array([0.5, 0.25]).reshape(1, 1, 2, 1), "rows")
    hidden = graph.node("Conv", [x, weight(graph, 1, 2, 1, 1, name="w0")], "c0", "first")
    hidden = graph.node("Add", [hidden, rows], "r", "by_row")
    hidden = graph.node("Add", [hidden, graph.initializer(np.array(1.5), "b")], "a", "uniform")
    hidden = graph.batch_norm(hidden, batch_norm(1, dtype=F64), "n", "bn")
    bounds = [
        graph.initializer(np.array(bound), name) for bound, name in ((-1.0, "low"), (1.0, "high"))
    ]
    hidden = graph.node("Clip", [hidden, *bounds], "k", "clip")
    hidden = graph.node("Add", [hidden, graph.initializer(np.array(0.5), "d")], "e", "late")
    graph.node("Conv", [hidden, weight(graph, 1, 1, 1, 1, name="w1")], "y", "last")
    fold_map = fold_map_of(graph, ["y"])
    where = {source["node"]["name"]: source["layers"] for source in fold_map.sources}
    names = {layer["id"]: layer["node"]["name"] for layer in fold_map.layers}
    assert {name: [names[number] for number in numbers] for name, numbers in where.items()} == {
        "by_row": [],
        "uniform": ["last"],
        "bn": ["first", "last"],
        "late": [],
    }
    forward = [
        fold["direction"]
        for layer in fold_map.layers
        if layer["node"]["name"] == "last"
        for fold in layer["folds"]
    ]
    assert forward == ["forward", "forward"]
