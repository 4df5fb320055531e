"""Export a fold map as documents that quantizers read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnx import ModelProto

from ...ir.tensor import Array
from ..foldmap.fold_map import FoldMap
from .aimet import layer_affines, to_aimet_encodings
from .onnxruntime import to_calibration_cache, to_tensor_quant_overrides
from .ranges import Range, activations
from .tensorrt import to_tensorrt_cache

Ranges = Mapping[str, Range]
InputRanges = Ranges | Range
Document = Mapping[str, object] | str
"""A JSON document, or the text of another format."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A document, the layers or tensors that it lacks, and those with a guessed range."""

    document: Document
    missing: tuple[str, ...]
    guessed: tuple[str, ...] = ()


Exporter = Callable[[ModelProto, FoldMap, InputRanges, Ranges, float], Exported]
"""Exports from a folded model, its map, ranges of inputs and other values, and deviations.

The last number says how many standard deviations a range covers.
"""


def aimet(
    model: ModelProto, fold_map: FoldMap, inputs: InputRanges, ranges: Ranges, sigmas: float
) -> Exported:
    """Export gamma and beta by node name, for `BNLayer(None, gamma, beta)`.

    Layers that feed zero padding are left out.
    """
    found = layer_affines(model, fold_map)
    document = {
        name: {"gamma": known.gamma.tolist(), "beta": known.beta.tolist()}
        for name, known in found.layers.items()
    }
    return Exported(document, (*found.missing, *found.inexact))


def aimet_encodings(
    model: ModelProto, fold_map: FoldMap, inputs: InputRanges, ranges: Ranges, sigmas: float
) -> Exported:
    """Export encodings 1.0.0 of activations, for `load_encodings_to_sim`."""
    found = to_aimet_encodings(model, fold_map, input_ranges=inputs, ranges=ranges, sigmas=sigmas)
    return Exported(found.document, found.missing, found.guessed)


def aimet_encodings_0_6_1(
    model: ModelProto, fold_map: FoldMap, inputs: InputRanges, ranges: Ranges, sigmas: float
) -> Exported:
    """Export encodings 0.6.1 of activations, for Qualcomm's `--quantization_overrides`."""
    found = to_aimet_encodings(
        model, fold_map, input_ranges=inputs, ranges=ranges, sigmas=sigmas, version="0.6.1"
    )
    return Exported(found.document, found.missing, found.guessed)


def tensorrt(
    model: ModelProto, fold_map: FoldMap, inputs: InputRanges, ranges: Ranges, sigmas: float
) -> Exported:
    """Export TensorRT's calibration cache."""
    found = to_tensorrt_cache(model, fold_map, input_ranges=inputs, ranges=ranges, sigmas=sigmas)
    return Exported(found.text, found.missing, found.guessed)


def ort_calibration(
    model: ModelProto, fold_map: FoldMap, inputs: InputRanges, ranges: Ranges, sigmas: float
) -> Exported:
    """Export the calibration cache of onnxruntime's `quantize_static`."""
    found = to_calibration_cache(model, fold_map, input_ranges=inputs, ranges=ranges, sigmas=sigmas)
    return Exported(found.document, found.missing, found.guessed)


def ort_overrides(
    model: ModelProto, fold_map: FoldMap, inputs: InputRanges, ranges: Ranges, sigmas: float
) -> Exported:
    """Export onnxruntime's `TensorQuantOverrides`."""
    found = to_tensor_quant_overrides(
        model, fold_map, input_ranges=inputs, ranges=ranges, sigmas=sigmas
    )
    plain = {
        name: [{key: float(value) for key, value in entry.items()} for entry in entries]
        for name, entries in found.tensors.items()
    }
    return Exported(plain, found.missing, found.guessed)


def nncf(
    model: ModelProto, fold_map: FoldMap, inputs: InputRanges, ranges: Ranges, sigmas: float
) -> Exported:
    """Export minimum, maximum, mean and origin by tensor, for NNCF's statistics.

    These are MinMaxTensorStatistic and MeanTensorStatistic.
    """
    found = activations(model, fold_map, input_ranges=inputs, ranges=ranges, sigmas=sigmas)
    document = {
        name: {
            "min_values": known.low.tolist(),
            "max_values": known.high.tolist(),
            "axis": known.axis,
            "mean_values": _list(known.mean),
            "mean_axis": known.mean_axis,
            "origin": known.origin,
        }
        for name, known in found.known.items()
    }
    return Exported(document, found.missing, found.guessed)


def ranges_by_name(
    model: ModelProto, fold_map: FoldMap, inputs: InputRanges, ranges: Ranges, sigmas: float
) -> Exported:
    """Export the range of every tensor, and its origin."""
    found = activations(model, fold_map, input_ranges=inputs, ranges=ranges, sigmas=sigmas)
    document = {
        name: {"low": known.range[0], "high": known.range[1], "origin": known.origin}
        for name, known in found.known.items()
    }
    return Exported(document, found.missing, found.guessed)


def _list(array: Array | None) -> list[float] | None:
    return None if array is None else list(array.tolist())


EXPORTERS: dict[str, Exporter] = {
    "aimet": aimet,
    "aimet-encodings": aimet_encodings,
    "aimet-encodings-0.6.1": aimet_encodings_0_6_1,
    "ort-calibration": ort_calibration,
    "ort-overrides": ort_overrides,
    "nncf": nncf,
    "tensorrt": tensorrt,
    "ranges": ranges_by_name,
}
"""The exporters by their names on the command line."""
