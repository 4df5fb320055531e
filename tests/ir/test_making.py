"""Nodes that passes make.

Operators of every domain, numbers as operands, types and attributes that are checked.
"""

from __future__ import annotations

import irc
import numpy as np
import onnx
import pytest
from harness import session
from irc.frontends.onnx import from_model
from irc.ir import Module, Node, Rewriter, Value, verify
from irc.support.errors import IRError, VerifyError
from onnx import helper

SOURCE = """module {{ir_version=10, opsets={{"": {opset}}}}}
graph @g(%x: f32[N,3,8,8], %h: f16[2], %i: i64[2], %u: ?[3]) {{
  %y = add(%x, %x) : f32[N,3,8,8]
  return(%y)
}}"""


def rewriter(opset: int = 21) -> tuple[Rewriter, dict[str, Value], Node]:
    module = irc.parse(SOURCE.format(opset=opset))
    return (
        Rewriter(module),
        {value.name: value for value in module.graph.inputs},
        module.graph.return_,
    )


def loaded(opset: int = 20) -> Module:
    """A module that comes from a message, as those of files do."""
    shape = ["N", 3, 4, 4]
    graph = helper.make_graph(
        [
            helper.make_node("Sin", ["x"], ["s"], name="sin"),
            helper.make_node("Neg", ["s"], ["y"], name="neg"),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, shape)],
    )
    return from_model(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])
    )


def test_operators_of_onnx_go_by_any_of_their_names() -> None:
    editor, values, end = rewriter()
    for op in (
        "::HardSwish",
        "onnx::HardSwish",
        "ai.onnx::HardSwish",
        "HardSwish",
        "nn.hard_swish",
    ):
        node = editor.make(op, [values["x"]], before=end)
        assert (node.op, str(node.output.type)) == ("nn.hard_swish", "f32[N,3,8,8]")


def test_onnx_types_the_operators_that_the_table_has_not() -> None:
    editor, values, end = rewriter()
    foreign = editor.make("onnx::Det", [values["x"]], before=end)
    assert (foreign.op, str(foreign.output.type)) == ("::Det", "f32[N,3]")
    values_, indices = editor.make("onnx::TopK", [values["x"], [3]], results=2, before=end).outputs
    assert (str(values_.type), str(indices.type)) == ("f32[N,3,8,3]", "i64[N,3,8,3]")


@pytest.mark.parametrize(
    ("op", "operand", "number", "type_"),
    [
        ("add", "x", 3, "f32[]"),
        ("add", "h", 0.1, "f16[]"),
        ("add", "i", 3, "i64[]"),
        ("onnx::Mul", "x", np.arange(3.0).reshape(3, 1, 1), "f32[3,1,1]"),
        ("onnx::Add", "u", np.ones(3, np.float16), "f16[3]"),
        ("reshape", "x", [0, -1], "i64[2]"),
        ("onnx::Pow", "h", 2.0, "f32[]"),
        ("com.acme::Foo", "h", 2.0, "f16[]"),
    ],
)
def test_numbers_get_the_element_type_of_the_operands_that_share_it(
    op: str, operand: str, number: object, type_: str
) -> None:
    editor, values, end = rewriter()
    node = editor.make(op, [values[operand], number], before=end)  # type: ignore[list-item]
    assert str(node.operand(1).type) == type_
    verify(editor.module)


def test_numbers_that_the_element_type_lacks_are_refused() -> None:
    editor, values, end = rewriter()
    for operand, number in (("i", 2.5), ("h", 1e6), ("x", "three")):
        with pytest.raises(IRError, match=r"Add: .* operand"):
            editor.make("add", [values[operand], number], before=end)  # type: ignore[list-item]
    assert not editor.changed


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        ("HardSwsh", {}, "there is no operator 'HardSwsh'; did you mean HardSwish"),
        ("onnx::Hardswsh", {}, "ONNX has no operator 'Hardswsh'; did you mean HardSwish"),
        ("onnx::Swish", {}, "opset 21 of ONNX.* has no Swish: ONNX has it from opset 24 on"),
        ("onnx::Upsample", {}, "has no Upsample: ONNX has it in older opsets only"),
        (
            "onnx::Gelu",
            {"aproximate": "tanh"},
            "Gelu has no attribute 'aproximate'; did you mean approximate",
        ),
        ("onnx::Gelu", {"approximate": 1}, "attribute approximate is of kind string, and 1 is not"),
        (
            "nn.max_pool",
            {"kernel": [1, 1]},
            "MaxPool has no attribute 'kernel'; did you mean kernel_shape",
        ),
        ("nn.leaky_relu", {"alpha": "a"}, "LeakyRelu.*alpha"),
        ("onnx::Cast", {}, "Cast needs the attribute to"),
        ("add", {}, "Add takes 2 inputs, not 1: it lacks its input rhs"),
        ("nn.conv", {}, "Conv takes 2 to 3 inputs, not 1: it lacks its input weight"),
        ("onnx::GridSample", {}, "GridSample takes 2 inputs, not 1: it lacks its input grid"),
        ("onnx::Det", {"axis": 1}, "Det has no attribute 'axis'"),
    ],
)
def test_mistakes_are_told_in_one_sentence(op: str, attrs: dict[str, object], message: str) -> None:
    editor, values, end = rewriter()
    with pytest.raises(IRError, match=message):
        editor.make(op, [values["x"]], attrs, before=end)
    assert not editor.changed


