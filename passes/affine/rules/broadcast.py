"""How an affine passes elementwise operators of several operands, with broadcasting.

A constant operand that is not an affine varies along several axes or stands beside two dynamic
ones. It is replaced by its affine, and may grow to the shape of the channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from ....ir.graph import Node
from ....ir.ops import has_trait, is_legal, parameter_axis
from ....ir.ops.channel_map import is_extent, unknown_shape
from ....ir.ops.evaluation import align
from ....ir.ops.row import NUMPY_BROADCAST, Trait
from ....ir.provenance import Refused
from ....ir.tensor import Array
from ....ir.types import Shape, shape_of
from ....support.statement import states
from ..algebra.affine import Affine
from ..algebra.operands import Parameters
from ..algebra.transfer import (
    Transfer,
    check_no_shift,
    check_no_zero_scale,
    check_scale_sign,
    sole_affine,
)
from ..units.magic_rounding import check_not_rounding
from .affine_rule import AffineRule

Dynamic = list[tuple[int, int]]
"""Operands by number that are computed at run time, each with its axis of channels."""

Constants = list[tuple[int, Array]]
"""Operands by number that are constant."""


def _parts(
    node: Node, affine: Affine, params: Parameters, first: int = 0
) -> tuple[Dynamic, Constants]:
    """Return the dynamic operands from `first` on, with their channel axes, and the constants.

    Constants are float64 and have the rank of the result. The axis is -1 for an operand that is
    broadcast along the channels.
    """
    shape = shape_of(node.output.type)
    if shape is None and affine.axis is not None:
        raise unknown_shape(node)
    rank = None if shape is None else len(shape)
    dynamic: Dynamic = []
    constants: Constants = []
    axes: dict[Shape, int] = {}  # of thousands of operands, many have one shape
    for i, value in enumerate(node.inputs[first:], start=first):
        if value is None:
            raise Refused("unsupported_op", f"{node.description}: operand {i} is absent")
        array = params.evaluator.exact(value)
        if array is not None:
            constants.append(
                (i, _at_rank(node, affine, array.astype(np.float64), rank, is_second=i == 1))
            )
        elif i == 1 and parameter_axis(node) is not None:
            detail = f"{node.description}: an operand at an axis is not constant"
            raise Refused("unsupported_attr", detail)
        else:
            inner = shape_of(value.type)
            if inner not in axes:
                axes[inner] = _channel_axis(node, affine, inner, rank)
            dynamic.append((i, axes[inner]))
    return dynamic, constants


def _at_rank(
    node: Node, affine: Affine, array: Array, rank: int | None, *, is_second: bool
) -> Array:
    """Return a constant operand at the rank of the result, with room for the channels."""
    axis = parameter_axis(node)
    if node.op == "nn.bias_add" and affine.axis not in (None, axis):
        detail = f"{node.description}: its parameter is a vector along another axis"
        raise Refused("axis_mismatch", detail)
    is_elsewhere = axis is None or affine.axis not in (None, axis)
    misaligned = is_elsewhere and has_trait(node, Trait.ALIGNED)
    if misaligned and not is_legal(node.op, NUMPY_BROADCAST, node):
        detail = f"{node.description}: constants do not broadcast before opset 7"
        raise Refused("unsupported_op", detail)
    if axis is not None and is_second:
        if rank is None or axis + array.ndim > rank:
            raise unknown_shape(node)
        if not 0 <= axis <= rank - array.ndim:
            detail = f"{node.description}: its parameter does not fit at axis {axis}"
            raise Refused("channel_mismatch", detail)
        array = align(array, axis, rank)
    array = array.reshape((1,) * ((rank or 0) - array.ndim) + array.shape)
    axis = affine.axis
    if axis is None:
        return array
    # The affine scales its channels, or one number that the result repeats along them.
    if is_extent(array.shape, axis, 1) or is_extent(array.shape, axis, affine.channels):
        return array
    raise unknown_shape(node)


def _channel_axis(node: Node, affine: Affine, inner: Shape, rank: int | None) -> int:
    """Return the channel axis of a dynamic operand of a shape, -1 if it is broadcast along it."""
    if affine.axis is None:
        return 0
    if inner is None:
        raise unknown_shape(node)
    assert rank is not None
    axis = affine.axis - (rank - len(inner))
    return axis if is_extent(inner, axis, affine.channels) else -1


def _check_not_stretched(node: Node, dynamic: Dynamic) -> None:
    """Refuse an operand that is broadcast along the channels: it cannot be scaled per channel."""
    for i, axis in dynamic:
        if axis < 0:
            name = node.operand(i).source_name
            detail = f"operand {name!r} is, or may be, broadcast along the channels"
            raise Refused("axis_mismatch", f"{node.description}: {detail}")


def _check_not_rounding(node: Node, constants: Constants, params: Parameters) -> None:
    """Refuse a sum that, with its neighbour, rounds the data to integers."""
    for _, array in constants:
        check_not_rounding(node, array, params.evaluator)


@states(
    "s * (x + y) + t == s * x + t + s * y; s * (x - y) + t == s * x + t - s * y; s * (x - y) + t =="
    " s * x - (s * y - t)"
)
def backward_sum(node: Node, index: int, affine: Affine, params: Parameters) -> Sequence[Transfer]:
    """Add, Sub, Sum: s (x + y) + t = (s x + t) + s y.

    Every operand takes the scale, and one of them the shift: a constant if there is one.
    """
    dynamic, constants = _parts(node, affine, params)
    if affine.has_scale:
        _check_not_stretched(node, dynamic)
    _check_not_rounding(node, constants, params)
    takers = [i for i, _ in constants] + [i for i, axis in dynamic if axis >= 0]
    if not takers:
        raise _no_operand(node)
    if not affine.has_shift:
        del takers[1:]
    return [
        _shared(affine, taker, _is_subtracted(node, taker), dynamic, constants) for taker in takers
    ]


def _shared(
    affine: Affine, taker: int, subtracted: bool, dynamic: Dynamic, constants: Constants
) -> Transfer:
    """Return the transfer of the scale to all terms of a sum, and of the shift to `taker` alone."""
    scale = affine.only_scale()
    if not affine.has_scale:
        dynamic = [(i, axis) for i, axis in dynamic if i == taker and affine.has_shift]
        constants = [(i, array) for i, array in constants if i == taker]
    whole = _negated(affine) if subtracted else affine
    operands = tuple((i, (whole if i == taker else scale).at(axis)) for i, axis in dynamic)
    scaled = tuple(
        (i, (whole if i == taker else scale).apply_along(array)) for i, array in constants
    )
    return Transfer(operands=operands, constants=scaled)


def _is_subtracted(node: Node, index: int) -> bool:
    """Return whether an operand enters a sum with the opposite sign."""
    return node.op == "subtract" and index == 1


def _no_operand(node: Node) -> Refused:
    return Refused("axis_mismatch", f"{node.description}: no operand has the channels")


def _negated(affine: Affine) -> Affine:
    """Return the affine A' with -A'(y) = A(-y): the same scale, the opposite shift."""
    return affine.rescaled_data(-1.0)


@states("s * mean_n(x, y) + t == mean_n(s * x + t, s * y + t)")
def backward_mean(node: Node, index: int, affine: Affine, params: Parameters) -> Sequence[Transfer]:
    """Mean: s mean(x, y) + t = mean(s x + t, s y + t)."""
    return _everywhere(node, affine, params)


@states(
    "s * maximum(x, y) + t == maximum(s * x + t, s * y + t) if s >= 0; "
    "s * minimum(x, y) + t == minimum(s * x + t, s * y + t) if s >= 0"
)
def backward_extremum(
    node: Node, index: int, affine: Affine, params: Parameters
) -> Sequence[Transfer]:
    """Max, Min: s max(x, y) + t = max(s x + t, s y + t) for s >= 0."""
    check_scale_sign(node, affine)
    return _everywhere(node, affine, params)


@states(
    "maximum(s * x + t, y) == s * maximum(x, (y - t) / s) + t if s >= 0 and s != 0; "
    "minimum(s * x + t, y) == s * minimum(x, (y - t) / s) + t if s >= 0 and s != 0"
)
def forward_extremum(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """Max, Min: with a constant y, max(s x + t, y) = s max(x, (y - t) / s) + t for s > 0."""
    moved = _pushed(node, *sole_affine(node, given))
    check_scale_sign(node, moved)
    check_no_zero_scale(node, moved)
    dynamic, constants = _parts(node, moved, params)
    if len(dynamic) > 1:
        detail = f"{node.description}: an affine passes it only beside constants"
        raise Refused("activation_between", detail)
    takes = _shift_of_constant(moved, negated=True)
    new = [(i, array, takes.apply_along(array)) for i, array in constants]
    if any((np.isfinite(after) != np.isfinite(before)).any() for _, before, after in new):
        detail = f"{node.description}: a constant divided by the scale is not finite"
        raise Refused("nonfinite", detail)
    return Transfer(results=((0, moved),), constants=tuple((i, after) for i, _, after in new))


@states("s * where(c, x, y) + t == where(c, s * x + t, s * y + t)")
def backward_where(
    node: Node, index: int, affine: Affine, params: Parameters
) -> Sequence[Transfer]:
    """Where: both branches take the affine; the condition does not."""
    return _everywhere(node, affine, params, first=1)


def _everywhere(
    node: Node, affine: Affine, params: Parameters, first: int = 0
) -> Sequence[Transfer]:
    """Return the way in which every operand takes the whole affine."""
    dynamic, constants = _parts(node, affine, params, first)
    _check_not_stretched(node, dynamic)
    operands = tuple((i, affine.at(axis)) for i, axis in dynamic)
    return [
        Transfer(
            operands=operands,
            constants=tuple((i, affine.apply_along(array)) for i, array in constants),
        )
    ]


@states("s * (x * y) + t == (s * x) * y if t == 0; s * (x * y) + t == x * (s * y) if t == 0")
def backward_product(
    node: Node, index: int, affine: Affine, params: Parameters
) -> Sequence[Transfer]:
    """Mul: s (x y) = (s x) y = x (s y); one operand takes the scale, and no shift passes."""
    check_no_shift(node, affine)
    dynamic, constants = _parts(node, affine, params)
    ways = [Transfer(operands=((i, affine.at(axis)),)) for i, axis in dynamic if axis >= 0]
    ways += [Transfer(constants=((i, affine.apply_along(array)),)) for i, array in constants]
    if not ways:
        raise _no_operand(node)
    return ways


@states(
    "s * (x / y) + t == s * x / y if t == 0; s * (x / c) + t == x / (c / s) if t == 0 and s != 0"
)
def backward_quotient(
    node: Node, index: int, affine: Affine, params: Parameters
) -> Sequence[Transfer]:
    """Div: s (x / y) = (s x) / y = x / (y / s).

    A constant denominator takes a scale without zeros. No shift passes.
    """
    check_no_shift(node, affine)
    dynamic, constants = _parts(node, affine, params)
    ways = []
    if dict(dynamic).get(0, -1) >= 0:
        ways.append(Transfer(operands=((0, affine.at(dict(dynamic)[0])),)))
    known = dict(constants)
    if 0 in known:
        ways.append(Transfer(constants=((0, affine.apply_along(known[0])),)))
    if 1 in known and affine.scale.all():
        inverse = _shift_of_constant(affine.only_scale(), negated=False)
        ways.append(Transfer(constants=((1, inverse.apply_along(known[1])),)))
    if not ways:
        detail = f"{node.description}: the numerator does not have the channels"
        raise Refused("axis_mismatch", detail)
    return ways


def _pushed(node: Node, index: int, affine: Affine) -> Affine:
    """Return the affine of an operand along the axis of the result that its channels are on."""
    value = node.operand(index)
    if affine.axis is None:
        return affine
    inner, shape = shape_of(value.type), shape_of(node.output.type)
    if inner is None or shape is None:
        raise unknown_shape(node)
    if parameter_axis(node) is not None and index == 1:
        detail = f"{node.description}: an operand at an axis is not constant"
        raise Refused("unsupported_attr", detail)
    axis = affine.axis + len(shape) - len(inner)
    if not is_extent(shape, axis, affine.channels):
        raise unknown_shape(node)
    return affine.at(axis)


@states(
    "s * x + t + c == s * (x + (c + t) / s) if s != 0; "
    "s * x + t - c == s * (x - (c - t) / s) if s != 0; "
    "x + t + y == x + y + t"
)
def forward_sum(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """Add, Sub, Sum: (x + t) + y = (x + y) + t, or (s x + t) + c = s (x + (c + t) / s)."""
    index, affine = sole_affine(node, given)
    moved = _pushed(node, index, affine)
    if moved.has_scale:
        dynamic_operands = (value for value in node.inputs if params.evaluator.exact(value) is None)
        if len(list(islice(dynamic_operands, 2))) == 2:
            detail = f"{node.description}: a scale passes a sum only if all operands have it"
            raise Refused("activation_between", detail)
    dynamic, constants = _parts(node, moved, params)
    if not constants or len(dynamic) > 1:
        return Transfer(results=((0, _negated(moved) if _is_subtracted(node, index) else moved),))
    _check_not_rounding(node, constants, params)
    check_no_zero_scale(node, moved)
    takes = _shift_of_constant(moved, negated=node.op == "subtract")
    # One constant takes the shift, and all of them the scale.
    first, rest = constants[0], constants[1:]
    new = [(first[0], takes.apply_along(first[1]))]
    new += [(i, takes.only_scale().apply_along(array)) for i, array in rest]
    if not all(np.isfinite(array).all() for _, array in new):
        detail = f"{node.description}: a constant divided by the scale is not finite"
        raise Refused("nonfinite", detail)
    return Transfer(results=((0, moved.only_scale()),), constants=tuple(new))


def _shift_of_constant(affine: Affine, *, negated: bool) -> Affine:
    """Return the affine (y + shift) / scale of a constant; `negated` subtracts the shift."""
    with np.errstate(all="ignore"):
        shift = -affine.shift if negated else affine.shift
        return Affine.joined(affine.axis, 1 / affine.scale, shift / affine.scale, affine.origins)


@states("(s * x + t) * y == s * (x * y) if t == 0")
def forward_product(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """Mul: (s x) y = s (x y); no shift passes."""
    return _scaled(node, given, allowed=(0, 1))


@states("(s * x + t) / y == s * (x / y) if t == 0")
def forward_quotient(node: Node, given: Mapping[int, Affine], params: Parameters) -> Transfer:
    """Div: (s x) / y = s (x / y); no shift passes, and nothing passes the denominator."""
    return _scaled(node, given, allowed=(0,))


def _scaled(node: Node, given: Mapping[int, Affine], allowed: tuple[int, ...]) -> Transfer:
    index, affine = sole_affine(node, given)
    check_no_shift(node, affine)
    if index not in allowed:
        raise Refused("activation_between", f"{node.description}: nothing passes a denominator")
    moved = _pushed(node, index, affine)
    return Transfer(results=((0, moved),))


_SUM = AffineRule(backward_sum, forward_sum)

RULES = {
    **dict.fromkeys(("add", "add_n", "nn.bias_add", "subtract"), _SUM),
    "multiply": AffineRule(backward_product, forward_product),
    "divide": AffineRule(backward_quotient, forward_quotient),
    "mean_n": AffineRule(backward_mean),
    **dict.fromkeys(("maximum", "minimum"), AffineRule(backward_extremum, forward_extremum)),
    "where": AffineRule(backward_where),
}
"""The rules by operator."""
