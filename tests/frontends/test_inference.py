"""Regressions of the types that import takes from onnx's shape inference."""

from __future__ import annotations

from typing import Any

import irc
import numpy as np
import pytest
from graphs import Graph, check, is_valid
from harness import operators, random_inputs, run
from irc.frontends.onnx import from_model
from irc.frontends.onnx.shape_inference import infer_shapes
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper


@pytest.mark.parametrize("declared", [[], ["axes"], ["starts", "ends", "axes", "steps"]])
def test_declared_bounds_of_a_slice_do_not_move_it_to_the_first_axis(declared: list[str]) -> None:
    """An initializer `axes` in value_info was taken for absent.

    irc thought that the first axis is sliced.
    """
    graph = sliced()
    graph.output("y")
    model = graph.model()
    model.graph.value_info.extend(
        helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in declared
    )
    model.graph.value_info.append(
        helper.make_tensor_value_info("h", TensorProto.FLOAT, ["N", 1, 8])
    )
    module = from_model(model)
    assert not module.notes.misdeclared
    made = next(node for node in module.graph if node.op == "strided_slice")
    assert str(made.output.type) == "f32[N,1,8]"
    assert operators(check(model).model) == ["Einsum", "Slice", "Relu"]


def test_axes_that_are_a_result_keep_their_meaning() -> None:
    """An initializer that the model returns is declared among its outputs."""
    graph = sliced()
    graph.output("y", ["N", 1, 8])
    graph.output("axes", [1], np.dtype(np.int64))
    module = from_model(graph.model())
    made = next(node for node in module.graph if node.op == "strided_slice")
    assert str(made.output.type) == "f32[N,1,8]"


def sliced() -> Graph:
    """x -> Einsum, whose type onnx infers -> Slice of the second axis -> Relu -> y."""
    graph = Graph(opset=21)
    graph.input("x", ["N", 4, 8])
    bounds = {"starts": -1, "ends": 2**63 - 1, "axes": 1, "steps": 1}
    names = [
        graph.initializer(np.asarray([number], np.int64), name) for name, number in bounds.items()
    ]
    product = graph.node(
        "Einsum", ["x", graph.initializer(graph.random(8, 8))], equation="bti,ij->btj"
    )
    graph.node("Relu", [graph.node("Slice", [product, *names], "h")], "y")
    return graph


@pytest.mark.parametrize("form", ["initializer", "value"])
@pytest.mark.parametrize(
    ("scale", "extent"),
    [(5 / 3, None), (9 / 5, 5), (4 / 3, 4), (2.0, 6), (1.5, 4), (0.5, 1), (1.0, 3)],
)
def test_extents_that_runtimes_round_up_are_not_known(
    scale: float, extent: int | None, form: str
) -> None:
    """3 times the float32 next to 5/3 is 5 in onnxruntime, 4 in onnx's inference."""
    graph = Graph(opset=13)
    graph.input("x", [1, 2, 3, 3])
    scales = graph.constant(np.asarray([1, 1, 1, scale], np.float32), form)
    made = graph.node("Resize", ["x", "", scales], "h", mode="nearest")
    graph.node("Relu", [made], "y")
    graph.node("Shape", [made], "s")
    graph.output("y", [1, 2, 3, "W"])
    graph.output("s", [4], np.dtype(np.int64))
    model = graph.model()
    result = irc.compile(model).model
    resize = next(node for node in from_model(model).graph if node.op == "image.resize")
    assert str(resize.output.type) == f"f32[1,2,3,{extent or '?'}]"
    assert irc.compile(result).model == result
    inputs = random_inputs(model)
    before, after = run(model, inputs), run(result, inputs)
    assert (before["y"] == after["y"]).all()
    assert before["s"].tolist() == after["s"].tolist() == [1, 2, 3, 5 if extent is None else extent]


