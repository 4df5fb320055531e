"""Affines of the result by the numbers that its constants were rounded from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .checker.layer_constants import numbers_of
from .checker.lines import Line, along
from .checker.program import Array, Datum, Operation, Stored, Unproved
from .checker.weighted_layers import parameters, weights_of
from .writing import Exact, encoded


def unrounded(operation: Operation, exact: Exact) -> Operation:
    """Return an operation with its float constants as they were before they were rounded."""
    inputs = [None if each is None else _unrounded(each, exact) for each in operation.inputs]
    return replace(operation, inputs=inputs, line=None)


def _unrounded(value: Datum, exact: Exact) -> Datum:
    if value.stored is None or not value.is_float:
        return value
    array, numbers = value.stored.array, exact(value.label)
    if numbers is None or numbers.size not in (1, array.size):
        return value
    return replace(value, stored=Stored(None, array, filled(numbers, array.shape)))


def filled(numbers: Array, extents: tuple[int, ...]) -> Array:
    """Return numbers in these extents, one for all elements. Raises ValueError."""
    return np.full(extents, numbers) if numbers.size == 1 else numbers.reshape(extents)


def affine_between(source: Operation, result: Operation) -> Line | None:
    """Return the affine from one layer to another with the same data, None if unknown."""
    given, made, rank = weights_of(source), weights_of(result), source.outputs[0].rank or 0
    if result.kind == "DequantizeLinear":
        return _between_scales(source, result, rank)
    if given is None or made is None:
        try:
            pairs = [parameters(each, Line.identity(rank)) for each in (source, result)]
        except (Unproved, ValueError, IndexError):
            return None
        (old, old_bias), (new, new_bias) = (
            [part.astype(np.float64) for part in pair] for pair in pairs
        )
    else:
        if given.matrix.shape != made.matrix.shape or given.axis != made.axis or rank <= made.axis:
            return None
        count = len(given.matrix)
        before = given.factor * given.matrix.reshape(count, -1)
        after = made.factor * made.matrix.reshape(count, -1)
        place = np.arange(count), np.abs(before).argmax(axis=1)
        old, new = (along(each[place], made.axis, rank) for each in (before, after))
        plain = np.zeros((1,) * rank)
        old_bias, new_bias = (
            plain if each.bias is None else each.bias_factor * each.bias.exact
            for each in (given, made)
        )
    scale = np.where(old == 0, 1.0, new / np.where(old == 0, 1.0, old))
    line = Line.of(scale, new_bias - scale * old_bias, np.abs(new_bias) + np.abs(scale * old_bias))
    return line if line.is_finite else None


def _between_scales(source: Operation, result: Operation, rank: int) -> Line | None:
    old, new = (numbers_of(each.operand(1)) for each in (source, result))
    if old is None or new is None or old.exact.size != new.exact.size or not old.exact.all():
        return None
    ratio, axis = (new.exact / old.exact).reshape(-1), int(result.attributes.get("axis", 1))
    if ratio.size > 1 and not -rank <= axis < rank:
        return None
    scale = along(ratio, axis % rank, rank) if ratio.size > 1 else ratio.reshape((1,) * rank)
    return Line.of(scale, np.zeros((1,) * rank))


def stated(line: Line) -> dict[str, Any]:
    """Return an affine as a certificate states it, by position."""
    extents = np.broadcast_shapes(line.scale.shape, line.shift.shape)
    scale, shift = (np.broadcast_to(each, extents) for each in (line.scale, line.shift))
    return {"scale": encoded(scale), "shift": encoded(shift), "extents": list(extents)}
