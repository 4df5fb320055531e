"""The operators that are affines by themselves: y = scale * x + shift by constants."""

from __future__ import annotations

import numpy as np

from .lines import Line, along
from .operators import VARIADIC
from .program import Array, Datum, Operation

EPSILON = float(np.float32(1e-5))
"""The default of `epsilon`, an attribute of float32."""

BINARY = frozenset(("Mul", "Add", "Sub", "Div", "Sum", "Mean"))


def own_line(operation: Operation) -> tuple[Datum, Line] | None:
    """Return the operand and the line of an operation that is one, else None."""
    if operation.line is not None:
        found: tuple[Datum, Line] | None = operation.line[0]
        return found
    made = _own_line(operation)
    # Operands that have a class change no more.
    if all(each is None or each.stored is not None or each.term >= 0 for each in operation.inputs):
        operation.line = (made,)
    return made


def _own_line(operation: Operation) -> tuple[Datum, Line] | None:
    if operation.domain or operation.bodies or not operation.outputs:
        return None
    kind = operation.kind
    if kind == "BatchNormalization":
        return _normalization(operation)
    data = operation.operand(0)
    if kind == "Neg" and data is not None and data.is_float and data.rank is not None:
        line = Line.identity(data.rank)
        return data, Line(-line.scale, line.shift, line.reach)
    if kind not in BINARY or len(operation.inputs) != 2:
        return None
    return _binary(operation)


def batch_norm_numbers(operation: Operation) -> tuple[Array, Array, Array] | None:
    """Return scale, shift and reach of a BatchNormalization in inference, a number a channel."""
    attributes = operation.attributes
    if operation.version >= 14:
        is_inference = not attributes.get("training_mode", 0)
    else:
        is_inference = len(operation.outputs) == 1
        if operation.version < 7:
            is_inference = is_inference and bool(attributes.get("is_test", 0))
    if not is_inference or len(operation.inputs) != 5:
        return None
    found = [
        None if each is None or each.stored is None else each.stored.exact
        for each in operation.inputs[1:]
    ]
    if any(each is None for each in found):
        return None
    gamma, beta, mean, variance = (each for each in found if each is not None)
    if len({each.shape for each in (gamma, beta, mean, variance)}) != 1:
        return None
    scale = gamma / np.sqrt(variance + attributes.get("epsilon", EPSILON))
    product = mean * scale
    return scale, beta - product, np.abs(beta) + np.abs(product)


def _normalization(operation: Operation) -> tuple[Datum, Line] | None:
    data, numbers = operation.operand(0), batch_norm_numbers(operation)
    if numbers is None or data is None or not data.is_float or data.rank is None or data.rank < 2:
        return None
    rank, extents = data.rank, numbers[0].shape
    if len(extents) == 1:
        line = Line(*(compressed(along(each, 1, rank)) for each in numbers))
    elif (
        operation.attributes.get("spatial", 1)
        or data.extents is None
        or data.extents[1:] != extents
    ):
        return None
    else:  # of each element
        line = Line(*(compressed(each.reshape(1, *extents)) for each in numbers))
    return (data, line) if line.is_finite else None


def _binary(operation: Operation) -> tuple[Datum, Line] | None:
    first, second = operation.inputs
    if first is None or second is None:
        return None
    if second.stored is not None and first.stored is None:
        data, constant, is_left = first, second, False
    elif first.stored is not None and second.stored is None:
        data, constant, is_left = second, first, True
    else:
        return None
    if not data.is_float or data.rank is None:
        return None
    assert constant.stored is not None
    number = fitted(operation, data, constant.stored.exact)
    if number is None:
        return None
    kind, one, zero = operation.kind, np.ones((1,) * data.rank), np.zeros((1,) * data.rank)
    if kind == "Mul":
        line = Line.of(number, zero)
    elif kind in ("Add", "Sum"):
        line = Line.of(one, number)
    elif kind == "Mean":
        line = Line.of(0.5 * one, 0.5 * number)
    elif kind == "Sub":
        line = Line.of(-one, number) if is_left else Line.of(one, -number)
    elif not is_left and number.all():
        line = Line.of(1.0 / number, zero)
    else:
        return None
    return (data, line) if line.is_finite else None


def fitted(operation: Operation, data: Datum, number: Array) -> Array | None:
    """Return a constant operand with the axes of the data; None if it may enlarge the result."""
    assert data.extents is not None
    rank = len(data.extents)
    if number.ndim > rank or (
        operation.kind in VARIADIC and operation.version < 8 and number.shape != data.extents
    ):
        return None
    extents = (1,) * (rank - number.ndim) + number.shape
    if operation.version < 7 and operation.kind not in ("Sum", "Mean"):
        if not operation.attributes.get("broadcast", 0):
            if number.ndim != rank:
                return None
        else:
            axis = operation.attributes.get("axis", rank - number.ndim)
            axis += rank if axis < 0 else 0
            extents = (1,) * axis + number.shape + (1,) * (rank - number.ndim - axis)
    if len(extents) != rank:
        return None
    if any(
        extent != 1 and extent != known for extent, known in zip(extents, data.extents, strict=True)
    ):
        return None
    return compressed(number.reshape(extents))


def compressed(array: Array) -> Array:
    """Return the array with an extent of 1 along the axes on which all numbers are one."""
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            first = array.take([0], axis=axis)
            if (array == first).all():
                array = first
    return array
