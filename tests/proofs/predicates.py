"""What the lines of SimplifyExpr may name besides operators.

The code's own predicates where it has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from irc.ir.ops.inference import normal_axes
from irc.ir.ops.views import Window
from irc.ir.provenance import Declined
from irc.ir.text.parser import parse
from irc.ir.types import DTYPES
from irc.passes.simplify.elementwise import LOSSLESS, _casts_alike
from irc.passes.simplify.joins import _composed
from irc.passes.simplify.layout import inverse
from irc.passes.simplify.reshaped_regions import _varying
from irc.passes.simplify.rules import broadcasts_into
from irc.passes.simplify.sequences import _sizes_of
from irc.passes.simplify.shape_arithmetic import _EXACT_COORDINATES, _constant_target, repeats

from .operators import target
from .tensors import Claim, Tensor, Undefined


def keeps_shape(x: Tensor, c: Tensor) -> bool:
    return broadcasts_into(c.shape, x.shape)


def all_true(c: Tensor) -> Claim:
    return Claim(c.field, c.field.every(c.array.ravel()))


def none_true(c: Tensor) -> Claim:
    return Claim(c.field, c.field.every([c.field.opposite(e) for e in c.array.ravel()]))


def zero(x: Tensor) -> Tensor:
    return x.like(np.full(x.shape, x.field.number(0), object))


def is_integer(x: Tensor) -> bool:
    return bool(x.field.exact)


def casts_alike(source: str, via: str, kind: str) -> bool:
    return _casts_alike(DTYPES[source], DTYPES[via], DTYPES[kind])


def in_order(items: Sequence[int]) -> bool:
    return list(items) == sorted(items)


def keeps_order(p: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether a Transpose moves axes of extent 1 only."""
    return in_order([axis for axis in p if shape[axis] != 1])


def permuted(items: Sequence[int], p: Sequence[int]) -> list[int]:
    return [items[axis] for axis in p]


def without(items: Sequence[int], item: int) -> list[int]:
    return [each for each in items if each != item]


def others(axes: Sequence[int], rank: int) -> list[int]:
    return [axis for axis in range(rank) if axis not in axes]


def axes(found: Sequence[int], rank: int) -> frozenset[int]:
    return frozenset(axis % rank for axis in found)


def are_normal(found: Sequence[int], rank: int) -> bool:
    """Return whether these are different axes of a shape."""
    return normal_axes(tuple(found), rank) is not None


def both_axes(near: Sequence[int], far: Sequence[int], longest: int) -> list[int]:
    """Return the axes of two operators in a row.

    `near` count in the longest shape, `far` in what is left of it.
    """
    taken = axes(near, longest)
    free = [axis for axis in range(longest) if axis not in taken]
    if any(not -len(free) <= axis < len(free) for axis in far):
        raise Undefined("no such axis")
    return sorted([*taken, *(free[axis] for axis in far)])


def are_ones(x: Tensor, found: Sequence[int]) -> bool:
    return all(x.shape[axis] == 1 for axis in found)


def composed(
    b: int, e: int, d: int, f: int, g: int, h: int, extent: int | None, axis: int
) -> tuple[int, ...]:
    """Return start, end, axis and step of one slice for two, as the code finds them."""
    found = _composed(slice(b, e, d), slice(f, g, h), extent)
    return found.start, found.stop, axis, found.step


def is_composed(*slices: Any) -> bool:
    try:
        composed(*slices, 0)
    except Declined:
        return False
    return True


def has_cut(w: Sequence[int], before: int) -> bool:
    """Return whether the first extents of a list have a product."""
    return any(prod(w[:i]) == before for i in range(len(w) + 1))


def cut(w: Sequence[int], before: int) -> int:
    """Return how many extents have the product."""
    if not has_cut(w, before):
        raise Undefined("no extents with that product")
    return next(i for i in range(len(w) + 1) if prod(w[:i]) == before)


def placed(count: int, w: Sequence[int], before: int) -> list[int]:
    """Return the extents with another one after those with the product."""
    return [*w[: cut(w, before)], count, *w[cut(w, before) :]]


