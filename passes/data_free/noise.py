"""Scales of channels that minimize the estimated noise of int8 quantization.

A tensor with one scale is rounded in steps of its greatest range over its levels, whatever the
channel. Let f_i be the factor that a rescaling applies to channel i of the tensor. Its rounding
then reaches the result of the last layer as

    noise = (max_i r_i f_i / levels)^2 sum_i c_i / f_i^2 ,

where r_i is the range of the channel and c_i the variance that noise of variance 1 in its elements
adds to the result, up to a factor that all tensors share. The f_i are products of powers of the
unknown scales, so the logarithm of the noise of all tensors together is convex in the logarithms of
the scales.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.record import Record
from ...ir.tensor import Array

WEIGHT_LEVELS = 127
"""Steps between 0 and the greatest magnitude of a weight in symmetric int8."""

REDUCED_LEVELS = 64
"""The same with 7 bits, of which two products with a byte fit into 16 bits."""

LEVELS = 255
"""Steps between the least and the greatest value of an activation in uint8."""

SHARPNESS = (4.0, 16.0, 64.0)
"""Exponents p of the norm that stands for the maximum; each starts from the result before."""

STEPS = 60
"""Most Newton steps for each exponent."""

HALVINGS = 12
"""Most halvings of one step."""

ENOUGH = 1e-4
"""Relative decrease of the noise at which a minimization ends."""

RIDGE = 1e-3
"""Curvature added, as a share of a mean channel's: it holds channels without noise."""

GRID = 64
"""Scales are rounded to 2^(k / GRID): the last digits of a minimum do not matter."""


class QuantizedTensor(Record):
    """A tensor that is quantized by one scale.

    `ranges` and `noise` [C] are r and c of its channels. `powers` are the powers of the unknown
    scales in the factor of a channel, -1 for a division.
    """

    ranges: Array
    noise: Array
    powers: tuple[int, ...]
    levels: int


def noise_gain(tensors: Sequence[QuantizedTensor], scales: Array) -> float:
    """Return the relative gain of the signal to noise ratio by `scales` [n, C]."""
    with np.errstate(all="ignore"):
        problem, x = _problem(tensors), np.log(scales)
        return problem.noise_at(np.zeros_like(x)) / problem.noise_at(x) - 1


def least_noise(tensors: Sequence[QuantizedTensor], start: Array) -> Array:
    """Return the scales [n, C] of least noise of all tensors, searched from `start` [n, C].

    Returns `start` if no better ones are found, or a number is infinite or not a number. O(C n^3)
    for each step.
    """
    with np.errstate(all="ignore"):
        problem, first = _problem(tensors), np.log(start)
        found = first
        for sharpness in SHARPNESS:
            found = problem.minimized(found, sharpness)
        if not np.isfinite(found).all() or not problem.noise_at(found) < problem.noise_at(first):
            return start
        # A factor that all channels share does not matter for the noise, but for the range of
        # numbers.
        found = found + (first - found).mean(axis=1, keepdims=True)
        return np.asarray(2.0 ** (np.rint(found / np.log(2) * GRID) / GRID))


def _problem(tensors: Sequence[QuantizedTensor]) -> _Problem:
    return _Problem(
        np.array([tensor.powers for tensor in tensors], np.float64),
        np.log([tensor.ranges for tensor in tensors]),
        np.array([np.maximum(tensor.noise, 0.0) for tensor in tensors]),
        np.log([tensor.levels for tensor in tensors]),
    )


class _Problem(Record):
    """The noise as a function of the logarithms x [n, C] of the scales, by tensor."""

    powers: Array
    ranges: Array
    coefficients: Array
    levels: Array

    def minimized(self, x: Array, sharpness: float) -> Array:
        """Return x after damped Newton steps, without the coupling of channels."""
        value, gradient, curvature = self.expanded(x, sharpness)
        for _ in range(STEPS):
            step = np.linalg.solve(curvature, gradient[..., None])[..., 0].T
            for halving in range(HALVINGS):
                tried = x - step / 2**halving
                following = self.expanded(tried, sharpness)
                if following[0] < value:
                    break
            else:
                return x
            gained = 1 - following[0] / value
            x, (value, gradient, curvature) = tried, following
            if gained < ENOUGH:
                break
        return x

    def expanded(self, x: Array, sharpness: float) -> tuple[float, Array, Array]:
        """Return the noise at x, and gradient [C, n] and curvature [C, n, n] of its logarithm."""
        moved = np.tensordot(self.powers, x, 1)
        scaled = self.ranges + moved
        top = scaled.max(axis=1, keepdims=True)
        shares = np.exp(sharpness * (scaled - top))
        total = shares.sum(axis=1, keepdims=True)
        shares /= total
        steps = top + np.log(total) / sharpness - self.levels[:, None]
        terms = self.coefficients * np.exp(2 * (steps - moved))
        sums = terms.sum(axis=1, keepdims=True)
        value = float(sums.sum())
        slope = 2 * (sums * shares - terms) / value
        bend = (4 * terms + 2 * sharpness * sums * shares) / value
        gradient = np.einsum("jc,jk->ck", slope, self.powers)
        curvature = np.einsum("jc,jk,jl->ckl", bend, self.powers, self.powers)
        return value, gradient, curvature + RIDGE / x.shape[1] * np.eye(len(x))

    def noise_at(self, x: Array) -> float:
        """Return the noise at x, with the true maxima."""
        moved = np.tensordot(self.powers, x, 1)
        steps = (self.ranges + moved).max(axis=1, keepdims=True) - self.levels[:, None]
        return float((self.coefficients * np.exp(2 * (steps - moved))).sum())
