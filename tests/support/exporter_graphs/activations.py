"""Activations as operators, and as exporters write them out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .writer import Value, Writer

Activation = Callable[[Writer, Value], Value]


def relu(w: Writer, x: Value) -> Value:
    return w.unary("Relu", x)


def relu6(w: Writer, x: Value) -> Value:
    return w.clip(x, 0.0, 6.0)


def leaky(w: Writer, x: Value) -> Value:
    return w.unary("LeakyRelu", x, alpha=w.pick([0.01, 0.1, 0.2]))


def leaky_written(w: Writer, x: Value) -> Value:
    """Max(x, a x), of Keras and TensorFlow."""
    return w.op("Max", [w.binary("Mul", w.scalar(0.2), x), x], x.dims)


def prelu(w: Writer, x: Value) -> Value:
    channels = x.dims[1] if len(x.dims) == 4 else x.dims[-1]
    if not isinstance(channels, int):
        return relu(w, x)
    slope = w.positive(channels, 1, 1) if len(x.dims) == 4 else w.positive(channels)
    return w.op("PRelu", [x, w.constant(slope * np.float32(0.25))], x.dims)


def hard_swish_written(w: Writer, x: Value) -> Value:
    """x * clip(x + 3, 0, 6) / 6, in the orders that occur."""
    gate = w.clip(w.binary("Add", x, w.scalar(3.0)), 0.0, 6.0)
    match w.upto(0, 3):
        case 0:
            return w.binary("Div", w.binary("Mul", x, gate), w.scalar(6.0))
        case 1:
            return w.binary("Mul", x, w.binary("Div", gate, w.scalar(6.0)))
        case 2:
            return w.binary("Mul", w.binary("Mul", x, gate), w.scalar(1 / 6))
        case _:
            return w.binary("Mul", x, w.binary("Mul", gate, w.scalar(1 / 6)))


def hard_swish(w: Writer, x: Value) -> Value:
    if w.opset >= 14 and w.one_in(2):
        return w.unary("HardSwish", x)
    return w.binary("Mul", x, w.unary("HardSigmoid", x, alpha=1 / 6, beta=0.5))


def silu(w: Writer, x: Value) -> Value:
    gate = w.unary("Sigmoid", x)
    return w.op("Mul", [x, gate] if w.one_in(2) else [gate, x], x.dims)


def mish(w: Writer, x: Value) -> Value:
    if w.opset >= 18 and w.one_in(2):
        return w.unary("Mish", x)
    return w.binary("Mul", x, w.unary("Tanh", w.unary("Softplus", x)))


def gelu_erf(w: Writer, x: Value) -> Value:
    if w.opset >= 20 and w.one_in(3):
        return w.unary("Gelu", x, approximate=w.pick(["none", "tanh"]))
    root = w.scalar(2**0.5)
    inner = w.binary("Div", x, root) if w.one_in(2) else w.binary("Mul", x, w.scalar(0.5**0.5))
    factor = w.binary("Add", w.unary("Erf", inner), w.scalar(1.0))
    match w.upto(0, 2):
        case 0:
            return w.binary("Mul", w.binary("Mul", x, factor), w.scalar(0.5))
        case 1:
            return w.binary("Mul", w.binary("Mul", x, w.scalar(0.5)), factor)
        case _:
            return w.binary("Mul", x, w.binary("Mul", w.scalar(0.5), factor))


def gelu_tanh(w: Writer, x: Value) -> Value:
    if w.one_in(2):
        cube = w.op("Pow", [x, w.scalar(3.0)], x.dims)
    else:
        cube = w.binary("Mul", w.binary("Mul", x, x), x)
    inner = w.binary("Add", x, w.binary("Mul", cube, w.scalar(0.044715)))
    factor = w.binary(
        "Add", w.unary("Tanh", w.binary("Mul", inner, w.scalar((2 / np.pi) ** 0.5))), w.scalar(1.0)
    )
    return w.binary("Mul", w.binary("Mul", x, w.scalar(0.5)), factor)


def gelu_quick(w: Writer, x: Value) -> Value:
    return w.binary("Mul", x, w.unary("Sigmoid", w.binary("Mul", x, w.scalar(1.702))))


def plain(w: Writer, x: Value) -> Value:
    op = w.pick(["Sigmoid", "Tanh", "Elu", "Selu", "Softplus", "Softsign", "HardSigmoid", "Abs"])
    return w.unary(op, x)


def nothing(w: Writer, x: Value) -> Value:
    del w
    return x


def dropout(w: Writer, x: Value) -> Value:
    """Dropout for inference, with its ratio where the opset has it."""
    if w.opset < 12:
        return w.unary("Dropout", x, ratio=0.5)
    training = [w.constant(np.asarray(False))] if w.one_in(2) else []
    return w.op("Dropout", [x, w.constant(np.float32(0.5)), *training], x.dims)


ACTIVATIONS: tuple[Activation, ...] = (
    *(
        relu,
        relu,
        relu,
        relu6,
        leaky,
        leaky_written,
        prelu,
        hard_swish_written,
        hard_swish_written,
        hard_swish,
        silu,
    ),
    *(mish, gelu_erf, gelu_tanh, gelu_quick, plain, nothing, dropout),
)


def activate(w: Writer, x: Value) -> Value:
    """Any activation."""
    return w.pick(ACTIVATIONS)(w, x)
