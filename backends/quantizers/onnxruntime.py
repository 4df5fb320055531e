"""onnxruntime's quantizer: ranges of activations in place of calibration data.

    to_calibration_cache(model, fold_map, input_ranges={"x": (0, 1)}).save("cache.json")
    quantize_static(copy.deepcopy(model), "int8.onnx", None, calibration_cache_path="cache.json")

`quantize_static` takes the cache from onnxruntime 1.27 on; before, there are the overrides of
`to_tensor_quant_overrides`. It moves the tensors of a ModelProto that it is given: give it a copy.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from ...support.files import replacing
from ..foldmap import FoldMap
from .ranges import SIGMAS, Range, activations


@dataclass(frozen=True, slots=True)
class CalibrationCache:
    """`document` is the calibration cache; activations in `missing` have no range, and would not be quantized."""

    document: dict[str, Any]
    missing: tuple[str, ...]

    def save(self, path: str | Path) -> None:
        """Write the cache as JSON. Raises EmitError where the file cannot be written."""
        with replacing(Path(path)) as target:
            target.write_text(json.dumps(self.document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Overrides:
    """`tensors` is what `extra_options["TensorQuantOverrides"]` takes; activations in `missing` have no range."""

    tensors: dict[str, list[dict[str, Any]]]
    missing: tuple[str, ...]


def to_calibration_cache(
    model: ModelProto,
    fold_map: FoldMap,
    *,
    input_ranges: Mapping[str, Range] | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
    op_types: Collection[str] | None = None,
) -> CalibrationCache:
    """The calibration cache of `quantize_static` with `calibrate_method=MinMax`, its default.

    `op_types` are its `op_types_to_quantize`, by default all; the other arguments are those of `activations`. Raises
    FoldMapError where the map does not describe the model, UsageError where nothing is known of a value that such an
    operator reads or makes, or a range is none.
    """
    found = activations(model, fold_map, input_ranges=input_ranges, ranges=ranges, sigmas=sigmas)
    found.require(_touched(model, op_types))
    data = {name: _tensor_data(*known.range) for name, known in found.known.items()}
    method = {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"}
    document = {"CLS": "TensorsData", "data": data, "calibration_method": method, "smooth_quant": False}
    return CalibrationCache(document, found.missing)


def to_tensor_quant_overrides(
    model: ModelProto,
    fold_map: FoldMap,
    *,
    input_ranges: Mapping[str, Range] | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
    op_types: Collection[str] | None = None,
) -> Overrides:
    """The ranges of `to_calibration_cache`, for `extra_options["TensorQuantOverrides"]`; it raises the same.

    `quantize_static` still runs its reader of calibration data, whose numbers count for nothing then.
    """
    found = activations(model, fold_map, input_ranges=input_ranges, ranges=ranges, sigmas=sigmas)
    found.require(_touched(model, op_types))
    return Overrides({name: [_override(*known.range)] for name, known in found.known.items()}, found.missing)


def _override(low: float, high: float) -> dict[str, Any]:
    return {"rmin": np.float32(low), "rmax": np.float32(high)}


def _tensor_data(low: float, high: float) -> dict[str, Any]:
    return {
        key: {"data": float(np.float32(end)), "dtype": "float32", "CLS": "numpy.array"}
        for key, end in (("lowest", low), ("highest", high))
    } | {"CLS": "TensorData"}


def _touched(model: ModelProto, op_types: Collection[str] | None) -> set[str]:
    """The values that operators to be quantized read or make."""
    if not op_types:
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        op_types = {*QDQRegistry, *QLinearOpsRegistry}
    nodes = [node for node in model.graph.node if node.op_type in op_types]
    return {name for node in nodes for name in (*node.input, *node.output)}
