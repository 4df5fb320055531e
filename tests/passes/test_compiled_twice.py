"""Models of which a second compile once changed more.

What they have in common is a constant that is known late.
"""

from __future__ import annotations

import irc
import pytest
from exporter_graphs import export
from graphs import operators
from onnx import ModelProto, TensorAnnotation
from onnx.parser import parse_model
from random_graphs import with_functions


def twice(model: ModelProto) -> ModelProto:
    """Compile a model, and its result, which is the same."""
    result = irc.compile(model)
    assert irc.compile(result.model).model == result.model
    return result.model


def dropout(
    mode: str, results: str = "d", *, more: str = "", outputs: str = "float[2,3] y"
) -> ModelProto:
    """A Dropout of which `mode` says by way of other operators whether it trains."""
    return parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x) => ({outputs})
        <float r = {{0.5}}, bool no = {{0}}, bool yes = {{1}}>
        {{ mode = {mode}  {results} = Dropout(x, r, mode)  y = Sin(d) {more} }}"""
    )


@pytest.mark.parametrize("mode", ["Identity(no)", "Not(yes)", "Cast<to = 9>(no)", "And(yes, no)"])
def test_a_dropout_whose_mode_is_computed_goes(mode: str) -> None:
    assert operators(twice(dropout(mode))) == ["Sin"]


def test_a_dropout_that_trains_or_whose_mask_is_read_stays() -> None:
    assert operators(twice(dropout("Not(no)"))) == ["Dropout", "Sin"]
    assert operators(twice(dropout("Not(yes)", "d, m", outputs="float[2,3] y, bool[2,3] m"))) == [
        "Dropout",
        "Sin",
    ]


def test_a_dropout_in_a_branch_whose_mode_is_computed_outside_goes() -> None:
    model = parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x, bool c) => (float[2,3] y)
        <float r = {0.5}, bool yes = {1}>
        { mode = Not(yes)
          y = If(c) <then_branch = t () => (float[2,3] a) { d = Dropout(x, r, mode)  a = Sin(d) },
                     else_branch = e () => (float[2,3] b) { b = Cos(x) }> }"""
    )
    branch = twice(model).graph.node[0].attribute[0].g
    assert [node.op_type for node in branch.node] == ["Sin"]


@pytest.mark.parametrize(("elements", "left"), [("1.5, 1.5, 2, 2", 1), ("1.5, 1.6, 2, 2", 3)])
def test_per_element_parameters_behind_an_identity_fold_where_they_are_per_channel(
    elements: str, left: int
) -> None:
    model = parse_model(
        f"""<ir_version: 8, opset_import: ["": 8]> g (float[N,2,1,2] x) => (float[N,2,1,2] y)
        <float[2,1,2] g = {{{elements}}}, float[2] b = {{0.2, 1}}, float[2] v = {{0.7, 1}},
         float[2,2,1,1] w = {{1, 2, 3, 4}}>
        {{ h = Conv(x, w)  i = Identity(g)  n = BatchNormalization<spatial = 0>(h, i, b, b, v)  y = Relu(n) }}"""
    )
    assert len(operators(twice(model))) == (2 if left == 1 else 3)


def annotated() -> ModelProto:
    """A weight that a fold changes, a value that goes and one that stays, all annotated."""
    model = parse_model(
        """<ir_version: 9, opset_import: ["": 17]> g (float[N,2,3,3] x) => (float[N,2,3,3] y)
        <float[2,2,1,1] w = {1, 2, 3, 4}, float s_w = {0.1}, float s_h = {0.2}, float s_y = {0.3}, float[2] k = {2, 3},
         float[2] z = {0, 0}, float[2] one = {1, 1}>
        { h = Conv(x, w)  n = BatchNormalization(h, k, z, z, one)  y = Sigmoid(n) }"""
    )
    for tensor, scale in (("w", "s_w"), ("h", "s_h"), ("y", "s_y")):
        annotation = TensorAnnotation(tensor_name=tensor)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=scale)
        model.graph.quantization_annotation.append(annotation)
    return model


