"""Constants beside data that are an affine of the source's: they are rounded by it, too.

Where the line of the data says nothing about a constant, as in a sum, in a Concat and in the border
of a Pad, the step claims the affine of the result.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from onnx import helper

from .lines import Line, is_rounding, vanishes
from .program import Array, Datum, Operation, Unproved

SUMS = frozenset(("Add", "Sub", "Sum", "Mean"))

TOGETHER = SUMS | {"Max", "Min", "Concat", "Where"}
"""Operators of which all operands are affines, constants included."""


def are_constants(source: Operation, first: Datum | None, second: Datum | None) -> bool:
    """Return whether two operands are constants whose line the other operands say."""
    if first is None or second is None or first.stored is None or second.stored is None:
        return False
    return source.kind in TOGETHER and first.is_float and first.kind == second.kind


def constant_lines(
    source: Operation, result: Operation, lines: dict[int, Line], claim: Line | None
) -> dict[int, Line]:
    """Return the lines of the result's constants over the source's, beside the data's `lines`.

    `claim` is the line of the results, where the certificate states it. Raises Unproved.
    """
    pairs = list(zip(source.inputs, result.inputs, strict=False))
    wanted = [i for i, pair in enumerate(pairs) if are_constants(source, *pair)]
    found = {}
    for i in wanted:
        given, made = pairs[i]
        assert (
            given is not None
            and given.stored is not None
            and made is not None
            and made.stored is not None
        )
        is_same = source.kind == "Concat" and claim is None and given.term == made.term
        found[i] = (
            Line.identity(given.stored.array.ndim)
            if is_same
            else _line_of(source, i, lines, wanted, claim)
        )
        if source.kind == "Concat" and given.stored.array.shape != made.stored.array.shape:
            raise Unproved("a constant has other extents")
        _check_constant(source.outputs[0], given.stored.exact, made.stored.array, found[i])
    return found


def _line_of(
    source: Operation, index: int, lines: dict[int, Line], wanted: list[int], claim: Line | None
) -> Line:
    """Return the line that a constant needs for the results to have one line."""
    first = next(iter(lines.values()), None)
    if first is None:
        raise Unproved("the data are equal, and a constant beside them is not")
    if source.kind == "Concat":
        return _part_of_join(source, index, claim) if claim is not None else first
    if source.kind not in SUMS:
        return first
    shift = 0.0 * first.shift
    if claim is None or len(wanted) > 1:
        return Line(first.scale, shift, shift)
    count = len(source.inputs) if source.kind == "Mean" else 1
    signs = [-1.0 if source.kind == "Sub" and i else 1.0 for i in range(len(source.inputs))]
    rest = count * claim.shift - sum(signs[i] * line.shift for i, line in lines.items())
    reach = count * claim.reach + sum(line.reach for line in lines.values())
    return Line(first.scale, signs[index] * rest, reach)


def _part_of_join(concat: Operation, index: int, claim: Line) -> Line:
    axis = int(concat.attributes.get("axis", 1)) % claim.rank
    extents = [
        None if each is None or each.extents is None else each.extents[axis]
        for each in concat.inputs
    ]
    known = [extent for extent in extents if isinstance(extent, int)]
    if claim.is_uniform_along((axis,)):
        return claim
    if len(known) < len(extents):
        raise Unproved("the extents along the axis are unknown")
    first = [0, *accumulate(known)][index]
    return _cut(claim, axis, slice(first, first + known[index]))


def _cut(line: Line, axis: int, part: slice) -> Line:
    cut = (*[slice(None)] * axis, part)
    return line.map(lambda array: array if array.shape[axis] == 1 else array[cut])


def _check_constant(whole: Datum, old: Array, new: Array, line: Line) -> None:
    """Prove that a constant is the rounded line of another, with its extents or the result's."""
    rank, extents = line.rank, whole.extents
    if extents is None or len(extents) != rank or max(old.ndim, new.ndim) > rank:
        raise Unproved("a constant has more axes than the result, or its rank is unknown")
    old, new = (each.reshape((1,) * (rank - each.ndim) + each.shape) for each in (old, new))
    for before, after, extent in zip(old.shape, new.shape, extents, strict=True):
        if before != after and (before != 1 or after != extent):
            raise Unproved("a constant has other extents")
    _check_value(old, new, line)


def check_padding(
    source: Operation, result: Operation, line: Line, claim: Line | None
) -> Line | None:
    """Prove that the values of a Pad are rounded from the data's line, or a border's `claim`.

    Returns the claim, if the data are within the border have it. Raises Unproved.
    """
    old, new = padding_value(source), padding_value(result)
    if old.dtype != new.dtype:
        raise Unproved("the values of the padding have different types")
    if claim is None:
        _check_value(old, new, line)
        return None
    data = source.operand(0)
    pads = source.integers("pads" if source.version > 1 else "paddings", 1)
    inner = claim
    if (
        pads is None
        or source.operand(3) is not None
        or data is None
        or len(pads) != 2 * claim.rank
        or min(pads) < 0
    ):
        raise Unproved("the pads are not constant, cut, or are those of some axes")
    for axis, (before, after) in enumerate(
        zip(pads[: claim.rank], pads[claim.rank :], strict=True)
    ):
        if claim.is_uniform_along((axis,)) or not before + after:
            if before + after:
                _check_value(old, new, claim)
            continue
        extent = None if data.extents is None else data.extents[axis]
        if not isinstance(extent, int) or not claim.fits(
            (*[None] * axis, before + extent + after, *[None] * (claim.rank - axis - 1))
        ):
            raise Unproved("the extents of a padded axis are unknown, or others than the affine's")
        _check_value(old, new, _cut(claim, axis, slice(0, before)))
        _check_value(old, new, _cut(claim, axis, slice(before + extent, None)))
        inner = _cut(inner, axis, slice(before, before + extent))
    if not inner.near(line):
        raise Unproved("the data have another affine than the certificate states")
    return claim


def _check_value(old: Array, new: Array, line: Line) -> None:
    old = old.astype(np.float64)
    exact, reach = line.scale * old + line.shift, np.abs(line.scale * old) + line.reach
    if (vanishes(exact, new.dtype) & ~vanishes(old, new.dtype)).any():
        raise Unproved("a constant is below the normal numbers of its type")
    exact, reach, new = np.broadcast_arrays(exact, reach, new)
    if not is_rounding(new, exact, reach):
        raise Unproved(
            "a constant is not the rounded number that the scale and shift make of the source's"
        )


def padding_value(pad: Operation) -> Array:
    """Return the value of a Pad, which is zero where it is absent. Raises Unproved."""
    data, operand = pad.operand(0), pad.operand(2)
    if pad.version >= 11 and operand is not None and operand.stored is not None:
        return operand.stored.array.reshape(())
    if (pad.version >= 11 and operand is not None) or data is None or not data.is_float:
        raise Unproved("the value of the padding is not constant")
    return np.array(pad.attributes.get("value", 0.0), helper.tensor_dtype_to_np_dtype(data.kind))