def test_scales_that_do_not_fit_their_shape_leave_extents_unknown() -> None:
    graph = Graph(opset=13)
    graph.input("x", [1, 2, 3, 3])
    scales = graph.initializer(np.ones(4, np.float32), "scales")
    graph.node("Resize", ["x", "", scales], "y", mode="nearest")
    graph.output("y")
    model = graph.model()
    model.graph.initializer[0].raw_data = bytes(8)
    resize = next(node for node in from_model(model).graph if node.op == "image.resize")
    assert str(resize.output.type) != "f32[1,2,3,3]"


@pytest.mark.parametrize(("width", "computed"), [(5, True), (6, False)])
def test_scales_that_would_contradict_a_neighbour_stay_computed(width: int, computed: bool) -> None:
    """Of 5/3 of 3 columns onnx infers 4, and onnxruntime refused to load the Concat."""
    graph = Graph(opset=10)
    graph.input("x", [1, 2, 3, 3])
    graph.input("like", [1, 2, 3, width])
    extents = [graph.node("Cast", [graph.node("Shape", [name])], to=1) for name in ("like", "x")]
    made = graph.node("Resize", ["x", graph.node("Div", extents)], mode="nearest")
    graph.node("Concat", [made, "like"], "y", axis=1)
    graph.output("y", [1, 4, 3, width])
    model = graph.model()
    result = irc.compile(model).model
    assert ("Div" in operators(result)) == computed
    assert irc.compile(result).model == result
    assert is_valid(result) is None
    inputs = random_inputs(model)
    assert (run(model, inputs)["y"] == run(result, inputs)["y"]).all()


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_results_of_a_quantized_lstm_have_the_shapes_of_an_lstm(direction: str) -> None:
    """The Shape of onnxruntime's DynamicQuantizeLSTM stayed with all that computed with it."""
    graph, directions = (
        Graph(opset=14, domains={"com.microsoft": 1}),
        1 + (direction == "bidirectional"),
    )
    graph.input("x", ["T", 2, 4])
    quantized = np.random.default_rng(0).integers(-127, 127, (2, directions, 4, 16), np.int8)
    scale, zero = (
        graph.initializer(np.full(directions, number, type_))
        for number, type_ in ((0.01, "f4"), (0, "i1"))
    )
    weights = [graph.initializer(part) for part in quantized]
    made = graph.node(
        "DynamicQuantizeLSTM",
        ["x", *weights, "", "", "", "", "", scale, zero, scale, zero],
        "h",
        domain="com.microsoft",
        hidden_size=4,
        direction=direction,
    )
    shape = graph.node("Shape", [made])
    extents = [
        graph.node("Gather", [shape, graph.initializer(np.int64([axis]))], axis=0)
        for axis in (0, 2)
    ]
    target = graph.node("Concat", [*extents, graph.initializer(np.int64([-1]))], axis=0)
    graph.node("Reshape", [graph.node("Transpose", [made], perm=[0, 2, 1, 3]), target], "y")
    graph.output("y")
    model = graph.model()
    lstm = next(
        node for node in from_model(model).graph if node.op == "com.microsoft::DynamicQuantizeLSTM"
    )
    assert str(lstm.output.type) == f"f32[T,{directions},2,4]"
    result = irc.compile(model).model
    assert irc.compile(result).model == result
    assert operators(result) == [
        "DynamicQuantizeLSTM",
        *(["Transpose"] if directions == 2 else []),
        "Reshape",
    ]
    inputs = random_inputs(model, batch=2, other=3)
    assert np.array_equal(run(model, inputs)["y"], run(result, inputs)["y"])


def node(op: str, inputs: list[str], out: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs, [out], **attributes)


