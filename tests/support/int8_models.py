"""Models that are quantized by tests, and the numbers of the results."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from graphs import Array
from onnx import ModelProto
from quantizers.nets import Chain

NEEDS_RANGES = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27),
    reason="quantize_static takes no ranges before onnxruntime 1.27",
)


def three_layers() -> Chain:
    """Three layers with the statistics of their own data, normal numbers."""
    found = Chain()
    found.layer("a", 8, kernel=3, pad=1)
    found.layer("b", 8, kernel=3, pad=1, group=8)
    found.layer("c", 6)
    return found


def sqnr(expected: Array, found: Array) -> float:
    """The signal-to-noise ratio in dB, infinite without noise."""
    expected, found = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(np.square(expected).sum() / np.square(found - expected).sum()))


def optimized(model: ModelProto, feeds: dict[str, Array]) -> Array:
    """The first result as users get it, with the integer kernels of onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, feeds)[0])
