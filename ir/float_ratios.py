"""Floats that a model computes from extents, between a Cast to floats and one to integers.

    floor(cast(min(n, 512)) / 3)        quotient(minimum(n, 512), 3)

They are known by the bounds of their numbers: whole numbers below 2^24 are exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from .extents import Piece, least, most, product, quotient, total, truncated_quotient
from .graph import Value
from .record import Record
from .types import dtype_of


class Ratio(Record):
    """A float that is a whole number divided by another, or the float that is next to that.

    The dividend is from `low` to `high`.
    """

    dividend: Piece
    divisor: int
    low: int
    high: int

    @property
    def is_exact(self) -> bool:
        """Whether it is the quotient: floats have every fraction with a power of 2."""
        return self.divisor & (self.divisor - 1) == 0

    def within(self, bits: int) -> Ratio | None:
        """Return itself, None if floats of so many bits may not tell its numbers apart.

        Between quotients of numbers below 2^(bits - 2) and the next whole number is a float.
        """
        limit = 1 << (bits - 2)
        return self if max(-self.low, self.high, self.divisor) <= limit else None


_BITS = {"f16": 11, "f32": 24, "f64": 53}
"""The bits of the whole numbers of which a type of floats has every one."""


def bits_of(value: Value) -> int:
    """Return the bits of whole numbers that floats like `value` are exact to, 0 for no floats."""
    return _BITS.get(str(dtype_of(value.type)), 0)


def ratio_of(piece: Piece) -> Ratio | None:
    """Return a whole number as a float, None if its bounds are unknown."""
    low, high = least(piece), most(piece)
    return None if low is None or high is None else Ratio(piece, 1, low, high)


def ratio_of_float(item: object) -> Ratio | None:
    """Return a constant, None if it is infinite or no number."""
    number = float(item)  # type: ignore[arg-type]
    if not isfinite(number):
        return None
    dividend, divisor = number.as_integer_ratio()
    return Ratio(dividend, divisor, dividend, dividend)


def truncated(a: Ratio | None) -> Piece:
    """Return the whole number that a Cast makes of a float, which drops its fraction."""
    if a is None:
        return None
    is_floor = a.low >= 0 or a.divisor == 1
    return (quotient if is_floor else truncated_quotient)(a.dividend, a.divisor)


def _float_sum(a: Ratio, b: Ratio) -> Ratio | None:
    if not (a.is_exact and b.is_exact):
        return None
    return Ratio(
        total(product(a.dividend, b.divisor), product(b.dividend, a.divisor)),
        a.divisor * b.divisor,
        a.low * b.divisor + b.low * a.divisor,
        a.high * b.divisor + b.high * a.divisor,
    )


def _float_product(a: Ratio, b: Ratio) -> Ratio | None:
    if not (a.is_exact and b.is_exact):
        return None
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    divisor = a.divisor * b.divisor
    return Ratio(product(a.dividend, b.dividend), divisor, min(corners), max(corners))


def _float_quotient(a: Ratio, b: Ratio) -> Ratio | None:
    if not (a.is_exact and b.is_exact and isinstance(b.dividend, int) and b.dividend > 0):
        return None
    times, divisor = b.divisor, a.divisor * b.dividend
    return Ratio(product(a.dividend, times), divisor, a.low * times, a.high * times)


def _floor(a: Ratio) -> Ratio:
    divisor = a.divisor
    return Ratio(quotient(a.dividend, divisor), 1, a.low // divisor, a.high // divisor)


def _ceil(a: Ratio) -> Ratio:
    more = a.divisor - 1
    return _floor(Ratio(total(a.dividend, more), a.divisor, a.low + more, a.high + more))


FUNCTIONS: dict[str, Callable[..., Ratio | None]] = {
    "add": _float_sum,
    "multiply": _float_product,
    "divide": _float_quotient,
    "floor": _floor,
    "ceil": _ceil,
}
"""Functions of floats that are computed of extents, by operator."""
