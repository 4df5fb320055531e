"""What the tests of the passes that prepare quantization share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from float64.interpreter import Interpreter, tensors_only
from graphs import F32, Array, BatchNorm, Graph, wide
from harness import SHARED, run
from irc.passes.affine.records.source_affines import known_statistics
from irc.result import Result
from onnx import ModelProto, numpy_helper


def weights(model: ModelProto) -> dict[str, Array]:
    """The initializers of a model in float64, by name."""
    return {tensor.name: wide(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}


def imbalanced(graph: Graph, *shape: int, axis: int = 0) -> Array:
    """A weight whose ranges differ between the channels on `axis`."""
    view = [1] * len(shape)
    view[axis] = -1
    spread = 2.0 ** np.linspace(-4, 4, shape[axis])
    return np.asarray(graph.random(*shape) * spread.reshape(view)).astype(graph.dtype)


def activated(graph: Graph, x: str, how: str, channels: int = 4) -> str:
    """An activation behind `x`, or `x` itself where `how` is empty."""
    if how == "PRelu":
        slope = np.linspace(0.1, 0.4, channels).astype(graph.dtype).reshape(-1, 1, 1)
        return graph.node("PRelu", [x, graph.initializer(slope)])
    if how == "Relu6":
        return graph.node("Clip", [x, graph.initializer(0.0), graph.initializer(6.0)])
    return graph.node(how, [x]) if how else x


def values(model: ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every value of the main graph in float64."""
    return tensors_only(Interpreter(model, None).evaluate(inputs, keep=True))


def per_channel(array: Array, axis: int) -> tuple[Array, Array]:
    """Mean and standard deviation of each channel."""
    over = tuple(i for i in range(array.ndim) if i != axis)
    return wide(array).mean(axis=over), wide(array).std(axis=over)


def calibrated(graph: Graph, x: str, data: Mapping[str, Array], gamma: Array, beta: Array) -> str:
    """A BatchNormalization behind `x` with the statistics of `x` for `data`; tiny epsilon."""
    graph.outputs.clear()
    graph.output(x)
    found = values(graph.model(), data)[x]
    graph.outputs.clear()
    mean, std = per_channel(found, 1)
    params = BatchNorm(gamma, beta, mean, std**2, 1e-12)
    return graph.batch_norm(x, params.astype(graph.dtype, graph.dtype))


def assert_statistics_are_true(
    result: Result, data: Mapping[str, Array], tolerance: float = 1e-6
) -> int:
    """Every statistic fits the values of the emitted model; return how many there are."""
    found = values(result.model, data)
    known = known_statistics(result.module)
    for value, statistic in known.items():
        mean, std = per_channel(found[value.name], statistic.axis)
        unit = np.abs(mean) + std + 1e-30
        np.testing.assert_array_less(
            np.abs(statistic.mean - mean) / unit, tolerance, err_msg=value.name
        )
        np.testing.assert_array_less(
            np.abs(statistic.std - std) / unit, tolerance, err_msg=value.name
        )
    return len(known)


def digits(name: str) -> tuple[str, Array, Array]:
    """Return a trained model of the shared ones, and images with labels to test it on."""
    folder = SHARED / "digits"
    with np.load(folder / "data.npz") as data:
        return str(folder / f"{name}.onnx"), data["test_images"], data["test_labels"]


def logits(model: ModelProto, images: Array) -> Array:
    """What a model of digits makes of images, by onnxruntime."""
    (found,) = run(model, {"x": images}).values()
    return np.asarray(found)


def accuracy(model: ModelProto, images: Array, labels: Array) -> float:
    """The share of images of which the greatest logit is the right one."""
    return float((logits(model, images).argmax(axis=1) == labels).mean())


def quantize_weights(model: ModelProto) -> ModelProto:
    """The model with weights of layers rounded to int8, one symmetric scale for each tensor."""
    made = ModelProto()
    made.CopyFrom(model)
    read = {node.input[1] for node in made.graph.node if node.op_type in ("Conv", "Gemm")}
    for tensor in made.graph.initializer:
        if tensor.name in read:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(int8(array), tensor.name))
    return made


def int8(array: Array) -> Array:
    """Rounded to the multiples of max |W| / 127."""
    scale = np.float32(np.abs(array).max() / np.float32(127))
    rounded: Any = np.rint(array / scale) * scale
    return np.asarray(rounded).astype(F32)