def test_attributes_take_the_kind_that_onnx_states() -> None:
    editor, values, end = rewriter()
    relu = editor.make("onnx::LeakyRelu", [values["x"]], {"alpha": 1}, before=end)
    assert repr(relu.attrs["alpha"]) == "1.0"
    turned = editor.make("transpose", [values["x"]], {"perm": [0, 2, 3, 1]}, before=end)
    assert turned.attrs["perm"] == (0, 2, 3, 1)
    editor.set_attr(relu, "alpha", np.float32(2))
    assert repr(relu.attrs["alpha"]) == "2.0"
    with pytest.raises(IRError, match=r"has no attribute 'fused_activation'.* metadata"):
        editor.set_attr(turned, "fused_activation", "relu6")


def test_the_form_of_the_ir_and_that_of_an_old_opset_make_the_same_operator() -> None:
    editor, values, end = rewriter(opset=9)
    old = editor.make("onnx::Clip", [values["x"]], {"min": 0.0, "max": 6.0}, before=end)
    new = editor.make("onnx::Clip", [values["x"], 0, 6], before=end)
    for node in (old, new):
        assert node.op == "clip"
        assert [editor.module.constants.array(value) for value in node.inputs[1:]] == [0.0, 6.0]


def test_other_domains_are_imported_by_the_emitted_model() -> None:
    module = loaded()
    editor, end = Rewriter(module), module.graph.return_
    _, negative = module.graph.operators()
    attrs, type_ = {"a": 1, "b": [1.0]}, negative.output.type
    node = editor.make(
        "com.acme::Foo", [negative.operand(), 0.5], attrs, before=negative, opset=3, type_=type_
    )
    editor.forward(negative.output, node.output)
    with pytest.raises(IRError, match=r"imports opset 3 of com.acme, so Foo cannot be of opset 4"):
        editor.make("com.acme::Foo", [node.output], before=end, opset=4)
    verify(module)
    model = irc.emit(module).model
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 20, "com.acme": 3}
    onnx.checker.check_model(model, full_check=True)


def test_a_domain_that_is_not_imported_is_an_error_of_the_verifier() -> None:
    module = loaded()
    sin, _ = module.graph.operators()
    module.graph.append(Node("com.acme::Foo", [sin.output], outputs=[("foo", sin.output.type)]))
    with pytest.raises(VerifyError, match=r"'com.acme', of which its graph imports no opset"):
        verify(module)
    module.graph.opsets["com.acme"] = 1
    verify(module)


def test_ir_text_without_the_import_is_read_with_a_warning() -> None:
    module = irc.parse('graph(%x: f32[2]) {\n  %y = "com.acme::Foo"(%x) : f32[2]\n  return(%y)\n}')
    (warning,) = module.warnings
    assert "'com.acme', and its header imports no opset" in warning


def test_what_is_made_computes() -> None:
    module = loaded()
    editor, end = Rewriter(module), module.graph.return_
    sin, negative = module.graph.operators()
    scaled = editor.make("onnx::Mul", [sin.output, np.arange(3.0).reshape(3, 1, 1)], before=end)
    made = editor.make(
        "onnx::HardSwish",
        [editor.make("subtract", [1, scaled.output], before=end).output],
        before=end,
    )
    editor.forward(negative.output, made.output)
    module.changed = True
    model = irc.emit(module).model
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)
    (found,) = session(model).run(None, {"x": x})
    y = 1 - np.sin(x.astype(np.float64)) * np.arange(3).reshape(3, 1, 1)
    np.testing.assert_allclose(found, y * np.clip(y / 6 + 0.5, 0, 1), rtol=1e-5, atol=1e-6)
