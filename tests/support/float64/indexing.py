"""Slices, gathers, scatters and other operators that address elements by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .call import Call, Op
from .values import Tensor

_COMBINE: dict[str, Callable[[Tensor, Any, Tensor], None]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _slice(call: Call) -> Tensor:
    """Bounds are attributes before opset 10."""
    x = call.tensor(0)
    steps: list[int] | None = None
    if call.version < 10:
        starts, ends = list(call.ints("starts") or ()), list(call.ints("ends") or ())
        axes = list(call.ints("axes") or range(len(starts)))
    else:
        starts, ends = call.integers(1) or [], call.integers(2) or []
        given = call.integers(3)
        axes = list(range(len(starts))) if given is None else given
        steps = call.integers(4)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
        index[axis] = _range(start, end, step, x.shape[axis])
    return x[tuple(index)]


def _range(start: int, end: int, step: int, extent: int) -> slice:
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    start = min(max(start + extent if start < 0 else start, max(low, 0)), high)
    end = min(max(end + extent if end < 0 else end, low), high)
    return slice(start, None if end < 0 else end, step)


def _gather(call: Call) -> Tensor:
    return np.take(call.tensor(0), call.tensor(1), axis=call.integer("axis", 0))


def _gather_elements(call: Call) -> Tensor:
    x = call.tensor(0)
    axis = call.integer("axis", 0) % x.ndim
    return x[_along(x, call.tensor(1), axis)]


def _along(x: Tensor, indices: Tensor, axis: int) -> tuple[Tensor, ...]:
    grid: list[Tensor] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = indices % x.shape[axis]
    return tuple(grid)


def _gather_nd(call: Call) -> Tensor:
    x, indices = call.tensor(0), call.tensor(1)
    batch = call.integer("batch_dims", 0)
    rows = x.reshape(-1, *x.shape[batch:])
    picks = indices.reshape(rows.shape[0], -1, indices.shape[-1])
    gathered: Tensor = rows[np.arange(rows.shape[0])[:, None], *np.moveaxis(picks, -1, 0)]
    return gathered.reshape(*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :])


def _scatter(call: Call) -> Tensor:
    x, indices, updates = call.tensors()
    return _combined(call, x, _along(x, indices, call.integer("axis", 0) % x.ndim), updates)


def _scatter_nd(call: Call) -> Tensor:
    x, indices, updates = call.tensors()
    return _combined(call, x, tuple(np.moveaxis(indices, -1, 0)), updates)


def _combined(call: Call, x: Tensor, index: tuple[Tensor, ...], updates: Tensor) -> Tensor:
    result = x.copy()
    reduction = call.string("reduction", "none")
    if reduction == "none":
        result[index] = updates
    else:
        _COMBINE[reduction](result, index, updates)
    return result


def _tensor_scatter(call: Call) -> Tensor:
    cache, update = call.tensor(0), call.tensor(1)
    axis = call.integer("axis", -2) % cache.ndim
    starts = call.integers(2) or [0] * cache.shape[0]
    result = cache.copy()
    for item, start in enumerate(starts):
        places = start + np.arange(update.shape[axis])
        if call.string("mode", "linear") == "circular":
            places = places % cache.shape[axis]
        np.moveaxis(result[item], axis - 1, 0)[places] = np.moveaxis(update[item], axis - 1, 0)
    return result


def _compress(call: Call) -> Tensor:
    axis = call.integer("axis", 0) if call.has("axis") else None
    return np.compress(call.tensor(1), call.tensor(0), axis=axis)


def _one_hot(call: Call) -> Tensor:
    indices, values = call.tensor(0), call.tensor(2)
    depth = int(call.tensor(1).item())
    axis = call.integer("axis", -1)
    hot = np.arange(depth) == np.where(indices < 0, indices + depth, indices)[..., None]
    return np.moveaxis(np.where(hot, values[1], values[0]), -1, axis)


def _unique(call: Call) -> tuple[Tensor, ...]:
    axis = call.integer("axis", 0) if call.has("axis") else None
    x = call.tensor(0)
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.ravel()
    if not call.integer("sorted", 1):
        order = np.argsort(first)
        values, first, counts = np.take(values, order, axis=axis or 0), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return values, first, inverse, counts


OPS: dict[str, Op] = {
    "Compress": _compress,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": lambda call: np.array(np.nonzero(call.tensor(0)), dtype=np.int64),
    "OneHot": _one_hot,
    "Scatter": _scatter,
    "ScatterElements": _scatter,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "TensorScatter": _tensor_scatter,
    "Unique": _unique,
}
