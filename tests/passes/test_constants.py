"""Where constants come from.

Disguises, old and new ways to list them, and those that callers may override.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import irc
import numpy as np
import pytest
from graphs import (
    DISGUISES,
    F16,
    F32,
    F64,
    Array,
    BatchNorm,
    Graph,
    batch_norm,
    check,
    check_unchanged,
    compiled,
    constants,
    conv_bn,
    is_valid,
    operand,
    operators,
    reasons,
    rounded,
    same_bits,
    the,
    wide,
)
from harness import run
from onnx import ModelProto, TensorProto, helper, parser


@pytest.mark.parametrize("what", ["weight", "bias", "parameters", "arithmetic", "all"])
@pytest.mark.parametrize("how", DISGUISES)
def test_disguises(how: str, what: str) -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    weight, bias, params, factor = (
        graph.random(4, 3, 2, 2),
        graph.random(4),
        batch_norm(4),
        graph.positive(4, 1, 1),
    )
    disguise: Callable[[str], str] = lambda kind: how if what in (kind, "all") else "initializer"  # noqa: E731
    inputs = [
        "x",
        graph.constant(weight, disguise("weight")),
        graph.constant(bias, disguise("bias")),
    ]
    graph.node("Conv", inputs, "h", "conv")
    graph.batch_norm("h", params, "t", "bn", disguise("parameters"))
    graph.node("Mul", ["t", graph.constant(factor, disguise("arithmetic"))], "y")
    graph.output("y", [2, 4, 3, 3])
    result = check(graph.model(), ["Conv"])
    conv = the(result.model, "Conv")
    scale = (params.scale * wide(factor).ravel())[:, None, None, None]
    assert same_bits(operand(result.model, conv, 1), rounded(wide(weight) * scale, F32))
    assert same_bits(
        operand(result.model, conv, 2), rounded(params.bias(bias) * wide(factor).ravel(), F32)
    )


def test_constant_nodes_of_one_number() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1))], "h", "conv")
    graph.node("Mul", ["h", graph.node("Constant", [], value_float=0.5)], "t")
    graph.node(
        "Add", ["t", graph.node("Constant", [], value=helper.make_tensor("", 1, [], [0.25]))], "u"
    )
    graph.node("Sub", ["u", graph.node("Constant", [], value_floats=[0.125])], "y")
    graph.output("y", [2, 4, 4, 4])
    check(graph.model(), ["Conv"])


@pytest.mark.parametrize(("content", "shape"), [(None, [4]), (1.0, [4]), (-0.5, [4])])
def test_constant_of_shape(content: float | None, shape: list[int]) -> None:
    """ConstantOfShape is 0 unless told otherwise.

    As a bias, and as parameters where that is legal.
    """
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    attrs = {} if content is None else {"value": helper.make_tensor("", 1, [1], [content])}
    sizes = graph.initializer(np.asarray(shape, np.int64))
    graph.node("ConstantOfShape", [sizes], "b", **attrs)
    graph.node("ConstantOfShape", [sizes], "ones", value=helper.make_tensor("", 1, [1], [1.0]))
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1)), "b"], "h", "conv")
    graph.batch_norm("h", batch_norm(4), "y", names=["ones", "b", "b", "ones"])
    graph.output("y", [2, 4, 4, 4])
    check(graph.model(), ["Conv"])


def test_constant_of_shape_as_weight() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    sizes = graph.initializer(np.asarray([4, 3, 1, 1], np.int64))
    graph.node("ConstantOfShape", [sizes], "w", value=helper.make_tensor("", 1, [1], [0.5]))
    graph.node("Conv", ["x", "w"], "h", "conv")
    graph.batch_norm("h", batch_norm(4), "y")
    graph.output("y", [2, 4, 4, 4])
    check(graph.model(), ["Conv"])


@pytest.mark.parametrize("dtype", [F32, F16, F64], ids=str)
def test_the_zero_bias_of_dynamo(dtype: np.dtype[Any]) -> None:
    """torch's exporter computes the absent bias of a Conv.

    CastLike(Expand(0.0, Shape(w)[0:1]), x).
    """
    graph = Graph(opset=18, dtype=dtype)
    graph.input("x", ["N", 3, 4, 4])
    weight, params = graph.random(4, 3, 3, 3), batch_norm(4, dtype=dtype)
    graph.initializer(weight, "w")
    graph.node("Shape", ["w"], "s", start=0, end=1)
    graph.node("Constant", [], "zero", value=helper.make_tensor("", 1, [], [0.0]))
    graph.node("Expand", ["zero", "s"], "zeros")
    graph.node("CastLike", ["zeros", "x"], "b")
    graph.node("Conv", ["x", "w", "b"], "h", "conv")
    graph.batch_norm("h", params, "y")
    graph.output("y", ["N", 4, 2, 2])
    result = check(graph.model(), ["Conv"])
    conv = the(result.model, "Conv")
    assert same_bits(
        operand(result.model, conv, 1),
        rounded(wide(weight) * params.scale[:, None, None, None], dtype),
    )
    assert same_bits(operand(result.model, conv, 2), rounded(params.bias(), dtype))


def test_parameters_computed_from_constants() -> None:
    """A decomposed BatchNormalization: Sub, Div by Sqrt of constants, Mul, Add."""
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 4, 4])
    params = batch_norm(4, dtype=F64)
    gamma, beta, mean, var = (graph.initializer(array.reshape(4, 1, 1)) for array in params.arrays)
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1))], "h", "conv")
    deviation = graph.node("Sqrt", [graph.node("Add", [var, graph.initializer(1e-3)])])
    normal = graph.node("Div", [graph.node("Sub", ["h", mean]), deviation])
    graph.node("Add", [graph.node("Mul", [normal, gamma]), beta], "y")
    graph.output("y", [2, 4, 4, 4])
    check(graph.model(), ["Conv"])


def test_weights_that_share_one_transpose() -> None:
    graph = Graph()
    graph.input("x", [2, 4])
    graph.initializer(graph.random(4, 4), "w")
    graph.node("Transpose", ["w"], "wt", perm=[1, 0])
    graph.node("Gemm", ["x", "wt"], "h", "one")
    graph.batch_norm("h", batch_norm(4), "t")
    graph.node("MatMul", ["t", "wt"], "y")
    graph.output("y", [2, 4])
    check(graph.model())


def test_a_random_weight_is_no_constant() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 4, 4])
    graph.node("RandomNormal", [], "w", shape=[4, 3, 1, 1], seed=1.0)
    graph.node("Conv", ["x", "w"], "h", "conv")
    graph.batch_norm("h", batch_norm(4), "y")
    graph.output("y", [2, 4, 4, 4])
    model = graph.model()
    result = compiled(model)
    assert result.model == model
    assert reasons(result) == {"y": "kept: dynamic_weight"}


# initializers among the inputs


def listed(model: ModelProto, *names: str) -> ModelProto:
    """The model with initializers listed among its inputs, all of them unless names are given."""
    have = {info.name for info in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in have and (not names or tensor.name in names):
            model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return model


def named_conv_bn(ir: int, *, opset: int = 8, bias: bool = False) -> ModelProto:
    """Conv and BatchNormalization whose constants have names."""
    graph = Graph(ir=ir, opset=opset)
    graph.input("x", [2, 3, 4, 4])
    weight = graph.initializer(graph.random(4, 3, 1, 1), "conv.weight")
    extra = [graph.initializer(graph.random(4), "conv.bias")] if bias else []
    graph.node("Conv", ["x", weight, *extra], "h", "conv")
    graph.batch_norm("h", batch_norm(4), "t", "bn", names=[
        graph.initializer(array, f"bn.{name}")
        for name, array in zip(("weight", "bias", "mean", "var"), batch_norm(4).arrays, strict=True)
    ])  # fmt: skip
    graph.node("Relu", ["t"], "y")
    graph.output("y", [2, 4, 4, 4])
    return graph.model()


@pytest.mark.parametrize("bias", [False, True])
def test_ir_version_3_lists_its_constants(bias: bool) -> None:
    model = named_conv_bn(3, bias=bias)
    result = check(model, ["Conv", "Relu"])
    assert [info.name for info in result.model.graph.input] == ["x", "conv.weight", "conv.bias"]
    assert {tensor.name for tensor in result.model.graph.initializer} == {
        "conv.weight",
        "conv.bias",
    }
    assert not result.warnings


def test_ir_version_3_with_shapes_that_change_lists_the_new_shape() -> None:
    graph = Graph(ir=3, opset=8)
    graph.input("x", [2, 3])
    graph.node(
        "Gemm",
        ["x", graph.initializer(graph.random(3, 4), "w"), graph.initializer(graph.random(1), "c")],
        "h",
        "g",
    )
    graph.batch_norm("h", batch_norm(4), "y")
    graph.output("y", [2, 4])
    result = check(graph.model(), ["Gemm"])
    types = {
        info.name: [d.dim_value for d in info.type.tensor_type.shape.dim]
        for info in result.model.graph.input
    }
    for tensor in result.model.graph.initializer:
        assert types[tensor.name] == list(tensor.dims)


@pytest.mark.parametrize("ir", [4, 7, 10])
def test_overridable_initializers_are_no_constants(ir: int) -> None:
    model = listed(named_conv_bn(ir))
    result = check_unchanged(model)
    assert set(reasons(result).values()) == {"kept: overridable_initializer"}
    (warning,) = result.warnings
    assert warning.startswith("1 ")
    assert "--freeze-initializers" in warning


@pytest.mark.parametrize(
    "name", ["conv.weight", "conv.bias", "bn.weight", "bn.bias", "bn.mean", "bn.var"]
)
def test_one_overridable_initializer_is_enough(name: str) -> None:
    result = check_unchanged(listed(named_conv_bn(8, bias=True), name), "overridable_initializer")
    assert len(result.warnings) == 1


def test_the_warning_counts_every_fold_held_back() -> None:
    graph = Graph()
    graph.input("x", [2, 4, 4, 4])
    hidden = "x"
    for i in range(3):
        graph.node(
            "Conv",
            [hidden, graph.initializer(graph.random(4, 4, 1, 1), f"w{i}")],
            f"h{i}",
            f"conv{i}",
        )
        hidden = graph.batch_norm(f"h{i}", batch_norm(4), f"y{i}", f"bn{i}")
        hidden = graph.node("Sigmoid", [hidden])
    graph.output(hidden, [2, 4, 4, 4])
    result = check(listed(graph.model(), "w0", "w2"))
    (warning,) = result.warnings
    assert warning.startswith("2 ")
    held_back = ["Conv", "BatchNormalization", "Sigmoid"]
    assert operators(result.model) == [*held_back, "Conv", "Sigmoid", *held_back]


@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div"])
def test_arithmetic_with_an_overridable_constant_counts_as_held_back(op: str) -> None:
    graph = Graph()
    graph.input("x", [2, 4, 4, 4])
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 4, 1, 1), "w")], "h", "conv")
    graph.node(op, ["h", graph.initializer(graph.positive(4, 1, 1), "c")], "y", "affine")
    graph.output("y", [2, 4, 4, 4])
    model = listed(graph.model(), "c")
    result = check_unchanged(model)
    assert len(result.warnings) == 1, "a fold is held back, and nobody is told"
    assert "--freeze-initializers" in result.warnings[0]
    frozen = compiled(model, freeze_initializers=True)
    assert operators(frozen.model) == ["Conv"]


def test_nothing_held_back_no_warning() -> None:
    graph = Graph()
    graph.input("x", [2, 4])
    graph.node("Relu", ["x"], "r")
    graph.node("MatMul", ["r", graph.initializer(graph.random(4, 4), "w")], "y")
    graph.output("y", [2, 4])
    assert not check_unchanged(listed(graph.model())).warnings


def test_freezing_folds_and_drops_the_inputs() -> None:
    model = listed(named_conv_bn(8))
    result = check(model, ["Conv", "Relu"], freeze_initializers=True)
    assert [info.name for info in result.model.graph.input] == ["x"]
    assert not result.warnings
    assert len(result.model.graph.initializer) == 2


def test_freezing_where_there_is_nothing_to_freeze() -> None:
    model = named_conv_bn(8)
    assert compiled(model, freeze_initializers=True).model == compiled(model).model


def test_an_overridable_initializer_keeps_its_effect() -> None:
    """The default is kept byte for byte, and a caller's value still reaches the operator."""
    from float64 import evaluate

    graph = Graph()
    graph.input("x", [1, 2, 2, 2])
    graph.node("Conv", ["x", graph.initializer(graph.random(2, 2, 1, 1), "w")], "h", "conv")
    graph.batch_norm("h", batch_norm(2), "t")
    graph.node("Mul", ["t", graph.initializer(graph.positive(2, 1, 1), "gain")], "y")
    graph.output("y", [1, 2, 2, 2])
    model = listed(graph.model(), "gain")
    result = check(model, ["Conv", "Mul"])
    inputs: dict[str, Array] = {
        "x": np.ones((1, 2, 2, 2), np.float32),
        "gain": np.full((2, 1, 1), 7, np.float32),
    }
    assert np.allclose(evaluate(model, inputs)["y"], evaluate(result.model, inputs)["y"], rtol=1e-5)


