"""Quantisation, and arithmetic on quantised tensors."""

from __future__ import annotations

import numpy as np

from .call import Call, Op
from .convolution import convolve
from .values import Tensor, carrier, integer_range
from .windows import make_window


def _along(parameter: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """A scale or zero point of a tensor, an axis or its blocks, broadcast against x."""
    if parameter.ndim == 0 or parameter.size == 1:
        return parameter.reshape(())
    if parameter.ndim == 1 and not block:
        shape = [1] * x.ndim
        shape[axis] = -1
        return parameter.reshape(shape)
    return np.repeat(parameter, block, axis=axis)[tuple(map(slice, x.shape))]


def _quantized(x: Tensor, scale: Tensor, zero: Tensor, dtype: np.dtype[np.generic]) -> Tensor:
    low, high = integer_range(dtype)
    return np.asarray(
        np.clip(np.rint(x / scale) + zero.astype(np.float64), low, high).astype(dtype)
    )


def _output_type(call: Call, zero: Tensor | None) -> np.dtype[np.generic]:
    element_type = call.integer("output_dtype", 0)
    dtype = carrier(element_type) if element_type else np.dtype(np.uint8)
    if zero is not None:
        dtype = zero.dtype
    try:
        integer_range(np.dtype(dtype))
    except ValueError:
        raise call.unsupported(f"to {dtype or element_type}") from None
    return np.dtype(dtype)


def _quantize(call: Call) -> Tensor:
    x, scale, zero = call.tensor(0), call.tensor(1), call.optional(2)
    dtype = _output_type(call, zero)
    axis, block = call.integer("axis", 1), call.integer("block_size", 0)
    offset = np.zeros(scale.shape) if zero is None else zero
    return _quantized(
        x.astype(np.float64), _along(scale, x, axis, block), _along(offset, x, axis, block), dtype
    )


def _dequantize(call: Call) -> Tensor:
    x, scale, zero = call.tensor(0), call.tensor(1), call.optional(2)
    axis, block = call.integer("axis", 1), call.integer("block_size", 0)
    centred = x.astype(np.float64)
    if zero is not None:
        centred = centred - _along(zero.astype(np.float64), x, axis, block)
    return np.asarray(centred * _along(scale, x, axis, block))


def _centred(x: Tensor, zero: Tensor | None, rows: bool = False) -> Tensor:
    """Minus the zero point, which may be one per row."""
    if zero is None:
        return x.astype(np.float64)
    offset = zero.astype(np.float64)
    return np.asarray(
        x - (offset[:, None] if rows and offset.ndim == 1 and offset.size > 1 else offset)
    )


def _mat_mul_integer(call: Call) -> Tensor:
    a = _centred(call.tensor(0), call.optional(2), rows=True)
    return np.asarray(a @ _centred(call.tensor(1), call.optional(3))).astype(np.int32)


def _filters(weight: Tensor, zero: Tensor | None) -> Tensor:
    if zero is None:
        return weight.astype(np.float64)
    return np.asarray(weight - zero.astype(np.float64).reshape(-1, *(1,) * (weight.ndim - 1)))


def _conv_integer(call: Call) -> Tensor:
    x, weight = (
        _centred(call.tensor(0), call.optional(2)),
        _filters(call.tensor(1), call.optional(3)),
    )
    window = make_window(call, x.shape[2:], weight.shape[2:])
    return convolve(x, weight, window, call.integer("group", 1)).astype(np.int32)


def _q_linear_conv(call: Call) -> Tensor:
    x, weight = _centred(call.tensor(0), call.tensor(2)), _filters(call.tensor(3), call.tensor(5))
    window = make_window(call, x.shape[2:], weight.shape[2:])
    result = convolve(x, weight, window, call.integer("group", 1))
    channel = (-1, *(1,) * (x.ndim - 2))
    bias = call.optional(8)
    if bias is not None:
        result = result + bias.reshape(channel)
    scale = (call.tensor(1) * call.tensor(4) / call.tensor(6)).reshape(channel)
    return _quantized(result * scale, np.ones(()), call.tensor(7), call.tensor(7).dtype)


def _q_linear_mat_mul(call: Call) -> Tensor:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = call.tensors()
    product = _centred(a, a_zero, rows=True) @ _centred(b, b_zero)
    row_scale = a_scale[:, None] if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    return _quantized(product * row_scale * b_scale, y_scale, y_zero, y_zero.dtype)


OPS: dict[str, Op] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "MatMulInteger": _mat_mul_integer,
    "QLinearConv": _q_linear_conv,
    "QLinearMatMul": _q_linear_mat_mul,
    "QuantizeLinear": _quantize,
}
