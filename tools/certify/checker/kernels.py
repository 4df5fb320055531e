"""Constants that a runtime computed: operators round within a bound, not to the nearest."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from .lines import is_rounding
from .program import Array, Operation, Stored, Unproved

BOUNDS: dict[str, tuple[float, float]] = {
    "Cos": (3.0, np.inf),
    "Exp": (2.0, np.inf),
    "Log": (3.0, np.inf),
    "Pow": (2.0, np.inf),
    "Sigmoid": (64.0, 2.0),
    "Sin": (3.0, np.inf),
    "Softplus": (5.0, np.inf),
    "Tanh": (5.0, np.inf),
}
"""The error of kernels in machine epsilons: relative to the exact number, and absolute."""

EXACT = (0.0, 0.5, 1.0)
"""Results that kernels compute without an error: Log of 1, and all others of 0."""

INTEGERS: dict[int, np.dtype[Any]] = {2: np.dtype("<i2"), 4: np.dtype("<i4"), 8: np.dtype("<i8")}
"""By the size of a float, the integers that are as large."""

ULPS = np.dtype("<i2")


def _ordered(array: Array) -> Array:
    """Return integers that count the numbers of a float type in their order; both zeros are 0."""
    bits: Array = np.ascontiguousarray(array).view(INTEGERS[array.dtype.itemsize])
    return np.where(bits < 0, np.iinfo(bits.dtype).min - bits, bits)


def _numbers(places: Array, dtype: np.dtype[Any]) -> Array:
    bits: Array = np.where(places < 0, np.iinfo(places.dtype).min - places, places)
    return np.asarray(bits.view(dtype))


def ulps_between(array: Array, rounded: Stored) -> str | None:
    """Return by how many numbers of its type each element is off, as a step states it.

    The text is little-endian int16, deflated, in base64. None stands for arrays without such a
    text.
    """
    if (
        array.dtype != rounded.array.dtype
        or array.shape != rounded.array.shape
        or array.dtype.kind != "f"
    ):
        return None
    places = _ordered(array) - _ordered(rounded.array)
    if np.abs(places).max(initial=0) > np.iinfo(ULPS).max:
        return None
    return base64.b64encode(zlib.compress(places.astype(ULPS).tobytes())).decode()


def stated(operation: Operation, rounded: Stored, ulps: object) -> Stored:
    """Return the result of an operation that is some numbers away from the rounding.

    Raises Unproved.
    """
    relative, absolute = BOUNDS.get(operation.kind, (0.0, 0.0))
    if not relative or rounded.array.dtype.kind != "f":
        raise Unproved(f"{operation.kind} is rounded to the nearest number")
    try:
        size = rounded.array.size * ULPS.itemsize
        content = zlib.decompressobj().decompress(
            base64.b64decode(str(ulps), validate=True), size + 1
        )
        places = np.frombuffer(content, ULPS).reshape(rounded.array.shape)
    except (ValueError, zlib.error):
        raise Unproved("the distances from the roundings are damaged") from None
    if places[np.isin(rounded.exact, EXACT)].any():
        raise Unproved(f"kernels of {operation.kind} compute 0, 1/2 and 1 without an error")
    ordered = _ordered(rounded.array)
    array = _numbers(ordered + places.astype(ordered.dtype), rounded.array.dtype).reshape(
        places.shape
    )
    exact, epsilon = rounded.exact, float(np.finfo(array.dtype).eps)
    is_finite = np.isfinite(exact)
    if np.isnan(exact).any() or (np.isfinite(array) != is_finite).any():
        raise Unproved("a number is not finite")
    made, exact = array[is_finite], exact[is_finite]  # a Log of 0 is minus infinity
    near = np.abs(made - exact) <= epsilon * np.minimum(relative * np.abs(exact), absolute)
    if not is_rounding(made[~near], exact[~near], np.abs(exact[~near])):
        raise Unproved(
            f"a number is farther from the exact one than kernels of {operation.kind} compute it"
        )
    return Stored(None, array)
