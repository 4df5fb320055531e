"""Operators that limit elements from below and above: min(max(x, low), high), with constant bounds.

Two in a row are one. Let f limit to a <= b and g limit to c <= d. Both are monotone, so g(f(x))
limits x to g(a) and g(b): for x within [a, b] it is g(x), which lies between g(a) and g(b) and is
x, or the bound that g(x) hits; below and above it is g(a) and g(b). An affine goes through: with s
> 0, s * f(x) + t limits s * x + t to s * a + t and s * b + t. With s < 0 the bounds change places.
With s = 0 the result is t, which bounds around t leave. So a row of clamps and affines is one clamp
of one affine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import TensorProto

from .affine_operators import fitted, own_line
from .lines import Line, is_rounding, vanishes
from .program import Array, Datum, Operation, Same, Unproved

CLAMPS = frozenset(("Clip", "Relu", "Max", "Min"))
"""Operators that limit elements, where their other operands are constants."""

NON_NEGATIVE = frozenset(
    ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Exp", "Abs", "Sqrt", "Softplus")
)
"""Operators whose results are never negative."""

GREATEST = {
    "float16": 65504.0,
    "bfloat16": 255.0 * 2.0**120,
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}
"""The greatest number of a type, which limits nothing."""

MAX_CHAIN = 8
"""Most clamps in a row."""

Bounds = tuple[Array, Array]


def clamp_of(operation: Operation) -> tuple[Datum, Bounds] | None:
    """Return the data and bounds of a clamp, with the axes of the data; None for others."""
    if operation.domain or operation.kind not in CLAMPS:
        return None
    data: Datum | None = operation.operand(0)
    low, high = np.array(-np.inf), np.array(np.inf)
    if operation.kind == "Relu":
        low = np.array(0.0)
    elif operation.kind == "Clip":
        found = _clip_bounds(operation)
        if found is None:
            return None
        low, high = found
    else:
        parts = list(operation.inputs)
        constants = [each for each in parts if each is not None and each.stored is not None]
        if len(parts) != 2 or len(constants) != 1:
            return None
        data = parts[0] if parts[1] is constants[0] else parts[1]
        if data is None or data.extents is None:
            return None
        stored = constants[0].stored
        number = None if stored is None else fitted(operation, data, stored.exact)
        if number is None:
            return None
        low, high = (number, high) if operation.kind == "Max" else (low, number)
    if (
        data is None
        or data.rank is None
        or not data.is_float
        or np.isnan(low).any()
        or np.isnan(high).any()
    ):
        return None
    wide = [each.reshape((1,) * (data.rank - each.ndim) + each.shape) for each in (low, high)]
    return None if (wide[0] > wide[1]).any() else (data, (wide[0], wide[1]))


def _clip_bounds(operation: Operation) -> Bounds | None:
    """Return the bounds of a Clip: absent ones, and the type's greatest numbers, are infinite."""
    made: list[Array] = []
    if operation.version < 11 and operation.outputs[0].kind == TensorProto.DOUBLE:
        return None  # the greatest number of float32 limits doubles
    for index, name in enumerate(("min", "max"), 1):
        infinite = np.array(np.inf if index == 2 else -np.inf)
        if operation.version < 11:
            given = operation.attributes.get(name)
            stored = None if given is None else np.array(given, np.float32)
        else:
            operand = operation.operand(index)
            if operand is not None and (operand.stored is None or operand.stored.array.size != 1):
                return None
            if operand is None or operand.stored is None:
                stored = None
            else:
                stored = operand.stored.array.reshape(())
        made.append(infinite if stored is None else _unlimited(stored, float(np.sign(infinite))))
    return made[0], made[1]


def _unlimited(stored: Array, sign: float) -> Array:
    """Return bounds in float64; the type's greatest number of this sign becomes infinity."""
    wide = stored.astype(np.float64)
    greatest = GREATEST.get(stored.dtype.name, np.inf)
    return np.where(sign * wide >= greatest, sign * np.inf, wide)


def _parts(value: Datum) -> tuple[tuple[Datum, Bounds] | None, tuple[Datum, Line] | None]:
    """Return data and bounds of the clamp that gives a value, and data and line of the affine."""
    producer = None if value.index else value.producer
    return (None, None) if producer is None else (clamp_of(producer), own_line(producer))