SCALES = numpy_helper.from_array(np.float32([1, 1, 1, 5 / 3]), "scales")
BACKWARD = {"starts": [-1], "ends": [2**63 - 1], "axes": [3], "steps": [-1]}
IN_FUNCTIONS: dict[str, tuple[list[NodeProto], dict[str, TensorProto]]] = {
    "a pool": (
        [
            node(
                "MaxPool",
                ["x"],
                "h",
                kernel_shape=[1, 2],
                strides=[1, 2],
                pads=[0, 0, 0, 1],
                ceil_mode=1,
            )
        ],
        {},
    ),
    "a pool whose attribute is given": (
        [node("MaxPool", ["x"], "h", kernel_shape=[1, 2], strides=[1, 2], pads=[0, 0, 0, 1])],
        {},
    ),
    "a Resize": (
        [
            node("Constant", [], "s", value=SCALES),
            node("Resize", ["x", "", "s"], "h", mode="nearest"),
        ],
        {},
    ),
    "a Resize whose scales are given": (
        [node("Resize", ["x", "", "scales"], "h", mode="nearest")],
        {"scales": SCALES},
    ),
    "a Slice": (
        [
            *[node("Constant", [], name, value_ints=numbers) for name, numbers in BACKWARD.items()],
            node("Slice", ["x", *BACKWARD], "h"),
        ],
        {},
    ),
    "a Slice whose bounds are given": (
        [node("Slice", ["x", *BACKWARD], "h")],
        {
            name: numpy_helper.from_array(np.int64(numbers), name)
            for name, numbers in BACKWARD.items()
        },
    ),
}
"""Nodes of a function of x, and the constants that a caller gives it."""


@pytest.mark.parametrize("case", IN_FUNCTIONS)
def test_in_functions_too_onnx_infers_no_extents_that_runtimes_do_not_compute(case: str) -> None:
    nodes, given = IN_FUNCTIONS[case]
    attributes = ["mode"] if "attribute" in case else []
    body = [NodeProto.FromString(each.SerializeToString()) for each in nodes]
    if attributes:
        body[0].attribute.add(name="ceil_mode", ref_attr_name="mode", type=AttributeProto.INT)
    graph = Graph(opset=17, domains={"local": 1})
    graph.input("x", [1, 2, 3, 8 if "pool" in case else 3])
    for name, tensor in given.items():
        graph.initializer(numpy_helper.to_array(tensor), name)
    imports = [helper.make_opsetid("", 17)]
    graph.functions.append(
        helper.make_function("local", "F", ["x", *given], ["h"], body, imports, attributes)
    )
    graph.node("F", ["x", *given], "h", domain="local", **dict.fromkeys(attributes, 1))
    graph.node("Relu", ["h"], "y")
    graph.node("Shape", ["h"], "s")
    graph.output("y", None)
    graph.output("s", [4], np.dtype(np.int64))
    model = graph.model()
    inputs = random_inputs(model)
    wanted = run(model, inputs)
    inferred = infer_shapes(model)
    assert inferred is not None
    found = [
        info.type.tensor_type.shape.dim for info in inferred.graph.value_info if info.name == "h"
    ]
    assert all(dims[-1].dim_value in (0, wanted["s"][-1]) for dims in found if dims)
    result = irc.compile(model).model
    assert run(result, inputs)["s"].tolist() == wanted["s"].tolist()
    assert np.array_equal(run(result, inputs)["y"], wanted["y"])


AXES = {
    "given": (17, [2]),
    "given, none": (17, []),
    "an attribute": (11, [2]),
    "an attribute, none": (11, []),
}


@pytest.mark.parametrize("form", AXES)
def test_the_axes_that_an_empty_list_takes_away_are_not_known(form: str) -> None:
    """onnx infers that a Squeeze of no axes takes none away.

    onnxruntime takes away all of extent 1.
    """
    opset, axes = AXES[form]
    graph = Graph(opset=opset)
    graph.input("x", [1, 3, 1])
    if form.startswith("an attribute"):
        graph.node("Squeeze", ["x"], "h")
        graph.nodes[-1].attribute.add(name="axes", type=AttributeProto.INTS, ints=axes)
    else:
        graph.node("Squeeze", ["x", graph.initializer(np.array(axes, np.int64))], "h")
    assert known_shape(graph) == "f32[1,3]" if axes else known_shape(graph) in ("f32[*]", "?")


