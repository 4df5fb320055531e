"""Attributes that differ from the source.

Whoever changed one, and however, the written model has the new one.
"""

from __future__ import annotations

from collections.abc import Iterator

import irc
import numpy as np
import onnx
import pytest
from float64 import evaluate
from irc.ir import Node, Rewriter
from irc.ir.ops import OPS
from irc.ir.tensor import ArrayTensor
from irc.passes import InlineFunctions, PassContext, SimplifyInference
from irc.support.errors import IRError
from irc.tools.verify import VerifyNumerics
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

KINDS = defs.OpSchema.AttrType
SAMPLES: dict[KINDS, tuple[object, object]] = {
    KINDS.FLOAT: (0.25, 0.75),
    KINDS.INT: (0, 1),
    KINDS.STRING: ("linear", "cubic"),
    KINDS.FLOATS: ([0.25, 0.5], [0.5, 0.75]),
    KINDS.INTS: ([1, 2], [2, 1]),
    KINDS.STRINGS: (["Sigmoid"], ["Tanh"]),
}
"""Two values of each kind."""

CHOICES = {
    "approximate": ("none", "tanh"),
    "auto_pad": ("VALID", "SAME_UPPER"),
    "coordinate_transformation_mode": ("asymmetric", "half_pixel"),
    "direction": ("forward", "reverse"),
    "equation": ("i,i->", "i,j->ij"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger"),
    "nearest_mode": ("floor", "ceil"),
    "padding_mode": ("zeros", "border"),
    "reduction": ("none", "add"),
    "to": (1, 11),
}
"""Two values of attributes that not every value of their kind will do for."""

OPERATORS = sorted({info.onnx for info in OPS.values() if info.onnx and defs.has(info.onnx)})
OPSET = min(defs.onnx_opset_version(), 24)


def attributes(op_type: str) -> Iterator[tuple[str, object, object]]:
    """Yield the attributes of an operator that are no graphs or tensors, each with two values."""
    for name, attribute in defs.get_schema(op_type, OPSET).attributes.items():
        if op_type == "Constant":
            continue
        if attribute.type in SAMPLES:
            yield name, *CHOICES.get(name, SAMPLES[attribute.type])


def node_of(op_type: str, given: dict[str, object]) -> NodeProto:
    schema = defs.get_schema(op_type, OPSET)
    inputs = [f"x{i}" for i in range(schema.min_input)]
    outputs = [f"y{i}" for i in range(max(1, schema.min_output))]
    return helper.make_node(op_type, inputs, outputs, name="n", **given)


def model_of(node: NodeProto, functions: list[onnx.FunctionProto]) -> ModelProto:
    tensors = [
        [helper.make_tensor_value_info(name, 1, None) for name in names]
        for names in (node.input, node.output)
    ]
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    graph = helper.make_graph([node], "g", *tensors)
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def written(module: irc.Module) -> dict[str, object]:
    """Return the attributes of the one node of the written model."""
    (node,) = irc.emit(module).model.graph.node
    assert not any(attribute.ref_attr_name for attribute in node.attribute)
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def plain(value: object) -> object:
    """Return a value as `get_attribute_value` does."""
    if isinstance(value, str):
        return value.encode()
    return [plain(item) for item in value] if isinstance(value, list) else value


def the_node(module: irc.Module) -> Node:
    (node,) = (node for node in module.graph if node.op not in ("constant", "return"))
    return node


def fits(op_type: str, name: str, value: object) -> bool:
    module = irc.load(model_of(node_of(op_type, {}), []))
    try:
        Rewriter(module).set_attr(
            the_node(module), name, tuple(value) if isinstance(value, list) else value
        )
    except IRError:
        return False
    return True


CASES = [
    (op_type, name, old, new)
    for op_type in OPERATORS
    for name, old, new in attributes(op_type)
    if fits(op_type, name, old) and fits(op_type, name, new)
]


def test_nearly_every_attribute_of_every_operator_is_a_case() -> None:
    assert len(CASES) >= 0.95 * sum(len(list(attributes(op_type))) for op_type in OPERATORS)


@pytest.mark.parametrize(("op_type", "name", "old", "new"), CASES)
def test_an_attribute_that_a_pass_sets_is_written(
    op_type: str, name: str, old: object, new: object
) -> None:
    others = {
        other: value
        for other, value, _ in attributes(op_type)
        if (op_type, other) in {c[:2] for c in CASES}
    }
    module = irc.load(model_of(node_of(op_type, {**others, name: old}), []))
    before = written(module)
    assert before[name] == plain(old)
    Rewriter(module).set_attr(the_node(module), name, tuple(new) if isinstance(new, list) else new)
    assert written(module) == {**before, name: plain(new)}
    Rewriter(module).drop_attr(the_node(module), name)
    assert written(module) == {other: value for other, value in before.items() if other != name}


@pytest.mark.parametrize("given", ["by the call", "by default", "by nobody"])
@pytest.mark.parametrize(("op_type", "name", "old", "new"), CASES)
def test_an_attribute_by_reference_is_written_where_the_function_is_inlined(
    op_type: str, name: str, old: object, new: object, given: str
) -> None:
    inner = node_of(op_type, {name: old})
    kind = inner.attribute[0].type
    del inner.attribute[:]
    inner.attribute.append(AttributeProto(name=name, ref_attr_name="outer", type=kind))
    function = helper.make_function(
        "local",
        "F",
        inner.input,
        inner.output,
        [inner],
        [helper.make_opsetid("", OPSET)],
        ["outer"],
    )
    call = helper.make_node("F", inner.input, inner.output, domain="local")
    if given == "by default":
        del function.attribute[:]
        function.attribute_proto.append(helper.make_attribute("outer", old))
    if given == "by the call":
        call.attribute.append(helper.make_attribute("outer", new))
    module = irc.load(model_of(call, [function]))
    InlineFunctions()(module)
    SimplifyInference()(module)
    wanted = {"by the call": {name: plain(new)}, "by default": {name: plain(old)}, "by nobody": {}}
    assert written(module) == wanted[given]


def normalized(epsilon: float | None, default: float | None) -> ModelProto:
    """Return a model with BatchNormalization, whose epsilon is a reference, in a function."""
    names = ["x", "gamma", "beta", "mean", "var"]
    norm = helper.make_node("BatchNormalization", names, ["h"], name="norm")
    norm.attribute.append(
        AttributeProto(name="epsilon", ref_attr_name="eps", type=AttributeProto.FLOAT)
    )
    body = [norm, helper.make_node("Relu", ["h"], ["y"])]
    function = helper.make_function(
        "local", "F", names, ["y"], body, [helper.make_opsetid("", OPSET)], ["eps"]
    )
    if default is not None:
        del function.attribute[:]
        function.attribute_proto.append(helper.make_attribute("eps", default))
    given = {} if epsilon is None else {"eps": epsilon}
    model = model_of(helper.make_node("F", names, ["y"], domain="local", **given), [function])
    del model.graph.input[1:]
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, ["N", 2]))
    for name, numbers in zip(
        names[1:], ([1.0, 2.0], [0.5, 0.25], [0.1, 0.2], [1e-3, 2e-3]), strict=True
    ):
        model.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.float32), name))
    return model


