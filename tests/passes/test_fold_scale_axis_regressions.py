"""FoldScaleAxis: what once broke."""

from __future__ import annotations

import numpy as np
import pytest
from float64 import evaluate
from graphs import F64, BatchNorm, Graph, batch_norm, check, compiled, operators, reasons
from onnx import helper


def conv(graph: Graph, data: str, channels: int, result: str = "", **attrs: object) -> str:
    """A Conv 1x1 without bias."""
    return graph.node("Conv", [data, graph.initializer(graph.random(channels, channels, 1, 1))], result, **attrs)


def test_both_halves_of_a_split_are_not_scaled_as_if_they_were_one() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 4, 3, 3])
    graph.node("Split", [conv(graph, "x", 4)], ["a", "b"], axis=1, num_outputs=2)
    graph.batch_norm(graph.node("Add", ["a", "b"]), batch_norm(2, dtype=F64), "y")
    graph.output("y")
    check(graph.model())


def test_a_batch_normalization_takes_two_others_one_after_the_other() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 4, 3, 3])
    value = graph.batch_norm(graph.node("Sigmoid", ["x"]), batch_norm(4, 1, F64))
    value = graph.batch_norm(graph.node("GlobalAveragePool", [value]), batch_norm(4, 2, F64))
    value = graph.node("Flatten", [value])
    graph.batch_norm(value, batch_norm(4, 3, F64), "y")
    graph.output("y")
    check(graph.model(), ["Sigmoid", "BatchNormalization", "GlobalAveragePool", "Flatten"])


def test_pairs_that_cancel_one_behind_the_other() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3])
    value = graph.node("Sub", ["x", graph.initializer([1.0, 2.0, 3.0])])
    value = graph.node("Mul", [graph.node("Mul", [value, graph.initializer(4.0)]), graph.initializer(0.25)])
    value = graph.node("Neg", [graph.node("Neg", [value])])
    graph.node("Relu", [value], "y")
    graph.output("y")
    check(graph.model(), ["Sub", "Relu"])


@pytest.mark.parametrize("inside", [False, True])
def test_a_chain_that_cancels_between_an_input_and_a_result(inside: bool) -> None:
    chain = [
        helper.make_node("Mul", ["x", "two"], ["a"]),
        helper.make_node("Mul", ["a", "three"], ["b"]),
        helper.make_node("Div", ["b", "six"], ["y"]),
    ]
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3])
    for name, value in (("two", 2.0), ("three", 3.0), ("six", 6.0)):
        graph.initializer(value, name)
    if inside:
        graph.input("c", [], np.dtype(np.bool_))
        info = helper.make_tensor_value_info
        branch = helper.make_graph(chain, "then", [], [info("y", 11, [2, 3])])
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "else", [], [info("z", 11, [2, 3])])
        graph.node("If", ["c"], "r", then_branch=branch, else_branch=other)
        graph.output("r", [2, 3])
    else:
        graph.nodes.extend(chain)
        graph.output("y", [2, 3])
    check(graph.model(), ["If"] if inside else ["Identity"])


def test_a_division_by_zero_is_no_affine_and_others_pass_it() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 4, 3, 3])
    value = graph.node("Div", [conv(graph, "x", 4), graph.initializer(np.array([1.0, 0.0, 2.0, 3.0]).reshape(4, 1, 1))])
    graph.node("Relu", [graph.node("Mul", [value, graph.initializer(graph.random(4, 1, 1))])], "y")
    graph.output("y")
    before, after = graph.model(), compiled(graph.model()).model
    assert operators(after) == ["Conv", "Div", "Relu"]
    x = {"x": graph.random(2, 4, 3, 3)}
    np.testing.assert_allclose(evaluate(after, x)["y"], evaluate(before, x)["y"], rtol=1e-12)


def test_one_weight_in_two_layouts_is_measured_in_each() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3])
    value = graph.node("Sub", ["x", graph.initializer(graph.random(3))])
    value = graph.node("Gemm", [value, graph.initializer(graph.random(1, 3))], transB=1)
    graph.batch_norm(value, batch_norm(1, dtype=F64), "y")
    graph.output("y")
    check(graph.model(), ["Gemm"])


def test_an_extent_that_a_resize_keeps_does_not_keep_the_channels() -> None:
    graph = Graph(dtype=F64, opset=19)
    graph.input("x", [1, 3, 4, 4])
    scales = graph.initializer(np.array([1, 1.2, 2, 2], np.float32))
    value = graph.node("Resize", [conv(graph, "x", 3), "", scales], mode="linear")
    graph.batch_norm(value, batch_norm(3, dtype=F64), "y")
    graph.output("y", [1, 3, 8, 8])
    result = check(graph.model())
    assert operators(result.model) == ["Conv", "Resize", "BatchNormalization"]


