"""Normalisations, and the softmax family."""

from __future__ import annotations

import math

import numpy as np

from .call import Call, Op
from .values import Tensor, Value

_EPSILON = 1e-5


def _statistics(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and population variance, axes kept."""
    return np.mean(x, axis=axes, keepdims=True), np.var(x, axis=axes, keepdims=True)


def _per_channel(parameter: Tensor, rank: int) -> Tensor:
    return parameter.reshape(-1, *(1,) * (rank - 2))


def _is_training(call: Call) -> bool:
    """training_mode from opset 14 on; before, extra outputs ask for it, is_test forbids it."""
    if call.version >= 14:
        return bool(call.integer("training_mode", 0))
    extra = any(call.wants(index) for index in range(1, len(call.outputs)))
    return extra and not (call.version < 7 and call.integer("is_test", 0))


def _batch_normalization(call: Call) -> tuple[Value, ...]:
    x, scale, bias, mean, variance = (call.tensor(index) for index in range(5))
    channels = x.shape[1] if x.ndim > 1 else 1
    spatial = call.version >= 9 or bool(call.integer("spatial", 1)) or mean.size == channels
    if mean.size != (channels if spatial else math.prod(x.shape[1:])):
        raise ValueError(f"BatchNormalization: {mean.size} means for an input of shape {x.shape}")
    training = _is_training(call)
    running: tuple[Value, ...] = (mean, variance, mean, variance)
    if training:
        axes = (0, *range(2, x.ndim)) if spatial else (0,)
        momentum = call.real("momentum", 0.9)
        batch_mean, batch_variance = (moment.reshape(mean.shape) for moment in _statistics(x, axes))
        running_mean = mean * momentum + batch_mean * (1 - momentum)
        running_variance = variance * momentum + batch_variance * (1 - momentum)
        running = (running_mean, running_variance, batch_mean, batch_variance)
        mean, variance = batch_mean, batch_variance
    if spatial and x.ndim > 1:
        scale, bias, mean, variance = (
            _per_channel(p, x.ndim) for p in (scale, bias, mean, variance)
        )
    y = (x - mean) / np.sqrt(variance + call.real("epsilon", _EPSILON)) * scale + bias
    return (y, *running)


def _instance_normalization(call: Call) -> Tensor:
    x = call.tensor(0)
    scale, bias = _per_channel(call.tensor(1), x.ndim), _per_channel(call.tensor(2), x.ndim)
    mean, variance = _statistics(x, tuple(range(2, x.ndim)))
    return np.asarray(
        (x - mean) / np.sqrt(variance + call.real("epsilon", _EPSILON)) * scale + bias
    )


def _group_normalization(call: Call) -> Tensor:
    """Scale and bias are per group before opset 21, per channel from it on."""
    x = call.tensor(0)
    groups = call.integer("num_groups", 1)
    grouped = x.reshape(x.shape[0], groups, -1)
    mean, variance = _statistics(grouped, (2,))
    normal = ((grouped - mean) / np.sqrt(variance + call.real("epsilon", _EPSILON))).reshape(
        x.shape
    )
    scale, bias = call.tensor(1), call.tensor(2)
    if call.version < 21:
        scale, bias = (np.repeat(p, x.shape[1] // groups) for p in (scale, bias))
    return np.asarray(normal * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim))


def _layer_normalization(call: Call) -> tuple[Tensor, ...]:
    x = call.tensor(0)
    axes = tuple(range(call.integer("axis", -1) % x.ndim, x.ndim))
    mean, variance = _statistics(x, axes)
    inverse = 1 / np.sqrt(variance + call.real("epsilon", _EPSILON))
    y = (x - mean) * inverse * call.tensor(1)
    bias = call.optional(2)
    return (y if bias is None else y + bias), mean, inverse


def _rms_normalization(call: Call) -> Tensor:
    x = call.tensor(0)
    axes = tuple(range(call.integer("axis", -1) % x.ndim, x.ndim))
    square = np.mean(x * x, axis=axes, keepdims=True)
    return np.asarray(x / np.sqrt(square + call.real("epsilon", _EPSILON)) * call.tensor(1))


def _lp_normalization(call: Call) -> Tensor:
    x = call.tensor(0)
    norm = np.linalg.norm(x, ord=call.integer("p", 2), axis=call.integer("axis", -1), keepdims=True)
    return np.where(norm == 0, 0.0, x / norm)


def _local_response(call: Call) -> Tensor:
    x = call.tensor(0)
    size = call.integer("size", 1)
    before = (size - 1) // 2
    padded = np.pad(x * x, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
    total = sum(padded[:, shift : shift + x.shape[1]] for shift in range(size))
    base = call.real("bias", 1.0) + call.real("alpha", 1e-4) / size * total
    return np.asarray(x / base ** call.real("beta", 0.75))


def _softmax_axes(call: Call) -> tuple[int, ...]:
    """Before opset 13 all axes from `axis` on are one."""
    rank = call.tensor(0).ndim
    if call.version >= 13:
        return (call.integer("axis", -1) % max(rank, 1),) if rank else ()
    return tuple(range(call.integer("axis", 1) % rank if rank > 1 else 0, rank))


def _softmax(call: Call) -> Tensor:
    x, axes = call.tensor(0), _softmax_axes(call)
    weights = np.exp(x - np.max(x, axis=axes, keepdims=True))
    return np.asarray(weights / np.sum(weights, axis=axes, keepdims=True))


def _log_softmax(call: Call) -> Tensor:
    x, axes = call.tensor(0), _softmax_axes(call)
    shifted = x - np.max(x, axis=axes, keepdims=True)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axes, keepdims=True)))


def _hardmax(call: Call) -> Tensor:
    x, axes = call.tensor(0), _softmax_axes(call)
    rows = x.reshape(*x.shape[: axes[0]], -1) if call.version < 13 else np.moveaxis(x, axes[0], -1)
    result = np.zeros_like(rows)
    np.put_along_axis(result, np.argmax(rows, axis=-1, keepdims=True), 1.0, axis=-1)
    return result.reshape(x.shape) if call.version < 13 else np.moveaxis(result, -1, axes[0])


OPS: dict[str, Op] = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "Hardmax": _hardmax,
    "InstanceNormalization": _instance_normalization,
    "LRN": _local_response,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _log_softmax,
    "LpNormalization": _lp_normalization,
    "RMSNormalization": _rms_normalization,
    "Softmax": _softmax,
}