@pytest.mark.parametrize(
    ("epsilon", "default", "wanted"),
    [(0.1, None, 0.1), (None, 0.2, 0.2), (0.1, 0.2, 0.1), (None, None, 1e-5)],
)
def test_a_batch_normalization_that_stays_has_the_epsilon_that_its_function_was_called_with(
    epsilon: float | None, default: float | None, wanted: float
) -> None:
    model = normalized(epsilon, default)
    after = irc.compile(model).model
    (norm,) = (node for node in after.graph.node if node.op_type == "BatchNormalization")
    assert not any(attribute.ref_attr_name for attribute in norm.attribute)
    found = [attribute.f for attribute in norm.attribute if attribute.name == "epsilon"]
    assert found == ([] if epsilon is default is None else [np.float32(wanted)])
    inputs = {"x": np.array([[1.0, -2.0], [0.25, 3.0]], np.float32)}
    (result,) = evaluate(after, inputs).values()
    gamma, beta, mean, var = (
        numpy_helper.to_array(each).astype(np.float64) for each in model.graph.initializer
    )
    exact = np.maximum(
        (inputs["x"] - mean) / np.sqrt(var + float(np.float32(wanted))) * gamma + beta, 0
    )
    np.testing.assert_allclose(result, exact, rtol=1e-12)


NORM = ["gamma", "beta", "mean", "var"]


def norm_by_reference(data: str, result: str, reference: str) -> NodeProto:
    norm = helper.make_node("BatchNormalization", [data, *NORM], [result], name=f"norm_{result}")
    norm.attribute.append(
        AttributeProto(name="epsilon", ref_attr_name=reference, type=AttributeProto.FLOAT)
    )
    return norm


