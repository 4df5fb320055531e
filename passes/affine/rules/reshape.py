"""Channels through a reshape: the axis on which they are afterwards, and their order there.

A reshape keeps the row-major order of the elements. With R the product of the extents after an axis
of extent C, the element e has the coordinate (e // R) % C there. For an axis (R_from, C) before and
one (R_to, D) after the reshape:

- R_from = r * R_to and r * C divides D: the coordinate before is (coordinate after // r) % C; the
  axis was merged with others, or is one of several that were;
- R_to = m * R_from and m * D divides C: the coordinate after is (coordinate before // m) % D; the
  axis was split, and the channels must be constant over all parts but this one, or lie on several
  axes from then on.

R_from / R_to is known from the extents after both axes or, because both shapes have the same number
of elements, from those before: symbols that stand on both sides cancel.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np

from ....ir.tensor import Array
from ....ir.types import ELEMENT_COUNT_LIMIT, Dim, element_count
from ..algebra.affine import Affine


def through_reshape(
    affine: Affine, before: tuple[Dim, ...], after: tuple[Dim, ...]
) -> Affine | None:
    """Return the affine after a reshape, None if that is not an affine per channel.

    Swap the shapes to move an affine of the result to the data.
    """
    if affine.axis is None:
        return affine
    if affine.extents:
        end = affine.axis + len(affine.extents)
        before = (*before[: affine.axis], affine.channels, *before[end:])
        affine = Affine(affine.axis, affine.stages)
    axis_before, channels = affine.axis, affine.channels
    if axis_before is None or axis_before >= len(before) or before[axis_before] != channels:
        return None
    if 0 in before or 0 in after:
        return None
    for axis, extent in enumerate(after):
        if not isinstance(extent, int) or extent == 1:
            continue
        ratio = _inner_ratio(before, axis_before, after, axis)
        found = None if ratio is None else _moved(affine, ratio, axis, extent)
        if found is not None:
            return found
    return _on_several_axes(affine, axis_before, before, after)


def _on_several_axes(
    affine: Affine, axis_before: int, before: tuple[Dim, ...], after: tuple[Dim, ...]
) -> Affine | None:
    """Return the affine with its channels on several consecutive axes, if there are such.

    The last of them has the same R as the axis of the affine.
    """
    for last in range(len(after)):
        if _inner_ratio(before, axis_before, after, last) != 1:
            continue
        product = 1
        for first in range(last, -1, -1):
            extent = after[first]
            if not isinstance(extent, int):
                break
            product *= extent
            if product == affine.channels:
                extents = after[first : last + 1]
                return Affine(first, affine.stages, extents)  # type: ignore[arg-type]
    return None


def _inner_ratio(
    before: tuple[Dim, ...], a: int, after: tuple[Dim, ...], b: int
) -> Fraction | None:
    """Return R of axis `a` over R of axis `b`, None if it is unknown."""
    ratio = _quotient(before[a + 1 :], after[b + 1 :])
    return ratio if ratio is not None else _quotient(after[: b + 1], before[: a + 1])


def _quotient(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> Fraction | None:
    """Return the product of `a` over the product of `b`, None if they have different symbols."""
    if None in a or None in b:
        return None
    symbols = [Counter(dim for dim in dims if not isinstance(dim, int)) for dims in (a, b)]
    if symbols[0] != symbols[1]:
        return None
    counts = [element_count(dim for dim in dims if isinstance(dim, int)) for dims in (a, b)]
    return None if ELEMENT_COUNT_LIMIT in counts else Fraction(*counts)


def _moved(affine: Affine, ratio: Fraction, axis: int, extent: int) -> Affine | None:
    """Return the affine along `axis` of `extent`, whose R is the present R / `ratio`."""
    channels = affine.channels
    assert channels is not None
    if ratio.denominator == 1:
        repeat = ratio.numerator
        if extent % (repeat * channels):
            return None
        index = np.arange(extent) // repeat % channels
        return affine.map(axis, lambda array: array[index])
    if ratio.numerator != 1 or channels % (ratio.denominator * extent):
        return None
    view = (-1, extent, ratio.denominator)

    def constant(array: Array) -> bool:
        parts = array.reshape(view)
        return bool((parts == parts[:1, :, :1]).all())

    if not all(map(constant, affine.vectors())):
        return None
    return affine.map(axis, lambda array: np.ascontiguousarray(array.reshape(view)[0, :, 0]))
