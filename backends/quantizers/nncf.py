"""NNCF: the statistics of its post-training quantization, without a data set.

    prepared = apply_preprocess_passes(copy.deepcopy(model))
    graph = GraphConverter.create_nncf_graph(prepared)
    algorithm = PostTrainingQuantization()
    points = algorithm.get_statistic_points(prepared, graph)
    fill_statistic_points(points, graph, model, fold_map, input_ranges={"x": (0, 1)})
    quantized = algorithm.apply(prepared, graph, points)

`nncf.quantize` takes these steps with a data set. None of them is public in NNCF; they were tested
with 3.4.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from ...ir.tensor import Array
from ...ir.types import Shape
from ...support.errors import UsageError
from ..foldmap.fold_map import FoldMap
from .ranges import SIGMAS, Activation, Activations, Range, activations

Request = tuple[Any, Any]
"""A target point of NNCF and the collector of its statistic."""

NAN = np.array(np.nan)
"""Replaces an unknown mean: NNCF drops a correction unless it is below a threshold. NaN is not."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Activations without a range (`missing`), and nodes with an `uncorrected` bias.

    NNCF asked for no range of `missing` activations. A bias stays uncorrected if the mean of the
    node's data or of its result is not known. The ranges of `guessed` activations are guesses: pass
    `ranges` if you know better.
    """

    missing: tuple[str, ...]
    uncorrected: tuple[str, ...]
    guessed: tuple[str, ...] = ()


def fill_statistic_points(
    points: Any,
    graph: Any,
    model: ModelProto,
    fold_map: FoldMap,
    *,
    input_ranges: Mapping[str, Range] | Range | None = None,
    input_means: Mapping[str, Array | float] | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
) -> Filled:
    """Fill the statistic `points` of NNCF for the folded `model`.

    They come from `PostTrainingQuantization.get_statistic_points`. `graph` is the NNCFGraph of the
    model. `input_means` are the means of graph inputs, [C] along axis 1 or []; they are needed to
    correct the bias of layers that read graph inputs. The other arguments are as for `activations`.
    Raises FoldMapError if the map does not describe the model; UsageError if nothing is known of a
    value that NNCF quantizes, for an invalid range, and for a statistic that no BatchNormalization
    keeps, such as a histogram.
    """
    found = activations(model, fold_map, input_ranges=input_ranges, ranges=ranges, sigmas=sigmas)
    tensors = _Tensors(model, graph)
    weights, spans, means = _sort_requests(points)
    found.require({tensors.read_or_made(target) for target, _ in spans})
    for target, collector in weights:
        _observe(collector, tensors.weight(target))
    for target, collector in spans:
        name = tensors.read_or_made(target)
        _set_span(collector, found.known[name], _extents(found.shapes[name]))
    uncorrected = []
    for node, asked in means.items():
        (source,) = (target for target, _ in asked if not _is_result(target))
        name = tensors.read_or_made(source)
        data = _average(name, found, input_means or {})
        if data is None:
            uncorrected.append(node)
        for target, collector in asked:
            if data is None:
                array = _spread(NAN, None, _extents(found.shapes[tensors.read_or_made(target)]))
            elif target is source:
                array = data
            else:
                array = tensors.result(target, name, data)
            _observe(collector, array)
    return Filled(found.missing, tuple(uncorrected), found.guessed)


def _sort_requests(points: Any) -> tuple[list[Request], list[Request], dict[str, list[Request]]]:
    """Return the requests for weights, for extremes of activations, and for means by node name."""
    weights: list[Request] = []
    spans: list[Request] = []
    means: dict[str, list[Request]] = {}
    for _, point, collector in points.get_tensor_collectors():
        kinds = {type(reducer).__name__ for reducer in collector.reducers}
        request = (point.target_point, collector)
        if point.target_point.is_weight_target_point():
            weights.append(request)
        elif "ShapeReducer" in kinds:
            means.setdefault(point.target_point.target_node_name, []).append(request)
        elif "RawReducer" not in kinds:
            spans.append(request)
        else:
            raise UsageError(
                "NNCF asks for a statistic that no BatchNormalization keeps:"
                f" {', '.join(sorted(kinds))}"
            )
    return weights, spans, means


class _Tensors:
    """The tensors that target points refer to."""

    def __init__(self, model: ModelProto, graph: Any) -> None:
        from nncf.onnx.graph.node_utils import get_input_edges_mapping

        self._nodes = {node.name: node for node in model.graph.node}
        self._opsets, self._ir_version = model.opset_import, model.ir_version
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self._readers: dict[str, list[tuple[str, int]]] = get_input_edges_mapping(graph)

    def read_or_made(self, target: Any) -> str:
        """Return the name of the activation that the node of a target point reads or writes."""
        name, port = target.target_node_name, target.port_id
        if name in self._readers:
            name, port = self._readers[name][0]
            return str(self._nodes[name].input[port])
        node = self._nodes[name]
        return str((node.output if _is_result(target) else node.input)[port])

    def weight(self, target: Any) -> Array:
        """Return the elements of a weight; raise UsageError if it is not an initializer."""
        name = self._nodes[target.target_node_name].input[target.port_id]
        if name not in self._initializers:
            raise UsageError(f"the weight {name!r} is not an initializer")
        return numpy_helper.to_array(self._initializers[name])

    def result(self, target: Any, source: str, data: Array) -> Array:
        """Return what the layer of a target point computes of `data` for `source`, in float.

        NNCF subtracts what the quantized layer computes of the same data, so that the difference is
        the error of the weights. The mean of the BatchNormalization would add how far the mean of
        the data is off.
        """
        from nncf.onnx.engine import ONNXEngine

        node = self._nodes[target.target_node_name]
        result = node.output[0]
        constants = [self._initializers[name] for name in node.input if name in self._initializers]
        element = helper.np_dtype_to_tensor_dtype(data.dtype)
        graph = helper.make_graph(
            [node],
            "layer",
            [helper.make_tensor_value_info(source, element, data.shape)],
            [helper.make_tensor_value_info(result, element, None)],
            constants,
        )
        layer = helper.make_model(graph, opset_imports=self._opsets, ir_version=self._ir_version)
        return np.asarray(ONNXEngine(layer).infer({source: data})[result])


def _is_result(target: Any) -> bool:
    from nncf.common.graph.transformations.commands import TargetType

    return bool(target.type == TargetType.POST_LAYER_OPERATION)


def _tensor(array: Array) -> Any:
    from nncf.tensor import Tensor

    return Tensor(array)


def _observe(collector: Any, array: Array) -> None:
    """Pass one tensor to a collector."""
    collector.register_input_for_all_reducers(_tensor(array))


def _extents(shape: Shape) -> list[int]:
    """Return a shape with 1 for every unknown extent."""
    return [extent if isinstance(extent, int) else 1 for extent in shape or ()]


def _spread(channels: Array, axis: int | None, extents: Sequence[int]) -> Array:
    """Return a float32 tensor that holds in each element the number of its channel."""
    if axis is not None and channels.ndim:
        channels = channels.reshape(
            [-1 if i == axis % len(extents) else 1 for i in range(len(extents))]
        )
    return np.broadcast_to(channels, extents).astype(np.float32)


def _set_span(collector: Any, known: Activation, extents: Sequence[int]) -> None:
    """Set minimum and maximum in the shape to which the collector would reduce a tensor."""
    from nncf.common.tensor_statistics.statistics import MinMaxTensorStatistic

    low, high = (_spread(end, known.axis, extents) for end in (known.low, known.high))
    kept = next(iter(collector.reducers))([_tensor(low)])[0].shape
    gone = tuple(axis for axis, extent in enumerate(kept) if extent == 1)
    ends = low.min(axis=gone, keepdims=True), high.max(axis=gone, keepdims=True)
    collector.set_cache(MinMaxTensorStatistic(*map(_tensor, ends)))


def _average(
    name: str, found: Activations, input_means: Mapping[str, Array | float]
) -> Array | None:
    """Return a tensor that holds in each element the mean of its channel, None if it is unknown.

    Raises UsageError if an extent other than the first is not known.
    """
    shape, known = found.shapes[name], found.known.get(name)
    if not shape or not all(isinstance(extent, int) for extent in shape[1:]):
        raise UsageError(
            f"the shape of {name!r} is not known, but NNCF's bias correction needs it: fix the"
            " shapes of the model's inputs, or pass AdvancedQuantizationParameters("
            "disable_bias_correction=True) to PostTrainingQuantization"
        )
    mean, axis = (None, None) if known is None else (known.mean, known.mean_axis)
    if name in input_means:
        mean, axis = np.asarray(input_means[name], np.float64), 1
    return None if mean is None else _spread(mean, axis, _extents(shape))