def made_local(
    name: str, inputs: list[str], body: list[NodeProto], default: float | None
) -> onnx.FunctionProto:
    """Return a function of x that gives y, with the attribute `eps`."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    function = helper.make_function("local", name, inputs, ["y"], body, opsets, ["eps"])
    if default is not None:
        del function.attribute[:]
        function.attribute_proto.append(helper.make_attribute("eps", default))
    return function


def nested(
    kind: str, epsilon: float | None, outer: float | None, inner: float | None
) -> ModelProto:
    """Return a call of Outer, which calls Inner, whose epsilon is a reference.

    The call, or one BatchNormalization, stands in a branch of If or in the body of a Loop, or at
    the top.
    """
    call = helper.make_node("Inner", ["x", *NORM], ["t"], domain="local")
    if outer is not None or epsilon is not None or inner is None:
        call.attribute.append(
            AttributeProto(name="eps", ref_attr_name="eps", type=AttributeProto.FLOAT)
        )
    untyped = [helper.make_tensor_value_info(name, 1, None) for name in "te"]
    if kind == "If":
        other = helper.make_graph([norm_by_reference("x", "e", "eps")], "else", [], untyped[1:])
        then = helper.make_graph([call], "then", [], untyped[:1])
        first = helper.make_node("If", ["cond"], ["h"], then_branch=then, else_branch=other)
    elif kind == "Loop":
        call.input[0] = "state"
        scalars = [helper.make_tensor_value_info("i", TensorProto.INT64, [])]
        scalars += [
            helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("go", "on")
        ]
        state = helper.make_tensor_value_info("state", 1, None)
        body = [call, helper.make_node("Identity", ["go"], ["on"])]
        graph = helper.make_graph(body, "body", [*scalars[:2], state], [scalars[2], untyped[0]])
        first = helper.make_node("Loop", ["count", "cond", "x"], ["h"], body=graph)
    else:
        call.output[0] = "h"
        first = call
    body = [first, helper.make_node("Relu", ["h"], ["r"]), norm_by_reference("r", "y", "eps")]
    count = helper.make_node("Constant", [], ["count"], value_int=2)
    functions = [
        made_local("Outer", ["x", "cond", *NORM], [count, *body], outer),
        made_local(
            "Inner",
            ["x", *NORM],
            [norm_by_reference("x", "h", "eps"), helper.make_node("Relu", ["h"], ["y"])],
            inner,
        ),
    ]
    given = {} if epsilon is None else {"eps": epsilon}
    model = model_of(
        helper.make_node("Outer", ["x", "cond", *NORM], ["y"], domain="local", **given), functions
    )
    del model.graph.input[1:]
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, ["N", 2]))
    model.graph.input.append(helper.make_tensor_value_info("cond", TensorProto.BOOL, []))
    for name, numbers in zip(
        NORM, ([1.0, 2.0], [0.5, 0.25], [0.1, 0.2], [1e-3, 2e-3]), strict=True
    ):
        model.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.float32), name))
    return model


@pytest.mark.parametrize("kind", ["call", "If", "Loop"])
@pytest.mark.parametrize(
    ("epsilon", "outer", "inner"),
    [
        (0.1, None, None),
        (0.1, 0.2, 0.3),
        (None, 0.2, None),
        (None, 0.2, 0.3),
        (None, None, 0.3),
        (None, None, None),
    ],
)
def test_references_in_branches_and_nested_functions_have_the_values_of_their_calls(
    kind: str, epsilon: float | None, outer: float | None, inner: float | None
) -> None:
    model = nested(kind, epsilon, outer, inner)
    verify = VerifyNumerics(when="end")
    result = irc.compile(model, context=PassContext([verify]))
    verify.finish(result.module, result.model)
    assert max(verdict.greatest for verdict in verify.verdicts) <= 1
    for after in (result.model, irc.compile(model, "InlineFunctions").model):
        for condition in (True, False):
            inputs = {
                "x": np.array([[1.0, -2.0], [0.25, 3.0]], np.float32),
                "cond": np.array(condition),
            }
            (wanted,), (found,) = (evaluate(each, inputs).values() for each in (model, after))
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_value_that_a_pass_gives_a_constant_of_an_old_attribute_is_written() -> None:
    node = helper.make_node("Clip", ["x0"], ["y0"], name="n", min=0.0, max=1.0)
    model = model_of(node, [])
    model.opset_import[0].version = 6
    module = irc.load(model)
    bound = the_node(module).inputs[2]
    assert bound is not None
    assert bound.node is not None
    Rewriter(module).set_attr(bound.node, "value", ArrayTensor(np.array(6, np.float32)))
    assert written(module) == {"min": 0.0, "max": 6.0}


def test_a_value_that_a_pass_gives_a_sparse_constant_is_written() -> None:
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "c")
    indices = numpy_helper.from_array(np.array([0, 3], np.int64))
    model = model_of(helper.make_node("Add", ["x0", "c"], ["y0"], name="n"), [])
    del model.graph.input[1:]
    model.graph.sparse_initializer.add(values=values, indices=indices, dims=[4])
    module = irc.load(model)
    (constant,) = (node for node in module.graph if node.op == "constant")
    Rewriter(module).set_attr(constant, "value", ArrayTensor(np.array([5, 6, 7, 8], np.float32)))
    after = irc.emit(module).model.graph
    assert not after.sparse_initializer
    assert numpy_helper.to_array(after.initializer[0]).tolist() == [5, 6, 7, 8]
