"""Operators of older opsets.

The IR has them in the form of the newest one, and they come out in their own form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from irc.backends.onnx.emitter import emit_model
from irc.backends.runtime.sessions import new_session
from irc.compiler import compile as compile_model
from irc.frontends.onnx import from_model
from irc.ir.graph import Node
from irc.ir.module import Module
from irc.ir.ops import OPS, is_legal
from irc.ir.ops.parameters import attribute_name
from irc.ir.tensor import Tensor
from irc.ir.text.parser import parse
from irc.ir.text.printer import to_text
from irc.ir.verifier import verify
from irc.support.errors import EmitError, VerifyError
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Shape = Sequence[int]
FLOAT = TensorProto.FLOAT


def one(*nodes: NodeProto, opset: int, x: Shape, y: Shape, **constants: Any) -> ModelProto:
    inits = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    ends = [
        [helper.make_tensor_value_info(name, FLOAT, shape)] for name, shape in (("x", x), ("y", y))
    ]
    graph = helper.make_graph(list(nodes), "main", *ends, inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def op(op_type: str, inputs: str, output: str, **attrs: Any) -> NodeProto:
    return helper.make_node(op_type, inputs.split(" "), [output], **attrs)


def ints(*items: int) -> Any:
    return np.array(items, np.int64)


F = np.float32
PADS = [0, 0, 1, 1, 0, 0, 1, 1]
IMAGE, LARGE = (1, 2, 3, 3), (1, 2, 5, 5)
CONV = {"w": np.linspace(-1, 1, 36, dtype=F).reshape(2, 2, 3, 3)}
RELU = op("Relu", "r", "y")

TWINS: dict[str, tuple[ModelProto, ModelProto, list[tuple[str, dict[str, Any]]]]] = {
    "two Clips": (
        one(op("Clip", "x", "r", max=4.0, min=-1.0), op("Clip", "r", "y", min=0.5), opset=6, x=IMAGE, y=IMAGE),
        one(op("Clip", "x a b", "r"), op("Clip", "r c", "y"), opset=13, x=IMAGE, y=IMAGE, a=F(-1), b=F(4), c=F(0.5)),
        [("Clip", {"max": 4.0, "min": 0.5})],
    ),
    "Clip and Relu": (
        one(op("Clip", "x", "r", max=6.0), RELU, opset=6, x=IMAGE, y=IMAGE),
        one(op("Clip", "x  b", "r"), RELU, opset=13, x=IMAGE, y=IMAGE, b=F(6)),
        [("Clip", {"min": 0.0, "max": 6.0})],
    ),
    "Pad before Conv": (
        one(op("Pad", "x", "r", pads=PADS), op("Conv", "r w", "y"), opset=10, x=IMAGE, y=IMAGE, **CONV),
        one(op("Pad", "x p", "r"), op("Conv", "r w", "y"), opset=13, x=IMAGE, y=IMAGE, p=ints(*PADS), **CONV),
        [("Conv", {"pads": [1, 1, 1, 1]})],
    ),
    "Pad of ones before Conv": (
        one(op("Pad", "x", "r", value=1.0, pads=PADS), op("Conv", "r w", "y"), opset=10, x=IMAGE, y=IMAGE, **CONV),
        one(op("Pad", "x p v", "r"), op("Conv", "r w", "y"), opset=13, x=IMAGE, y=IMAGE, p=ints(*PADS), v=F(1), **CONV),
        [("Pad", {"pads": PADS, "value": 1.0}), ("Conv", {})],
    ),
    "Slice of all": (
        one(op("Slice", "x", "r", starts=[0], ends=[99], axes=[2]), RELU, opset=9, x=IMAGE, y=IMAGE),
        one(op("Slice", "x s e a", "r"), RELU, opset=13, x=IMAGE, y=IMAGE, s=ints(0), e=ints(99), a=ints(2)),
        [("Relu", {})],
    ),
    "Slice of a part": (
        one(op("Slice", "x", "r", starts=[1], ends=[99], axes=[2]), RELU, opset=9, x=IMAGE, y=(1, 2, 2, 3)),
        one(op("Slice", "x s e a", "r"), RELU, opset=13, x=IMAGE, y=(1, 2, 2, 3), s=ints(1), e=ints(99), a=ints(2)),
        [("Slice", {"starts": [1], "ends": [99], "axes": [2]}), ("Relu", {})],
    ),
    "Unsqueeze and Squeeze": (
        one(op("Unsqueeze", "x", "u", axes=[1]), op("Squeeze", "u", "r", axes=[1]), RELU, opset=11, x=IMAGE, y=IMAGE),
        one(op("Unsqueeze", "x a", "u"), op("Squeeze", "u a", "r"), RELU, opset=13, x=IMAGE, y=IMAGE, a=ints(1)),
        [("Relu", {})],
    ),
    "Transpose and ReduceMean": (
        one(op("Transpose", "x", "r", perm=[0, 2, 3, 1]), op("ReduceMean", "r", "y", axes=[1, 2], keepdims=0),
            opset=13, x=IMAGE, y=(1, 2)),
        one(op("Transpose", "x", "r", perm=[0, 2, 3, 1]), op("ReduceMean", "r a", "y", keepdims=0),
            opset=18, x=IMAGE, y=(1, 2), a=ints(1, 2)),
        [("ReduceMean", {"axes": [2, 3], "keepdims": 0})],
    ),
    "Upsample by one": (
        one(op("Upsample", "x", "r", scales=[1.0, 1.0, 1.0, 1.0]), RELU, opset=7, x=IMAGE, y=IMAGE),
        one(op("Upsample", "x s", "r"), RELU, opset=9, x=IMAGE, y=IMAGE, s=np.ones(4, F)),
        [("Relu", {})],
    ),
    "Upsample by two": (
        one(op("Upsample", "x", "r", scales=[1.0, 1.0, 2.0, 2.0]), RELU, opset=7, x=IMAGE, y=(1, 2, 6, 6)),
        one(op("Upsample", "x s", "r"), RELU, opset=9, x=IMAGE, y=(1, 2, 6, 6), s=np.array([1, 1, 2, 2], F)),
        [("Upsample", {"scales": [1.0, 1.0, 2.0, 2.0]}), ("Relu", {})],
    ),
    "Resize by one": (
        one(op("Resize", "x s", "r"), RELU, opset=10, x=IMAGE, y=IMAGE, s=np.ones(4, F)),
        one(op("Resize", "x  s", "r"), RELU, opset=13, x=IMAGE, y=IMAGE, s=np.ones(4, F)),
        [("Relu", {})],
    ),
    "Resize by two": (
        one(op("Resize", "x s", "r"), RELU, opset=10, x=IMAGE, y=(1, 2, 6, 6), s=np.array([1, 1, 2, 2], F)),
        one(op("Resize", "x  s", "r"), RELU, opset=13, x=IMAGE, y=(1, 2, 6, 6), s=np.array([1, 1, 2, 2], F)),
        [("Resize", {}), ("Relu", {})],
    ),
}  # fmt: skip
"""A model, the same in a newer opset, and the operators that are left of the first, with their
attributes.
"""


def described(module: Module) -> list[object]:
    """Return every operator with its attributes, and with the elements of its constant operands."""
    return [
        (node.op, node.attrs, [operand(node, i) for i in range(len(node.inputs))])
        for node in operators(module)
    ]


def operators(module: Module) -> list[Node]:
    return [node for node in module.graph if node.op != "constant"]


def operand(node: Node, index: int) -> object:
    value = node.input(index)
    payload = None if value is None or value.node is None else value.node.attrs.get("value")
    return (
        (str(payload.type), payload.numpy().tolist())
        if isinstance(payload, Tensor)
        else value is not None
    )


def attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def run(model: ModelProto) -> Any:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.linspace(-7, 7, int(np.prod(shape)), dtype=F).reshape(shape)
    return new_session(model.SerializeToString(), threads=1).run(None, {"x": x})[0]


@pytest.mark.parametrize("name", TWINS)
def test_an_old_operator_is_imported_as_its_new_twin(name: str) -> None:
    old, new, _ = TWINS[name]
    assert described(from_model(old)) == described(from_model(new))


@pytest.mark.parametrize("name", TWINS)
def test_rules_treat_both_alike_and_each_keeps_its_form(name: str) -> None:
    old, new, left = TWINS[name]
    results = [compile_model(model).model for model in (old, new)]
    assert [[node.op_type for node in result.graph.node] for result in results] == [
        [op_type for op_type, _ in left]
    ] * 2
    assert [attributes(node) for node in results[0].graph.node] == [attrs for _, attrs in left]
    for model, result in zip((old, new), results, strict=True):
        onnx.checker.check_model(result, full_check=True)
        np.testing.assert_allclose(run(result), run(model), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", TWINS)
def test_an_old_operator_comes_back_byte_for_byte(name: str) -> None:
    old = TWINS[name][0]
    assert emit_model(from_model(old))[0].SerializeToString() == old.SerializeToString()


@pytest.mark.parametrize("name", TWINS)
def test_text_of_an_old_operator_is_written_in_its_form(name: str) -> None:
    old = TWINS[name][0]
    text = to_text(from_model(old), max_elements=64)
    again = parse(text)
    assert to_text(again, max_elements=64) == text
    written = emit_model(again)[0].graph.node
    assert [(n.op_type, list(n.input), attributes(n)) for n in written] == [
        (n.op_type, list(n.input), attributes(n)) for n in old.graph.node
    ]


def test_an_attribute_without_a_kind_comes_back() -> None:
    model = one(op("Clip", "x", "y", min=0.0), opset=6, x=IMAGE, y=IMAGE)
    attribute = model.graph.node[0].attribute[0]
    attribute.doc_string = "kept"
    attribute.ClearField("type")
    model.ir_version = 1
    assert emit_model(from_model(model))[0].SerializeToString() == model.SerializeToString()


def test_paddings_of_opset_1() -> None:
    model = one(op("Pad", "x", "y", paddings=PADS, value=2.0), opset=1, x=IMAGE, y=LARGE)
    module = from_model(model)
    assert described(module) == [("nn.pad", {}, [True, ("i64[8]", PADS), ("f32[]", 2.0)])]
    written = emit_model(parse(to_text(module)))[0].graph.node[0]
    assert attributes(written) == {"paddings": PADS, "value": 2.0}


MIXED = {
    "axes as an attribute of opset 13": one(
        op("Squeeze", "x", "y", axes=[0]), opset=13, x=IMAGE, y=(2, 3, 3)
    ),
    "axes as an input of opset 11": one(
        op("Squeeze", "x a", "y"), opset=11, x=IMAGE, y=(2, 3, 3), a=ints(0)
    ),
    "no axes": one(op("ReduceMean", "x", "y", axes=[0]), opset=13, x=IMAGE, y=IMAGE),
    "pads in opset 1": one(op("Pad", "x", "y", pads=PADS), opset=1, x=IMAGE, y=LARGE),
    "paddings in opset 2": one(
        op("Pad", "x", "y", pads=PADS, paddings=PADS), opset=2, x=IMAGE, y=LARGE
    ),
    "scales as an attribute of Resize": one(
        op("Resize", "x s", "y", scales=[1.0, 1.0, 1.0, 1.0]),
        opset=10,
        x=IMAGE,
        y=IMAGE,
        s=np.ones(4, F),
    ),
    "a Tile of one axis": one(op("Tile", "x t a", "y"), opset=1, x=IMAGE, y=IMAGE, t=F(1), a=F(0)),
    "a region of interest in opset 10": one(
        op("Resize", "x r s", "y"), opset=10, x=IMAGE, y=IMAGE, r=np.zeros(8, F), s=np.ones(4, F)
    ),
}


del MIXED["no axes"].graph.node[0].attribute[0].ints[:]


@pytest.mark.parametrize("name", MIXED)
def test_a_form_of_another_opset_stays_foreign(name: str) -> None:
    model = MIXED[name]
    module = from_model(model)
    assert [node.op for node in operators(module)] == [f"::{model.graph.node[0].op_type}"]
    assert emit_model(module)[0] == model


TEXT = """module {{ir_version=8, opsets={{"": {opset}}}}}

