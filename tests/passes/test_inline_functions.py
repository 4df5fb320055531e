"""InlineFunctions: what a call becomes, and which calls stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import irc
import numpy as np
import onnx
import pytest
import zoo
from float64 import UnsupportedOp, evaluate
from graphs import Graph, all_nodes, assert_equivalent, attribute, batch_norm, check, compiled, operators, the
from harness import random_inputs
from irc.passes import PassContext, parse_pipeline
from onnx import AttributeProto, FunctionProto, NodeProto, helper

PASS = "InlineFunctions"
INLINED = "InlineFunctions,default"


def function(
    name: str,
    nodes: Sequence[NodeProto],
    attributes: Sequence[str] = (),
    defaults: Sequence[AttributeProto] = (),
    *,
    inputs: Sequence[str] = ("a",),
    version: int = 21,
    overload: str = "",
) -> FunctionProto:
    """A function of domain `f`, which returns b."""
    imports = [helper.make_opsetid("", version), helper.make_opsetid("f", 1)]
    return helper.make_function(
        "f", name, list(inputs), ["b"], list(nodes), imports, list(attributes), list(defaults), overload=overload
    )


def model(calls: Sequence[Any], functions: Sequence[FunctionProto], opset: int = 21, **options: Any) -> Any:
    """Calls one after the other, each the name of a function or a name and its attributes."""
    graph = Graph(opset=opset, domains={"f": 1}, **options)
    graph.functions.extend(functions)
    value = graph.input("x", [2, 3])
    for i, call in enumerate(calls):
        name, attrs = (call, {}) if isinstance(call, str) else call
        value = graph.node(name, [value], "y" if i == len(calls) - 1 else "", f"call{i}", domain="f", **attrs)
    graph.output("y", [2, 3])
    return graph.model()


def reference(name: str, source: str, kind: int = AttributeProto.FLOAT) -> AttributeProto:
    """An attribute that is the function's."""
    return AttributeProto(name=name, ref_attr_name=source, type=kind)


def leaky(source: str = "slope") -> NodeProto:
    """LeakyRelu with the slope that the call gives."""
    node = helper.make_node("LeakyRelu", ["a"], ["b"])
    node.attribute.append(reference("alpha", source))
    return node


