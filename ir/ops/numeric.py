"""Arithmetic element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod

import numpy as np

from ...support.statement import states
from ..graph import Node
from ..provenance import Refusal, Refused
from ..tensor import Array
from .bounds import falling, rising
from .channel_map import ChannelAxis, ChannelMap
from .evaluation import NotEvaluable, aligned_operands, binary, check_size, operands, unary
from .inference import broadcast, elementwise, same
from .interval import UNBOUNDED, Interval, added, enclosing, inverted, multiplied, negated
from .row import (
    NUMPY_BROADCAST,
    AffineForm,
    Bounds,
    Constants,
    Evaluate,
    Inputs,
    NodeView,
    OpInfo,
    Trait,
    integer,
)

LIMITED_BROADCAST = {"axis": integer, "broadcast": integer}
"""Attributes that operators with two operands have before opset 7."""


def has_no_legacy_axis(node: NodeView) -> Refusal | None:
    """Refuse `axis`, except in the limited broadcast of opsets below 7 with `broadcast=1`."""
    if "axis" not in node.attrs or (node.opset < 7 and node.attrs.get("broadcast") == 1):
        return None
    return Refusal("unsupported_attr", "axis without limited broadcast")


def has_numpy_broadcast(node: NodeView) -> Refusal | None:
    """Refuse opsets below 7, in which attributes tell how operands are broadcast."""
    return None if node.opset >= 7 else Refusal("unsupported_attr", "limited broadcast")


def evaluate_divide(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Divide floats as IEEE 754 says; integers truncate towards zero."""
    a, b = aligned_operands(node, inputs)
    if a.dtype != b.dtype or a.dtype == object:
        raise NotEvaluable(f"operands are {a.dtype} and {b.dtype}")
    if a.dtype.kind not in "iu":
        check_size(prod(np.broadcast_shapes(a.shape, b.shape)), a)
        with np.errstate(all="ignore"):
            return (np.divide(a, b),)
    # The least integer has no magnitude of its type.
    least = np.iinfo(a.dtype).min
    overflows = a.dtype.kind == "i" and ((a == least).any() or (b == least).any())
    if overflows or not b.all():
        raise NotEvaluable("integer division by zero or overflow")
    check_size(prod(np.broadcast_shapes(a.shape, b.shape)), a)
    quotient = np.abs(a) // np.abs(b)
    return (np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype),)