graph @main(%x: f32[2,3], %low: f32[]) {{
  %y = clip(%x, %low) : f32[2,3]
  return(%y)
}}
"""


def test_an_attribute_has_to_be_constant() -> None:
    assert emit_model(parse(TEXT.format(opset=11)))[0].graph.node[0].input == ["x", "low"]
    with pytest.raises(EmitError, match="min is an attribute in opset 10, so it must be constant"):
        emit_model(parse(TEXT.format(opset=10)))


def test_an_attribute_of_the_text_becomes_an_operand() -> None:
    text = TEXT.format(opset=11).replace("(%x, %low)", "(%x) {min=1.0}")
    assert described(parse(text)) == [("clip", {}, [True, ("f32[]", 1.0)])]


def test_a_pass_may_not_make_an_attribute_of_an_operand() -> None:
    module = parse(TEXT.format(opset=11))
    next(iter(module.graph)).attrs["min"] = 0.0
    with pytest.raises(VerifyError, match="min as an attribute"):
        verify(module)


def test_a_constant_that_an_operand_shares_is_written() -> None:
    text = TEXT.format(opset=10).replace(
        "%y = clip(%x, %low)", "%_c = constant {value=f32[] 1.0}\n  %a = clip(%x, %_c)"
    )
    module = parse(text.replace("  return", "  %y = add(%a, %_c) : f32[2,3]\n  return"))
    first = next(iter(module.graph))
    first.output.name = ""
    model = emit_model(module)[0]
    assert [(n.op_type, list(n.input), attributes(n)) for n in model.graph.node] == [
        ("Clip", ["x"], {"min": 1.0}),
        ("Add", ["a", model.graph.initializer[0].name], {}),
    ]
    onnx.checker.check_model(model)


LEGAL: Mapping[str, tuple[str, str, int]] = {
    "Add": ("add", "numpy broadcast", 7),
    "AveragePool": ("nn.avg_pool", "count_include_pad", 7),
    "Clip": ("clip", "integers", 12),
    "DequantizeLinear": ("dequantize", "axis", 13),
    "Gemm": ("nn.dense", "bf16", 13),
}
SCHEMAS: Mapping[str, Callable[[onnx.defs.OpSchema], bool]] = {
    "Add": lambda schema: "broadcast" not in schema.attributes,
    "AveragePool": lambda schema: "count_include_pad" in schema.attributes,
    "Clip": lambda schema: "tensor(int32)" in schema.type_constraints[0].allowed_type_strs,
    "DequantizeLinear": lambda schema: "axis" in schema.attributes,
    "Gemm": lambda schema: "tensor(bfloat16)" in schema.type_constraints[0].allowed_type_strs,
}


@pytest.mark.parametrize("op_type", LEGAL)
def test_forms_are_those_of_the_schemas(op_type: str) -> None:
    name, form, since = LEGAL[op_type]
    has_form = SCHEMAS[op_type]
    assert has_form(onnx.defs.get_schema(op_type, since))
    with_operator = max(since - 1, OPS[name].since)
    assert with_operator == since or not has_form(onnx.defs.get_schema(op_type, with_operator))
    for opset in (since - 1, since):
        node = next(iter(parse(TEXT.format(opset=opset)).graph))
        assert is_legal(name, form, node) == (opset >= since)


@pytest.mark.parametrize("name", [name for name, row in OPS.items() if row.parameters])
def test_parameters_are_those_of_the_schemas(name: str) -> None:
    row = OPS[name]
    assert row.onnx is not None
    for parameter, place in row.parameters.items():
        new = onnx.defs.get_schema(row.onnx, place.since)
        old = onnx.defs.get_schema(row.onnx, place.since - 1)
        assert new.inputs[row.operands[parameter]].name == parameter
        assert new.since_version == place.since
        if place.place is None:
            attribute = attribute_name(parameter, place, place.since - 1)
            assert attribute in old.attributes and attribute not in new.attributes
        else:
            assert old.inputs[place.place].name == parameter
        if place.first:
            assert place.first in onnx.defs.get_schema(row.onnx, 1).attributes


def test_a_slice_that_states_an_axis_twice_stays_at_unknown_rank() -> None:
    """The second entry covers everything.

    onnxruntime refuses the model, which irc must not hide.
    """
    twice = op("Slice", "r", "s", axes=[0, 0], starts=[1, 0], ends=[3, 2**63 - 1])
    model = one(op("Relu", "x", "r"), twice, op("Sigmoid", "s", "y"), opset=9, x=IMAGE, y=IMAGE)
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert [node.op_type for node in compile_model(model).model.graph.node] == [
        "Relu",
        "Slice",
        "Sigmoid",
    ]


@pytest.mark.parametrize("axes", [[7], [2, 9]])
def test_a_resize_of_an_axis_out_of_range_stays(axes: list[int]) -> None:
    resize = op("Resize", "x   s", "r", axes=axes)
    model = one(resize, RELU, opset=18, x=IMAGE, y=IMAGE, s=ints(*[3] * len(axes)))
    assert [node.op_type for node in compile_model(model).model.graph.node] == ["Resize", "Relu"]


def test_a_bound_that_no_attribute_can_state_is_an_error() -> None:
    text = """
module {ir_version=8, opsets={"": 10}}

graph @main(%x: f64[2]) {
  %lo = constant {value=f64[] 1e300}
  %y = clip(%x, %lo) : f64[2]
  return(%y)
}
"""
    with pytest.raises(EmitError, match="float32"):
        emit_model(parse(text))
