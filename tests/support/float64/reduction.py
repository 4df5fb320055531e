"""Reductions, cumulative sums, and the selection of extremes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .call import Call, Op
from .values import Tensor, integer_range, is_float

Reducer = Callable[[Tensor, tuple[int, ...]], Tensor]


def _reduction(reducer: Reducer, axes_input_since: int = 18) -> Op:
    """The operator around a reducer that keeps the reduced axes."""

    def op(call: Call) -> Tensor:
        x = call.tensor(0)
        axes = call.axes(x.ndim, axes_input_since)
        if not axes and call.integer("noop_with_empty_axes", 0):
            return _reduced(reducer, x, (), keep=True)
        return _reduced(
            reducer, x, tuple(axes or range(x.ndim)), keep=bool(call.integer("keepdims", 1))
        )

    return op


def _reduced(reducer: Reducer, x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    result = np.asarray(reducer(x, axes)).astype(x.dtype, copy=False)
    return result if keep else np.squeeze(result, axis=axes)


def _sum(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return np.asarray(np.sum(x, axis=axes, keepdims=True, dtype=x.dtype))


def _product(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return np.asarray(np.prod(x, axis=axes, keepdims=True, dtype=x.dtype))


def _mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return np.asarray(np.mean(x, axis=axes, keepdims=True))


def _extremes(x: Tensor) -> tuple[float, float]:
    if is_float(x):
        return -np.inf, np.inf
    return (False, True) if x.dtype == np.bool_ else integer_range(x.dtype)


def _max(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return np.asarray(np.max(x, axis=axes, keepdims=True, initial=_extremes(x)[0]))


def _min(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return np.asarray(np.min(x, axis=axes, keepdims=True, initial=_extremes(x)[1]))


def _log_sum_exp(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    peak = _max(x, axes)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    return np.asarray(peak + np.log(_sum(np.exp(x - peak), axes)))


def _arg(call: Call, select: Callable[..., Tensor]) -> Tensor:
    x = call.tensor(0)
    axis = call.integer("axis", 0) % x.ndim
    keep = bool(call.integer("keepdims", 1))
    if not call.integer("select_last_index", 0):
        return np.asarray(select(x, axis=axis, keepdims=keep))
    return np.asarray(x.shape[axis] - 1 - select(np.flip(x, axis), axis=axis, keepdims=keep))


def _top_k(call: Call) -> tuple[Tensor, ...]:
    """Of equal elements the one of lower index comes first."""
    x = call.tensor(0)
    axis = call.integer("axis", -1) % x.ndim
    count = call.integer("k", 1) if call.version < 10 else int(call.tensor(1).item())
    if call.integer("largest", 1):
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(backwards, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    chosen = np.take(order, np.arange(count), axis=axis)
    return np.take_along_axis(x, chosen, axis), chosen


def _cumulative(call: Call, accumulate: Callable[..., Tensor], neutral: int) -> Tensor:
    x = call.tensor(0)
    axis = int(call.tensor(1).item()) % x.ndim
    if call.integer("reverse", 0):
        x = np.flip(x, axis)
    result = accumulate(x, axis=axis, dtype=x.dtype)
    if call.integer("exclusive", 0):
        head = np.full_like(np.take(x, [0], axis=axis), neutral)
        result = np.concatenate(
            [head, np.take(result, np.arange(x.shape[axis] - 1), axis=axis)], axis=axis
        )
    return np.flip(result, axis) if call.integer("reverse", 0) else result


OPS: dict[str, Op] = {
    "ArgMax": lambda call: _arg(call, np.argmax),
    "ArgMin": lambda call: _arg(call, np.argmin),
    "CumProd": lambda call: _cumulative(call, np.cumprod, 1),
    "CumSum": lambda call: _cumulative(call, np.cumsum, 0),
    "ReduceL1": _reduction(lambda x, axes: _sum(np.abs(x), axes)),
    "ReduceL2": _reduction(lambda x, axes: np.sqrt(_sum(x * x, axes))),
    "ReduceLogSum": _reduction(lambda x, axes: np.log(_sum(x, axes))),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(_max),
    "ReduceMean": _reduction(_mean),
    "ReduceMin": _reduction(_min),
    "ReduceProd": _reduction(_product),
    "ReduceSum": _reduction(_sum, axes_input_since=13),
    "ReduceSumSquare": _reduction(lambda x, axes: _sum(x * x, axes)),
    "TopK": _top_k,
}
