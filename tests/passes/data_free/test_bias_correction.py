"""BiasCorrection: the formula, the quantizers, and what it is for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from equalize import (
    accuracy,
    activated,
    assert_statistics_are_true,
    calibrated,
    digits,
    imbalanced,
    per_channel,
    quantize_weights,
    values,
    weights,
)
from graphs import (
    F64,
    Array,
    Graph,
    assert_interface,
    assert_named,
    assert_nothing_stale,
    operators,
)
from irc.compiler import compile as compile_model
from irc.passes import BiasCorrection, PassContext, Verify
from irc.passes.affine.records.fold_records import fold_records
from irc.passes.affine.records.source_affines import known_statistics
from irc.result import Result
from irc.support.errors import UsageError
from onnx import ModelProto

PASS = "BiasCorrection"
GAMMA = np.array([0.5, 1.0, 0.25, 2.0])
BETA = np.array([3.0, 1.0, 2.0, -1.0])


def model_of(
    between: str = "", op: str = "Conv", *shape: int, bias: bool = True, **attrs: object
) -> tuple[ModelProto, dict[str, Array]]:
    """A Conv, a BatchNormalization with the statistics of the data, an activation, and a layer."""
    graph = Graph(dtype=F64)
    graph.input("x", [16, 3, 6, 6])
    data = {"x": graph.random(16, 3, 6, 6)}
    h = graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1), "first")])
    h = activated(graph, calibrated(graph, h, data, GAMMA, BETA), between)
    if op in ("Gemm", "MatMul"):
        h = graph.node("Flatten", [graph.node("GlobalAveragePool", [h])])
    shape = shape or (6, 4, 1, 1)
    weight = graph.initializer(imbalanced(graph, *shape), "second")
    graph.node(
        op, [h, weight, *([graph.initializer(graph.random(6), "b2")] if bias else [])], "y", **attrs
    )
    graph.output("y")
    return graph.model(), data


def corrected(model: ModelProto, options: str = "") -> Result:
    """The result of the pass behind the default pipeline."""
    result = compile_model(
        model, f"default,{PASS}{{{options}}},FoldConstant", context=PassContext([Verify()])
    )
    assert_interface(model, result.model)
    assert_nothing_stale(model, result.model)
    assert_named(model, result.model)
    assert operators(result.model) == operators(compile_model(model).model)
    return result


def relu_mean(mean: Array, std: Array) -> Array:
    """E[max(x, 0)] of a normal x: std phi(-mean / std) + mean (1 - Phi(-mean / std))."""
    ratio = mean / std
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    return np.asarray(
        std * density + mean * np.array([0.5 * math.erfc(-r / math.sqrt(2)) for r in ratio])
    )


def rounded(weight: Array, bits: int = 8) -> Array:
    scale = np.abs(weight).max() / (2 ** (bits - 1) - 1)
    return np.asarray(np.rint(weight / scale) * scale)


@pytest.mark.parametrize("between", ["", "Relu"])
@pytest.mark.parametrize("bits", [8, 4])
def test_the_mean_of_the_error_is_taken_off_the_bias(between: str, bits: int) -> None:
    model, _ = model_of(between, "Conv", 6, 4, 3, 3)
    result = corrected(model, f"bits={bits}")
    before, after = weights(compile_model(model).model), weights(result.model)
    mean = relu_mean(BETA, GAMMA) if between else BETA
    error = rounded(before["second"], bits) - before["second"]
    expected = error.sum(axis=(2, 3)) @ mean
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(before["b2"] - after["b2"], expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_array_equal(after["second"], before["second"])
    (record,) = fold_records(result.module).history[0].layers.values()
    np.testing.assert_allclose(record["correction"], expected, rtol=1e-8, atol=1e-9)


LAYERS: dict[str, tuple[str, tuple[int, ...], dict[str, object]]] = {
    "Conv": ("Conv", (6, 4, 1, 1), {}),
    "Conv in groups": ("Conv", (6, 2, 1, 1), {"group": 2}),
    "ConvTranspose": ("ConvTranspose", (4, 6, 2, 2), {"strides": [2, 2]}),
    "ConvTranspose in groups": ("ConvTranspose", (4, 3, 2, 2), {"strides": [2, 2], "group": 2}),
    "Gemm": ("Gemm", (4, 6), {}),
    "Gemm transposed": ("Gemm", (6, 4), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
}
QUANTIZERS = (
    "bits=8",
    "bits=4,per_channel=true",
    "bits=4,symmetric=false",
    "bits=5,per_channel=true,symmetric=false",
    "bits=8,reduce_range=true",
    "bits=5,symmetric=false,reduce_range=true",
)


def quantized(weight: Array, options: str, axis: int) -> Array:
    """By the words of the docstring, one channel at a time."""
    bits = int(options.split("bits=")[1][0])
    if "per_channel" in options:
        whole = options.replace("per_channel=true", "")
        parts = [quantized(part, whole, 0) for part in np.moveaxis(weight, axis, 0)]
        return np.moveaxis(np.stack(parts), 0, axis)
    is_reduced = "reduce_range=true" in options
    if "symmetric=false" not in options:
        if is_reduced:
            scale = np.abs(weight).max() / 2 ** (bits - 2)
            return np.asarray(np.rint(weight / scale) * scale)
        return rounded(weight, bits)
    low, high = min(weight.min(), 0.0), max(weight.max(), 0.0)
    top = 2 ** (bits - is_reduced) - 1
    scale = (high - low) / top
    zero = np.rint(-low / scale)
    return np.asarray((np.clip(np.rint(weight / scale) + zero, 0, top) - zero) * scale)


@pytest.mark.parametrize("options", QUANTIZERS)
@pytest.mark.parametrize("name", LAYERS)
def test_with_quantized_weights_the_mean_is_right_again(name: str, options: str) -> None:
    """Without an activation E[x] is exact, and so is the mean of the result."""
    op, shape, attrs = LAYERS[name]
    model, data = model_of("", op, *shape, **attrs)
    result = corrected(model, options)
    axis = 1 if op == "ConvTranspose" or (op == "Gemm" and not attrs) else 0
    found = []
    for made in (compile_model(model).model, result.model):
        weight = next(tensor for tensor in made.graph.initializer if tensor.name == "second")
        array = np.frombuffer(weight.raw_data).reshape(weight.dims)
        weight.raw_data = quantized(array, options, axis).tobytes()
        found.append(per_channel(values(made, data)["y"], 1)[0])
    want = per_channel(values(model, data)["y"], 1)[0]
    assert np.abs(found[0] - want).max() > 1e-3
    np.testing.assert_allclose(found[1], want, atol=1e-9)


def test_a_sum_behind_a_product_of_matrices_is_its_bias() -> None:
    graph = Graph(dtype=F64)
    graph.input("x", [16, 3])
    data = {"x": graph.random(16, 3)}
    h = calibrated(
        graph, graph.node("MatMul", ["x", graph.initializer(graph.random(3, 4))]), data, GAMMA, BETA
    )
    h = graph.node("Reshape", [h, graph.initializer(np.array([4, 4, 4]))])
    for i in range(2):
        h = graph.node("MatMul", [h, graph.initializer(imbalanced(graph, 4, 4, axis=1), f"w{i}")])
        h = graph.node(
            "Sigmoid",
            [graph.node("Add", [h, graph.initializer(graph.random(4), f"b{i}")]) if i == 0 else h],
        )
    graph.node("Identity", [h], "y")
    graph.output("y")
    model = graph.model()
    result = corrected(model, "bits=4")
    plain = compile_model(model).model
    (x,) = (node.input[0] for node in plain.graph.node if "w0" in node.input)
    before, after = (
        weights(made)[next(node.input[1] for node in made.graph.node if node.op_type == "Add")]
        for made in (plain, result.model)
    )
    weight = weights(plain)["w0"]
    expected = values(plain, data)[x].mean(axis=(0, 1)) @ (rounded(weight, 4) - weight)
    np.testing.assert_allclose((before - after).ravel(), expected, rtol=1e-9, atol=1e-9)
    (warning,) = result.warnings
    assert "2 of 3 layers keep their bias" in warning


def test_what_is_known_of_the_values_stays() -> None:
    model, data = model_of("Relu")
    before, after = compile_model(model), corrected(model)
    assert assert_statistics_are_true(after, data) == len(known_statistics(before.module)) == 1


def test_without_statistics_nothing_happens() -> None:
    graph = Graph()
    graph.input("x", [2, 3, 5, 5])
    graph.node("Conv", ["x", graph.initializer(graph.random(4, 3, 1, 1))], "y")
    graph.output("y")
    result = corrected(graph.model())
    assert result.model == graph.model()
    assert not fold_records(result.module).history
    assert "1 of 1 layers" in result.warnings[0]


@pytest.mark.parametrize("bits", [1, 17])
def test_an_impossible_width_is_refused(bits: int) -> None:
    with pytest.raises(UsageError, match="bits"):
        BiasCorrection(bits=bits)


@pytest.mark.parametrize("padding", ["exact", "ignore"])
def test_zeros_in_the_padding_have_no_mean_but_as_published(padding: str) -> None:
    model, _ = model_of("", "Conv", 6, 4, 3, 3, pads=[1, 1, 0, 1], strides=[1, 2])
    result = corrected(model, f"bits=4,padding={padding}")
    weight = weights(model)["second"]
    error = rounded(weight, 4) - weight
    (record,) = fold_records(result.module).history[0].layers.values()
    rows = np.array([[0 <= y + dy - 1 < 6 for y in range(5)] for dy in range(3)]).mean(axis=1)
    columns = np.array([[0 <= x + dx - 1 < 6 for x in range(0, 6, 2)] for dx in range(3)]).mean(
        axis=1
    )
    share = np.outer(rows, columns) if padding == "exact" else np.ones((3, 3))
    expected = np.einsum("mcij,c,ij->m", error, BETA, share)
    np.testing.assert_allclose(record["correction"], expected, rtol=1e-8, atol=1e-9)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["relu", "relu6", "relu_imbalanced"])
def test_a_trained_model_stays_accurate_with_quantized_weights(name: str) -> None:
    path, images, labels = digits(name)
    result = compile_model(path, f"default,CrossLayerEqualization,{PASS},FoldConstant")
    assert len(fold_records(result.module).history[1].layers) == 19
    assert "1 of 20 layers" in result.warnings[0]
    float_accuracy = accuracy(compile_model(path).model, images, labels)
    assert accuracy(quantize_weights(result.model), images, labels) > float_accuracy - 0.02


def test_taps_count_in_full_where_the_extents_are_not_known() -> None:
    model, _ = model_of("Relu", "Conv", 6, 4, 3, 3, pads=[1, 1, 1, 1])
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"d{axis}"
    del model.graph.value_info[:]
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    exact, ignored = (
        corrected(model, f"padding={padding}").model for padding in ("exact", "ignore")
    )
    assert exact == ignored