def clamps(value: Datum, same: Same = lambda each: each) -> Iterator[tuple[Datum, Line, Bounds]]:
    """Yield the values of which `value` is a clamp of an affine, with line and bounds.

    `same` may give another value that is equal.
    """
    bounds: Bounds | None = None
    line: Line | None = None
    for _ in range(MAX_CHAIN):
        own, affine = _parts(value)
        if own is None and affine is None:
            value = same(value)
            own, affine = _parts(value)
        if own is not None and own[0].rank is not None:
            value, inner = own
            line = Line.identity(own[0].rank) if line is None else line
            moved = image(line, inner)
            if bounds is None:
                bounds = moved
            else:
                bounds = (_limited(moved[0], bounds), _limited(moved[1], bounds))
        elif affine is not None and line is not None and affine[1].rank == line.rank:
            value, line = affine[0], line.after(affine[1])
        else:
            return
        if not line.is_finite:
            return
        if bounds is not None:
            yield value, line, bounds


def image(line: Line, bounds: Bounds) -> Bounds:
    """Return the bounds of an affine of a clamp."""
    ends = [
        np.where(line.scale == 0.0, line.shift, line.scale * each + line.shift) for each in bounds
    ]
    return np.where(line.scale < 0, ends[1], ends[0]), np.where(line.scale < 0, ends[0], ends[1])


def _limited(array: Array, bounds: Bounds) -> Array:
    return np.asarray(np.minimum(np.maximum(array, bounds[0]), bounds[1]))


def limits(value: Datum, same: Same, depth: int = MAX_CHAIN) -> Bounds | None:
    """Return the bounds of a value by the operators that make it, or None."""
    value = same(value)
    producer = value.producer
    if producer is None or value.index or producer.domain or not depth or value.rank is None:
        return None
    own, affine = clamp_of(producer), own_line(producer)
    if own is not None:
        inner = limits(own[0], same, depth - 1)
        return own[1] if inner is None else (_limited(inner[0], own[1]), _limited(inner[1], own[1]))
    if affine is not None:
        inner = limits(affine[0], same, depth - 1)
        return None if inner is None or affine[1].rank != value.rank else image(affine[1], inner)
    zero = np.zeros((1,) * value.rank)
    return (zero, zero + np.inf) if producer.kind in NON_NEGATIVE else None


def without_effect(operation: Operation, same: Same) -> bool:
    """Return whether a clamp limits nothing: operators bound its data more tightly.

    `same` may give another value that is equal, with the same extents.
    """
    own = clamp_of(operation)
    inner = None if own is None else limits(own[0], same)
    return (
        own is not None
        and inner is not None
        and bool((own[1][0] <= inner[0]).all() and (own[1][1] >= inner[1]).all())
    )


def check_same_bounds(line: Line, source: Bounds, result: Bounds, dtype: np.dtype[Any]) -> Line:
    """Prove that the result's bounds are rounded from the source's. Raises Unproved.

    Returns the line between the clamps: where the scale is zero, the bounds of the result limit the
    shift.
    """
    _check_bounds(line, line.scale == 0.0, source, result, dtype)
    return _limited_shift(line, result)


def check_restored_bounds(line: Line, source: Bounds, result: Bounds, dtype: np.dtype[Any]) -> Line:
    """Prove the same where the source is the line of the result. Raises Unproved."""
    gone = line.scale == 0.0
    back = Line(np.where(gone, 1.0, line.scale), line.shift, line.reach).inverse()
    if back is None:
        raise Unproved("a scale is too small")
    _check_bounds(back, gone, source, result, dtype)
    return _limited_shift(line, source)


def _limited_shift(line: Line, bounds: Bounds) -> Line:
    if line.scale.all():
        return line
    return Line.of(
        line.scale,
        np.where(line.scale == 0.0, _limited(line.shift, bounds), line.shift),
        line.reach,
    )


def _check_bounds(
    line: Line, free: Array, source: Bounds, result: Bounds, dtype: np.dtype[Any]
) -> None:
    """Prove that bounds are the roundings of the line of the source's, but where they are `free`.

    Raises Unproved.
    """
    turned, ends = line.scale < 0, image(line, source)
    reach = [
        np.where(np.isinf(each), 0.0, np.abs(line.scale * each) + line.reach) for each in source
    ]
    for index in (0, 1):
        before = np.where(turned, source[1 - index], source[index])
        magnitude = np.where(turned, reach[1 - index], reach[index])
        arrays = np.broadcast_arrays(result[index], ends[index], magnitude, before, ~free)
        given, exact, magnitude, before = (each[arrays[4]] for each in arrays[:4])
        absent = np.isinf(exact)
        if (absent & np.isfinite(before)).any():
            raise Unproved("a bound overflows")
        if not np.array_equal(absent, np.isinf(given)) or (given[absent] != exact[absent]).any():
            raise Unproved("one of the bounds is absent")
        if (vanishes(exact, dtype) & ~vanishes(before, dtype)).any():
            raise Unproved("a bound is below the normal numbers of its type")
        if not is_rounding(given[~absent].astype(dtype), exact[~absent], magnitude[~absent]):
            raise Unproved(
                "a bound is not the rounded number that the scale and shift make of the source's"
            )
