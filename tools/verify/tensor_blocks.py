"""Arithmetic on large tensors, in blocks that fit into a processor's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TypeGuard

import numpy as np

from ...ir.tensor import Array

BLOCK_ELEMENTS = 1 << 16

Block = tuple[slice, slice, slice]
"""A block of a `channel_view`."""


def is_tensor(value: object) -> TypeGuard[Array]:
    """Return whether a result of onnxruntime is a tensor, not a sequence, map or optional."""
    return isinstance(value, np.ndarray)


def channel_view(array: Array) -> Array:
    """Return the elements with three axes: batch, channels and all others.

    Below rank 2 there is one channel.
    """
    shape = array.shape
    if len(shape) < 2:
        return array.reshape(1, 1, array.size)
    return array.reshape(shape[0], shape[1], prod(shape[2:]))


def blocks(shape: Sequence[int]) -> Iterator[Block]:
    """Yield slices that divide three axes into blocks of about BLOCK_ELEMENTS elements."""
    first, second, third = shape
    steps = (
        max(BLOCK_ELEMENTS // max(second * third, 1), 1),
        max(BLOCK_ELEMENTS // max(third, 1), 1),
        BLOCK_ELEMENTS,
    )
    for i in range(0, first, steps[0]):
        for j in range(0, second, steps[1]):
            for k in range(0, third, steps[2]):
                yield slice(i, i + steps[0]), slice(j, j + steps[1]), slice(k, k + steps[2])


def widen(array: Array) -> Array:
    """Return an array of exact differences: narrow floats in float32, integers in float64."""
    if array.dtype.kind == "c" or array.dtype in (np.float32, np.float64):
        return array
    return array.astype(np.float32 if array.dtype.kind in "fV" else np.float64)


def is_finite(value: object) -> bool:
    """Return whether a value holds no NaN and no infinity."""
    if not is_tensor(value) or value.dtype.kind not in "fc":
        return True
    view = channel_view(value)
    return all(np.isfinite(view[at]).all() for at in blocks(view.shape))


def finite_magnitudes(block: Array) -> Array:
    """Return the magnitudes of numbers, with zeros for NaN and infinity."""
    found = np.abs(widen(block))
    return found if np.isfinite(found.max(initial=0)) else np.where(np.isfinite(found), found, 0)


def max_magnitude(array: Array) -> float:
    """Return the greatest magnitude of a finite number, or 0."""
    view = channel_view(array)
    return max((float(finite_magnitudes(view[at]).max()) for at in blocks(view.shape)), default=0.0)


def channel_rms(view: Array) -> Array:
    """Return the root mean square of the finite numbers in each channel of a `channel_view`."""
    # float64 holds all squares of other types.
    scales = _channel_maxima(view) if view.dtype == np.float64 else None
    squares = np.zeros(view.shape[1])
    for at in blocks(view.shape):
        block = finite_magnitudes(view[at])
        scaled = block if scales is None else block / scales[at[1], None]
        squares[at[1]] += np.square(scaled, dtype=np.float64).sum(axis=(0, 2))
    rms = np.sqrt(squares / max(view.shape[0] * view.shape[2], 1))
    return np.asarray(rms if scales is None else rms * scales)


def _channel_maxima(view: Array) -> Array:
    """Return the greatest magnitude of a finite number in each channel, 1 if all are zero."""
    maxima = np.zeros(view.shape[1])
    for at in blocks(view.shape):
        greatest = finite_magnitudes(view[at]).max(axis=(0, 2), initial=0)
        np.maximum(maxima[at[1]], greatest, out=maxima[at[1]])
    return np.where(maxima > 0, maxima, 1.0)
