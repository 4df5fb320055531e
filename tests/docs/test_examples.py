"""The demonstration of quantization, on the images that are in the repository."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import harness
import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27),
    reason="quantize_static takes no calibration cache before onnxruntime 1.27",
)


@pytest.fixture(scope="module")
def quantize() -> ModuleType:
    return harness.script(harness.ROOT / "examples" / "quantize.py")


@pytest.fixture
def samples(quantize: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example network on the samples, whether scikit-learn is there or not."""
    monkeypatch.setitem(sys.modules, "digits_data", None)
    return quantize.example_task()


def assert_equalization_helps(quantize: ModuleType, task: Any, allowed: float) -> str:
    float32, (balanced, naive, *prepared, stale) = quantize.measure(task)
    assert stale.data is None
    assert stale.free.accuracy < float32.accuracy - 50
    for way in ("data", "free"):
        lost = [
            float32.accuracy - getattr(row, way).accuracy for row in (balanced, naive, *prepared)
        ]
        assert lost[1] > 50
        assert max(lost[0], *lost[2:]) <= allowed
    return (
        f"{task.about}: FP32 {float32.accuracy:.2f}, naive {naive.data.accuracy:.2f}, "
        + ", ".join(
            f"{row.name[2:]} {row.data.accuracy:.2f} / {row.free.accuracy:.2f}" for row in prepared
        )
    )


def test_the_imbalance_changes_no_bit(quantize: ModuleType, samples: Any) -> None:
    expected, found = (
        quantize.scores(model, samples.images) for model in (samples.balanced, samples.model)
    )
    assert np.array_equal(expected, found)
    assert samples.balanced != samples.model


def test_int8_comes_back_on_the_samples(
    quantize: ModuleType, samples: Any, record_property: Any
) -> None:
    assert len(samples.images) == len(samples.calibration) == 30
    record_property("compared", assert_equalization_helps(quantize, samples, samples.one))


@pytest.mark.shared
@pytest.mark.slow
def test_int8_comes_back_on_the_shared_network(quantize: ModuleType, record_property: Any) -> None:
    record_property("compared", assert_equalization_helps(quantize, quantize.shared_task(), 1.0))


@pytest.mark.parametrize("step", ["naive", "+ equalization"])
def test_the_channels_said_to_be_lost_are_zeros(
    quantize: ModuleType, samples: Any, step: str
) -> None:
    result = quantize.compiled(samples.model, quantize.STEPS[step])
    int8 = quantize.quantized(samples, result, data=False)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in int8.graph.initializer}
    found = quantize.layers(result.model)
    zeros = []
    for node in result.model.graph.node:
        if node.op_type in quantize.LAYERS:
            channels = np.moveaxis(
                weights[f"{node.input[1]}_quantized"], quantize.result_axis(node), 0
            )
            zeros.append(
                (int((channels == 0).reshape(len(channels), -1).all(1).sum()), len(channels))
            )
    assert [quantize.counted(layer) for layer in found] == zeros
    assert (sum(lost for lost, _ in zeros) > 0) == (step == "naive")


def test_the_picture_is_drawn(quantize: ModuleType, samples: Any, tmp_path: Path) -> None:
    pytest.importorskip(
        "matplotlib", reason="matplotlib is missing: make demo-quantize has it in its environment"
    )
    found = quantize.layers(quantize.compiled(samples.model).model)
    png, svg = quantize.picture(found, found, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text(encoding="utf-8")
