"""Charts of numbers per channel."""

from __future__ import annotations

import numpy as np

from ...ir.tensor import Array
from .page_data import Chart

MAX_BARS = 256
"""Maximum number of bars of a chart; beyond it, several channels share a bar."""


def chart(low: Array, high: Array | None = None) -> Chart:
    """Return the chart of one number per channel (`low`), or of one range (`low` to `high`)."""
    lows = np.asarray(low, np.float64).ravel()
    highs = lows if high is None else np.asarray(high, np.float64).ravel()
    size = lows.size
    bars = min(size, MAX_BARS)
    finite = np.concatenate([lows[np.isfinite(lows)], highs[np.isfinite(highs)]])
    result: Chart = {
        "channels": size,
        "min": _rounded(finite.min()) if finite.size else None,
        "max": _rounded(finite.max()) if finite.size else None,
        "low": [],
    }
    nonfinite = int((~(np.isfinite(lows) & np.isfinite(highs))).sum())
    if nonfinite:
        result["nonfinite"] = nonfinite
    edges = np.linspace(0, size, bars + 1).astype(int)[:-1] if bars else np.zeros(0, int)
    result["low"] = [_rounded(x) for x in np.minimum.reduceat(lows, edges)] if bars else []
    if high is not None or bars < size:
        result["high"] = [_rounded(x) for x in np.maximum.reduceat(highs, edges)] if bars else []
    return result


def weight_chart(array: Array, axis: int, group: int) -> Chart | None:
    """Return the range of a weight per output channel; None if it has no such channels.

    Output channels stand along `axis`. Those of a grouped transposed convolution stand along axis 1
    within each group, and the groups along axis 0.
    """
    if not 0 <= axis < array.ndim or not array.size:
        return None
    if axis == 1 and group > 1:
        array = array.reshape(group, array.shape[0] // group, *array.shape[1:])
        array = np.moveaxis(array, 2, 1).reshape(group * array.shape[2], -1)
    else:
        array = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return chart(array.min(1), array.max(1))


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