def evaluate_power(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Pow of integers, which wraps; runtimes round a floating power as they like."""
    a, b = operands(inputs)
    if a.dtype != b.dtype or a.dtype.kind not in "iu" or (b < 0).any():
        raise NotEvaluable("a floating or negative power")
    check_size(prod(np.broadcast_shapes(a.shape, b.shape)), a)
    return (np.power(a, b),)


def evaluate_mod(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Mod of integers, with the sign of the divisor or, with `fmod`, of the dividend."""
    a, b = operands(inputs)
    if a.dtype != b.dtype or a.dtype.kind not in "iu" or not b.all():
        raise NotEvaluable("a floating remainder, or one of a division by zero")
    check_size(prod(np.broadcast_shapes(a.shape, b.shape)), a)
    return ((np.fmod if node.attrs.get("fmod") else np.mod)(a, b),)


def _reciprocal(x: Array) -> Array:
    return np.asarray(np.divide(np.ones((), x.dtype), x))


def _variadic(function: Callable[[Array, Array], Array]) -> Evaluate:
    def evaluate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
        parts = operands(inputs)
        if any(part.dtype != parts[0].dtype or (part != part).any() for part in parts):
            raise NotEvaluable("operands of several dtypes, or NaN")
        check_size(prod(np.broadcast_shapes(*(part.shape for part in parts))), parts[0])
        return (reduce(function, parts),)

    return evaluate


_EXACT = frozenset({Trait.EXACT_AT_RUNTIME})
_SUM = frozenset({Trait.COMBINES, Trait.SUM})
_BROADCASTS = frozenset({Trait.BROADCASTS})
_ELEMENTWISE = frozenset({Trait.ELEMENTWISE, Trait.EXACT_AT_RUNTIME})
_EXTREMUM = _BROADCASTS | _EXACT | {Trait.COMBINES, Trait.SATURATES}
_BROADCAST_8 = {NUMPY_BROADCAST: 8}


def _arithmetic(
    name: str,
    onnx: str,
    evaluate: Evaluate,
    affine: AffineForm,
    bounds: Bounds,
    *traits: Trait,
    wide: str | None = None,
    pole: str | None = None,
) -> OpInfo:
    return OpInfo(
        name,
        ("lhs", "rhs"),
        elementwise,
        evaluate,
        onnx=onnx,
        when=has_no_legacy_axis,
        forms={NUMPY_BROADCAST: 7},
        attrs=LIMITED_BROADCAST,
        wide=wide,
        bounds=bounds,
        pole=pole,
        affine=affine,
        traits=frozenset({Trait.ALIGNED, Trait.BROADCASTS, *traits}),
    )


@states("x + c == 1 * x + c; c + x == 1 * x + c")
def addend(constant: Array) -> tuple[Array, Array]:
    """X + c"""
    return np.ones_like(constant), constant


@states("x - c == 1 * x + -c")
def _subtrahend(constant: Array) -> tuple[Array, Array]:
    """X - c"""
    return np.ones_like(constant), -constant


@states("c - x == -1 * x + c")
def _minuend(constant: Array) -> tuple[Array, Array]:
    """C - x"""
    return -np.ones_like(constant), constant


@states("x * c == c * x + 0; c * x == c * x + 0")
def _factor(constant: Array) -> tuple[Array, Array]:
    """X c"""
    return constant, np.zeros_like(constant)


@states("x / c == 1 / c * x + 0")
def _divisor(constant: Array) -> tuple[Array, Array]:
    """X / c"""
    if not constant.all():
        raise Refused("nonfinite", "the divisor has a zero")
    return np.ones_like(constant) / constant, np.zeros_like(constant)


@states("mean_n(x, c) == x / 2 + c / 2; mean_n(c, x) == x / 2 + c / 2")
def _averaged(constant: Array) -> tuple[Array, Array]:
    """(x + c) / 2"""
    return np.ones_like(constant) / 2, constant / 2


@states("s * -x + t == -(s * x - t)")
def negated_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Neg: -(s x + t) = s (-x) - t."""
    return ChannelMap(at.axis, factor=-1.0)


def _sum(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    return [added(*x)]


def _difference(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    return [added(x[0], negated(x[1]))]


def _average(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    return [added(*x).map(lambda v: v / len(x))]


def _product(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound Mul; a square is never negative."""
    if node["lhs"] is node["rhs"]:
        return [_powered(x[0], 2.0)]
    return [multiplied(*x)]


def _quotient(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    return [multiplied(x[0], inverted(x[1]))]


def _powered(x: Interval, exponent: float) -> Interval:
    """Return the interval of x^exponent; a fractional power has no value below zero."""
    if not np.isfinite(exponent):
        return UNBOUNDED
    if exponent < 0:
        return inverted(_powered(x, -exponent))
    if exponent != round(exponent):
        x = x.clipped(0, np.inf)
    zero = np.clip(0.0, x.low, x.high)
    return enclosing([np.power(point, exponent) for point in (*x.corners, zero)])


def _power(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound Pow with one constant exponent, or of positive numbers."""
    exponents = constants.array(node["exponent"])
    if exponents is not None and exponents.size == 1:
        return [_powered(x[0], float(exponents.ravel()[0]))]
    if (x[0].low <= 0).any():
        return [UNBOUNDED]
    return [enclosing([np.power(a, b) for a in x[0].corners for b in x[1].corners])]


def _remainder(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    most = x[1].magnitude
    return [Interval(-most, most)]


def _endwise(function: Callable[[Array, Array], Array]) -> Bounds:
    """Make the bounds of a function of all operands that never falls with any of them."""
    return lambda node, x, constants: [
        Interval(
            reduce(function, [each.low for each in x]), reduce(function, [each.high for each in x])
        )
    ]


_ADDED = AffineForm("add", addend, addend)

ROWS = (
    _arithmetic(
        "multiply",
        "Mul",
        binary(np.multiply, wide=True),
        AffineForm("mul", _factor, _factor),
        _product,
        *_EXACT,
        wide="rhs",
    ),
    _arithmetic("add", "Add", binary(np.add, wide=True), _ADDED, _sum, *_EXACT, *_SUM, wide="rhs"),
    _arithmetic(
        "subtract",
        "Sub",
        binary(np.subtract),
        AffineForm("sub", _subtrahend, _minuend),
        _difference,
        *_EXACT,
        *_SUM,
    ),
    _arithmetic(
        "divide",
        "Div",
        evaluate_divide,
        AffineForm("div", _divisor),
        _quotient,
        Trait.STEEP,
        pole="rhs",
    ),
    OpInfo(
        "negative",
        ("data",),
        same,
        unary(np.negative),
        onnx="Neg",
        affine=AffineForm("neg"),
        traits=_ELEMENTWISE,
        channels=negated_channels,
        bounds=falling(np.negative),
    ),
    OpInfo(
        "sqrt",
        ("data",),
        same,
        unary(np.sqrt),
        onnx="Sqrt",
        traits=_ELEMENTWISE,
        bounds=rising(np.sqrt, 0),
    ),
    OpInfo(
        "reciprocal",
        ("data",),
        same,
        unary(_reciprocal),
        onnx="Reciprocal",
        traits=_ELEMENTWISE | {Trait.STEEP},
        pole="data",
        bounds=lambda node, x, constants: [inverted(x[0])],
    ),
    OpInfo(
        "floor",
        ("data",),
        same,
        unary(np.floor),
        onnx="Floor",
        traits=_ELEMENTWISE,
        bounds=rising(np.floor),
    ),
    OpInfo(
        "ceil",
        ("data",),
        same,
        unary(np.ceil),
        onnx="Ceil",
        traits=_ELEMENTWISE,
        bounds=rising(np.ceil),
    ),
    OpInfo(
        "power",
        ("base", "exponent"),
        broadcast,
        evaluate_power,
        onnx="Pow",
        when=has_numpy_broadcast,
        attrs=LIMITED_BROADCAST,
        traits=_BROADCASTS | {Trait.EVALUATED_FOR_INTEGERS, Trait.STEEP},
        bounds=_power,
        pole="base",
    ),
    OpInfo(
        "mod",
        ("lhs", "rhs"),
        broadcast,
        evaluate_mod,
        onnx="Mod",
        since=10,
        attrs={"fmod": integer},
        traits=frozenset({Trait.EVALUATED_FOR_INTEGERS}),
        bounds=_remainder,
    ),
    OpInfo(
        "maximum",
        ("inputs*",),
        broadcast,
        _variadic(np.maximum),
        onnx="Max",
        traits=_EXTREMUM,
        forms=_BROADCAST_8,
        bounds=_endwise(np.maximum),
    ),
    OpInfo(
        "minimum",
        ("inputs*",),
        broadcast,
        _variadic(np.minimum),
        onnx="Min",
        traits=_EXTREMUM,
        forms=_BROADCAST_8,
        bounds=_endwise(np.minimum),
    ),
    OpInfo(
        "add_n",
        ("inputs*",),
        broadcast,
        onnx="Sum",
        affine=AffineForm("sum", addend, addend),
        traits=_BROADCASTS | _SUM,
        forms=_BROADCAST_8,
        bounds=_sum,
    ),
    OpInfo(
        "mean_n",
        ("inputs*",),
        broadcast,
        onnx="Mean",
        affine=AffineForm("mean", _averaged, _averaged),
        traits=_BROADCASTS | {Trait.COMBINES},
        forms=_BROADCAST_8,
        bounds=_average,
    ),
)
