"""onnxruntime's `quantize_static` with ranges from the fold map in place of data."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from irc.backends.quantizers.onnxruntime import to_calibration_cache, to_tensor_quant_overrides
from irc.support.errors import UsageError
from onnx import ModelProto
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from onnxruntime.quantization.calibrate import CalibrationMethod, load_tensors_data

from quantizers.nets import EQUALIZED, Array, Digits, digits

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(
        tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27),
        reason=(
            "quantize_static takes no calibration cache before onnxruntime 1.27: make"
            " test-quantizers"
        ),
    ),
]

NETS = ["relu", "relu_imbalanced"]


class Reader(CalibrationDataReader):
    """Batches of calibration data."""

    def __init__(self, batches: Iterable[Array]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> Any:
        batch = next(self._batches, None)
        return None if batch is None else {"x": batch}


def quantized(net: Digits, folder: Path, reader: Reader | None, **options: Any) -> ModelProto:
    target = folder / "int8.onnx"
    quantize_static(copy.deepcopy(net.result.model), target, reader, **options)
    return onnx.load(target)


@pytest.mark.parametrize("name", NETS)
def test_without_data(name: str, tmp_path: Path, record_property: Any) -> None:
    net = digits(name)
    cache = to_calibration_cache(
        net.result.model, net.result.fold_map, input_ranges=net.input_ranges
    )
    assert cache.missing == ()
    cache.save(tmp_path / "cache.json")
    before = (tmp_path / "cache.json").read_bytes()
    free = quantized(net, tmp_path, None, calibration_cache_path=tmp_path / "cache.json")
    assert (tmp_path / "cache.json").read_bytes() == before
    calibrated = quantized(net, tmp_path, Reader([net.calibration]))
    assert [node.op_type for node in free.graph.node] == [
        node.op_type for node in calibrated.graph.node
    ]
    accuracy = [net.accuracy(model) for model in (free, calibrated)]
    record_property(
        "compared",
        f"onnxruntime, {name}: {accuracy[0]:.4f} without data, {accuracy[1]:.4f} with data",
    )
    assert accuracy[0] > accuracy[1] - 0.02


@pytest.mark.parametrize("name", NETS)
def test_overrides_are_the_cache(name: str, tmp_path: Path) -> None:
    net = digits(name)
    arguments = (net.result.model, net.result.fold_map)
    to_calibration_cache(*arguments, input_ranges=net.input_ranges).save(tmp_path / "cache.json")
    overrides = to_tensor_quant_overrides(*arguments, input_ranges=net.input_ranges)
    blank = Reader([np.zeros_like(net.calibration[:1])])
    found = quantized(
        net, tmp_path, blank, extra_options={"TensorQuantOverrides": overrides.tensors}
    )
    expected = quantized(net, tmp_path, None, calibration_cache_path=tmp_path / "cache.json")
    assert found == expected


def test_equalized_by_irc(tmp_path: Path, record_property: Any) -> None:
    net = digits("relu_imbalanced", EQUALIZED)
    cache = to_calibration_cache(
        net.result.model, net.result.fold_map, input_ranges=net.input_ranges
    )
    cache.save(tmp_path / "cache.json")
    accuracy = net.accuracy(
        quantized(net, tmp_path, None, calibration_cache_path=tmp_path / "cache.json")
    )
    record_property(
        "compared", f"onnxruntime, relu_imbalanced equalized: {accuracy:.4f} without data"
    )
    assert accuracy > 0.97


def test_the_cache_reads_back(tmp_path: Path) -> None:
    net = digits("relu")
    cache = to_calibration_cache(
        net.result.model, net.result.fold_map, input_ranges={"x": (-1, 2.1)}
    )
    cache.save(tmp_path / "cache.json")
    found = load_tensors_data(tmp_path / "cache.json")
    assert found.calibration_method == CalibrationMethod.MinMax
    assert found["x"].range_value == (np.float32(-1), np.float32(2.1))
    assert all(end.dtype == np.float32 for data in found.values() for end in data.range_value)
    assert json.loads((tmp_path / "cache.json").read_text()) == cache.document


def test_the_input_has_to_be_given() -> None:
    net = digits("relu")
    with pytest.raises(
        UsageError, match=r"give the range of input 'x'.*: --input-range x=LOW:HIGH"
    ):
        to_calibration_cache(net.result.model, net.result.fold_map)
    cache = to_calibration_cache(net.result.model, net.result.fold_map, op_types=["Gemm"])
    assert cache.missing == ("x",)