RELU = function("Act", [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Sqrt", ["t"], ["b"])])


def test_a_call_becomes_the_body() -> None:
    result = check(model(["Act"], [RELU]), ["Relu", "Sqrt"], passes=PASS)
    assert not result.model.functions
    assert result.model.graph.output[0].name == "y"


def test_every_call_has_names_of_its_own() -> None:
    result = compiled(model(["Act", "Act", "Act"], [RELU]), PASS).model
    assert operators(result) == ["Relu", "Sqrt"] * 3
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize(("given", "expected"), [({}, 0.25), ({"slope": 0.5}, 0.5)])
def test_references_take_the_attribute_of_the_call_or_the_default(given: dict[str, Any], expected: float) -> None:
    default = helper.make_attribute("slope", 0.25)
    result = compiled(model([("Leak", given)], [function("Leak", [leaky()], defaults=[default])]), PASS).model
    assert attribute(the(result, "LeakyRelu"), "alpha") == expected


def test_a_reference_that_nobody_gives_goes() -> None:
    result = compiled(model(["Leak"], [function("Leak", [leaky()], ["slope"])]), PASS).model
    assert attribute(the(result, "LeakyRelu"), "alpha") is None


def test_references_in_nested_calls() -> None:
    inner = function("Leak", [leaky()], ["slope"])
    call = helper.make_node("Leak", ["a"], ["b"], domain="f")
    call.attribute.append(reference("slope", "outer"))
    result = compiled(model([("Twice", {"outer": 0.125})], [function("Twice", [call], ["outer"]), inner]), PASS).model
    assert attribute(the(result, "LeakyRelu"), "alpha") == 0.125
    assert not result.functions


def test_a_constant_that_is_a_reference_folds() -> None:
    constant = helper.make_node("Constant", [], ["k"])
    constant.attribute.append(reference("value_float", "shift"))
    body = function("Shift", [constant, helper.make_node("Add", ["a", "k"], ["b"])], ["shift"])
    check(model([("Shift", {"shift": 0.5}), ("Shift", {"shift": 1.5})], [body]), ["Add"], passes=INLINED)


def test_overloads_are_told_apart() -> None:
    functions = [function("Act", [helper.make_node(op, ["a"], ["b"])], overload=op) for op in ("Relu", "Neg")]
    graph = model(["Act", "Act"], functions)
    for node, overload in zip(graph.graph.node, ("Neg", "Relu"), strict=True):
        node.overload = overload
    assert operators(compiled(graph, PASS).model) == ["Neg", "Relu"]


def test_recursion_is_refused() -> None:
    def call(name: str) -> list[NodeProto]:
        return [helper.make_node(name, ["a"], ["b"], domain="f")]

    functions = [function("A", call("B")), function("B", call("A")), function("C", call("A")), RELU]
    source = model(["C", "Act"], functions)
    context = PassContext()
    from pathlib import Path

    from irc.frontends.onnx.importer import import_model

    module = import_model(source, Path())
    parse_pipeline(PASS)(module, context)
    assert [node.op for node in module.graph if "::" in node.op] == ["f::C"]
    assert sum("it calls itself" in warning for warning in context.warnings) == 3


def test_another_opset_in_which_an_operator_means_the_same() -> None:
    nodes = [helper.make_node("Relu", ["a"], ["b"])]
    assert operators(compiled(model(["R"], [function("R", nodes, version=20)]), PASS).model) == ["Relu"]


def test_another_opset_in_which_an_operator_means_something_else() -> None:
    nodes = [helper.make_node("Softmax", ["a"], ["b"])]
    source = model(["S"], [function("S", nodes, version=11)])
    assert compiled(source, PASS).model == source


def test_a_function_that_returns_its_argument() -> None:
    graph = Graph(domains={"f": 1})
    graph.functions.append(helper.make_function("f", "Same", ["a"], ["a"], [], [helper.make_opsetid("", 21)]))
    graph.input("x", [2])
    graph.node("Same", ["x"], "y", domain="f")
    graph.output("y", [2])
    check(graph.model(), ["Identity"], passes=PASS)


def test_an_argument_that_is_left_out() -> None:
    body = function("C", [helper.make_node("Clip", ["a", "low", "high"], ["b"])], inputs=["a", "low", "high"])
    graph = Graph(domains={"f": 1})
    graph.functions.append(body)
    graph.input("x", [2])
    graph.node("C", ["x", "", graph.initializer(1.0)], "y", domain="f")
    graph.output("y", [2])
    result = check(graph.model(), ["Clip"], passes=PASS)
    assert the(result.model, "Clip").input[1] == ""


@pytest.mark.parametrize("given", [[], ["x"], ["x", "x"]])
@pytest.mark.parametrize("deep", [False, True])
def test_a_call_without_an_operand_that_is_read_stays(given: list[str], deep: bool) -> None:
    inner = function("inner", [helper.make_node("Add", ["a", "c"], ["b"])], inputs=("a", "c"))
    outer = function("outer", [helper.make_node("inner", ["a", "c"], ["b"], domain="f")], inputs=("a", "c"))
    graph = Graph(domains={"f": 1})
    graph.functions.extend([inner, outer])
    name = "outer" if deep else "inner"
    graph.input("x", [2, 3])
    graph.node(name, given, "y", "call", domain="f")
    graph.output("y", [2, 3])
    done = irc.compile(graph.model(), PASS).model
    assert operators(done) == (["Add"] if len(given) == 2 else [name])
    assert {each.name for each in done.functions} == set() if len(given) == 2 else {"inner", name}


def test_a_call_with_more_results_than_its_function_stays() -> None:
    graph = Graph(domains={"f": 1})
    graph.functions.append(function("F", [helper.make_node("Relu", ["a"], ["b"])]))
    graph.input("x", [2, 3])
    made = graph.model()
    made.graph.node.append(helper.make_node("F", ["x"], ["y", "z"], domain="f"))
    made.graph.output.extend(helper.make_tensor_value_info(name, 1, [2, 3]) for name in "yz")
    assert operators(irc.compile(made, PASS).model) == ["F"]
    made.graph.node[0].output.pop()
    made.graph.output.pop()
    assert operators(irc.compile(made, PASS).model) == ["Relu"]


def test_bodies_of_control_flow_in_a_function() -> None:
    branches = [
        helper.make_graph([helper.make_node(op, ["a"], ["t"])], op, [], [helper.make_tensor_value_info("t", 1, None)])
        for op in ("Relu", "Neg")
    ]
    nodes = [
        helper.make_node("ReduceMax", ["a"], ["m"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Greater", ["m", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["b"], then_branch=branches[0], else_branch=branches[1]),
    ]
    source = model(["F", "F"], [function("F", nodes)])
    result = compiled(source, PASS).model
    assert not result.functions
    onnx.checker.check_model(result, full_check=True)
    assert_equivalent(source, result)


def test_folds_across_what_was_a_call() -> None:
    """BatchNormalization in a function is folded into the convolution in front of the call, each by itself."""
    graph = Graph(domains={"f": 1})
    body = [helper.make_node("BatchNormalization", ["a", "s", "o", "m", "v"], ["b"])]
    graph.functions.append(function("BN", body, inputs=["a", "s", "o", "m", "v"]))
    value = graph.input("x", [2, 3, 4, 4])
    for i in range(2):
        hidden = graph.node("Conv", [value, graph.initializer(graph.random(3, 3, 1, 1))], name=f"conv{i}")
        params = [graph.initializer(array) for array in batch_norm(3, seed=i).arrays]
        value = graph.node("BN", [hidden, *params], "y" if i else "", domain="f")
    graph.output("y", [2, 3, 4, 4])
    result = check(graph.model(), ["Conv", "Conv"], passes=INLINED)
    assert [source["status"] for source in result.fold_map.sources] == ["folded", "folded"]


def test_functions_that_are_not_called_stay_if_nothing_is_inlined() -> None:
    graph = model(["Act"], [RELU])
    del graph.graph.node[:]
    graph.graph.node.append(helper.make_node("Neg", ["x"], ["y"]))
    assert compiled(graph, PASS).model == graph


def test_the_zoo_of_functions() -> None:
    count = 0
    for name, source in zoo.models():
        if not source.functions or zoo.is_odd(name):
            continue
        result = compiled(source, PASS).model
        try:
            inputs = random_inputs(source)
            expected = evaluate(source, inputs)
        except (UnsupportedOp, ValueError, KeyError):
            continue
        found = evaluate(result, inputs)
        for key, want in expected.items():
            assert np.array_equal(
                np.asarray(found[key]), np.asarray(want), equal_nan=np.asarray(want).dtype.kind == "f"
            ), name
        count += not any(node.domain for node in all_nodes(result))
    assert count > 10
