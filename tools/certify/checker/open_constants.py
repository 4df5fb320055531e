"""Constants of which some elements are open: a runtime may give them any number.

A Cast of infinity, NaN or a number that does not fit makes an integer that ONNX does not say.
Models compute such elements, and then take others for them, as the buckets of relative positions
do by a Where. So they are followed until no element is open, or the constant is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
from onnx import helper

from .program import Array, Datum, Operation, Stored, Unproved
from .recomputation import EVALUATORS, cast

ELEMENTWISE = frozenset(
    (
        *("Add", "Sub", "Mul", "Neg", "Abs", "Min", "Max", "Sum"),
        *("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor", "Not"),
    )
)
"""Operators of which an element is open where one of an operand is, and that no number ends."""

MOVING = frozenset(
    ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Expand", "Transpose")
)
"""Operators that move the elements of their first operand."""


@dataclass(frozen=True, slots=True)
class OpenConstant:
    """A constant whose elements are those of `array`, or any where `is_open`."""

    array: Array
    is_open: Array


def open_constant(operation: Operation, known: Mapping[Datum, OpenConstant]) -> OpenConstant:
    """Return the result of an operation on constants that are `known`, or else stored.

    Raises Unproved.
    """
    kind = operation.kind
    if operation.domain or operation.bodies or "broadcast" in operation.attributes:
        raise Unproved(f"{kind} of open elements is not computed")
    data = operation.operand(0)
    if kind in ("Cast", "CastLike") and data is not None and data.stored is not None:
        return _cast(operation, data.stored)
    given = [_given(each, known) for each in operation.inputs]
    arrays, masks = [each.array for each in given], [each.is_open for each in given]
    if any(each.dtype.kind not in "iub" for each in arrays):
        raise Unproved("an operand is no constant of integers")
    if kind == "Where":
        taken = np.where(arrays[0], masks[1], masks[2])
        return OpenConstant(np.where(*arrays), masks[0] | taken)
    if kind in ELEMENTWISE:
        found = np.asarray(EVALUATORS[kind](operation, arrays))
        return OpenConstant(found, np.broadcast_to(reduce(np.logical_or, masks), found.shape))
    if kind in MOVING and not any(each.any() for each in masks[1:]):
        moved = (EVALUATORS[kind](operation, [each, *arrays[1:]]) for each in (arrays[0], masks[0]))
        return OpenConstant(*moved)
    if kind in ("Cast", "CastLike"):
        stored = cast(_target(operation), Stored(None, np.where(masks[0], 0, arrays[0])))
        return OpenConstant(stored.array, masks[0])
    raise Unproved(f"{kind} of open elements is not computed")


def _given(value: Datum | None, known: Mapping[Datum, OpenConstant]) -> OpenConstant:
    if value is not None and value in known:
        return known[value]
    if value is None or value.stored is None:
        raise Unproved("an operand is not constant")
    array = value.stored.array
    return OpenConstant(array, np.zeros(array.shape, bool))


def _target(operation: Operation) -> int:
    """Return the element type of a Cast or CastLike."""
    other = operation.operand(1) if operation.kind == "CastLike" else None
    return int(operation.attributes["to"]) if other is None else other.kind


def _cast(operation: Operation, stored: Stored) -> OpenConstant:
    """Return the integers of floats, some of which do not fit."""
    dtype = helper.tensor_dtype_to_np_dtype(_target(operation))
    if dtype.kind not in "iu" or stored.is_unrounded:
        raise Unproved("numbers decide that are not rounded yet, or are no integers")
    numbers, limits = np.trunc(stored.array.astype(np.float64)), np.iinfo(dtype)
    # The greatest number of 64 bits is rounded up in float64, so it is left open, too.
    fits = (numbers >= float(limits.min)) & (numbers < float(limits.max))
    return OpenConstant(np.where(fits, numbers, 0).astype(dtype), ~fits)
