"""Names, and graphs inside graphs.

What bodies see, what functions see, and what everything is called afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import irc
import numpy as np
import onnx
import pytest
from graphs import (
    F32,
    NEWEST,
    BatchNorm,
    Graph,
    all_nodes,
    batch_norm,
    check,
    check_unchanged,
    compiled,
    constants,
    conv_bn,
    dangling,
    function_model,
    operators,
    reasons,
    the,
    unmarked,
)
from harness import ROOT
from onnx import GraphProto, ModelProto, helper

# bodies


def body(
    graph: Graph,
    build: Callable[[], str],
    name: str,
    inputs: Sequence[Any] = (),
    shape: Any = (2, 4, 4, 4),
) -> GraphProto:
    """A subgraph of the nodes and initializers that `build` appends; returns what it makes."""
    nodes, initializers = graph.nodes, graph.initializers
    graph.nodes, graph.initializers = [], []
    out = build()
    info = helper.make_tensor_value_info(out, 1, shape)
    made = helper.make_graph(graph.nodes, name, list(inputs), [info], graph.initializers)
    graph.nodes, graph.initializers = nodes, initializers
    return made


def fold_inside(
    graph: Graph, data: str, prefix: str, *, weights: str = "inner"
) -> Callable[[], str]:
    """Conv and BatchNormalization in a body, with weights of its own or of the graph around it."""
    arrays = {
        "w": graph.random(4, 4, 1, 1),
        **dict(zip(("g", "b", "m", "v"), batch_norm(4, 5).arrays, strict=True)),
    }
    names = {key: f"{prefix}.{key}" for key in arrays}
    if weights == "outer":
        for key, array in arrays.items():
            graph.initializer(array, names[key])

    def build() -> str:
        for key, array in arrays.items():
            if weights == "inner":
                graph.initializer(array, names[key])
            if weights == "nodes":
                graph.constant(array, "value", names[key])
        graph.node("Conv", [data, names["w"]], f"{prefix}.h", f"{prefix}.conv")
        params = [names[key] for key in ("g", "b", "m", "v")]
        return graph.batch_norm(
            f"{prefix}.h", batch_norm(4), f"{prefix}.y", f"{prefix}.bn", names=params
        )

    return build


def inner_operators(model: ModelProto) -> list[str]:
    """Every operator of the model, sorted, Constant left out."""
    return sorted(node.op_type for node in all_nodes(model) if node.op_type != "Constant")


def test_one_outer_weight_for_two_bodies_and_the_main_graph() -> None:
    graph = Graph()
    graph.input("x", [2, 4, 4, 4])
    graph.input("c", [], np.dtype(np.bool_))
    weight = graph.random(4, 4, 1, 1)
    graph.initializer(weight, "w")

    def conv(prefix: str, seed: int) -> Callable[[], str]:
        def build() -> str:
            graph.node("Conv", ["x", "w"], f"{prefix}.h")
            return graph.batch_norm(f"{prefix}.h", batch_norm(4, seed), f"{prefix}.y")

        return build

    then, other = body(graph, conv("then", 1), "then"), body(graph, conv("else", 2), "else")
    graph.node("If", ["c"], "branch", then_branch=then, else_branch=other)
    graph.node("Conv", ["branch", "w"], "y")
    graph.output("y", [2, 4, 4, 4])
    result = check(graph.model(), ["If", "Conv"])
    assert inner_operators(result.model) == ["Conv", "Conv", "Conv", "If"]
    assert constants(result.model)["w"].tobytes() == weight.tobytes()


# functions


@pytest.mark.parametrize("reference", ["epsilon", "training_mode"])
def test_an_attribute_of_the_caller_is_no_constant(reference: str) -> None:
    result = check_unchanged(function_model(reference=reference))
    assert set(reasons(result).values()) <= {"kept: unsupported_attr"}


# names


def test_the_layer_keeps_its_name_and_takes_the_last_output() -> None:
    graph, _, _ = conv_bn(name="features.0.conv")
    graph.node("Mul", ["y", graph.initializer(2.0)], "z", "scale")
    graph.node("Relu", ["z"], "out")
    graph.output("out", [2, 4, 4, 4])
    result = check(graph.model(), ["Conv", "Relu"])
    conv = the(result.model, "Conv")
    assert (conv.name, list(conv.output)) == ("features.0.conv", ["z"])
    assert conv.input[0] == "x"
    assert conv.input[1] == "w"


def test_attributes_documentation_and_metadata_of_the_layer_stay() -> None:
    graph, _, _ = conv_bn()
    conv = graph.nodes[0]
    conv.doc_string = "first layer"
    conv.metadata_props.add(key="namespace", value="net/0")
    graph.output("y", [2, 4, 4, 4])
    model = graph.model()
    model.producer_name, model.doc_string, model.model_version, model.domain = (
        "torch",
        "a model",
        7,
        "org.acme",
    )
    model.metadata_props.add(key="a", value="b")
    model.graph.doc_string = "a graph"
    model.graph.metadata_props.add(key="c", value="d")
    result = check(model, ["Conv"])
    after = result.model
    found = the(after, "Conv")
    assert found.doc_string == "first layer"
    assert list(found.metadata_props) == list(conv.metadata_props)
    assert list(found.attribute) == list(conv.attribute)
    for name in (
        "producer_name",
        "doc_string",
        "model_version",
        "domain",
        "metadata_props",
        "opset_import",
    ):
        assert getattr(unmarked(after), name) == getattr(model, name)
    assert after.graph.doc_string == "a graph"
    assert after.graph.metadata_props == model.graph.metadata_props
    assert after.graph.name == model.graph.name


COLLISIONS = [
    "w.bias", "conv.bias", "bias", "conv.bias.1", "w.folded", "w.scale", "h.scale", "y.scale", "y.shift", "y.bias",
    "y.1", "h.bias", "bn.scale",
]  # fmt: skip


@pytest.mark.parametrize("weight", ["w", "conv.weight", "weight", ""])
def test_names_that_are_taken(weight: str) -> None:
    """Every name that a fold might want belongs to something else.

    An initializer, a value, an input.
    """
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    graph.input("conv.bias.2", [2, 4, 4, 4])
    name = graph.initializer(graph.random(4, 3, 1, 1), weight)
    graph.node("Conv", ["x", name], "h", "conv")
    graph.batch_norm("h", batch_norm(4), "y", "bn")
    total = graph.node("Add", ["y", "conv.bias.2"])
    for taken in COLLISIONS:
        graph.initializer(graph.random(4, 4, 4), taken)
        total = graph.node("Sub", [taken, total])
    graph.node("Relu", [total], "out")
    graph.output("out", [2, 4, 4, 4])
    model = graph.model()
    result = check(model)
    assert "BatchNormalization" not in operators(result.model)
    conv = the(result.model, "Conv")
    before, after = constants(model), constants(result.model)
    assert conv.input[2] not in before
    for taken in set(COLLISIONS) & set(after):
        assert after[taken].shape == (4, 4, 4)


def test_a_graph_output_named_like_a_bias() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    graph.node(
        "Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1), "conv.weight")], "h", "conv"
    )
    graph.batch_norm("h", batch_norm(4), "t", "bn")
    graph.node("Relu", ["t"], "conv.bias")
    graph.output("conv.bias", [2, 4, 4, 4])
    check(graph.model(), ["Conv", "Relu"])


@pytest.mark.parametrize(
    "names", [["", "", ""], ["conv", "conv", "conv"], ["conv", "", "conv"], ["bn", "h1", "y"]]
)
def test_layers_without_a_name_of_their_own(names: list[str]) -> None:
    graph = Graph()
    graph.input("x", [2, 4, 4, 4])
    hidden = "x"
    for i, name in enumerate(names):
        graph.node("Conv", [hidden, graph.initializer(graph.random(4, 4, 1, 1))], f"h{i}", name)
        hidden = graph.batch_norm(
            f"h{i}", batch_norm(4, i), f"y{i}", "bn" if names[0] == "conv" else ""
        )
    graph.output(hidden, [2, 4, 4, 4])
    result = check(graph.model(), ["Conv"] * 3)
    found = [node.name for node in result.model.graph.node]
    assert all(found)
    assert len(set(found)) == 3
    assert [layer["node"]["name"] for layer in result.fold_map.layers] == found


def test_nodes_that_are_not_touched_stay_nameless() -> None:
    graph, _, _ = conv_bn(name="")
    graph.node("Relu", ["y"], "z")
    graph.output("z", [2, 4, 4, 4])
    result = check(graph.model(), ["Conv", "Relu"])
    assert the(result.model, "Relu").name == ""


def test_notes_on_values_that_are_gone_go() -> None:
    graph, _, _ = conv_bn()
    graph.node("Relu", ["y"], "z")
    graph.output("z", [2, 4, 4, 4])
    model = graph.model()
    for name in ("h", "y"):
        model.graph.value_info.append(helper.make_tensor_value_info(name, 1, [2, 4, 4, 4]))
    model.graph.value_info.append(helper.make_tensor_value_info("w", 1, [4, 3, 3, 3]))
    for tensor in ("h", "y", "w", "x"):
        note = model.graph.quantization_annotation.add(tensor_name=tensor)
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1).reshape(()), "scale"))
    result = check(model, ["Conv", "Relu"])
    assert "h" not in {info.name for info in result.model.graph.value_info}
    assert "y" in {info.name for info in result.model.graph.value_info}
    assert "h" not in {note.tensor_name for note in result.model.graph.quantization_annotation}
    assert "x" in {note.tensor_name for note in result.model.graph.quantization_annotation}
    assert not dangling(result.model)


@pytest.mark.parametrize("ir", [3, 8, 10])
def test_the_new_bias_is_a_proper_initializer(ir: int) -> None:
    graph, _, _ = conv_bn(ir=ir, opset=8)
    graph.output("y", [2, 4, 4, 4])
    result = check(graph.model(), ["Conv"])
    assert len(result.model.graph.initializer) == 2
    assert not [node for node in result.model.graph.node if node.op_type == "Constant"]


# the same bytes everywhere

SCRIPT = """
import hashlib, sys
sys.path[:0] = [{tests!r}]
import onnx
from irc.compiler import compile
result = compile(onnx.load({path!r}))
digest = hashlib.sha256(result.model.SerializeToString(deterministic=True))
digest.update(result.fold_map.to_json().encode())
print(digest.hexdigest())
"""


def rich_model() -> ModelProto:
    """Everything at once: chains, bodies, functions of names, clones, leftovers."""
    graph = Graph(opset=NEWEST)
    graph.input("x", [2, 4, 4, 4])
    graph.input("c", [], np.dtype(np.bool_))
    graph.initializer(graph.random(4, 4, 1, 1), "w")
    hidden = "x"
    for i in range(4):
        graph.node("Conv", [hidden, "w"], f"h{i}", "conv")
        graph.batch_norm(f"h{i}", batch_norm(4, i), f"n{i}", "")
        hidden = graph.node("Add", [f"n{i}", graph.initializer(graph.random(4, 1, 1))], f"a{i}")
    then = body(graph, fold_inside(graph, hidden, "then"), "then")
    other = body(graph, fold_inside(graph, hidden, "else", weights="outer"), "else")
    graph.node("If", ["c"], "y", then_branch=then, else_branch=other)
    graph.output("y", [2, 4, 4, 4])
    return graph.model()


def test_same_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(rich_model(), str(path))
    script = SCRIPT.format(tests=str(ROOT / "tests" / "support"), path=str(path))
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1234")
    ]
    first, second = (run.communicate()[0] for run in runs)
    assert len(first) == 65
    assert first == second


def test_the_rich_model() -> None:
    result = check(rich_model(), ["Conv"] * 4 + ["If"])
    assert set(reasons(result).values()) == {"folded"}


# nothing to do

UNCHANGED: dict[str, Callable[[Graph], str]] = {
    "relu": lambda g: g.node("Relu", ["x"]),
    "conv": lambda g: g.node("Conv", ["x", g.initializer(g.random(4, 3, 1, 1))]),
    "conv, relu": lambda g: g.node(
        "Relu", [g.node("Conv", ["x", g.initializer(g.random(4, 3, 1, 1))])]
    ),
    "batch normalization": lambda g: g.batch_norm("x", batch_norm(3)),
    "batch normalization, relu, conv": lambda g: g.node(
        "Conv",
        [g.node("Relu", [g.batch_norm("x", batch_norm(3))]), g.initializer(g.random(4, 3, 1, 1))],
    ),
    "mul and add": lambda g: g.node(
        "Add",
        [g.node("Mul", ["x", g.initializer(g.random(3, 1, 1))]), g.initializer(g.random(3, 1, 1))],
    ),
    "left constants": lambda g: g.node(
        "Sub",
        [g.initializer(g.random(3, 1, 1)), g.node("Mul", [g.initializer(g.random(3, 1, 1)), "x"])],
    ),
    "neg": lambda g: g.node("Neg", ["x"]),
    "div": lambda g: g.node("Div", ["x", g.initializer(g.positive(3, 1, 1))]),
    "reshape": lambda g: g.node("Reshape", ["x", g.initializer(np.asarray([2, 48], np.int64))]),
    "custom": lambda g: g.node("Fancy", ["x"], domain="com.acme"),
    "returned constant": lambda g: g.node("Identity", [g.initializer(g.random(2, 3, 4, 4))]),
    "returned input": lambda g: g.node("Identity", ["x"]),
}


@pytest.mark.parametrize("case", UNCHANGED)
def test_a_model_with_nothing_to_fold_comes_back_as_it_was(case: str) -> None:
    graph = Graph(domains={"com.acme": 1})
    graph.input("x", [2, 3, 4, 4])
    out = UNCHANGED[case](graph)
    graph.output(out, [2, 48] if case == "reshape" else [2, "C", 4, 4])
    model = graph.model()
    model.graph.value_info.append(helper.make_tensor_value_info("not there", 1, [3]))
    model.graph.node[0].doc_string = "kept"
    result = compiled(model)
    assert result.model == model
    assert result.model.SerializeToString(deterministic=True) == model.SerializeToString(
        deterministic=True
    )


def test_batch_normalizations_that_share_parameters_become_one() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    params: BatchNorm = batch_norm(3)
    names = [graph.initializer(array) for array in params.arrays]
    graph.batch_norm(
        graph.batch_norm("x", params, names=names, name="one"), params, "y", "two", names=names
    )
    graph.output("y", [2, 3, 4, 4])
    check(graph.model(), ["BatchNormalization"])


def test_leftover_of_a_fold_and_a_kept_one_side_by_side() -> None:
    graph = Graph(dtype=F32)
    graph.input("x", [2, 3, 4, 4])
    names = [graph.initializer(array, f"p{i}") for i, array in enumerate(batch_norm(3).arrays)]
    graph.batch_norm("x", batch_norm(3), "a", "kept", names=names)
    graph.node("Relu", ["a"], "r")
    graph.node("Conv", ["r", graph.initializer(graph.random(3, 3, 1, 1))], "h", "conv")
    graph.batch_norm("h", batch_norm(3), "y", "folded", names=names)
    graph.output("y", [2, 3, 4, 4])
    model = graph.model()
    result = check(model, ["BatchNormalization", "Relu", "Conv"])
    assert the(result.model, "BatchNormalization") == the(model, "BatchNormalization")
    for name in names:
        assert constants(result.model)[name].tobytes() == constants(model)[name].tobytes()


# bodies of operators that irc does not know


def search(domain: str, op: str, *outer: str) -> ModelProto:
    """A model with an operator of two bodies, whose names are also those of outer values."""
    graph = Graph(domains={domain: 1} if domain else {})
    graph.input("x", [1, 2])
    graph.input("y", [1, 2])
    graph.node("Identity", ["x"], "a")
    graph.node("Neg", ["y"], "d")
    graph.node("Relu", ["d"], "z")
    inputs = [helper.make_tensor_value_info(name, 1, [1, 2]) for name in ("y", "x", "z")]
    results = [helper.make_tensor_value_info(name, 1, [1, 2]) for name in ("w", "d")]
    nodes = [
        helper.make_node("Identity", ["y"], ["i"]),
        helper.make_node("Sum", ["i", "x", "z", *outer], ["w"]),
    ]
    first = helper.make_graph(
        [*nodes, helper.make_node("Exp", ["x"], ["d"])], "first", inputs, results
    )
    nodes = [helper.make_node("Abs", ["y"], ["w"]), helper.make_node("Identity", ["w"], ["d"])]
    second = helper.make_graph(nodes, "second", inputs, results)
    graph.node(op, ["x"], "r", domain=domain, first=first, second=second)
    graph.node("Sum", ["r", "z"], "s")
    graph.output("s", [1, 2])
    graph.output("z", [1, 2])
    return graph.model()


def bodies_of(model: ModelProto, op: str) -> list[GraphProto]:
    node = the(model, op)
    return [attribute.g for attribute in node.attribute]


@pytest.mark.parametrize("domain", ["com.microsoft", "com.acme"])
@pytest.mark.parametrize("outer", [(), ("a",)], ids=["closed", "reads around"])
def test_interfaces_of_bodies_of_foreign_operators_are_interfaces(
    domain: str, outer: tuple[str, ...]
) -> None:
    source = search(domain, "GreedySearch", *outer)
    result = irc.compile(source).model
    for before, after in zip(
        bodies_of(source, "GreedySearch"), bodies_of(result, "GreedySearch"), strict=True
    ):
        assert (
            [info.name for info in after.input]
            == [info.name for info in before.input]
            == ["y", "x", "z"]
        )
        assert (
            [info.name for info in after.output]
            == [info.name for info in before.output]
            == ["w", "d"]
        )
    first, second = bodies_of(result, "GreedySearch")
    assert second == bodies_of(source, "GreedySearch")[1]
    total = first.node[0]
    assert total.op_type == "Sum"
    assert list(total.input[:3]) == ["y", "x", "z"]
    if outer:  # the Identity of x is gone, but x is another value there: it has an alias
        aliases = {
            node.output[0]: node.input[0]
            for node in result.graph.node
            if node.op_type == "Identity"
        }
        assert aliases[total.input[3]] == "x"
    assert [info.name for info in result.graph.input] == ["x", "y"]
    assert [info.name for info in result.graph.output] == ["s", "z"]
    assert irc.compile(result).model == result


def test_a_value_that_a_body_reads_gives_way_to_the_names_that_it_promises() -> None:
    """The result z of the graph is read in the body, where z is an input."""
    source = search("com.acme", "Fancy", "a")
    source.graph.node.insert(3, helper.make_node("Identity", ["z"], ["b"]))
    (node,) = (node for node in source.graph.node if node.op_type == "Fancy")
    node.attribute[0].g.node[1].input[3] = "b"
    result = irc.compile(source).model
    total = bodies_of(result, "Fancy")[0].node[0]
    (relu,) = (node for node in result.graph.node if node.op_type == "Relu")
    assert list(total.input) == ["y", "x", "z", relu.output[0]]
    assert relu.output[0] != "z"
    assert [info.name for info in result.graph.output] == ["s", "z"]


def test_bodies_of_control_flow_take_values_by_position() -> None:
    """The neighbour: a name of a Loop's body that is also outside becomes another one."""
    graph = Graph()
    graph.input("x", [2])
    graph.node("Identity", ["x"], "a")
    infos = [("i", 7, []), ("c", 9, []), ("x", 1, [2])]
    nodes = [
        helper.make_node("Identity", ["c"], ["c2"]),
        helper.make_node("Add", ["x", "a"], ["x2"]),
    ]
    inner = helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(*info) for info in infos],
        [helper.make_tensor_value_info("c2", 9, []), helper.make_tensor_value_info("x2", 1, [2])],
    )
    graph.node("Loop", [graph.initializer(np.int64(3)), "", "x"], "y", body=inner)
    graph.output("y", [2])
    result = check(graph.model()).model
    (loop,) = result.graph.node
    assert [info.name for info in loop.attribute[0].g.input][2] != "x"
