"""What BatchNormalization knew of a tensor: the mean and the spread of each channel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .ledger import Source
from .tensor import Array, all_finite, float64


@dataclass(frozen=True, slots=True, eq=False)
class Statistic:
    """Mean and standard deviation of a tensor per channel, along `axis`, as float64 vectors [C].

    They are those of the data that a model was trained on, as its BatchNormalization (origin `source`) kept them:
    of its data, mean and sqrt(var); of its result y = gamma * (x - mean) / sqrt(var + epsilon) + beta, beta and
    |gamma| * sqrt(var / (var + epsilon)). `gamma` is what the deviation would be with epsilon = 0 for the result,
    signed: many tools take it for the deviation.
    """

    axis: int
    mean: Array
    std: Array
    gamma: Array
    source: int

    def applied(self, scale: Array | float, shift: Array | float) -> Statistic:
        """Of scale * x + shift."""
        return replace(self, mean=self.mean * scale + shift, std=self.std * np.abs(scale), gamma=self.gamma * scale)


@dataclass(frozen=True, slots=True, eq=False)
class Clue:
    """Where the statistic of a value comes from, which is computed when it is asked for.

    The value is what the affines `steps`, each a scale and a shift of shape [C] or [], make of the data of the
    BatchNormalization `source`, or of its `result`.
    """

    source: Source
    result: bool
    steps: tuple[tuple[Array | float, Array | float], ...] = ()

    def applied(self, scale: Array | float, shift: Array | float) -> Clue:
        """Of scale * x + shift."""
        return replace(self, steps=(*self.steps, (scale, shift)))

    def statistic(self) -> Statistic | None:
        """None where the parameters are not known or make no affine."""
        known = of_result(self.source) if self.result else of_data(self.source)
        for scale, shift in self.steps if known is not None else ():
            assert known is not None
            if np.size(scale) not in (1, known.mean.size):
                return None  # a GroupNormalization may have a number for each group only
            known = known.applied(scale, shift)
        return known


def of_data(source: Source) -> Statistic | None:
    """Of the data of a BatchNormalization; None where its parameters are not known or make no affine."""
    known = _parameters(source)
    if known is None or source.axis is None:
        return None
    _, _, mean, var, spread = known
    return Statistic(source.axis, mean, np.sqrt(var), np.sqrt(spread), source.origin)


def of_result(source: Source) -> Statistic | None:
    """Of the result of a BatchNormalization; None as for `of_data`."""
    known = _parameters(source)
    if known is None or source.axis is None:
        return None
    gamma, beta, _, var, spread = known
    with np.errstate(all="ignore"):
        std = np.abs(gamma) * (np.sqrt(var) / np.sqrt(spread))
    return Statistic(source.axis, beta, std, gamma, source.origin)


def _parameters(source: Source) -> tuple[Array, Array, Array, Array, Array] | None:
    """Gamma, beta, mean, var and var + epsilon in float64, None where they are not known or make no affine."""
    if source.kind != "batch_norm" or source.epsilon is None:
        return None
    tensors = [source.params[key].tensor for key in ("gamma", "beta", "mean", "var") if key in source.params]
    arrays = [float64(tensor) for tensor in tensors if tensor is not None]
    if len(arrays) < 4 or any(array.ndim != 1 or array.shape != arrays[0].shape for array in arrays):
        return None
    gamma, beta, mean, var = arrays
    spread = var + source.epsilon
    if not all(map(all_finite, arrays)) or np.count_nonzero(var < 0) or np.count_nonzero(spread <= 0):
        return None
    return gamma, beta, mean, var, spread
