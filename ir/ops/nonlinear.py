"""Activations, clipping and the elementary functions, element by element; softmax and its kin."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..graph import Node
from ..tensor import Array
from ..types import shape_of
from .bounds import (
    Turns,
    always,
    extents_product,
    falling,
    of_same_data_or_zero,
    operand_bounds,
    rising,
    turning,
)
from .channel_map import rectified_channels
from .evaluation import NotEvaluable, operand
from .inference import same
from .interval import UNBOUNDED, ZERO, Interval, interval, multiplied, repeated
from .row import (
    NUMPY_BROADCAST,
    Bounds,
    Channels,
    Check,
    Constants,
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
_SATURATES = _ELEMENTWISE | {Trait.SATURATES}
_KEPT = frozenset({Trait.KEPT_UNREAD})
_STEEP = _ELEMENTWISE | _KEPT | {Trait.STEEP}
_RECTIFIER = frozenset({Trait.ELEMENTWISE, Trait.RECTIFIER, Trait.SEVERAL_AXES})


def _row(
    name: str,
    onnx: str,
    function: MakeFunction | None = None,
    *numbers: str,
    since: int = 1,
    traits: frozenset[Trait] = _ELEMENTWISE | _KEPT,
    channels: Channels | None = None,
    bounds: Bounds | None = None,
    pole: str | None = None,
    turns: Turns = lambda node: (),
) -> OpInfo:
    """Make the row of an operator with one operand, whose attributes are `numbers`.

    A `function` bounds its results by itself: between its `turns` it rises or falls.
    """
    attrs: dict[str, Check] = dict.fromkeys(numbers, number)
    if function is not None and bounds is None:
        bounds = turning(function, turns)
    return OpInfo(
        name,
        ("data",),
        same,
        onnx=onnx,
        since=since,
        attrs=attrs,
        function=function,
        bounds=bounds,
        pole=pole,
        traits=traits,
        channels=channels,
    )


def _along_axis(
    name: str,
    onnx: str,
    *integers: str,
    since: int = 1,
    traits: frozenset[Trait] = _KEPT,
    bounds: Bounds,
) -> OpInfo:
    attrs = dict.fromkeys(integers, integer)
    return OpInfo(
        name, ("data",), same, onnx=onnx, since=since, attrs=attrs, traits=traits, bounds=bounds
    )


def slope_below_zero(node: Node) -> float | None:
    """Return the slope of a LeakyRelu or Abs below zero; a PRelu has an operand for it."""
    if node.op == "abs":
        return -1.0
    return _number(node, "alpha", float(np.float32(0.01))) if node.op == "nn.leaky_relu" else None


def _rectified(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound LeakyRelu and PRelu: max(x, 0) + slope * min(x, 0), of which one term is 0."""
    data, alpha = x[0], slope_below_zero(node)
    slope = operand_bounds(node, x, "slope") if alpha is None else interval(alpha, alpha)
    below = multiplied(data.map(lambda v: np.minimum(v, 0)), slope)
    above = data.map(lambda v: np.maximum(v, 0))
    both = below.hull(above)
    return [
        Interval(
            np.where(data.low >= 0, above.low, np.where(data.high <= 0, below.low, both.low)),
            np.where(data.low >= 0, above.high, np.where(data.high <= 0, below.high, both.high)),
        )
    ]


