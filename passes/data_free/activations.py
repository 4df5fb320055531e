"""Activations as functions of numpy arrays, by operator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...ir.graph import Node
from ...ir.ops import DEFAULT_DOMAINS
from ...ir.tensor import Array
from ..affine.operands import text

Function = Callable[[Array], Array]

_erf = np.vectorize(math.erf, otypes=[np.float64])

SELU = (1.67326319217681884765625, 1.05070102214813232421875)
"""ONNX's defaults for alpha and gamma."""


def smooth(node: Node) -> Function | None:
    """The function of one variable that `node` computes element by element, None where it is none that is known."""
    domain, _, op = node.op.rpartition("::")
    make = _FUNCTIONS.get(op) if domain in DEFAULT_DOMAINS else None
    return None if make is None else make(node)


def _attr(node: Node, name: str, default: float) -> float:
    found = node.attrs.get(name, default)
    return float(found) if isinstance(found, float | int) else default


def _plain(function: Function) -> Callable[[Node], Function]:
    return lambda node: function


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x))


def _elu(node: Node) -> Function:
    alpha = _attr(node, "alpha", 1.0)
    return lambda x: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _celu(node: Node) -> Function:
    alpha = _attr(node, "alpha", 1.0)
    return lambda x: np.maximum(x, 0) + np.minimum(alpha * np.expm1(np.minimum(x, 0) / alpha), 0)


def _selu(node: Node) -> Function:
    alpha, gamma = _attr(node, "alpha", SELU[0]), _attr(node, "gamma", SELU[1])
    return lambda x: gamma * np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _gelu(node: Node) -> Function:
    if text(node, "approximate", "none") == "tanh":
        return lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _swish(node: Node) -> Function:
    alpha = _attr(node, "alpha", 1.0)
    return lambda x: x * _sigmoid(alpha * x)


def _hard_sigmoid(node: Node) -> Function:
    alpha, beta = _attr(node, "alpha", 0.2), _attr(node, "beta", 0.5)
    return lambda x: np.clip(alpha * x + beta, 0, 1)


_FUNCTIONS: dict[str, Callable[[Node], Function]] = {
    "Sigmoid": _plain(_sigmoid),
    "Tanh": _plain(np.tanh),
    "Softplus": _plain(_softplus),
    "Softsign": _plain(lambda x: x / (1 + np.abs(x))),
    "Erf": _plain(_erf),
    "Exp": _plain(np.exp),
    "Mish": _plain(lambda x: x * np.tanh(_softplus(x))),
    "HardSwish": _plain(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "Gelu": _gelu,
    "Swish": _swish,
    "hard_sigmoid": _hard_sigmoid,
}
