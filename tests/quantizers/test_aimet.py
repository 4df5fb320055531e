"""AIMET: high-bias fold with the fold map equals `equalize_model` on the model before folding."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import harness
import numpy as np
import pytest
from irc.backends.quantizers.aimet import to_aimet, to_aimet_encodings
from irc.compiler import compile as compile_model
from irc.result import Result
from irc.support.errors import FoldMapError
from onnx import ModelProto, TensorProto, helper, numpy_helper

from quantizers.nets import EQUALIZED, Digits, digits, high_biases, initializers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    aimet = pytest.importorskip(
        "aimet_onnx.cross_layer_equalization",
        reason="aimet_onnx is not installed: make test-quantizers",
        exc_type=ImportError,
    )
    import aimet_onnx
    from aimet_onnx.quantsim import (
        QuantizationSimModel,
        encodings_to_onnx_qdq,
        load_encodings_to_sim,
    )

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)

NETS = [
    pytest.param("relu", marks=pytest.mark.shared),
    pytest.param("relu_imbalanced", marks=pytest.mark.shared),
    "high_biases",
    "high_biases_padded",
]


def source_of(name: str) -> ModelProto:
    if name.startswith("high_biases"):
        return high_biases(pad=int(name.endswith("padded"))).model()
    return digits(name).source


def own(source: ModelProto) -> ModelProto:
    """AIMET's own equalization of a model with BatchNormalization."""
    model = copy.deepcopy(source)
    aimet.equalize_model(model)
    return model


def fed(result: Result, bn_layers: Mapping[str, Any]) -> ModelProto:
    """AIMET's steps on a folded model."""
    model = copy.deepcopy(result.model)
    pairs = aimet.CrossLayerScaling(model).scale_model()
    aimet.HighBiasFold(model).bias_fold(pairs, bn_layers)
    return model


def worst_parameter(found: ModelProto, expected: ModelProto) -> float:
    """The greatest difference of a weight or bias, of the greatest element of each."""
    by_name = {node.name: node for node in expected.graph.node}
    here, there = initializers(found), initializers(expected)
    worst = 0.0
    for node in found.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            pairs = zip(node.input[1:], by_name[node.name].input[1:], strict=True)
            for a, b in pairs:
                worst = max(worst, float(np.abs(here[a] - there[b]).max() / np.abs(there[b]).max()))
    return worst


def biases(model: ModelProto) -> dict[str, Any]:
    tensors = initializers(model)
    return {
        node.name: tensors[node.input[2]] for node in model.graph.node if node.op_type == "Conv"
    }


def root_mean_square(model: ModelProto, result: Result, inputs: Mapping[str, Any]) -> float:
    """The error of a model against the folded one, of the deviation of its result."""
    (found,), (expected,) = (harness.run(m, inputs).values() for m in (model, result.model))
    return float(np.sqrt(((found - expected) ** 2).mean()) / expected.std())


@pytest.mark.parametrize("name", NETS)
def test_equals_equalize_model(name: str) -> None:
    source = source_of(name)
    result = compile_model(source)
    found, expected = (
        fed(result, to_aimet(result.model, result.fold_map, skip_zero_padded=False)),
        own(source),
    )
    assert worst_parameter(found, expected) < 1e-6
    inputs = harness.random_inputs(source)
    (a,), (b,) = (harness.run(model, inputs).values() for model in (found, expected))
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize("name", ["high_biases", "high_biases_padded"])
def test_the_map_is_what_absorbs_high_biases(name: str) -> None:
    source = source_of(name)
    result = compile_model(source)
    without = fed(result, {})
    assert worst_parameter(own(copy.deepcopy(result.model)), without) == 0, (
        "of a folded model AIMET knows nothing"
    )
    known = fed(result, to_aimet(result.model, result.fold_map, skip_zero_padded=False))
    assert any((biases(known)[node] != bias).any() for node, bias in biases(without).items())


def test_layers_before_zero_padding_are_left_out() -> None:
    chain = high_biases(pad=1)
    result = compile_model(chain.model())
    every = to_aimet(result.model, result.fold_map, skip_zero_padded=False)
    exact = to_aimet(result.model, result.fold_map)
    assert set(every) == {"a", "b", "c", "d"}
    assert set(exact) == {"b", "c", "d"}
    inputs = {"x": chain.inputs}
    damaged, kept = (
        root_mean_square(fed(result, known), result, inputs) for known in (every, exact)
    )
    assert kept < 0.03 < 0.15 < damaged


