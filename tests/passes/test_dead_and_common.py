"""DeadCodeElimination and EliminateCommonSubexpr: what goes, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import Graph, all_nodes, batch_norm, check, check_unchanged, compiled, operators, the, unread
from onnx import TensorProto, helper

DEAD, COMMON = "DeadCodeElimination", "EliminateCommonSubexpr"


def with_dead(build: Callable[[Graph], str], **options: Any) -> Any:
    """y = Relu(x), and beside it something that nobody reads."""
    graph = Graph(domains={"com.acme": 1}, **options)
    graph.input("x", [2, 3])
    graph.node("Relu", ["x"], "y")
    build(graph)
    graph.output("y", [2, 3])
    return graph.model()


def branch(op: str, name: str) -> Any:
    """A body that computes one thing from x."""
    node = helper.make_node(
        op, ["x"] if op != "RandomNormal" else [], ["t"], **({"shape": [1]} if op == "RandomNormal" else {})
    )
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)])


def conditional(op: str) -> Callable[[Graph], str]:
    """An If of two bodies."""

    def build(graph: Graph) -> str:
        condition = graph.input("c", [], np.dtype(np.bool_))
        return graph.node("If", [condition], then_branch=branch("Neg", "a"), else_branch=branch(op, "b"))

    return build


GOES: dict[str, Callable[[Graph], str]] = {
    "in-house": lambda g: g.node("Neg", ["x"]),
    "standard": lambda g: g.node("Sigmoid", ["x"]),
    "chain": lambda g: g.node("Exp", [g.node("Add", [g.node("Sigmoid", ["x"]), g.initializer([1, 2, 3])])]),
    "initializer": lambda g: g.initializer([1, 2, 3]),
    "if": conditional("Exp"),
}
STAYS: dict[str, Callable[[Graph], str]] = {
    "random": lambda g: g.node("RandomNormal", [], shape=[2]),
    "random of a shape": lambda g: g.node("RandomUniformLike", ["x"]),
    "another domain": lambda g: g.node("Fancy", ["x"], domain="com.acme"),
    "unknown operator": lambda g: g.node("Fancy", ["x"]),
    "random in a branch": conditional("RandomNormal"),
}


@pytest.mark.parametrize("case", GOES)
def test_what_nobody_reads_goes(case: str) -> None:
    result = check(with_dead(GOES[case]), ["Relu"], passes=DEAD)
    assert not result.model.graph.initializer


@pytest.mark.parametrize("case", STAYS)
def test_what_may_be_noticed_stays(case: str) -> None:
    model = with_dead(STAYS[case])
    assert compiled(model, DEAD).model == model


def test_an_operator_of_which_one_result_is_read_stays() -> None:
    graph = Graph()
    graph.input("x", [4])
    graph.node("TopK", ["x", graph.initializer(np.asarray([2]))], ["y", "i"])
    graph.output("y", [2])
    check_unchanged(graph.model(), passes=DEAD)


def test_what_a_body_reads_stays() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.input("c", [], np.dtype(np.bool_))
    graph.node("Sigmoid", ["x"], "s")
    branches = []
    for i, op in enumerate(("Neg", "Exp")):
        nodes = [helper.make_node(op, ["s"], [f"t{i}"]), helper.make_node("Tanh", ["s"], [f"dead{i}"])]
        branches.append(helper.make_graph(nodes, op, [], [helper.make_tensor_value_info(f"t{i}", 1, [2, 3])]))
    graph.node("If", ["c"], "y", then_branch=branches[0], else_branch=branches[1])
    graph.output("y", [2, 3])
    result = check(graph.model(), ["Sigmoid", "If"], passes=DEAD)
    assert not any(node.op_type == "Tanh" for node in all_nodes(result.model))


def test_overridable_initializers_are_inputs_and_stay() -> None:
    graph = Graph()
    graph.input("x", [2])
    graph.input("w", [2])
    graph.initializer([1, 2], "w")
    graph.node("Relu", ["x"], "y")
    graph.output("y", [2])
    check_unchanged(graph.model(), passes=DEAD)


def test_unused_functions_go() -> None:
    graph = Graph(domains={"f": 1})
    for name, body in (("A", "B"), ("B", ""), ("C", "D"), ("D", "C")):
        node = helper.make_node(body or "Neg", ["a"], ["b"], domain="f" if body else "")
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
        graph.functions.append(helper.make_function("f", name, ["a"], ["b"], [node], imports))
    graph.input("x", [2])
    graph.node("A", ["x"], "y", domain="f")
    graph.output("y", [2])
    assert [function.name for function in compiled(graph.model(), DEAD).model.functions] == ["A", "B"]


# common subexpressions


def twice(first: Callable[[Graph], str], second: Callable[[Graph], str] | None = None, **options: Any) -> Any:
    """The sum of two expressions."""
    graph = Graph(domains={"com.acme": 1}, **options)
    graph.input("x", [2, 3])
    graph.node("Add", [first(graph), (second or first)(graph)], "y")
    graph.output("y", [2, 3])
    return graph.model()


def cast(to: int) -> Callable[[Graph], str]:
    """A cast there and back."""
    return lambda g: g.node("Cast", [g.node("Cast", ["x"], to=to)], to=1)


MERGE: dict[str, tuple[Any, list[str]]] = {
    "in-house": (twice(lambda g: g.node("Relu", ["x"])), ["Relu", "Add"]),
    "standard": (twice(lambda g: g.node("Elu", ["x"], alpha=0.5)), ["Elu", "Add"]),
    "chain": (twice(lambda g: g.node("Exp", [g.node("Sin", ["x"])])), ["Sin", "Exp", "Add"]),
    "equal constants": (twice(lambda g: g.node("Mul", ["x", g.initializer([1, 2, 3])])), ["Mul", "Add"]),
    "other attributes": (
        twice(lambda g: g.node("Elu", ["x"], alpha=0.5), lambda g: g.node("Elu", ["x"], alpha=0.25)),
        ["Elu", "Elu", "Add"],
    ),
    "an attribute of another sign of zero": (
        twice(lambda g: g.node("Elu", ["x"], alpha=0.0), lambda g: g.node("Elu", ["x"], alpha=-0.0)),
        ["Elu", "Elu", "Add"],
    ),
    "other operands": (
        twice(lambda g: g.node("Sub", ["x", g.initializer(1.0)]), lambda g: g.node("Sub", [g.initializer(1.0), "x"])),
        ["Sub", "Sub", "Add"],
    ),
    "constants of other elements": (
        twice(lambda g: g.node("Mul", ["x", g.initializer(g.random(3))])), ["Mul", "Mul", "Add"],
    ),
    "constants of another sign of zero": (
        twice(lambda g: g.node("Div", ["x", g.initializer(0.0)]), lambda g: g.node("Div", ["x", g.initializer(-0.0)])),
        ["Div", "Div", "Add"],
    ),
    "random": (twice(lambda g: g.node("RandomUniformLike", ["x"])), ["RandomUniformLike"] * 2 + ["Add"]),
    "another domain": (twice(lambda g: g.node("Fancy", ["x"], domain="com.acme")), ["Fancy", "Fancy", "Add"]),
    "casts": (twice(cast(TensorProto.INT32), cast(TensorProto.INT64)), ["Cast"] * 4 + ["Add"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MERGE)
def test_common_subexpressions(case: str) -> None:
    model, expected = MERGE[case]
    result = compiled(model, COMMON).model
    assert operators(result) == expected
    if case not in ("random", "another domain"):
        check(model, expected, passes=COMMON)


def test_equal_constants_of_other_types_stay() -> None:
    graph = Graph()
    graph.input("x", [2])
    picked = graph.node("Gather", ["x", graph.initializer(np.asarray([0, 1], np.int32))])
    graph.node("Gather", [picked, graph.initializer(np.asarray([0, 1], np.int64))], "y")
    graph.output("y", [2])
    check_unchanged(graph.model(), passes=COMMON)


def test_one_of_two_results_of_the_graph() -> None:
    graph = Graph()
    graph.input("x", [2])
    graph.node("Exp", ["x"], "e")
    graph.node("Neg", ["e"], "z")
    graph.node("Exp", ["x"], "y")
    for name in ("y", "z"):
        graph.output(name, [2])
    result = check(graph.model(), ["Exp", "Neg"], passes=COMMON)
    assert the(result.model, "Exp").output == ["y"]


def test_two_results_of_the_graph_stay_two() -> None:
    graph = Graph()
    graph.input("x", [2])
    for name in ("y", "z"):
        graph.node("Exp", ["x"], name)
        graph.output(name, [2])
    check_unchanged(graph.model(), passes=COMMON)


def test_operators_with_several_results() -> None:
    graph = Graph()
    graph.input("x", [4])
    k = graph.initializer(np.asarray([2]))
    first = ["v1", "i1"]
    graph.node("TopK", ["x", k], first)
    graph.node("TopK", ["x", k], ["v2", "i2"])
    graph.node("Add", ["v1", "v2"], "y")
    graph.node("Add", ["i1", "i2"], "z")
    graph.output("y", [2])
    graph.output("z", [2], np.dtype(np.int64))
    check(graph.model(), ["TopK", "Add", "Add"], passes=COMMON)


def test_control_flow_is_not_merged() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    build = conditional("Exp")
    first = build(graph)
    second = graph.node("If", ["c"], then_branch=branch("Neg", "a"), else_branch=branch("Exp", "b"))
    graph.node("Add", [first, second], "y")
    graph.output("y", [2, 3])
    check_unchanged(graph.model(), passes=COMMON)


def test_bodies_are_looked_at_one_by_one() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    graph.input("c", [], np.dtype(np.bool_))
    branches = []
    for i in range(2):
        nodes = [helper.make_node("Exp", ["x"], [f"{n}{i}"]) for n in "ab"]
        nodes.append(helper.make_node("Add", [f"a{i}", f"b{i}"], [f"t{i}"]))
        branches.append(helper.make_graph(nodes, f"g{i}", [], [helper.make_tensor_value_info(f"t{i}", 1, [2, 3])]))
    graph.node("If", ["c"], "y", then_branch=branches[0], else_branch=branches[1])
    graph.output("y", [2, 3])
    result = check(graph.model(), ["If"], passes=COMMON)
    assert sum(node.op_type == "Exp" for node in all_nodes(result.model)) == 2


def test_two_batch_normalizations_with_the_same_parameters_stay_two() -> None:
    graph = Graph()
    graph.input("x", [2, 3])
    names = [graph.initializer(array) for array in batch_norm(3).arrays]
    hidden = graph.batch_norm(graph.node("Relu", ["x"]), batch_norm(3), name="one", names=names)
    graph.batch_norm(graph.node("Exp", [hidden]), batch_norm(3), "y", "two", names=names)
    graph.output("y", [2, 3])
    result = check(graph.model(), passes=f"default,{COMMON}")
    assert [node.name for node in result.model.graph.node if node.op_type == "BatchNormalization"] == ["one", "two"]
    assert not unread(result.model)
