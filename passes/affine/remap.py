"""Channels through a reshape: the axis on which they are afterwards, and their order there.

A reshape keeps the row-major order of the elements. With R the product of the extents behind an axis of extent C, the
element e has the coordinate (e // R) % C there. For an axis (R_from, C) before and one (R_to, D) after the reshape:

- R_from = r * R_to and r * C divides D: the coordinate before is (coordinate after // r) % C; the axis was merged with
  others, or is one of several that were;
- R_to = m * R_from and m * D divides C: the coordinate after is (coordinate before // m) % D; the axis was split, and
  the channels must be constant over all parts but this one, or lie on several axes from then on.

R_from / R_to is known from the extents behind both axes or, because both shapes have the same number of elements, from
those in front: symbols that stand on both sides cancel.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ...ir.tensor import Array
from ...ir.types import ELEMENT_COUNT_LIMIT, Dim, element_count
from .algebra import Affine

if TYPE_CHECKING:
    from fractions import Fraction


def through_reshape(affine: Affine, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> Affine | None:
    """The affine of the reshaped value that `affine` is of the value with shape `before`, None where it is none.

    The roles of the two shapes may be swapped.
    """
    if affine.axis is None:
        return affine
    if affine.extents:
        behind = affine.axis + len(affine.extents)
        before = (*before[: affine.axis], affine.channels, *before[behind:])
        affine = Affine(affine.axis, affine.stages)
    place, channels = affine.axis, affine.channels
    if place is None or place >= len(before) or before[place] != channels or 0 in before or 0 in after:
        return None
    for axis, extent in enumerate(after):
        if not isinstance(extent, int) or extent == 1:
            continue
        ratio = _behind(before, place, after, axis)
        found = None if ratio is None else _moved(affine, ratio, axis, extent)
        if found is not None:
            return found
    return _on_several_axes(affine, place, before, after)


def _on_several_axes(affine: Affine, place: int, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> Affine | None:
    """The affine with its channels split over consecutive axes, the last of which has the R of its own axis."""
    for last in range(len(after)):
        if _behind(before, place, after, last) != 1:
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


def _behind(before: tuple[Dim, ...], a: int, after: tuple[Dim, ...], b: int) -> Fraction | None:
    """R of axis `a` over R of axis `b`, None where it is not known."""
    ratio = _quotient(before[a + 1 :], after[b + 1 :])
    return ratio if ratio is not None else _quotient(after[: b + 1], before[: a + 1])


def _quotient(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> Fraction | None:
    """The product of the extents `a` over that of `b`, if they have the same symbols."""
    if None in a or None in b:
        return None
    symbols = [Counter(dim for dim in dims if isinstance(dim, str)) for dims in (a, b)]
    if symbols[0] != symbols[1]:
        return None
    from fractions import Fraction

    counts = [element_count(dim for dim in dims if isinstance(dim, int)) for dims in (a, b)]
    return None if ELEMENT_COUNT_LIMIT in counts else Fraction(*counts)


def _moved(affine: Affine, ratio: Fraction, axis: int, extent: int) -> Affine | None:
    """The affine along `axis` of `extent`, R of its own axis being `ratio` times R of that one."""
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

    if not all(constant(array) for stage in affine.stages for array in stage.arrays() if array.ndim):
        return None
    return affine.map(axis, lambda array: np.ascontiguousarray(array.reshape(view)[0, :, 0]))