def _clipped(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound Clip: min(max(x, low), high) never falls with any of the three."""
    if node.op == "nn.relu":
        return [x[0].clipped(0, math.inf)]
    low = operand_bounds(node, x, "min", interval(-math.inf, -math.inf))
    high = operand_bounds(node, x, "max", interval(math.inf, math.inf))
    ends = zip(x[0].corners, low.whole.corners, high.whole.corners, strict=True)
    return [Interval(*[np.minimum(np.maximum(v, least), most) for v, least, most in ends])]


def _terms(node: Node, default: int) -> float:
    """Return the most elements that a softmax shares one among.

    They are the elements of its axis and, in old opsets, of all axes behind it.
    """
    shape, axis = shape_of(node.operand().type), node.attrs.get("axis", default)
    if shape is None or not isinstance(axis, int):
        return math.inf
    return max(1.0, extents_product(node, range(axis % max(len(shape), 1), len(shape))))


def _log_softmax(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound LogSoftmax: x - log(sum(exp(x))) is at least min - max - log(n)."""
    data = x[0].whole
    return [
        Interval(np.minimum(data.low - data.high - math.log(_terms(node, 1)), 0.0), np.array(0.0))
    ]


def _locally_normalized(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound LRN: x divided by at least bias^beta."""
    alpha, beta, bias = (
        _number(node, "alpha", 1e-4),
        _number(node, "beta", 0.75),
        _number(node, "bias", 1.0),
    )
    if alpha < 0 or beta < 0 or bias <= 0:
        return [UNBOUNDED]
    return [x[0].hull(ZERO).map(lambda v: v / bias**beta)]


def _accumulated(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound CumSum: a sum of at most as many terms as the axis has."""
    axis, shape = constants.array(node["axis"]), shape_of(node.operand().type)
    known = axis is not None and axis.size == 1 and shape is not None
    count = extents_product(node, [int(axis.item())]) if known and axis is not None else math.inf
    return [repeated(x[0].whole, count).hull(ZERO)]


def _shrunk(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound Shrink: x + bias below -lambd, x - bias above lambd, 0 between."""
    bias = _number(node, "bias", 0.0)
    return [x[0].hull(x[0].map(lambda v: v + bias), x[0].map(lambda v: v - bias), ZERO)]


_DECIDES = _KEPT | {Trait.DECIDES}


def _zero(node: Node) -> tuple[float, ...]:
    return (0.0,)


def _at(*turns: float) -> Turns:
    return lambda node: turns


GELU_TURNS = (-0.7517915241, -0.7524614220)
"""The least values of x Phi(x), by Erf and by Tanh."""

SWISH_TURN, MISH_TURN = -1.2784645428, -1.1924312142

ROWS = (
    _row("nn.relu", "Relu", traits=_RECTIFIER, channels=rectified_channels, bounds=_clipped),
    _row(
        "nn.leaky_relu",
        "LeakyRelu",
        None,
        "alpha",
        traits=_RECTIFIER,
        channels=rectified_channels,
        bounds=_rectified,
    ),
    OpInfo(
        "nn.prelu",
        ("data", "slope"),
        same,
        onnx="PRelu",
        forms={NUMPY_BROADCAST: 7},
        traits=frozenset({Trait.BROADCASTS, Trait.RECTIFIER, Trait.SEVERAL_AXES}),
        channels=rectified_channels,
        bounds=_rectified,
    ),
    OpInfo(
        "abs",
        ("data",),
        same,
        evaluate_abs,
        onnx="Abs",
        traits=_ELEMENTWISE | {Trait.SEVERAL_AXES},
        channels=rectified_channels,
        bounds=turning(_plain(np.abs), _zero),
    ),
    OpInfo(
        "clip",
        ("data", "min?", "max?"),
        same,
        onnx="Clip",
        forms={"integers": 12},
        parameters={"min": Parameter(11), "max": Parameter(11)},
        attrs={"max": number, "min": number},
        traits=_SATURATES,
        bounds=_clipped,
    ),
    _row("hard_sigmoid", "HardSigmoid", _hard_sigmoid, "alpha", "beta", traits=_SATURATES),
    _row("sigmoid", "Sigmoid", _plain(_sigmoid), traits=_SATURATES | _KEPT),
    _row("tanh", "Tanh", _plain(np.tanh), traits=_SATURATES | _KEPT),
    _row("erf", "Erf", _plain(_erf), since=9, traits=_SATURATES | _KEPT),
    _row("exp", "Exp", _plain(np.exp), bounds=rising(np.exp), traits=_STEEP),
    _row("log", "Log", bounds=rising(np.log, 0), pole="data", traits=_STEEP),
    _row("round", "Round", since=11, bounds=rising(np.rint)),
    _row("sign", "Sign", since=9, bounds=rising(np.sign)),
    _row("sin", "Sin", since=7, bounds=always(-1, 1), traits=_SATURATES | _KEPT),
    _row("cos", "Cos", since=7, bounds=always(-1, 1), traits=_SATURATES | _KEPT),
    _row("tan", "Tan", since=7),
    _row("asin", "Asin", since=7, bounds=rising(np.arcsin, -1, 1)),
    _row("acos", "Acos", since=7, bounds=falling(np.arccos, -1, 1)),
    _row("atan", "Atan", since=7, bounds=rising(np.arctan)),
    _row("sinh", "Sinh", since=9, bounds=rising(np.sinh)),
    _row("cosh", "Cosh", since=9, bounds=turning(_plain(np.cosh), _zero)),
    _row("asinh", "Asinh", since=9, bounds=rising(np.arcsinh)),
    _row("acosh", "Acosh", since=9, bounds=rising(np.arccosh, 1)),
    _row("atanh", "Atanh", since=9, bounds=rising(np.arctanh, -1, 1)),
    _row("nn.softplus", "Softplus", _plain(_softplus)),
    _row(
        "nn.softsign",
        "Softsign",
        _plain(lambda x: x / (1 + np.abs(x))),
        traits=_SATURATES | _KEPT,
    ),
    _row(
        "nn.mish",
        "Mish",
        _plain(lambda x: x * np.tanh(_softplus(x))),
        since=18,
        turns=_at(MISH_TURN),
    ),
    _row(
        "nn.hard_swish",
        "HardSwish",
        _plain(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
        since=14,
        turns=_at(-3, -1.5),
    ),
    _row("nn.elu", "Elu", _elu, "alpha", turns=_zero),
    _row("nn.celu", "Celu", _celu, "alpha", since=12, turns=_zero),
    _row("nn.selu", "Selu", _selu, "alpha", "gamma", turns=_zero),
    _row("nn.gelu", "Gelu", _gelu, since=20, turns=_at(*GELU_TURNS)),
    _row(
        "nn.swish",
        "Swish",
        _swish,
        "alpha",
        since=24,
        turns=lambda node: (SWISH_TURN / (_number(node, "alpha", 1.0) or math.inf),),
    ),
    _row(
        "nn.thresholded_relu",
        "ThresholdedRelu",
        None,
        "alpha",
        since=10,
        bounds=of_same_data_or_zero,
    ),
    _row("nn.shrink", "Shrink", None, "bias", "lambd", since=9, bounds=_shrunk),
    _along_axis("nn.softmax", "Softmax", "axis", traits=_DECIDES, bounds=always(0, 1)),
    _along_axis("nn.log_softmax", "LogSoftmax", "axis", traits=_DECIDES, bounds=_log_softmax),
    _along_axis("nn.hardmax", "Hardmax", "axis", traits=_DECIDES, bounds=always(0, 1)),
    _along_axis("nn.lp_normalize", "LpNormalization", "axis", "p", bounds=always(-1, 1)),
    _along_axis("nn.lrn", "LRN", "size", bounds=_locally_normalized),
    OpInfo(
        "cumsum",
        ("data", "axis"),
        same,
        onnx="CumSum",
        since=11,
        attrs={"exclusive": integer, "reverse": integer},
        traits=_KEPT,
        bounds=_accumulated,
    ),
    OpInfo(
        "trilu",
        ("data", "k?"),
        same,
        onnx="Trilu",
        since=14,
        attrs={"upper": integer},
        traits=_KEPT,
        bounds=of_same_data_or_zero,
    ),
)
