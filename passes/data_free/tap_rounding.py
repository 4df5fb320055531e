"""Rounding of spatial kernels whose errors cancel over neighbours.

Neighbours in a picture or a sound are alike, so that an error in the sum of a kernel's taps is an
error of its gain. The variance that errors e [taps] add to a result is e^T R e for data of unit
variance with the correlation R of neighbours; nearest rounding minimizes it for R = 1 only.

- R is rho^distance. Of a depthwise layer, the deviations before and after it tell rho.
- Otherwise rho is integrated out over [0, 1]: the integral of rho^distance is 1 / (1 + distance).
- The mean error is left to a correction of the bias.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir.graph import Value
from ...ir.ops.views import window_of
from ...ir.tensor import Array
from .linear import Linear
from .moments import Moments

SWEEPS = 64
"""Most changes of one kernel."""
RHOS = np.linspace(0.0, 0.99, 34)
"""Correlations of neighbours that are tried."""
KAPPAS = np.linspace(0.0, 0.96, 9)
"""Correlations of channels that are tried."""
JOINT = 4
"""Most channels, as those of a picture, whose errors cancel over channels, too."""


def rounded_taps(linear: Linear, steps: Array, top: int, correlation: Array) -> Array:
    """Return integers for a spatial weight / `steps`, of the least e^T R e that descent finds.

    `steps` broadcasts to the weight, `correlation` [taps, taps] is R. Descent begins at the nearest
    integers, and changes one tap or two of a kernel at a time, each between the two integers around
    it. Integers of the greatest magnitude `top` stay: they give the scale. O(weight * taps).
    """
    shape = linear.weight.shape
    exact = (linear.weight / steps).reshape(-1, len(correlation))
    nearest = np.clip(np.rint(exact), -top, top)
    other = np.where(nearest > exact, nearest - 1, nearest + 1)
    fixed = (np.abs(nearest) >= top) | (np.abs(other) > top) | (nearest == exact)
    found, rows = nearest.copy(), np.arange(len(exact))
    is_other = np.zeros(exact.shape, bool)
    diagonal = np.diagonal(correlation)
    for _ in range(SWEEPS):
        if not len(rows):
            break
        error = found[rows] - exact[rows]
        change = np.where(is_other[rows], nearest[rows], other[rows]) - found[rows]
        change = np.where(fixed[rows], 0.0, change)
        single = 2 * change * (error @ correlation) + change**2 * diagonal
        pairs = single[:, :, None] + single[:, None, :]
        pairs += 2 * change[:, :, None] * change[:, None, :] * correlation
        taps = np.arange(len(correlation))
        pairs[:, taps, taps] = single
        flat = pairs.reshape(len(rows), -1)
        best = flat.argmin(axis=1)
        gains = flat[np.arange(len(rows)), best] < -1e-12
        rows, best, change = rows[gains], best[gains], change[gains]
        first, second = np.divmod(best, len(correlation))
        at = np.arange(len(rows))
        for tap in (first, np.where(second == first, -1, second)):
            valid = tap >= 0
            found[rows[valid], tap[valid]] += change[at[valid], tap[valid]]
            is_other[rows[valid], tap[valid]] ^= True
    return found.reshape(shape)


def distances(linear: Linear) -> Array | None:
    """Return the distances [taps, taps] of the taps of a convolution, None if there is one tap.

    They are counted along the axes, in elements of the data.
    """
    kernel = linear.weight.shape[2:]
    window = window_of(linear.node, len(kernel))
    if linear.node.op != "nn.conv" or window is None or int(np.prod(kernel)) < 2:
        return None
    places = np.indices(kernel).reshape(len(kernel), -1) * np.array(window.dilations)[:, None]
    return np.asarray(np.abs(places[:, :, None] - places[:, None, :]).sum(axis=0), np.float64)


def correlation_of(linear: Linear, apart: Array, moments: Mapping[Value, Moments]) -> Array:
    """Return the correlation of the data that a kernel reads, for taps `apart`.

    It is [taps, taps], or of all channels together if there are at most JOINT.
    """
    rho, kappa = _fitted(linear, apart, moments) or (None, 0.0)
    taps = np.asarray(1 / (1 + apart) if rho is None else rho**apart)
    columns = linear.weight.shape[1]
    if not 1 < columns <= JOINT:
        return taps
    return np.kron(kappa + (1 - kappa) * np.eye(columns), taps)


def _fitted(
    linear: Linear, apart: Array, moments: Mapping[Value, Moments]
) -> tuple[float, float] | None:
    """Return the correlations of neighbours and channels that explain the result's deviations.

    The deviation of data that are not known is the same unknown number in all channels. None if
    the result's deviations are not known.
    """
    after, count = moments.get(linear.node.output), len(linear.weight)
    if after is None or not after.has_mean or len(after.std) != count:
        return None
    grouped = linear.grouped(linear.weight)
    kernels = grouped.reshape(count, grouped.shape[2], -1)
    before = moments.get(linear.data)
    is_known = before is not None and before.has_mean
    if before is not None and is_known:
        if not linear.accepts(before.axis, before.mean):
            return None
        std = before.std.reshape(len(grouped), 1, -1)
        kernels = (grouped * std[..., None]).reshape(kernels.shape)
    total = kernels.sum(axis=1)
    best, least = None, np.inf
    with np.errstate(all="ignore"):
        expected = 2 * np.log(after.std)
        for rho in RHOS:
            taps = rho**apart
            alone = ((kernels @ taps) * kernels).sum(axis=(1, 2))
            common = ((total @ taps) * total).sum(axis=1)
            for kappa in KAPPAS if kernels.shape[1] > 1 else KAPPAS[:1]:
                misses = expected - np.log((1 - kappa) * alone + kappa * common)
                misses = misses[np.isfinite(misses)]
                if len(misses) < 2:
                    continue
                centre = 0.0 if is_known else np.median(misses)
                miss = float(np.abs(misses - centre).mean())
                if miss < least:
                    best, least = (float(rho), float(kappa)), miss
    return best