@pytest.mark.parametrize(
    ("operator", "default", "given"),
    [
        ("Reshape(x, s)", [2, 3], [3, 2]),
        ("Expand(x, s)", [1, 6], [2, 6]),
        ("Tile(x, s)", [2, 1], [1, 2]),
        ("Pad(x, s)", [1, 0, 0, 0], [0, 0, 1, 1]),
        ("Slice(x, s, end)", [0, 1], [0, 2]),
        ("ConstantOfShape(s)", [2, 3], [3, 2]),
        ("Resize(x, , , s)", [1, 6], [2, 3]),
        ("Split<axis = 1>(x, s)", [2, 4], [4, 2]),
    ],
)
def test_a_default_that_callers_may_override_gives_no_extents(
    operator: str, default: list[int], given: list[int]
) -> None:
    numbers = ", ".join(map(str, default))
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[1, 6] x, int64[{len(default)}] s)
        => (float[P, Q] r, int64[2] y) <int64[{len(default)}] s = {{{numbers}}}, int64[2] end = {{1, 6}}> {{
        r{", rest" if "Split" in operator else ""} = {operator}  y = Shape(r) }}"""
    )
    x = np.arange(6, dtype=np.float32).reshape(1, 6)
    for inputs in ({"x": x}, {"x": x, "s": np.array(given)}):
        expected, found = run(model, inputs), run(compiled(model).model, inputs)
        assert all(np.array_equal(expected[name], found[name]) for name in ("r", "y"))
    assert "Shape" in operators(compiled(model).model)
    assert "Shape" not in operators(compiled(model, freeze_initializers=True).model)


def test_orphans_were_there_before() -> None:
    """DeadCodeElimination removes an initializer that nothing reads.

    The passes that fold leave it.
    """
    graph, _, _ = conv_bn()
    graph.initializer(graph.random(7), "orphan")
    graph.output("y", [2, 4, 4, 4])
    result = check(graph.model(), ["Conv"])
    assert "orphan" not in constants(result.model)
    folded = compiled(
        graph.model(), passes="SimplifyInference,FoldScaleAxis,SimplifyExpr,FoldConstant"
    )
    assert "orphan" in constants(folded.model)


@pytest.mark.parametrize("field", ["raw_data", "float_data"])
def test_storage_of_the_weight_does_not_matter(field: str) -> None:
    graph, weight, params = conv_bn()
    graph.output("y", [2, 4, 4, 4])
    model = graph.model()
    if field == "float_data":
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.float_data.extend(weight.ravel().tolist())
    result = check(model, ["Conv"])
    found = operand(result.model, the(result.model, "Conv"), 1)
    assert same_bits(found, rounded(wide(weight) * params.scale[:, None, None, None], F32))


def test_zero_channels() -> None:
    graph = Graph()
    graph.input("x", [2, 0, 4, 4])
    params = BatchNorm(*(np.zeros(0, np.float32) for _ in range(4)))
    graph.batch_norm("x", params, "y")
    graph.output("y", [2, 0, 4, 4])
    model = graph.model()
    assert compiled(model).model == model


@pytest.mark.parametrize("sparse", [False, True])
def test_initializers_of_a_branch_that_is_inlined_into_a_function_become_constants(
    *, sparse: bool
) -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17, "f": 1]> g (float[3] x) => (float[3] y) { h = f.Body(x)  y = Relu(h) }
        <domain: "f", opset_import: ["": 17]> Body (a) => (z)
        { yes = Constant<value = bool {1}>()  r = RandomUniformLike(a)  u = Add(a, r)
          z = If(yes) <then_branch = t () => (float[3] o) <float[3] c = {1, 2, 3}> { o = Mul(u, c) },
                       else_branch = e () => (float[3] q) { q = Neg(u) }> }"""
    )
    branch = model.functions[0].node[3].attribute[0].g
    if sparse:
        values = helper.make_tensor("c", TensorProto.FLOAT, [1], [2.0])
        indices = helper.make_tensor("", TensorProto.INT64, [1], [1])
        del branch.initializer[:]
        branch.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    result = irc.compile(model)
    assert is_valid(result.model) is None
    assert [
        node.op_type for node in result.model.functions[0].node if node.op_type != "Constant"
    ] == [
        "RandomUniformLike",
        "Add",
        "Mul",
    ]
    assert irc.compile(result.model).model == result.model