def test_a_channel_shuffle_is_a_permutation() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", ["N", 6, 4, 4])
    groups = graph.initializer(np.array([0, 2, 3, 4, 4], np.int64))
    merged = graph.initializer(np.array([0, 6, 4, 4], np.int64))
    value = graph.node("Reshape", [conv(graph, "x", 6), groups])
    value = graph.node("Reshape", [graph.node("Transpose", [value], perm=[0, 2, 1, 3, 4]), merged])
    graph.batch_norm(value, batch_norm(6, dtype=F64), "y")
    graph.output("y")
    check(graph.model(), ["Conv", "Reshape", "Transpose", "Reshape"])


def test_an_axis_between_those_of_a_shuffle_parts_the_channels() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 6, 4, 4])
    groups = graph.initializer(np.array([2, 2, 3, 4, 4], np.int64))
    merged = graph.initializer(np.array([2, 8, 3, 4], np.int64))
    value = graph.node("Reshape", [conv(graph, "x", 6), groups])
    value = graph.node("Reshape", [graph.node("Transpose", [value], perm=[0, 1, 3, 2, 4]), merged])
    graph.batch_norm(value, batch_norm(8, dtype=F64), "y")
    graph.output("y")
    result = check(graph.model())
    assert reasons(result) == {"y": "kept: axis_mismatch"}


def test_a_zero_scale_in_front_of_zero_padding_goes_forward() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 4, 4])
    value = graph.node("Mul", ["x", graph.initializer(np.array([2.0, 0.0, -1.0]).reshape(3, 1, 1))])
    pads = graph.initializer(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    conv(graph, graph.node("Pad", [value, pads]), 3, "y")
    graph.output("y")
    assert "Mul" not in operators(check(graph.model()).model)


def test_a_scale_passes_in_front_of_a_bias_that_is_computed() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 4, 4])
    graph.input("b", [3])
    value = graph.node("Mul", ["x", graph.initializer(graph.positive(3, 1, 1))])
    graph.node("Conv", [value, graph.initializer(graph.random(3, 3, 3, 3)), "b"], "y", pads=[1, 1, 1, 1])
    graph.output("y")
    check(graph.model(), ["Conv"])


def test_a_function_that_stands_in_for_an_operator_is_no_carrier() -> None:
    graph = Graph(opset=17, ir=8)
    graph.input("x", [2, 3, 4, 4])
    value = graph.node("Relu", [conv(graph, "x", 3)])
    graph.node("Mul", [value, graph.initializer(graph.positive(3, 1, 1))], "y")
    graph.output("y", [2, 3, 4, 4])
    body = [helper.make_node("Sigmoid", ["a"], ["b"])]
    graph.functions.append(helper.make_function("", "Relu", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    result = compiled(graph.model())
    assert operators(result.model) == ["Conv", "Relu", "Mul"]


def test_a_training_batch_normalization_of_constants_is_not_computed() -> None:
    graph = Graph(opset=15)
    graph.input("x", [2, 3, 4, 4])
    names = [graph.initializer(graph.positive(3)) for _ in range(4)]
    weight = graph.initializer(graph.random(1, 3, 3))
    outputs = [graph.fresh("w"), graph.fresh("mean"), graph.fresh("var")]
    graph.node("BatchNormalization", [weight, *names], outputs, training_mode=1)
    shape = graph.initializer(np.array([3, 3, 1, 1], np.int64))
    graph.node("Conv", ["x", graph.node("Reshape", [outputs[0], shape])], "y")
    graph.output("y", [2, 3, 4, 4])
    result = compiled(graph.model())
    assert "BatchNormalization" in operators(result.model)


def test_a_chain_becomes_one_batch_normalization() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 4, 4])
    value = graph.node("Mul", [graph.node("Sigmoid", ["x"]), graph.initializer(graph.random(3, 1, 1))])
    params = batch_norm(3, dtype=F64)
    gamma = np.array(params.gamma)
    gamma[1] = 0.0
    value = graph.batch_norm(value, BatchNorm(gamma, params.beta, params.mean, params.var))
    graph.node("Mul", [value, graph.initializer(graph.random(3, 1, 1))], "y")
    graph.output("y")
    check(graph.model(), ["Sigmoid", "BatchNormalization"])


def test_the_halves_of_a_split_that_are_put_together_again_are_not_scaled_twice() -> None:
    graph = Graph(dtype=F64, opset=18)
    graph.input("x", [1, 3, 4, 4])
    weight, bias = graph.initializer(graph.random(4, 3, 1, 1)), graph.initializer(graph.random(4))
    graph.node("Split", [graph.node("Conv", ["x", weight, bias])], ["a", "b"], axis=1, num_outputs=2)
    graph.batch_norm(graph.node("Concat", ["a", "b"], axis=1), batch_norm(4, dtype=F64), "y")
    graph.output("y")
    check(graph.model())


