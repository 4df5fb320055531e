"""InlineFunctions: what a call becomes, and which calls stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import irc
import numpy as np
import pytest
import zoo
from float64 import UnsupportedOp, evaluate
from graphs import Graph, all_nodes, compiled, operators
from harness import random_inputs
from irc.passes import PassContext, parse_pipeline
from onnx import AttributeProto, FunctionProto, NodeProto, helper, numpy_helper

PASS = "InlineFunctions"


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
        "f",
        name,
        list(inputs),
        ["b"],
        list(nodes),
        imports,
        list(attributes),
        list(defaults),
        overload=overload,
    )


def model(
    calls: Sequence[Any], functions: Sequence[FunctionProto], opset: int = 21, **options: Any
) -> Any:
    """Calls one after the other, each the name of a function or a name and its attributes."""
    graph = Graph(opset=opset, domains={"f": 1}, **options)
    graph.functions.extend(functions)
    value = graph.input("x", [2, 3])
    for i, call in enumerate(calls):
        name, attrs = (call, {}) if isinstance(call, str) else call
        value = graph.node(
            name, [value], "y" if i == len(calls) - 1 else "", f"call{i}", domain="f", **attrs
        )
    graph.output("y", [2, 3])
    return graph.model()


RELU = function(
    "Act", [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Sqrt", ["t"], ["b"])]
)


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
    reasons = [warning.partition(": ")[2] for warning in context.warnings]
    assert reasons[:2] == ["it calls itself", "it calls itself"]
    assert reasons[2] in ("it calls f::A, which calls itself", "it calls f::B, which calls itself")


def test_a_function_between_two_that_recur_calls_one_that_calls_itself() -> None:
    def call(name: str) -> list[NodeProto]:
        return [helper.make_node(name, ["a"], ["b"], domain="f")]

    functions = [
        function("First", [helper.make_node("Middle", ["a"], ["t"], domain="f"), *call("First")]),
        function("Middle", call("Last")),
        function("Last", call("Last")),
        function("Outer", call("Middle")),
    ]
    result = irc.compile(model(["First", "Outer"], functions), PASS)
    assert sorted(result.warnings) == [
        "function f::First is not inlined: it calls itself",
        "function f::Last is not inlined: it calls itself",
        "function f::Middle is not inlined: it calls f::Last, which calls itself",
        "function f::Outer is not inlined: it calls f::Last, which calls itself",
    ]


@pytest.mark.parametrize("given", [[], ["x"], ["x", "x"]])
@pytest.mark.parametrize("deep", [False, True])
def test_a_call_without_an_operand_that_is_read_stays(given: list[str], deep: bool) -> None:
    inner = function("inner", [helper.make_node("Add", ["a", "c"], ["b"])], inputs=("a", "c"))
    outer = function(
        "outer", [helper.make_node("inner", ["a", "c"], ["b"], domain="f")], inputs=("a", "c")
    )
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
                np.asarray(found[key]),
                np.asarray(want),
                equal_nan=np.asarray(want).dtype.kind == "f",
            ), name
        count += not any(node.domain for node in all_nodes(result))
    assert count > 10


@pytest.mark.parametrize(
    ("rank", "extent", "calls", "left"),
    [
        (2, 4, 1, ["MatMul", "Relu"]),
        (3, 4, 1, ["MatMul", "Relu"]),
        (3, 4, 2, ["MatMul", "Relu", "MatMul", "Relu"]),
        (3, 40, 2, ["F", "Relu", "F", "Relu"]),
        (None, 4, 1, ["F", "Relu"]),
    ],
    ids=["matrix", "rank 3", "twice", "twice, large", "unknown rank"],
)
def test_a_call_that_says_the_rank_of_a_product_is_inlined_by_default(
    rank: int | None, extent: int, calls: int, left: list[str]
) -> None:
    """In a body, the axis of the columns of x W is unknown.

    A factor for each column stayed there.
    """
    graph = Graph(opset=21, domains={"own": 1})
    value = graph.input("x", None if rank is None else [*["N", "M"][: rank - 1], extent])
    weight, factors = graph.random(extent, extent), graph.random(extent)
    body = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))
        for name, array in (("w", weight), ("c", factors))
    ]
    body += [
        helper.make_node("MatMul", ["a", "w"], ["m"]),
        helper.make_node("Mul", ["m", "c"], ["b"]),
    ]
    graph.functions.append(
        helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 21)])
    )
    for i in range(calls):
        value = graph.node(
            "Relu", [graph.node("F", [value], domain="own")], "y" if i == calls - 1 else ""
        )
    graph.output("y", None)
    model = graph.model()
    result = irc.compile(model).model
    assert operators(result) == left
    assert irc.compile(result).model == result
    inputs = {
        "x": np.random.default_rng(0)
        .standard_normal((2, 3, extent)[-(rank or 3) :])
        .astype(np.float32)
    }
    wanted, found = (evaluate(each, inputs)["y"] for each in (model, result))
    assert np.allclose(wanted, found, rtol=1e-5, atol=1e-6)


def product_in_function(graph: Graph, *, extent: int, factors: bool = False) -> None:
    """Add the function own::F, which computes a W.

    With `factors` times a factor for each column.
    """
    arrays = {"w": graph.random(extent, extent)} | ({"c": graph.random(extent)} if factors else {})
    body = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))
        for name, array in arrays.items()
    ]
    body.append(helper.make_node("MatMul", ["a", "w"], ["m" if factors else "b"]))
    if factors:
        body.append(helper.make_node("Mul", ["m", "c"], ["b"]))
    graph.functions.append(
        helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 21)])
    )


def test_a_call_beside_which_a_fold_moves_an_affine_is_inlined_in_the_same_compile() -> None:
    """The shift passes the first product, and stands before the second call.

    Inlined when compiled again only.
    """
    graph = Graph(opset=21, domains={"own": 1})
    product_in_function(graph, extent=4)
    value = graph.input("x", ["N", "M", 4])
    for _ in range(2):
        value = graph.node("Add", [value, graph.initializer(graph.random(4))])
    graph.node("F", [graph.node("F", [value], domain="own")], "y", domain="own")
    graph.output("y", None)
    result = irc.compile(graph.model()).model
    assert operators(result) == ["MatMul", "Add", "MatMul"]
    assert irc.compile(result).model == result


def test_parameters_that_a_fold_takes_away_do_not_keep_a_body_from_being_copied() -> None:
    """1,024 bytes of weights and 64 of factors in the body, which vanish.

    Inlined when compiled again only.
    """
    graph = Graph(opset=21, domains={"own": 1})
    product_in_function(graph, extent=16, factors=True)
    value = graph.input("x", ["N", 16])
    for i in range(2):
        value = graph.node("Relu", [graph.node("F", [value], domain="own")], "y" if i else "")
    graph.output("y", None)
    result = irc.compile(graph.model())
    assert operators(result.model) == ["MatMul", "Relu", "MatMul", "Relu"]
    assert [source["status"] for source in result.fold_map.sources] == ["folded", "folded"]
    assert irc.compile(result.model).model == result.model


BLOCKS = {
    "pool": ["MaxPool"],
    "rectifiers": ["Relu", "LeakyRelu"],
    "nested": ["f::rectifiers", "MaxPool"],
    "softmax": ["Relu", "Softmax"],
    "norm": ["BatchNormalization"],
    "layer": ["Conv"],
    "gated": ["Conv", "Sigmoid", "BatchNormalization"],
}
"""The operators of functions in a row. Weights and statistics are constants of the body."""


def blocks(*names: str) -> Any:
    """A model of Conv, BatchNormalization (in upper case), and calls of BLOCKS in a row."""
    graph = Graph(opset=17, domains={"f": 1})

    def call(op: str, value: str, arrays: list[str], result: str) -> NodeProto:
        domain, _, name = op.rpartition("::")
        attrs: dict[str, Any] = {"kernel_shape": [2, 2]} if op == "MaxPool" else {}
        if "Leaky" in op:
            attrs = {"alpha": 0.1}
        return helper.make_node(name, [value, *arrays], [result], domain=domain, **attrs)

    def arrays_of(op: str) -> list[Any]:
        if op == "Conv":
            return [graph.random(4, 4, 1, 1), graph.random(4)]
        zeros = np.zeros(4, np.float32)  # what passes a Relu is a positive scale
        return (
            [graph.positive(4), zeros, zeros, graph.positive(4)]
            if op == "BatchNormalization"
            else []
        )

    for name, operators_ in BLOCKS.items():
        nodes, value = [], "a"
        for i, op in enumerate(operators_):
            parameters = [f"c{i}_{j}" for j in range(len(arrays_of(op)))]
            for parameter, array in zip(parameters, arrays_of(op), strict=True):
                tensor = numpy_helper.from_array(array, parameter)
                nodes.append(helper.make_node("Constant", [], [parameter], value=tensor))
            nodes.append(
                call(op, value, parameters, value := "b" if i == len(operators_) - 1 else f"t{i}")
            )
        graph.functions.append(function(name, nodes, version=17))
    value = graph.input("x", ["N", 4, 6, 6])
    for i, name in enumerate(names):
        arrays = [graph.initializer(array) for array in arrays_of(name)]
        domain = "f" if name in BLOCKS else ""
        value = graph.node(
            name, [value, *arrays], "y" if i == len(names) - 1 else "", domain=domain
        )
    graph.output("y", None)
    return graph.model()


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (("Conv", "pool", "BatchNormalization"), ["Conv", "MaxPool"]),
        (("BatchNormalization", "pool", "Conv"), ["MaxPool", "Conv"]),
        (("Conv", "rectifiers", "norm"), ["Conv", "Relu", "LeakyRelu"]),
        (("Conv", "norm"), ["Conv"]),
        (("layer", "pool", "BatchNormalization"), ["Conv", "MaxPool"]),
        (("layer", "Relu", "rectifiers", "norm"), ["Conv", "Relu", "LeakyRelu"]),
        (
            ("Conv", "nested", "pool", "BatchNormalization"),
            ["Conv", "Relu", "LeakyRelu", "MaxPool", "MaxPool"],
        ),
        (("Conv", "softmax", "BatchNormalization"), ["Conv", "softmax", "BatchNormalization"]),
        (("Conv", "BatchNormalization", "pool", "Conv"), ["Conv", "pool", "Conv"]),
        (("pool", "BatchNormalization"), ["pool", "BatchNormalization"]),
        (("rectifiers", "Conv"), ["rectifiers", "Conv"]),
        (
            ("pool", "Conv", "BatchNormalization", "pool", "layer"),
            ["pool", "Conv", "pool", "layer"],
        ),
    ],
)
def test_calls_that_an_affine_has_to_pass_are_inlined_by_default(
    names: Sequence[str], left: list[str]
) -> None:
    """Nothing but a fold makes a call go: where none can come of it, the function stays."""
    model = blocks(*names)
    result = irc.compile(model).model
    assert operators(result) == left
    assert irc.compile(result).model == result
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)}
    wanted, found = (evaluate(each, inputs)["y"] for each in (model, result))
    assert np.allclose(wanted, found, rtol=1e-4, atol=1e-5)


def test_calls_that_an_affine_may_pass_stay_where_their_copies_are_more_operators() -> None:
    """30 calls of a body of 40 operators became 1,200 operators, and no affine moved."""
    once, thrice = ("Conv", "rectifiers", "BatchNormalization"), ("Conv", "rectifiers") * 3
    assert "rectifiers" not in operators(irc.compile(blocks(*once)).model)
    assert operators(irc.compile(blocks(*thrice, "BatchNormalization")).model) == [
        *thrice,
        "BatchNormalization",
    ]


def test_inputs_of_a_body_keep_their_declared_shapes() -> None:
    """onnxruntime runs no Loop whose body does not say that the iteration is a scalar."""
    inputs = [
        helper.make_tensor_value_info(*each)
        for each in (("i", 7, []), ("c", 9, []), ("h", 1, [2, 3]))
    ]
    results = [
        helper.make_tensor_value_info("going", 9, []),
        helper.make_tensor_value_info("made", 1, [2, 3]),
    ]
    nodes = [
        helper.make_node("Identity", ["c"], ["going"]),
        helper.make_node("Relu", ["h"], ["made"]),
    ]
    body = helper.make_graph(nodes, "body", inputs, results)
    loop = helper.make_node("Loop", ["n", "", "a"], ["b"], body=body)
    function = helper.make_function(
        "local", "F", ["a", "n"], ["b"], [loop], [helper.make_opsetid("", 18)]
    )
    graph = Graph(opset=18, domains={"local": 1}, functions=[function])
    graph.input("x", [2, 3])
    graph.node("F", ["x", graph.initializer(np.asarray(2, np.int64), "n")], "y", domain="local")
    graph.output("y", [2, 3])
    (inlined,) = compiled(graph.model(), "InlineFunctions").model.graph.node
    found = inlined.attribute[0].g
    assert [info.type for info in found.input] == [info.type for info in inputs]
    assert [info.type for info in found.output] == [info.type for info in results]


def test_types_behind_an_inlined_body_follow_from_what_the_operator_table_knows_of_it() -> None:
    """onnx does not infer the extents that a Concat of constants makes.

    That it is asked is because of the CumSum.
    """
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["s"], axis=0),
        helper.make_node("Reshape", ["x", "s"], ["y"]),
    ]
    function = helper.make_function(
        "local", "F", ["x", "a", "b"], ["y"], nodes, [helper.make_opsetid("", 18)]
    )
    graph = Graph(opset=18, domains={"local": 1}, functions=[function])
    graph.input("x", [2, 6])
    shape = [graph.initializer(np.asarray(extents, np.int64)) for extents in ([3], [2, 2])]
    reshaped = graph.node("F", ["x", *shape], domain="local")
    graph.node("Relu", [reshaped], "r")
    graph.node("CumSum", ["r", graph.initializer(np.asarray(0, np.int64))], "c")
    graph.output("c", None)
    module = irc.load(graph.model())
    parse_pipeline("InlineFunctions")(module, PassContext())
    types = {value.name: str(value.type) for node in module.graph for value in node.outputs}
    assert types["r"] == "f32[3,2,2]", types