def moved_pads(n: Sequence[int], p: Sequence[int]) -> list[int]:
    rank = len(p)
    return [n[axis] for axis in p] + [n[rank + axis] for axis in p]


def added(p: Sequence[int], q: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(p, q, strict=True))


def is_order(i: Sequence[int], n: int) -> bool:
    return sorted(i) == list(range(n))


def all_below(p: Sequence[int], kernel: Sequence[int]) -> bool:
    return all(a < n for a, n in zip(p, [*kernel, *kernel], strict=True))


def adds_no_window(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> bool:
    window = Window("NOTSET", tuple(pads), tuple(strides), (1,) * len(kernel))
    sizes = x.shape[2:]
    return all(
        window.count(i, sizes[i], n) == window.count(i, sizes[i], n, ceil=True)
        for i, n in enumerate(kernel)
    )


def sizes(n: int, extent: int) -> list[int]:
    return _sizes_of(np.asarray(n), extent)


def repeats_nothing(n: Sequence[int], x: Tensor) -> bool:
    """Return whether every extent of a target is 1, or the extent of the data there."""
    return len(n) <= x.rank and all(
        a in (1, b) for a, b in zip(n, x.shape[x.rank - len(n) :], strict=True)
    )


def ends_alike(c: Tensor, m: Sequence[int], x: Tensor) -> bool:
    """Return whether a constant is broadcast alike into the data and their other shape."""
    return c.rank <= x.rank and _varying(c.shape, target(x.shape, m), x.shape) is not None


def picked(i: Sequence[int], j: Any) -> Any:
    """Return the indices at other indices."""
    if np.asarray(j).size and not -len(i) <= np.min(j) <= np.max(j) < len(i):
        raise Undefined("no such index")
    return np.asarray(i, np.int64)[np.asarray(j, np.int64)]


def selected(b: int, e: int, d: int, extent: int) -> list[int]:
    return list(range(extent)[slice(b, e, d)])


def order(o: Sequence[tuple[int, int]], b: int, channels: int) -> list[int]:
    return [(i * b + j) * channels + c for i, j in o for c in range(channels)]


def extents(n: Sequence[int | str], shape: Sequence[int], e: Sequence[int | str]) -> list[int]:
    """Return a target with the numbers of its symbols, which stand for extents of the data."""
    numbers = {
        symbol: number for symbol, number in zip(e, shape, strict=True) if isinstance(symbol, str)
    }
    return [numbers[each] if isinstance(each, str) else each for each in n]


def constant_target(n: Sequence[int | str], e: Sequence[int | str]) -> list[int]:
    """Return the constant target that the code finds for data with the extents `e`."""
    data = parse(f"graph @main(%x: f32[{','.join(map(str, e))}]) {{ return(%x) }}").graph.inputs[0]
    return _constant_target(list(n), data, allowzero=False)


def is_reshape(n: Sequence[int | str], shape: Sequence[int], e: Sequence[int | str]) -> bool:
    """Return whether data of the shape can be given the extents of a target."""
    try:
        target(shape, extents(n, shape, e))
    except Undefined:
        return False
    return True


def has_constant_target(n: Sequence[int | str], e: Sequence[int | str]) -> bool:
    """Return whether the code finds a constant target."""
    try:
        constant_target(n, e)
    except Declined:
        return False
    return True


PREDICATES: dict[str, Any] = {
    **{
        each.__name__: each
        for each in (
            *(
                keeps_shape,
                zero,
                is_integer,
                casts_alike,
                in_order,
                keeps_order,
                permuted,
                without,
                others,
                axes,
            ),
            *(
                both_axes,
                are_normal,
                has_cut,
                cut,
                placed,
                are_ones,
                composed,
                is_composed,
                moved_pads,
                added,
                all_below,
                is_order,
                adds_no_window,
                sizes,
                extents,
                constant_target,
            ),
            *(ends_alike, picked, repeats, repeats_nothing, selected, order, inverse, target, prod),
        )
    },
    "all": all_true,
    "none": none_true,
    "all_ones": lambda n: set(n) == {1},
    "is_scalar": lambda i: isinstance(i, int),
    "tuple": tuple,
    "LOSSLESS": LOSSLESS,
    "EXACT_COORDINATES": _EXACT_COORDINATES,
}
