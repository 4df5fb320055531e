"""onnxruntime's quantizer: ranges of activations instead of calibration data.

    to_calibration_cache(model, fold_map, input_ranges={"x": (0, 1)}).save("cache.json")
    quantize_static(copy.deepcopy(model), "int8.onnx", None, calibration_cache_path="cache.json")

`quantize_static` takes a cache since onnxruntime 1.27; older versions take
`to_tensor_quant_overrides`. It changes the ModelProto that it is given, so pass a copy.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from ...support.extras import needing
from ...support.files import replacing
from ..foldmap.fold_map import FoldMap
from .ranges import SIGMAS, Activations, Range, activations


@dataclass(frozen=True, slots=True)
class CalibrationCache:
    """A calibration cache (`document`), and the activations without a range (`missing`).

    These are not quantized. The ranges of `guessed` activations are guesses: pass `ranges` where
    you know better.
    """

    document: dict[str, object]
    missing: tuple[str, ...]
    guessed: tuple[str, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write the cache as JSON; raise EmitError if the file cannot be written."""
        with replacing(Path(path)) as target:
            target.write_text(
                json.dumps(self.document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )


@dataclass(frozen=True, slots=True)
class Overrides:
    """The value of `extra_options["TensorQuantOverrides"]` (`tensors`).

    Activations in `missing` have no range. The ranges of `guessed` activations are guesses: pass
    `ranges` where you know better.
    """

    tensors: dict[str, list[dict[str, np.floating[Any]]]]
    missing: tuple[str, ...]
    guessed: tuple[str, ...] = ()


def to_calibration_cache(
    model: ModelProto,
    fold_map: FoldMap,
    *,
    input_ranges: Mapping[str, Range] | Range | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
    op_types: Collection[str] | None = None,
) -> CalibrationCache:
    """Return the calibration cache of `quantize_static` for its default method, MinMax.

    `op_types` are its `op_types_to_quantize`, by default all; the other arguments are as for
    `activations`. Raises FoldMapError if the map does not describe the model, UsageError for an
    invalid range and if nothing is known of a value that such an operator reads or writes.
    """
    found = activations(model, fold_map, input_ranges=input_ranges, ranges=ranges, sigmas=sigmas)
    found.require(_quantized_values(model, op_types))
    return cache_of(found)


def cache_of(found: Activations) -> CalibrationCache:
    """Return the calibration cache of all ranges that are known."""
    data = {
        name: _tensor_data(*known.range, found.scale_dtype(name))
        for name, known in found.known.items()
    }
    method = {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"}
    document = {
        "CLS": "TensorsData",
        "data": data,
        "calibration_method": method,
        "smooth_quant": False,
    }
    return CalibrationCache(document, found.missing, found.guessed)


def to_tensor_quant_overrides(
    model: ModelProto,
    fold_map: FoldMap,
    *,
    input_ranges: Mapping[str, Range] | Range | None = None,
    ranges: Mapping[str, Range] | None = None,
    sigmas: float = SIGMAS,
    op_types: Collection[str] | None = None,
) -> Overrides:
    """Return the ranges of `to_calibration_cache` for `extra_options["TensorQuantOverrides"]`.

    `quantize_static` still runs its calibration data reader, but ignores the numbers. Raises as
    `to_calibration_cache`.
    """
    found = activations(model, fold_map, input_ranges=input_ranges, ranges=ranges, sigmas=sigmas)
    found.require(_quantized_values(model, op_types))
    tensors = {
        name: [override(*known.range, found.scale_dtype(name))]
        for name, known in found.known.items()
    }
    return Overrides(tensors, found.missing, found.guessed)


def override(low: float, high: float, dtype: np.dtype[Any]) -> dict[str, np.floating[Any]]:
    """Return the entry of a range in `TensorQuantOverrides`, in the type of the tensor.

    Quantizers copy it.
    """
    return {"rmin": _finite(low, dtype), "rmax": _finite(high, dtype)}


def _tensor_data(low: float, high: float, dtype: np.dtype[Any]) -> dict[str, object]:
    return {
        key: {"data": float(_finite(end, dtype)), "dtype": dtype.name, "CLS": "numpy.array"}
        for key, end in (("lowest", low), ("highest", high))
    } | {"CLS": "TensorData"}


def _finite(end: float, dtype: np.dtype[Any]) -> np.floating[Any]:
    """Return an end of a range in the type of a tensor, which has no greater numbers."""
    limits = np.finfo(dtype)
    found: np.floating[Any] = dtype.type(np.clip(end, limits.min, limits.max))
    return found


def _quantized_values(model: ModelProto, op_types: Collection[str] | None) -> set[str]:
    """Return the values that operators to be quantized read or write."""
    op_types = op_types or quantizable_types()
    nodes = [node for node in model.graph.node if node.op_type in op_types]
    return {name for node in nodes for name in (*node.input, *node.output)}


def quantizable_types() -> frozenset[str]:
    """Return the operators that `quantize_static` quantizes by default."""
    with needing("quantize"):
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    return frozenset([*QDQRegistry, *QLinearOpsRegistry])
