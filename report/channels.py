"""Numbers per channel for the page's charts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.tensor import Array

MAX_BARS = 256
"""A chart has no more bars than this; of more channels, several share one."""


def chart(low: Array, high: Array | None = None) -> dict[str, Any]:
    """Numbers per channel, or their ranges: `channels`, their `min` and `max`, and for every bar `low` and `high`.

    What is not finite is None, and `nonfinite` counts it. `high` is left out where it equals `low`.
    """
    lows = np.asarray(low, np.float64).ravel()
    highs = lows if high is None else np.asarray(high, np.float64).ravel()
    size = lows.size
    bars = min(size, MAX_BARS)
    finite = np.concatenate([lows[np.isfinite(lows)], highs[np.isfinite(highs)]])
    result: dict[str, Any] = {
        "channels": size,
        "min": _number(finite.min()) if finite.size else None,
        "max": _number(finite.max()) if finite.size else None,
    }
    nonfinite = int((~(np.isfinite(lows) & np.isfinite(highs))).sum())
    if nonfinite:
        result["nonfinite"] = nonfinite
    edges = np.linspace(0, size, bars + 1).astype(int)[:-1] if bars else np.zeros(0, int)
    result["low"] = [_number(x) for x in np.minimum.reduceat(lows, edges)] if bars else []
    if high is not None or bars < size:
        result["high"] = [_number(x) for x in np.maximum.reduceat(highs, edges)] if bars else []
    return result


def weight_chart(array: Array, axis: int, group: int) -> dict[str, Any] | None:
    """The range of a weight in every output channel, which stand along `axis`; grouped ones along it and axis 0."""
    if not 0 <= axis < array.ndim or not array.size:
        return None
    if axis == 1 and group > 1:
        array = array.reshape(group, array.shape[0] // group, *array.shape[1:])
        array = np.moveaxis(array, 2, 1).reshape(group * array.shape[2], -1)
    else:
        array = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return chart(array.min(1), array.max(1))


def _number(value: Any) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
