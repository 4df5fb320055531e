"""Mean and standard deviation of functions of a normal variable, elementwise over arrays."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...ir.tensor import Array

MeanAndStd = tuple[Array, Array]
"""Mean and standard deviation: two float64 arrays of one shape."""

NODES = 64
"""Points of the Gauss-Hermite quadrature, exact for polynomials up to degree 127."""

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def density(x: Array) -> Array:
    """Return the density of the standard normal distribution, 0 at infinity."""
    return np.asarray(np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


def below(x: Array) -> Array:
    """Return P(X <= x) of the standard normal distribution."""
    return np.asarray(0.5 * _erfc(-x / math.sqrt(2)))


def clipped(mean: Array, std: Array, low: Array | float, high: Array | float) -> MeanAndStd:
    """Return mean and deviation of a clipped normal variable (Nagel et al. 2019, appendix C).

    Let a = (low - mean) / std and b = (high - mean) / std. The mean is mean + std (phi(a) - phi(b)
    + a Phi(a) + b (1 - Phi(b))). The second moment around the mean of the variable is std^2 (Phi(b)
    - Phi(a) + a phi(a) - b phi(b) + a^2 Phi(a) + b^2 (1 - Phi(b))).
    """
    unit = np.where(std > 0, std, 1.0)
    a, b = (low - mean) / unit, (high - mean) / unit
    # The products with a and b below have the limit 0 at infinity, if the product of the factors
    # would be NaN.
    tails = (np.where(np.isfinite(a), a, 0.0), np.where(np.isfinite(b), b, 0.0))
    under, over = below(a), below(-b)
    first = density(a) - density(b) + tails[0] * under + tails[1] * over
    inside = 1 - under - over + tails[0] * density(a) - tails[1] * density(b)
    second = inside + tails[0] ** 2 * under + tails[1] ** 2 * over
    spread = np.sqrt(np.maximum(second - first * first, 0.0))
    moved = np.clip(mean + unit * first, low, high)
    return np.where(std > 0, moved, np.clip(mean, low, high)), np.where(std > 0, unit * spread, 0.0)


def leaky(mean: Array, std: Array, slope: Array | float) -> MeanAndStd:
    """Return mean and deviation of max(x, 0) + slope * min(x, 0).

    One of the two terms is always zero, so the second moments add up without a mixed term.
    """
    (up, wide), (down, narrow) = clipped(mean, std, 0.0, np.inf), clipped(-mean, std, 0.0, np.inf)
    total = up - slope * down
    square = wide**2 + up**2 + slope**2 * (narrow**2 + down**2)
    return total, np.sqrt(np.maximum(square - total**2, 0.0))


def transformed(mean: Array, std: Array, function: Callable[[Array], Array]) -> MeanAndStd:
    """Return mean and deviation of function(x), by Gauss-Hermite quadrature."""
    points, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    values = function(mean[..., None] + std[..., None] * points)
    total = values @ weights
    return total, np.sqrt(np.maximum((values - total[..., None]) ** 2 @ weights, 0.0))
