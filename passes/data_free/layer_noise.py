"""The tensors of layers in a row as they are quantized, and their noise in the last result.

The layers k = 0 .. n have channels in common: between two layers no channels mix, and a layer
between the first and the last is depthwise. Noise in one channel adds up over the weights that read
it, and an activation passes it if its data are not cut off. Channels, positions and weights are
taken as independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from ...ir.graph import Value
from ...ir.tensor import Array
from .gaussian import below
from .linear import Linear
from .moments import Moments
from .noise import LEVELS, WEIGHT_LEVELS, QuantizedTensor

LEAST_SHARE = 1e-2
"""Least share of results that pass an activation: true distributions have longer tails."""


def quantized_tensors(
    layers: Sequence[Linear],
    ranges: Sequence[Array],
    moments: Mapping[Value, Moments],
    levels: int = WEIGHT_LEVELS,
) -> list[QuantizedTensor] | None:
    """Return the weights of `layers` and the data between them, if their moments are known.

    `ranges` are the greatest magnitudes [C] of the weights by channel, `levels` is the greatest
    integer of a weight. Unknown k is the divisor of
    the channels between layer k and layer k + 1. Data of the first layer that are not known have
    the mean square 1.
    """
    data = [_known(layer, moments) for layer in layers]
    last = len(layers) - 1
    squares = [
        np.ones(layer.channels) if m is None else m.mean**2 + m.std**2
        for layer, m in zip(layers, data, strict=True)
    ]
    found: list[QuantizedTensor] = []
    noise, gain = (
        layers[last].over_results(np.ones_like(layers[last].weight)) * squares[last],
        np.ones(()),
    )
    for k in range(last, -1, -1):
        layer, read = layers[k], data[k]
        powers = [(j == k - 1) - (j == k) for j in range(last)]
        found.append(QuantizedTensor(ranges[k], noise, tuple(powers), levels))
        if k == 0:
            return found
        if read is None:
            return None
        # What noise in a channel of the data adds to the result, and noise in the same channel of
        # the layer before it.
        gain = layer.over_results(layer.weight**2) * gain
        span = np.maximum(read.high, 0.0) - np.minimum(read.low, 0.0)
        found.append(
            QuantizedTensor(span, gain, tuple(-int(j == k - 1) for j in range(last)), LEVELS)
        )
        before = layers[k - 1]
        gain = gain * _passed(moments.get(before.node.output), read)
        noise = _response(before, squares[k - 1]) * gain
    return None


def _response(layer: Linear, square: Array) -> Array:
    """Return the variance [M] of results for noise of variance 1 in the weights."""
    noisy = replace(layer, weight=np.ones_like(layer.weight))
    return np.asarray(
        np.mean([variance for _, variance in noisy.phases(np.zeros_like(square), square)], axis=0)
    )


def _known(layer: Linear, moments: Mapping[Value, Moments]) -> Moments | None:
    known = moments.get(layer.data)
    if known is not None and known.has_mean and layer.accepts(known.axis, known.mean):
        return known
    return None


def _passed(result: Moments | None, read: Moments) -> Array | float:
    """Return the share of results, by channel, in the range that the next layer reads."""
    if result is None or not result.has_mean or result.mean.shape != read.mean.shape:
        return 1.0
    unit = np.where(result.std > 0, result.std, 1.0)
    share = below((read.high - result.mean) / unit) - below((read.low - result.mean) / unit)
    return np.asarray(np.maximum(share, LEAST_SHARE))
