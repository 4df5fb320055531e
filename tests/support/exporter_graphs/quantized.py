"""Quantized layers: QuantizeLinear and DequantizeLinear around float ones, and the operators on
integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .activations import relu
from .vision import channels
from .writer import Array, Dims, Value, Writer


def parameters(w: Writer, dtype: Any, scale: float = 0.0) -> tuple[Value, Value]:
    """A scale and a zero point of rank 0."""
    zero = w.upto(-8, 8) if dtype == np.int8 else w.upto(100, 140)
    return w.constant(np.float32(scale or w.pick([0.03, 0.05, 0.1]))), w.constant(
        np.asarray(zero, dtype)
    )


def as_onnx(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def quantize(
    w: Writer, x: Value, dtype: Any, given: tuple[Value, Value] | None = None
) -> tuple[Value, tuple[Value, Value]]:
    """QuantizeLinear, with its parameters."""
    given = given or parameters(w, dtype)
    return w.op("QuantizeLinear", [x, *given], x.dims, as_onnx(dtype)), given


def dequantize(w: Writer, q: Value, given: tuple[Value, Value]) -> Value:
    return w.op("DequantizeLinear", [q, *given], q.dims)


def fake(w: Writer, x: Value) -> Value:
    """Quantized and dequantized again."""
    q, given = quantize(w, x, w.pick([np.int8, np.uint8]))
    if w.one_in(5):
        given = (w.unary("Identity", given[0]), given[1])
    return dequantize(w, q, given)


def quantized_weight(w: Writer, *shape: int) -> Value:
    """int8 weights behind DequantizeLinear, by tensor or channel; or quantized in the graph."""
    array: Array = w.arrays.integers(-127, 128, shape).astype(np.int8)
    step = 1 / (64 * max(int(np.prod(shape[1:])), 1) ** 0.5)
    if w.one_in(5):
        return fake(w, w.weight(*shape))
    if w.opset >= 13 and w.one_in(2):
        scales = (w.positive(shape[0]) * step).astype(np.float32)
        inputs = [w.constant(array), w.constant(scales), w.constant(np.zeros(shape[0], np.int8))]
        return w.op("DequantizeLinear", inputs[: w.upto(2, 3)], shape, axis=0)
    return w.op(
        "DequantizeLinear",
        [w.constant(array), w.constant(np.float32(step)), w.constant(np.int8(0))],
        shape,
    )


def qdq_conv(w: Writer, x: Value) -> Value:
    """A Conv between DequantizeLinear and QuantizeLinear, with BatchNormalization or Relu left."""
    out, n = w.pick([2, 4]), channels(x)
    bias = [w.constant(w.numbers(out))] if w.one_in(2) else []
    weight = quantized_weight(w, out, n, 1, 1)
    made = w.op(
        "Conv", [fake(w, x), weight, *bias], (x.dims[0], out, *x.dims[2:]), kernel_shape=[1, 1]
    )
    if w.one_in(3):
        arrays = (w.numbers(out), w.numbers(out), w.numbers(out), w.positive(out))
        made = w.op("BatchNormalization", [made, *(w.constant(a) for a in arrays)], made.dims)
    made = relu(w, made) if w.one_in(2) else made
    return fake(w, made)


def qlinear_conv(w: Writer, x: Value) -> Value:
    """QuantizeLinear, QLinearConv, DequantizeLinear."""
    out, n = w.pick([2, 4]), channels(x)
    q, given = quantize(w, x, np.uint8)
    array = w.arrays.integers(0, 255, (out, n, 1, 1)).astype(np.uint8)
    weight = [w.constant(array), w.constant(np.float32(0.01)), w.constant(np.uint8(128))]
    result = parameters(w, np.uint8, 0.1)
    bias = [w.constant(w.arrays.integers(-500, 500, out).astype(np.int32))] if w.one_in(2) else []
    dims: Dims = (x.dims[0], out, *x.dims[2:])
    made = w.op(
        "QLinearConv",
        [q, *given, *weight, *result, *bias],
        dims,
        TensorProto.UINT8,
        kernel_shape=[1, 1],
    )
    if w.one_in(3):
        made = (
            w.op("MaxPool", [made], dims, TensorProto.UINT8, kernel_shape=[1, 1])
            if w.opset >= 12
            else made
        )
    return dequantize(w, made, result)


def conv_integer(w: Writer, x: Value) -> Value:
    """Dynamic quantization: ConvInteger, Cast, and a Mul by the scales, which is an affine that
    stays data.
    """
    out, n = 2, channels(x)
    if w.opset >= 11:
        names = w.emit("DynamicQuantizeLinear", [x], 3)
        q, scale, zero = (
            Value(names[0], x.dims, TensorProto.UINT8),
            Value(names[1], ()),
            Value(names[2], (), TensorProto.UINT8),
        )
    else:
        q, (scale, zero) = quantize(w, x, np.uint8)
    weight = w.constant(w.arrays.integers(0, 255, (out, n, 1, 1)).astype(np.uint8))
    dims: Dims = (x.dims[0], out, *x.dims[2:])
    made = w.op(
        "ConvInteger", [q, weight, zero, w.constant(np.uint8(128))], dims, TensorProto.INT32
    )
    wide = w.op("Cast", [made], dims, to=TensorProto.FLOAT)
    factor = w.binary("Mul", scale, w.scalar(0.01))
    scaled = w.binary("Mul", wide, factor)
    return w.binary("Add", scaled, w.constant(w.numbers(1, out, 1, 1)))


def matmul_integer(w: Writer, x: Value) -> Value:
    """[N, T, D] through MatMulInteger or QLinearMatMul."""
    n = x.dims[-1]
    assert isinstance(n, int)
    array = w.arrays.integers(0, 255, (n, n)).astype(np.uint8)
    q, given = quantize(w, x, np.uint8)
    if w.one_in(2):
        result = parameters(w, np.uint8, 0.1)
        weight = [w.constant(array), w.constant(np.float32(0.01)), w.constant(np.uint8(128))]
        made = w.op("QLinearMatMul", [q, *given, *weight, *result], x.dims, TensorProto.UINT8)
        return dequantize(w, made, result)
    made = w.op(
        "MatMulInteger",
        [q, w.constant(array), given[1], w.constant(np.uint8(128))],
        x.dims,
        TensorProto.INT32,
    )
    wide = w.op("Cast", [made], x.dims, to=TensorProto.FLOAT)
    return w.binary("Mul", wide, w.constant((w.positive(n) * np.float32(0.01)).astype(np.float32)))


def qdq_linear(w: Writer, x: Value) -> Value:
    """[N, T, D] through MatMul and Add on fake-quantized operands."""
    n = x.dims[-1]
    assert isinstance(n, int)
    weight = quantized_weight(w, n, n)
    if w.one_in(2):
        weight = w.transpose(weight, 1, 0)
    made = w.op("MatMul", [fake(w, x), weight], x.dims)
    return w.binary("Add", made, w.constant(w.numbers(n)))


IMAGE_BLOCKS = (qdq_conv, qdq_conv, qlinear_conv, conv_integer, fake)
SEQUENCE_BLOCKS = (qdq_linear, qdq_linear, matmul_integer, fake)
