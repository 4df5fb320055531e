"""Activations, clipping and the elementary functions, each on every element by itself; and softmax with its kin."""

from __future__ import annotations

import math

import numpy as np

from ..graph import Node
from ..tensor import Array
from .channel_map import rectified_channels
from .evaluation import NotEvaluable, operand
from .inference import same
from .row import (
    NUMPY_BROADCAST,
    Channels,
    Check,
    Function,
    Inputs,
    MakeFunction,
    OpInfo,
    Parameter,
    Trait,
    integer,
    number,
    text_of,
)

SELU = (1.67326319217681884765625, 1.05070102214813232421875)
"""ONNX's defaults for alpha and gamma."""

_erf = np.vectorize(math.erf, otypes=[np.float64])


def evaluate_abs(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Abs; the least signed integer has none."""
    data = operand(inputs)
    if data.dtype.kind == "i" and (data == np.iinfo(data.dtype).min).any():
        raise NotEvaluable("the absolute value of the least integer")
    return (np.abs(data),)


def _number(node: Node, name: str, default: float) -> float:
    found = node.attrs.get(name, default)
    return float(found) if isinstance(found, float | int) else default


def _plain(function: Function) -> MakeFunction:
    return lambda node: function


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x))


def _elu(node: Node) -> Function:
    alpha = _number(node, "alpha", 1.0)
    return lambda x: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _celu(node: Node) -> Function:
    alpha = _number(node, "alpha", 1.0)
    return lambda x: np.maximum(x, 0) + np.minimum(alpha * np.expm1(np.minimum(x, 0) / alpha), 0)


def _selu(node: Node) -> Function:
    alpha, gamma = _number(node, "alpha", SELU[0]), _number(node, "gamma", SELU[1])
    return lambda x: gamma * np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _gelu(node: Node) -> Function:
    if text_of(node, "approximate", "none") == "tanh":
        return lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _swish(node: Node) -> Function:
    alpha = _number(node, "alpha", 1.0)
    return lambda x: x * _sigmoid(alpha * x)


def _hard_sigmoid(node: Node) -> Function:
    alpha, beta = _number(node, "alpha", 0.2), _number(node, "beta", 0.5)
    return lambda x: np.clip(alpha * x + beta, 0, 1)


_ELEMENTWISE = frozenset({Trait.ELEMENTWISE})
_KEPT = frozenset({Trait.KEPT_UNREAD})
_RECTIFIER = frozenset({Trait.ELEMENTWISE, Trait.RECTIFIER, Trait.SEVERAL_AXES})


def _row(
    name: str,
    onnx: str,
    function: MakeFunction | None = None,
    *numbers: str,
    since: int = 1,
    traits: frozenset[Trait] = _ELEMENTWISE | _KEPT,
    channels: Channels | None = None,
) -> OpInfo:
    """Make the row of an operator with one operand, whose attributes are `numbers`."""
    attrs: dict[str, Check] = dict.fromkeys(numbers, number)
    return OpInfo(
        name, (1, 1), same, onnx=onnx, since=since, attrs=attrs, function=function, traits=traits, channels=channels
    )


def _along_axis(name: str, onnx: str, *integers: str, since: int = 1) -> OpInfo:
    return OpInfo(name, (1, 1), same, onnx=onnx, since=since, attrs=dict.fromkeys(integers, integer), traits=_KEPT)


ROWS = (
    _row("nn.relu", "Relu", traits=_RECTIFIER, channels=rectified_channels),
    _row("nn.leaky_relu", "LeakyRelu", None, "alpha", traits=_RECTIFIER, channels=rectified_channels),
    OpInfo(
        "nn.prelu",
        (2, 2),
        same,
        onnx="PRelu",
        forms={NUMPY_BROADCAST: 7},
        traits=frozenset({Trait.BROADCASTS, Trait.RECTIFIER, Trait.SEVERAL_AXES}),
        channels=rectified_channels,
    ),
    OpInfo(
        "abs",
        (1, 1),
        same,
        evaluate_abs,
        onnx="Abs",
        traits=_ELEMENTWISE | {Trait.SEVERAL_AXES},
        channels=rectified_channels,
    ),
    OpInfo(
        "clip",
        (1, 3),
        same,
        onnx="Clip",
        forms={"integers": 12},
        parameters={"min": Parameter(1, 11), "max": Parameter(2, 11)},
        attrs={"max": number, "min": number},
        traits=_ELEMENTWISE,
    ),
    _row("hard_sigmoid", "HardSigmoid", _hard_sigmoid, "alpha", "beta", traits=_ELEMENTWISE),
    _row("sigmoid", "Sigmoid", _plain(_sigmoid)),
    _row("tanh", "Tanh", _plain(np.tanh)),
    _row("erf", "Erf", _plain(_erf), since=9),
    _row("exp", "Exp", _plain(np.exp)),
    _row("log", "Log"),
    _row("round", "Round", since=11),
    _row("sign", "Sign", since=9),
    _row("sin", "Sin", since=7),
    _row("cos", "Cos", since=7),
    _row("tan", "Tan", since=7),
    _row("asin", "Asin", since=7),
    _row("acos", "Acos", since=7),
    _row("atan", "Atan", since=7),
    _row("sinh", "Sinh", since=9),
    _row("cosh", "Cosh", since=9),
    _row("asinh", "Asinh", since=9),
    _row("acosh", "Acosh", since=9),
    _row("atanh", "Atanh", since=9),
    _row("nn.softplus", "Softplus", _plain(_softplus)),
    _row("nn.softsign", "Softsign", _plain(lambda x: x / (1 + np.abs(x)))),
    _row("nn.mish", "Mish", _plain(lambda x: x * np.tanh(_softplus(x))), since=18),
    _row("nn.hard_swish", "HardSwish", _plain(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)), since=14),
    _row("nn.elu", "Elu", _elu, "alpha"),
    _row("nn.celu", "Celu", _celu, "alpha", since=12),
    _row("nn.selu", "Selu", _selu, "alpha", "gamma"),
    _row("nn.gelu", "Gelu", _gelu, since=20),
    _row("nn.swish", "Swish", _swish, "alpha", since=24),
    _row("nn.thresholded_relu", "ThresholdedRelu", None, "alpha", since=10),
    _row("nn.shrink", "Shrink", None, "bias", "lambd", since=9),
    _along_axis("nn.softmax", "Softmax", "axis"),
    _along_axis("nn.log_softmax", "LogSoftmax", "axis"),
    _along_axis("nn.hardmax", "Hardmax", "axis"),
    _along_axis("nn.lp_normalize", "LpNormalization", "axis", "p"),
    _along_axis("nn.lrn", "LRN", "size"),
    OpInfo(
        "cumsum", (2, 2), same, onnx="CumSum", since=11, attrs={"exclusive": integer, "reverse": integer}, traits=_KEPT
    ),
    OpInfo("trilu", (1, 2), same, onnx="Trilu", since=14, attrs={"upper": integer}, traits=_KEPT),
)
