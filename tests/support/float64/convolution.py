"""Conv and ConvTranspose of any spatial rank."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .call import Call, Op
from .values import Tensor
from .windows import Window, make_window, split_padding

_CHUNK = 1 << 21


def convolve(x: Tensor, weight: Tensor, window: Window, groups: int) -> Tensor:
    """Cross-correlation of [N, C, ...] with [M, C/groups, ...]."""
    padded = window.padded(x, 0)
    if weight.shape[1] == 1 and weight.shape[0] == groups:
        return _depthwise(padded, weight, window)
    batch, channels = x.shape[:2]
    features = weight.shape[0]
    matrix = weight.reshape(groups, features // groups, -1)
    result = np.empty(
        (batch, groups, features // groups, *window.output), np.result_type(x, weight)
    )
    columns = _columns(padded, window)
    rows, rest = window.output[0], window.output[1:]
    step = max(1, _CHUNK // max(1, channels * math.prod(window.kernel) * math.prod(rest)))
    for item in range(batch):
        for start in range(0, rows, step):
            index: Any = (item, ..., slice(start, start + step), *(slice(None),) * len(rest))
            part = columns[index]
            product = matrix @ part.reshape(groups, matrix.shape[2], -1)
            result[item, :, :, start : start + step] = product.reshape(
                groups, features // groups, -1, *rest
            )
    return result.reshape(batch, features, *window.output)


def _columns(padded: Tensor, window: Window) -> Tensor:
    """A view [N, C, kernel..., output...] of the padded input."""
    spatial = padded.strides[2:]
    taps = [stride * d for stride, d in zip(spatial, window.dilations, strict=True)]
    moves = [stride * s for stride, s in zip(spatial, window.strides, strict=True)]
    shape = (*padded.shape[:2], *window.kernel, *window.output)
    return as_strided(padded, shape, (*padded.strides[:2], *taps, *moves), writeable=False)


def _depthwise(padded: Tensor, weight: Tensor, window: Window) -> Tensor:
    result = np.zeros((*padded.shape[:2], *window.output), np.result_type(padded, weight))
    factors = np.moveaxis(weight[:, 0], 0, -1)
    for tap, index in window.taps():
        result += padded[index] * factors[tap].reshape(-1, *(1,) * len(tap))
    return result


def _with_bias(result: Tensor, bias: Tensor | None) -> Tensor:
    if bias is not None:
        result += bias.reshape(-1, *(1,) * (result.ndim - 2))
    return result


def _conv(call: Call) -> Tensor:
    x, weight = call.tensor(0), call.tensor(1)
    window = make_window(call, x.shape[2:], weight.shape[2:])
    return _with_bias(convolve(x, weight, window, call.integer("group", 1)), call.optional(2))


def _conv_transpose(call: Call) -> Tensor:
    x, weight = call.tensor(0), call.tensor(1)
    window, full = _transposed_window(call, x.shape[2:], weight.shape[2:])
    groups = call.integer("group", 1)
    batch, channels, *size = x.shape
    features = weight.shape[1] * groups
    matrix = weight.reshape(groups, channels // groups, -1).swapaxes(1, 2)
    columns = matrix @ x.reshape(batch, groups, channels // groups, -1)
    columns = columns.reshape(batch, features, math.prod(window.kernel), *size)
    buffer = np.zeros((batch, features, *full))
    for number, (_, index) in enumerate(window.taps()):
        buffer[index] += columns[:, :, number]
    crop: tuple[Any, ...] = (
        ...,
        *(slice(b, b + n) for b, n in zip(window.begin, _cropped(window, full), strict=True)),
    )
    return _with_bias(buffer[crop], call.optional(2))


def _cropped(window: Window, full: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n - b - e for n, b, e in zip(full, window.begin, window.end, strict=True))


def _transposed_window(
    call: Call, size: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[Window, tuple[int, ...]]:
    """The window of the Conv that this transposes, and its padded input; `end` may be < 0."""
    rank = len(kernel)
    strides = call.ints("strides") or (1,) * rank
    dilations = call.ints("dilations") or (1,) * rank
    extra = call.ints("output_padding") or (0,) * rank
    full = tuple(
        (n - 1) * s + (k - 1) * d + 1 + p
        for n, s, k, d, p in zip(size, strides, kernel, dilations, extra, strict=True)
    )
    auto_pad = call.string("auto_pad", "NOTSET")
    wanted = call.ints("output_shape")
    if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(n * s for n, s in zip(size, strides, strict=True))
    if wanted is not None:
        totals = [max(n - w, 0) for n, w in zip(full, wanted[-rank:], strict=True)]
        begin, end = split_padding(totals, upper=auto_pad == "SAME_UPPER")
        full = tuple(max(n, w) for n, w in zip(full, wanted[-rank:], strict=True))
    else:
        pads = (0,) * (2 * rank) if auto_pad == "VALID" else call.ints("pads") or (0,) * (2 * rank)
        begin, end = pads[:rank], pads[rank:]
    return Window(kernel, strides, dilations, begin, end, size), full


OPS: dict[str, Op] = {"Conv": _conv, "ConvTranspose": _conv_transpose}