def test_statistics_are_current_after_equalization_by_irc() -> None:
    chain = high_biases(pad=0)
    result, plain = compile_model(chain.model(), EQUALIZED), compile_model(chain.model())
    current, stale = (
        to_aimet(r.model, r.fold_map, skip_zero_padded=False) for r in (result, plain)
    )
    scaled, unscaled = biases(result.model), biases(plain.model)
    assert any(np.abs(unscaled[name] / scaled[name] - 1).max() > 0.1 for name in current)
    for name, known in current.items():
        scale = unscaled[name] / scaled[name].astype(np.float64)
        np.testing.assert_allclose(known.beta * scale, stale[name].beta, rtol=1e-5)
        np.testing.assert_allclose(known.gamma * scale, stale[name].gamma, rtol=1e-5)
    assert root_mean_square(fed(result, current), result, {"x": chain.inputs}) < 0.05


def test_what_was_folded_forward_is_not_there() -> None:
    names = ("gamma", "beta", "mean", "var")
    rng = np.random.default_rng(3)
    constants = {name: rng.uniform(0.5, 2, 4).astype(np.float32) for name in names}
    constants |= {f"w{i}": rng.normal(size=(4, 4, 1, 1)).astype(np.float32) for i in range(2)}
    constants |= {f"b{i}": rng.normal(size=4).astype(np.float32) for i in range(2)}
    attributes: dict[str, Any] = {"kernel_shape": [1, 1], "group": 1}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c"], name="first", **attributes),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("BatchNormalization", ["r", *names], ["n"], name="bn"),
        helper.make_node("Conv", ["n", "w1", "b1"], ["y"], name="second", **attributes),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4, 8, 8]) for name in "xy"]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "forward", infos[:1], infos[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = compile_model(model)
    assert [fold["direction"] for layer in result.fold_map.layers for fold in layer["folds"]] == [
        "forward"
    ]
    known = to_aimet(result.model, result.fold_map, skip_zero_padded=False)
    assert known == {}
    harness.assert_computes_the_same(model, fed(result, known), harness.random_inputs(model))


def test_a_model_that_was_scaled_is_refused() -> None:
    result = compile_model(high_biases(pad=0).model())
    model = copy.deepcopy(result.model)
    aimet.CrossLayerScaling(model).scale_model()
    with pytest.raises(FoldMapError, match="the model was changed since"):
        to_aimet(model, result.fold_map)


def simulated(net: Digits) -> QuantizationSimModel:
    return QuantizationSimModel(
        copy.deepcopy(net.result.model),
        param_type=aimet_onnx.int8,
        activation_type=aimet_onnx.int8,
        providers=["CPUExecutionProvider"],
    )


@pytest.mark.shared
def test_aimet_reads_both_layouts_as_one() -> None:
    net = digits("relu")
    grids = []
    for version in ("0.6.1", "1.0.0"):
        encodings = to_aimet_encodings(
            net.result.model, net.result.fold_map, input_ranges=net.input_ranges, version=version
        )
        made = encodings_to_onnx_qdq(copy.deepcopy(net.result.model), encodings.document)
        constants = initializers(made)
        rounded = [node for node in made.graph.node if node.op_type == "QuantizeLinear"]
        grids.append(
            {node.input[0]: [constants[name].item() for name in node.input[1:]] for node in rounded}
        )
        assert len(rounded) == len(encodings.document["activation_encodings"])
    assert grids[0] == grids[1]


@pytest.mark.shared
def test_encodings_without_data(record_property: Any) -> None:
    net = digits("relu")
    free = simulated(net)
    before = [name for name, op in free.qc_quantize_op_dict.items() if op.enabled]
    encodings = to_aimet_encodings(
        net.result.model, net.result.fold_map, input_ranges=net.input_ranges, tensors=before
    )
    assert encodings.missing == ()
    mismatches = load_encodings_to_sim(
        free, encodings.document, strict=False, disable_missing_quantizers=False
    )
    weights = {tensor.name for tensor in free.model.model.graph.initializer}
    assert {mismatch.quantizer_name for mismatch in mismatches} <= weights
    quantized = [name for name, op in free.qc_quantize_op_dict.items() if op.enabled]
    assert quantized == before
    given = {
        (np.float32(e["scale"][0]), e["offset"][0])
        for e in encodings.document["activation_encodings"]
    }
    for name in set(quantized) - weights:
        (encoding,) = free.qc_quantize_op_dict[
            name
        ].get_encodings()  # that of the Relu behind it, if AIMET ties them
        assert (np.float32(encoding.delta), encoding.offset) in given
    calibrated = simulated(net)
    calibrated.compute_encodings([{"x": net.calibration}])
    accuracy = [
        net.score(sim.session.run(None, {"x": net.images})[0]) for sim in (free, calibrated)
    ]
    record_property(
        "compared", f"AIMET, digits: {accuracy[0]:.4f} without data, {accuracy[1]:.4f} with data"
    )
    assert accuracy[0] > accuracy[1] - 0.02