@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_the_mean_that_a_layer_normalization_gives_is_not_its_result(op: str) -> None:
    graph = Graph(dtype=F64, opset=17)
    graph.input("x", [2, 3, 8])
    params = [graph.initializer(graph.random(8)), graph.initializer(graph.random(8))]
    graph.node("LayerNormalization", ["x", *params], ["t", "mean"])
    graph.node(op, ["mean", graph.initializer(3.0)], "y")
    graph.output("t", [2, 3, 8])
    graph.output("y", [2, 3, 1])
    check(graph.model(), ["LayerNormalization", op])


def test_a_shift_in_front_of_a_layer_normalization_whose_mean_is_read_is_alive() -> None:
    graph = Graph(dtype=F64, opset=17)
    graph.input("x", [2, 3, 8])
    value = graph.node("Add", ["x", graph.initializer(3.0)])
    params = [graph.initializer(graph.random(8)), graph.initializer(graph.random(8))]
    graph.node("LayerNormalization", [value, *params], ["y", "mean"])
    graph.output("y", [2, 3, 8])
    graph.output("mean", [2, 3, 1])
    check(graph.model(), ["Add", "LayerNormalization"])


def test_a_resize_that_keeps_the_aspect_ratio_scales_the_channels() -> None:
    graph = Graph(opset=18)
    graph.input("x", [1, 3, 10, 10])
    data = graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1))])
    sizes = graph.initializer(np.array([2, 5, 11, 11], np.int64))
    options = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    value = graph.node("Resize", [data, "", "", sizes], keep_aspect_ratio_policy="not_larger", **options)
    graph.batch_norm(value, batch_norm(4), "y")
    graph.output("y", [1, 4, 11, 11])
    assert operators(compiled(graph.model()).model) == ["Conv", "Resize", "BatchNormalization"]


def test_a_shift_that_comes_first_stays_first() -> None:
    graph = Graph()
    graph.input("x", [4])
    value = graph.node("Sub", ["x", graph.initializer(3e37)])
    value = graph.node("Mul", [value, graph.initializer(10.0)])
    graph.node("Add", [value, graph.initializer(1.0)], "y")
    graph.output("y", [4])
    check(graph.model(), ["Sub", "Mul", "Add"])


def test_shifts_that_cancel_stay_two() -> None:
    graph = Graph()
    graph.input("x", [4])
    value = graph.node("Add", ["x", graph.initializer(2.0**24)])
    graph.node("Sub", [value, graph.initializer(2.0**24 - 1)], "y")
    graph.output("y", [4])
    check(graph.model(), ["Add", "Sub"])


def test_what_was_crossed_is_named_as_it_was() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 8, 8])
    conv(graph, "x", 3, "features")
    graph.node("MaxPool", ["features"], "pooled", kernel_shape=[2, 2])
    value = graph.node("Mul", ["pooled", graph.initializer(graph.positive(3, 1, 1))])
    graph.node("Sigmoid", [value], "y")
    graph.output("y")
    (layer,) = compiled(graph.model()).fold_map.layers
    assert layer["folds"][0]["crossed"] == ["nn.max_pool %pooled"]


@pytest.mark.parametrize(("scale", "op", "bounds"), [(1e-305, "Clip", (-1e10, 1e10)), (1e300, "HardSigmoid", ())])
def test_numbers_that_overflow_are_refused_without_a_warning(scale: float, op: str, bounds: tuple[float, ...]) -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [2, 4, 3, 3])
    value = graph.node("Mul", ["x", graph.initializer(scale)])
    conv(graph, graph.node(op, [value, *[graph.initializer(bound) for bound in bounds]]), 4, "y")
    graph.output("y")
    result = compiled(graph.model())
    assert operators(result.model) == ["Mul", op, "Conv"]


def test_what_took_in_another_constant_still_says_why_it_stays() -> None:
    """It stood as an affine that no pass had tried."""
    graph = Graph(dtype=F64)
    graph.input("x", [2, 3, 4, 4])
    value = graph.node("Mul", ["x", graph.initializer(graph.positive(3, 1, 1))], "scaled")
    value = graph.node("Add", [value, graph.initializer(graph.random(1, 1, 4, 1))], "rows")
    conv(graph, value, 3, "y")
    graph.output("y")
    assert reasons(check(graph.model())) == {"scaled": "folded", "rows": "kept: axis_mismatch"}
