"""Pools over windows and over whole spatial extents."""

from __future__ import annotations

from functools import reduce

import numpy as np

from .call import Call, Op
from .values import Tensor, integer_range, is_float
from .windows import Window, make_window


def _window(call: Call) -> Window:
    kernel = call.ints("kernel_shape")
    if kernel is None:
        raise ValueError(f"{call.op_type}: kernel_shape is required")
    return make_window(call, call.tensor(0).shape[2:], kernel, bool(call.integer("ceil_mode", 0)))


def _max_pool(call: Call) -> Tensor | tuple[Tensor, ...]:
    x = call.tensor(0)
    window = _window(call)
    padded = window.padded(x, -np.inf if is_float(x) else integer_range(x.dtype)[0])
    best = reduce(np.maximum, (padded[index] for _, index in window.taps()))
    if not call.wants(1):
        return best
    return best, _indices(call, x, window, padded, best)


def _indices(call: Call, x: Tensor, window: Window, padded: Tensor, best: Tensor) -> Tensor:
    """Flat positions of the maxima in the input; `storage_order` 1 counts columns first."""
    size = x.shape[2:]
    order = "F" if call.integer("storage_order", 0) else "C"
    flat = np.arange(np.prod(size)).reshape(size, order="F" if order == "F" else "C")
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(size)) * flat.size
    positions = window.padded(flat + planes, -1)
    result = np.full(best.shape, -1, np.int64)
    for _, index in window.taps():
        hit = (padded[index] == best) & (result < 0)
        result[hit] = positions[index][hit]
    return result


def _cells(window: Window, size: tuple[int, ...], include_pad: bool) -> Tensor:
    """How many cells of the input (and of its declared padding) each window meets."""
    inside = np.ones(size)
    if include_pad:
        inside = np.pad(inside, list(zip(window.begin, window.end, strict=True)), constant_values=1)
        window = Window(
            window.kernel, window.strides, window.dilations, *((0,) * len(size),) * 2, window.output
        )
    padded = window.padded(inside, 0)
    return np.asarray(sum(padded[index] for _, index in window.taps()))


def _average_pool(call: Call) -> Tensor:
    x = call.tensor(0)
    window = _window(call)
    padded = window.padded(x, 0)
    total = np.zeros((*x.shape[:2], *window.output))
    for _, index in window.taps():
        total += padded[index]
    return np.asarray(
        total / _cells(window, x.shape[2:], bool(call.integer("count_include_pad", 0)))
    )


def _lp_pool(call: Call) -> Tensor:
    window = _window(call)
    p = call.real("p", 2.0)
    padded = window.padded(np.abs(call.tensor(0)) ** p, 0)
    return np.asarray(reduce(np.add, (padded[index] for _, index in window.taps())) ** (1 / p))


def _max_unpool(call: Call) -> Tensor:
    x, indices = call.tensor(0), call.tensor(1)
    kernel = call.ints("kernel_shape") or ()
    strides = call.ints("strides") or (1,) * len(kernel)
    pads = call.ints("pads") or (0,) * (2 * len(kernel))
    natural = tuple(
        (n - 1) * s + k - b - e
        for n, s, k, b, e in zip(
            x.shape[2:], strides, kernel, pads[: len(kernel)], pads[len(kernel) :], strict=True
        )
    )
    flat = np.zeros((*x.shape[:2], *natural), x.dtype)
    flat.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)
    wanted = call.integers(2)
    if wanted is None or tuple(wanted) == flat.shape:
        return flat
    result = np.zeros(wanted, x.dtype)
    result[tuple(map(slice, flat.shape))] = flat
    return result


def _spatial(call: Call) -> tuple[int, ...]:
    return tuple(range(2, call.tensor(0).ndim))


def _global_average(call: Call) -> Tensor:
    return np.asarray(np.mean(call.tensor(0), axis=_spatial(call), keepdims=True))


def _global_max(call: Call) -> Tensor:
    return np.asarray(np.max(call.tensor(0), axis=_spatial(call), keepdims=True))


def _global_lp(call: Call) -> Tensor:
    p = call.real("p", 2.0)
    return np.asarray(
        np.sum(np.abs(call.tensor(0)) ** p, axis=_spatial(call), keepdims=True) ** (1 / p)
    )


OPS: dict[str, Op] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average,
    "GlobalLpPool": _global_lp,
    "GlobalMaxPool": _global_max,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