PADDED_ALIKE = {
    "MaxPool": ("MaxPool", {"kernel_shape": [3]}, "f32[1,2,6]"),
    "MaxPool with dilations": ("MaxPool", {"kernel_shape": [3], "dilations": [2]}, "f32[1,2,?]"),
    "AveragePool with dilations": (
        "AveragePool",
        {"kernel_shape": [3], "dilations": [2]},
        "f32[1,2,?]",
    ),
    "ConvTranspose": ("ConvTranspose", {"strides": [3]}, "f32[1,2,18]"),
    "ConvTranspose with output padding": (
        "ConvTranspose",
        {"strides": [3], "output_padding": [1]},
        "f32[1,2,?]",
    ),
}


@pytest.mark.parametrize("case", PADDED_ALIKE)
def test_auto_pad_is_known_where_onnx_and_onnxruntime_pad_alike(case: str) -> None:
    op, attributes, known = PADDED_ALIKE[case]
    graph = Graph(opset=19)
    graph.input("x", [1, 2, 6])
    weight = [graph.initializer(np.ones((2, 2, 3), np.float32))] if op == "ConvTranspose" else []
    graph.node(op, ["x", *weight], "h", auto_pad="SAME_UPPER", **attributes)
    assert known_shape(graph) == known


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("size", [3, 2, 1])
def test_windows_larger_than_the_data_are_counted_as_runtimes_do(op: str, size: int) -> None:
    """onnxruntime counts one if the stride exceeds what the data lack; floor division none."""
    graph = Graph(opset=11)
    graph.input("x", [1, 2, size])
    graph.node(op, ["x"], "h", kernel_shape=[3], strides=[3])
    assert known_shape(graph) == "f32[1,2,1]"


COUNTED = {(0.1, 1.1, 0.1): "f32[?]", (-1, 0.7, 0.1): "f32[?]", (0, 1, 0.25): "f32[4]"}


@pytest.mark.parametrize("bounds", COUNTED)
def test_a_range_of_floats_has_as_many_elements_as_onnxruntime_makes(
    bounds: tuple[float, ...],
) -> None:
    graph = Graph(opset=13)
    graph.input("x", [1])
    graph.node("Range", [graph.initializer(np.float32(bound)) for bound in bounds], "h")
    assert known_shape(graph) == COUNTED[bounds]


def known_shape(graph: Graph) -> str:
    """The type that irc knows of h.

    Its shape must be the shape that onnxruntime computes, also after a compile.
    """
    graph.node("Shape", ["h"], "s")
    graph.node("Add", ["s", graph.initializer(np.int64(1))], "y")
    graph.output("y", None, np.dtype(np.int64))
    model = graph.model()
    inputs = random_inputs(model)
    result = irc.compile(model).model
    assert run(result, inputs)["y"].tolist() == run(model, inputs)["y"].tolist()
    return next(
        str(value.type)
        for node in from_model(model).graph
        for value in node.outputs
        if value.name == "h"
    )


@pytest.mark.parametrize("name", [b"scales", b"sc\xffles"])
def test_a_name_of_an_attribute_that_is_no_text_is_an_error_of_the_model(name: bytes) -> None:
    """The test of scales ended in a TypeError."""
    graph = Graph(opset=7)
    graph.input("x", [1, 2, 3, 3])
    graph.node("ArgMax", [graph.node("Upsample", ["x"], scales=[1.0, 1.0, 2.0, 2.0])], "y")
    graph.output("y", None, np.dtype(np.int64))
    model = ModelProto.FromString(graph.model().SerializeToString().replace(b"scales", name))
    if name == b"scales":
        assert str(from_model(model).graph.outputs[0].type) == "i64[1,2,6,6]"
    else:
        with pytest.raises(irc.ModelError, match="the name of an attribute is not UTF-8 text"):
            from_model(model)
