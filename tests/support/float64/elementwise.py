"""Elementwise operators: arithmetic, logic, comparison, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from .call import Call, Op
from .values import Tensor, is_float

Unary = Callable[[Tensor], Tensor]
Binary = Callable[[Tensor, Tensor], Tensor]
_ERF = np.frompyfunc(math.erf, 1, 1)


def _unary(function: Unary) -> Op:
    return lambda call: function(call.tensor(0))


def _binary(function: Binary) -> Op:
    return lambda call: function(*_operands(call))


def _variadic(function: Binary) -> Op:
    return lambda call: reduce(function, call.tensors())


def _operands(call: Call) -> tuple[Tensor, Tensor]:
    """Both operands; before opset 7 `axis` says where the second's shape starts in the first's."""
    left, right = call.tensor(0), call.tensor(1)
    if call.version < 7 and call.has("axis"):
        axis = call.integer("axis", 0) % left.ndim
        right = right.reshape(right.shape + (1,) * (left.ndim - axis - right.ndim))
    return left, right


def _divide(left: Tensor, right: Tensor) -> Tensor:
    """Integers truncate towards zero."""
    if is_float(left):
        return np.true_divide(left, right)
    quotient = np.floor_divide(left, right)
    inexact = np.multiply(quotient, right) != left
    return np.asarray(quotient + (inexact & ((left < 0) != (right < 0))), dtype=left.dtype)


def _power(left: Tensor, right: Tensor) -> Tensor:
    if is_float(left) or is_float(right) or np.any(right < 0):
        return np.asarray(
            np.power(left.astype(np.float64), right.astype(np.float64)), dtype=left.dtype
        )
    return np.asarray(np.power(left, right.astype(left.dtype)))


def _mod(call: Call) -> Tensor:
    remainder = np.fmod if call.integer("fmod", 0) else np.mod
    return np.asarray(remainder(call.tensor(0), call.tensor(1)))


def _shift(call: Call) -> Tensor:
    shift = np.left_shift if call.string("direction", "") == "LEFT" else np.right_shift
    return np.asarray(shift(call.tensor(0), call.tensor(1)))


def _mean(call: Call) -> Tensor:
    return np.asarray(reduce(np.add, call.tensors()) / len(call.inputs))


def _is_inf(call: Call) -> Tensor:
    x = call.tensor(0)
    negative = np.isneginf(x) & bool(call.integer("detect_negative", 1))
    return np.asarray(negative | (np.isposinf(x) & bool(call.integer("detect_positive", 1))))


def _clip(call: Call) -> Tensor:
    """Bounds are attributes before opset 11."""
    low: Tensor | None
    high: Tensor | None
    if call.version < 11:
        low = np.asarray(call.real("min", 0.0)) if call.has("min") else None
        high = np.asarray(call.real("max", 0.0)) if call.has("max") else None
    else:
        low, high = call.optional(1), call.optional(2)
    x = call.tensor(0)
    if low is not None:
        x = np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _prelu(call: Call) -> Tensor:
    """Before opset 7 a slope vector is per channel."""
    x, slope = call.tensor(0), call.tensor(1)
    if call.version < 7 and slope.size > 1:
        slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
    return np.where(x < 0, x * slope, x)


def sigmoid(x: Tensor) -> Tensor:
    return np.asarray(1 / (1 + np.exp(-x)))


def softplus(x: Tensor) -> Tensor:
    return np.asarray(np.logaddexp(0.0, x))


def erf(x: Tensor) -> Tensor:
    return np.asarray(_ERF(x), dtype=np.float64)


def elu(x: Tensor, alpha: float) -> Tensor:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    return np.clip(alpha * x + beta, 0.0, 1.0)


def leaky_relu(x: Tensor, alpha: float) -> Tensor:
    return np.where(x < 0, alpha * x, x)


def thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    return np.where(x > alpha, x, 0.0)


def softsign(x: Tensor) -> Tensor:
    return np.asarray(x / (1 + np.abs(x)))


def _selu(call: Call) -> Tensor:
    """The defaults got more digits in opset 6."""
    modern = call.version >= 6
    alpha = call.real("alpha", 1.67326319217681884765625 if modern else 1.6732)
    gamma = call.real("gamma", 1.05070102214813232421875 if modern else 1.0507)
    return np.asarray(gamma * elu(call.tensor(0), alpha))


def _celu(call: Call) -> Tensor:
    alpha = call.real("alpha", 1.0)
    return np.asarray(alpha * elu(call.tensor(0) / alpha, 1.0))


def _gelu(call: Call) -> Tensor:
    x = call.tensor(0)
    if call.string("approximate", "none") == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def _shrink(call: Call) -> Tensor:
    x, threshold, bias = call.tensor(0), call.real("lambd", 0.5), call.real("bias", 0.0)
    shrunk = np.where(x < -threshold, x + bias, np.where(x > threshold, x - bias, 0.0))
    return shrunk.astype(x.dtype)


def _swish(call: Call) -> Tensor:
    x = call.tensor(0)
    return np.asarray(x * sigmoid(call.real("alpha", 1.0) * x))


def _where(call: Call) -> Tensor:
    return np.where(call.tensor(0), call.tensor(1), call.tensor(2))


OPS: dict[str, Op] = {
    "Abs": _unary(np.abs),
    "Acos": _unary(np.arccos),
    "Acosh": _unary(np.arccosh),
    "Add": _binary(np.add),
    "And": _binary(np.logical_and),
    "Asin": _unary(np.arcsin),
    "Asinh": _unary(np.arcsinh),
    "Atan": _unary(np.arctan),
    "Atanh": _unary(np.arctanh),
    "BitShift": _shift,
    "BitwiseAnd": _binary(np.bitwise_and),
    "BitwiseNot": _unary(np.bitwise_not),
    "BitwiseOr": _binary(np.bitwise_or),
    "BitwiseXor": _binary(np.bitwise_xor),
    "Ceil": _unary(np.ceil),
    "Celu": _celu,
    "Clip": _clip,
    "Cos": _unary(np.cos),
    "Cosh": _unary(np.cosh),
    "Div": _binary(_divide),
    "Elu": lambda call: elu(call.tensor(0), call.real("alpha", 1.0)),
    "Equal": _binary(np.equal),
    "Erf": _unary(erf),
    "Exp": _unary(np.exp),
    "Floor": _unary(np.floor),
    "Gelu": _gelu,
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "HardSigmoid": lambda call: hard_sigmoid(
        call.tensor(0), call.real("alpha", 0.2), call.real("beta", 0.5)
    ),
    "HardSwish": _unary(lambda x: x * hard_sigmoid(x, 1 / 6, 0.5)),
    "IsInf": _is_inf,
    "IsNaN": _unary(np.isnan),
    "LeakyRelu": lambda call: leaky_relu(call.tensor(0), call.real("alpha", 0.01)),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "Log": _unary(np.log),
    "Max": _variadic(np.maximum),
    "Mean": _mean,
    "Min": _variadic(np.minimum),
    "Mish": _unary(lambda x: x * np.tanh(softplus(x))),
    "Mod": _mod,
    "Mul": _binary(np.multiply),
    "Neg": _unary(np.negative),
    "Not": _unary(np.logical_not),
    "Or": _binary(np.logical_or),
    "PRelu": _prelu,
    "Pow": _binary(_power),
    "Reciprocal": _unary(np.reciprocal),
    "Relu": _unary(lambda x: np.maximum(x, np.zeros((), x.dtype))),
    "Round": _unary(np.rint),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _unary(sigmoid),
    "Sign": _unary(np.sign),
    "Sin": _unary(np.sin),
    "Sinh": _unary(np.sinh),
    "Softplus": _unary(softplus),
    "Softsign": _unary(softsign),
    "Sqrt": _unary(np.sqrt),
    "Sub": _binary(np.subtract),
    "Sum": _variadic(np.add),
    "Swish": _swish,
    "Tan": _unary(np.tan),
    "Tanh": _unary(np.tanh),
    "ThresholdedRelu": lambda call: thresholded_relu(call.tensor(0), call.real("alpha", 1.0)),
    "Where": _where,
    "Xor": _binary(np.logical_xor),
}