def test_scales_that_only_dropped_annotations_read_go() -> None:
    result = twice(annotated())
    assert [each.tensor_name for each in result.graph.quantization_annotation] == ["y"]
    assert {tensor.name for tensor in result.graph.initializer} >= {"w", "s_y"}
    assert not {tensor.name for tensor in result.graph.initializer} & {"s_w", "s_h"}


def test_a_scale_of_a_kept_annotation_or_an_operator_stays() -> None:
    model = annotated()
    model.graph.quantization_annotation[0].quant_parameter_tensor_names[0].value = "s_y"
    assert "s_y" in {tensor.name for tensor in twice(model).graph.initializer}
    model = annotated()
    model.graph.node[2].CopyFrom(
        parse_model(
            '<ir_version: 9, opset_import: ["": 17]> g (float x) => (float y) { y = Pow(n, s_h) }'
        ).graph.node[0]
    )
    assert "s_h" in {tensor.name for tensor in twice(model).graph.initializer}


def test_annotations_stay_without_passes() -> None:
    model = annotated()
    assert irc.compile(model, ()).model == model


@pytest.mark.parametrize("declared", ["float[1,12]", "float[N,6]", "float[N,12]"])
def test_declarations_that_types_contradict_which_are_known_late_are_dropped(declared: str) -> None:
    """The target of the Reshape is computed by onnxruntime.

    Its rank is unknown when the model is read.
    """
    model = parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[N,4,3] x) => (float[N,12] y)
        <float[2] e = {{0, 0}}, int64[2] signs = {{0, -1}}, {declared} q, {declared} r>
        {{ a = Exp(e)  i = Cast<to = 7>(a)  s = Mul(i, signs)
          h = Relu(x)  q = Reshape(h, s)  r = Abs(q)  y = Sin(r) }}"""
    )
    left = [info.name for info in twice(model).graph.value_info]
    assert left == (["q", "r"] if declared == "float[N,12]" else [])


def test_calls_of_which_one_gives_the_next_an_affine_are_inlined_in_the_same_compile() -> None:
    """The product of the first body stays before the second call after FoldScaleAxis."""
    assert "Block0" not in operators(twice(export(701439)))


def test_a_call_behind_an_inlined_reshape_gets_its_rank_at_once() -> None:
    """Its rank tells that the MatMul and Add behind it are a Gemm."""
    assert operators(twice(with_functions(export(200345), 200345)))[-2:] == ["F2", "Gemm"]


def test_an_inlined_result_keeps_the_rank_that_was_known_of_the_call() -> None:
    """Without it, onnx's shape inference fails on the Add that a fold left behind the call."""
    result = irc.compile(with_functions(export(3000691), 3000691), freeze_initializers=True)
    assert "F0" not in operators(result.model)


def test_a_call_between_a_moved_affine_and_a_layer_is_inlined_at_once() -> None:
    assert "F3" not in operators(twice(with_functions(export(7006928), 7006928)))


def test_overloads_that_call_each_other_are_not_recursive() -> None:
    """A function that calls itself leaves all calls of a model without a rank."""
    model = parse_model(
        """<ir_version: 10, opset_import: ["": 17, "f": 1]> g (float[2,3] x) => (float[2,4] y)
        <float[3,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[4] b = {1, 2, 3, 4}>
        { c = f.Noise(x)  m = MatMul(c, w)  y = Add(m, b) }
        <domain: "f", opset_import: ["": 17, "f": 1]> Noise (a) => (z) { z = f.Noise(a) }
        <domain: "f", opset_import: ["": 17]> Noise (a) => (z) { n = RandomUniformLike(a)  z = Add(a, n) }"""
    )
    model.functions[0].node[0].overload = model.functions[1].overload = "inner"
    assert operators(twice(model)) == ["Noise", "Gemm"]
