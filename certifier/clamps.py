"""Operators that limit elements from below and above: min(max(x, low), high), with constant bounds.

Two in a row are one. Let f limit to a <= b and g limit to c <= d. Both are monotone, so g(f(x)) limits x to g(a) and
g(b): for x within [a, b] it is g(x), which lies between g(a) and g(b) and is x, or the bound that g(x) hits; below and
above it is g(a) and g(b). An affine goes through: with s > 0, s * f(x) + t limits s * x + t to s * a + t and s * b + t.
With s < 0 the bounds change places. With s = 0 the result is t, which bounds around t leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .affine_operators import fitted
from .lines import Line, is_rounding
from .program import Array, Datum, Operation, Unproved

CLAMPS = frozenset(("Clip", "Relu", "Max", "Min"))
"""Operators that limit elements, where their other operands are constants."""

NON_NEGATIVE = frozenset(("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Exp", "Abs", "Sqrt", "Softplus"))
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
    """Return the data of an operation and the bounds, with the axes of the data; None if it is no clamp."""
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
        number = fitted(operation, data, constants[0])
        if number is None:
            return None
        low, high = (number, high) if operation.kind == "Max" else (low, number)
    if data is None or data.rank is None or not data.is_float or np.isnan(low).any() or np.isnan(high).any():
        return None
    wide = [each.reshape((1,) * (data.rank - each.ndim) + each.shape) for each in (low, high)]
    return None if (wide[0] > wide[1]).any() else (data, (wide[0], wide[1]))


def _clip_bounds(operation: Operation) -> Bounds | None:
    """Return the bounds of a Clip, infinite where they are absent or the greatest number of the type."""
    made: list[Array] = []
    for index, name in enumerate(("min", "max"), 1):
        infinite = np.array(np.inf if index == 2 else -np.inf)
        if operation.version < 11:
            given = operation.attributes.get(name)
            stored = None if given is None else np.array(given, np.float32)
        else:
            operand = operation.operand(index)
            if operand is not None and (operand.stored is None or operand.stored.array.size != 1):
                return None
            stored = None if operand is None or operand.stored is None else operand.stored.array.reshape(())
        made.append(infinite if stored is None else _unlimited(stored))
    return made[0], made[1]


def _unlimited(stored: Array) -> Array:
    """Return bounds in float64, with infinity for the greatest numbers of the type."""
    wide = stored.astype(np.float64)
    greatest = GREATEST.get(stored.dtype.name, np.inf)
    return np.where(np.abs(wide) >= greatest, np.copysign(np.inf, wide), wide)


def clamps(value: Datum) -> Iterator[tuple[Datum, Bounds]]:
    """Yield the values of which `value` is a clamp, the nearest first, with the bounds of all between."""
    bounds: Bounds | None = None
    for _ in range(MAX_CHAIN):
        found = None if value.producer is None or value.index else clamp_of(value.producer)
        if found is None:
            return
        value, own = found
        bounds = own if bounds is None else (_limited(own[0], bounds), _limited(own[1], bounds))
        yield value, bounds


def _limited(array: Array, bounds: Bounds) -> Array:
    return np.asarray(np.minimum(np.maximum(array, bounds[0]), bounds[1]))


def without_effect(operation: Operation) -> bool:
    """Return whether a clamp limits nothing: its data are within the bounds by the operator that makes them."""
    own = clamp_of(operation)
    if own is None:
        return False
    data, (low, high) = own
    before = data.producer
    if before is not None and not before.domain and before.kind in NON_NEGATIVE:
        if (low <= 0).all() and np.isinf(high).all():
            return True
    return any((low <= inner[0]).all() and (high >= inner[1]).all() for _, inner in clamps(data))


def check_same_bounds(line: Line, source: Bounds, result: Bounds, dtype: np.dtype[Any]) -> None:
    """Prove that the bounds of the result are the roundings of the line of the source's. Raises Unproved."""
    gone = line.scale == 0.0
    if (gone & ((line.shift < result[0]) | (line.shift > result[1]))).any():
        raise Unproved("a scale is zero, and the bounds limit the shift")
    with np.errstate(all="ignore"):
        ends = [np.where(gone, same, line.scale * each + line.shift) for same, each in zip(result, source, strict=True)]
        reach = [np.where(gone, 0.0, np.abs(line.scale * each) + line.reach) for each in source]
    if any((np.isinf(end) & np.isfinite(each) & ~gone).any() for end, each in zip(ends, source, strict=True)):
        raise Unproved("a bound overflows")
    turned = line.scale < 0
    for index in (0, 1):
        exact = np.where(turned, ends[1 - index], ends[index])
        magnitude = np.where(turned, reach[1 - index], reach[index])
        given, exact, magnitude = np.broadcast_arrays(result[index], exact, magnitude)
        free = np.isinf(exact)
        if not np.array_equal(free, np.isinf(given)) or (given[free] != exact[free]).any():
            raise Unproved("one of the bounds is absent")
        if not is_rounding(given[~free].astype(dtype), exact[~free], magnitude[~free]):
            raise Unproved("a bound is not the rounded number that the scale and shift make of the source's")
