"""NNCF's post-training quantization with statistics from the fold map in place of a data set."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import harness
import numpy as np
import pytest
from irc.backends.quantizers.nncf import Filled, fill_statistic_points
from irc.backends.quantizers.ranges import activations
from irc.compiler import compile as compile_model
from irc.result import Result
from irc.support.errors import UsageError
from onnx import ModelProto, numpy_helper

from quantizers.nets import EQUALIZED, digits, high_biases, initializers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    nncf = pytest.importorskip(
        "nncf", reason="nncf is not installed: make test-quantizers", exc_type=ImportError
    )
    from nncf.onnx.graph.nncf_graph_builder import GraphConverter
    from nncf.onnx.graph.passes import (
        apply_preprocess_passes,
        compress_quantize_weights_transformation,
    )
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters
    from nncf.quantization.algorithms.post_training.algorithm import PostTrainingQuantization
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)


def without_data(
    result: Result, options: dict[str, Any] | None = None, **known: Any
) -> tuple[ModelProto, Filled]:
    prepared = apply_preprocess_passes(copy.deepcopy(result.model))
    graph = GraphConverter.create_nncf_graph(prepared)
    algorithm = PostTrainingQuantization(**(options or {}))
    points = algorithm.get_statistic_points(prepared, graph)
    filled = fill_statistic_points(points, graph, result.model, result.fold_map, **known)
    quantized = algorithm.apply(prepared, graph, points)
    compress_quantize_weights_transformation(quantized)
    return quantized, filled


def with_data(result: Result, inputs: Any) -> ModelProto:
    dataset = nncf.Dataset(list(inputs[:, None]), lambda item: {"x": item})
    return nncf.quantize(copy.deepcopy(result.model), dataset, subset_size=len(inputs))


def biases(model: ModelProto) -> dict[str, Any]:
    tensors = initializers(model)
    layers = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm")]
    return {node.name: tensors[node.input[2]] for node in layers}


@pytest.mark.shared
@pytest.mark.parametrize("name", ["relu", "relu_imbalanced"])
def test_without_data(name: str, record_property: Any) -> None:
    net = digits(name)
    free, filled = without_data(net.result, input_ranges=net.input_ranges)
    guessed = (
        "/blocks/blocks.2/Add_output_0",
        "/blocks/blocks.4/Add_output_0",
        "171",
    )  # sums, and the logits
    assert filled == Filled((), ("/stem/stem.0/Conv",), guessed)
    calibrated = with_data(net.result, net.calibration)
    assert harness.operators(free) == harness.operators(calibrated)
    accuracy = [net.accuracy(model) for model in (free, calibrated)]
    record_property(
        "compared", f"NNCF, {name}: {accuracy[0]:.4f} without data, {accuracy[1]:.4f} with data"
    )
    assert accuracy[0] > accuracy[1] - 0.02


@pytest.mark.shared
def test_equalized_by_irc(record_property: Any) -> None:
    net = digits("relu_imbalanced", EQUALIZED)
    model, _ = without_data(net.result, input_ranges=net.input_ranges)
    accuracy = net.accuracy(model)
    record_property("compared", f"NNCF, relu_imbalanced equalized: {accuracy:.4f} without data")
    assert accuracy > 0.97


def test_biases_are_corrected_as_with_data() -> None:
    chain = high_biases(pad=0)
    result = compile_model(chain.model())
    before, calibrated = biases(result.model), biases(with_data(result, chain.inputs))
    errors, corrections = [], []
    ends = {"x": (float(chain.inputs.min()), float(chain.inputs.max()))}
    partly, filled = without_data(result, input_ranges=ends)
    assert filled == Filled((), ("a",))
    assert (biases(partly)["a"] == before["a"]).all()
    free, filled = without_data(
        result, input_ranges=ends, input_means={"x": chain.inputs.mean((0, 2, 3))}
    )
    assert filled == Filled((), ())
    for node, bias in biases(free).items():
        corrections.append(np.linalg.norm(calibrated[node] - before[node]))
        errors.append(np.linalg.norm(bias - calibrated[node]))
    assert all(correction > 0 for correction in corrections)
    assert sum(errors) < 0.3 * sum(corrections)


def test_a_bias_is_not_corrected_for_a_statistic_that_is_off() -> None:
    """Means of results that do not follow from those of data corrected MobileNetV2 to 8 dB."""
    chain = high_biases(pad=1)
    source = chain.model()
    for tensor in source.graph.initializer:
        if tensor.name == "d.bn.mean":  # as data of another kind would have left it
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(array * np.float32(0.9), tensor.name))
    result = compile_model(source)
    known = {"input_ranges": {"x": (-5.0, 5.0)}}
    rounded, filled = without_data(result, **known, input_means={"x": chain.inputs.mean((0, 2, 3))})
    assert filled.uncorrected == ()
    last = result.model.graph.node[-2]
    weight = initializers(result.model)[last.input[1]]
    mean = activations(result.model, result.fold_map, **known).known[last.input[0]].mean
    assert mean is not None
    half_a_step = np.abs(weight).max((1, 2, 3)) / 127 / 2
    shift = np.abs(biases(rounded)["d"] - biases(result.model)["d"])
    assert shift.any()
    assert (shift <= 1.01 * half_a_step * np.abs(mean).sum()).all()


@pytest.mark.shared
def test_the_input_has_to_be_given() -> None:
    with pytest.raises(
        UsageError, match=r"give the range of input 'x'.*: --input-range x=LOW:HIGH"
    ):
        without_data(digits("relu").result)


def test_open_shapes_are_quantized_without_correction() -> None:
    """The message named fast_bias_correction=False, whose statistics are refused."""
    model = high_biases(pad=0).model()
    del model.graph.value_info[:]
    for info in (*model.graph.input, *model.graph.output):
        for axis in range(2, len(info.type.tensor_type.shape.dim)):
            info.type.tensor_type.shape.dim[axis].dim_param = f"extent{axis}"
    result, known = compile_model(model), {"input_ranges": {"x": (-5.0, 5.0)}}
    with pytest.raises(UsageError, match="disable_bias_correction=True"):
        without_data(result, **known)
    advanced = AdvancedQuantizationParameters(disable_bias_correction=True)
    quantized, filled = without_data(result, {"advanced_parameters": advanced}, **known)
    assert filled.uncorrected == ()
    assert "QuantizeLinear" in {node.op_type for node in quantized.graph.node}


@pytest.mark.shared
def test_a_histogram_is_refused() -> None:
    net = digits("relu")
    histogram = AdvancedQuantizationParameters(
        activations_range_estimator_params=RangeEstimatorParametersSet.HISTOGRAM
    )
    with pytest.raises(UsageError, match="RawReducer"):
        without_data(net.result, {"advanced_parameters": histogram}, input_ranges=net.input_ranges)
