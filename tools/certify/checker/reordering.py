"""Operators that only reorder elements: results are views of the value where it began.

A view is a tuple with a group for each of its axes, and a group is a tuple of parts of axes of that
value, the slowest first. A part (axis, stride, extent) stands for index // stride % extent of the
axis. Two views of a value with the same groups hold the same elements in the same order, and have
the same extents, whatever the extents are.

- Transpose permutes the groups. Unsqueeze adds groups without a part, and Squeeze, Gather and
  reductions of an axis of one element remove them. DepthToSpace and SpaceToDepth are a Reshape, a
  Transpose and a Reshape.
- Reshape keeps the sequence of all parts, and groups it anew. A group has the extent that the
  target states, so a part goes into it if its extent divides what is left, and is cut if it is a
  multiple of what is left. -1 takes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .affine_operators import compressed
from .integers import Extent, monomial, quotient, times
from .lines import Line
from .operators import SIMPLE_REDUCTIONS
from .program import Array, Operation, Unproved, product

Part = tuple[int, Extent, Extent]
Group = tuple[Part, ...]
Groups = tuple[Group, ...]

VIEWS = frozenset(
    (
        *("Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"),
        *("DepthToSpace", "SpaceToDepth"),
    )
)


def whole(extents: Sequence[Extent]) -> Groups:
    """Return the view of a value that is the value itself."""
    return tuple(() if extent == 1 else ((axis, 1, extent),) for axis, extent in enumerate(extents))


def extents_of(groups: Groups) -> tuple[Extent, ...]:
    """Return the extents of a view."""
    return tuple(times(*(extent for _, _, extent in group)) for group in groups)


def _merged(parts: Sequence[Part]) -> Group:
    """Return the parts with neighbours joined that are one part of an axis."""
    made: list[Part] = []
    for axis, stride, extent in parts:
        if made and made[-1][0] == axis and made[-1][1] == times(stride, extent):
            axis, _, outer = made.pop()
            made.append((axis, stride, times(outer, extent)))
        else:
            made.append((axis, stride, extent))
    return tuple(made)


def regrouped(groups: Sequence[Group], target: Sequence[Extent]) -> Groups:
    """Return the groups of a Reshape to `target`. Raises Unproved."""
    parts = [part for group in groups for part in group]
    if 0 in target or any(extent == 0 for _, _, extent in parts) or list(target).count(-1) > 1:
        raise Unproved("an extent is zero, or -1 twice")
    free = list(target).index(-1) if -1 in target else len(target)
    head = [_taken(parts, extent, 0) for extent in target[:free]]
    tail = [_taken(parts, extent, -1) for extent in reversed(target[free + 1 :])][::-1]
    if free == len(target) and parts:
        raise Unproved("the extents do not belong together")
    middle = [] if free == len(target) else [_merged(parts)]
    return (*head, *middle, *tail)


def _taken(parts: list[Part], extent: Extent, end: int) -> Group:
    """Take the parts of an extent from one end of a sequence."""
    found: list[Part] = []
    while extent != 1:
        if not parts:
            raise Unproved("the extents do not belong together")
        axis, stride, own = parts.pop(end)
        left = quotient(extent, own)
        if left is None:
            rest = quotient(own, extent)
            if rest is None or monomial(extent)[0] < 1:
                raise Unproved("the extents do not belong together")
            slow, fast = ((axis, times(stride, rest), extent), (axis, stride, rest))
            if end:
                slow, fast = (axis, times(stride, extent), rest), (axis, stride, extent)
            own, left = extent, 1
            parts.insert(len(parts) if end else 0, slow if end else fast)
            stride = fast[1] if end else slow[1]
        found.append((axis, stride, own))
        extent = left
    return _merged(found[::-1] if end else found)


def composed(outer: Groups, inner: Groups) -> Groups:
    """Return the view `outer` of the view `inner` of a value. Raises Unproved."""

    def part(axis: int, stride: Extent, extent: Extent) -> Group:
        rest = quotient(times(*(each for _, _, each in inner[axis])), times(extent, stride))
        if rest is None:
            raise Unproved("a part of a view has no extent of its own")
        return regrouped([inner[axis]], (rest, extent, stride))[1]

    return tuple(_merged([each for key in group for each in part(*key)]) for group in outer)


def viewed(
    operation: Operation, groups: Groups, target: Callable[[], Sequence[Extent]]
) -> Groups | None:
    """Return the groups of the result of an operation on a view, None if it is not a view.

    `target` gives the elements of the second operand of a Reshape. Raises Unproved.
    """
    kind, rank, attributes = operation.kind, len(groups), operation.attributes
    if operation.domain or len(operation.outputs) != 1:
        return None
    if kind == "Transpose":
        return tuple(groups[axis] for axis in attributes.get("perm", tuple(reversed(range(rank)))))
    if kind == "Flatten":
        axis = int(attributes.get("axis", 1))
        axis += rank if axis < 0 else 0
        return tuple(
            _merged([part for group in half for part in group])
            for half in (groups[:axis], groups[axis:])
        )
    if kind == "Reshape":
        return regrouped(groups, target())
    if kind in ("DepthToSpace", "SpaceToDepth"):
        return _blocks(operation, groups)
    if kind == "Gather":
        return _only_positions(operation, groups)
    if kind in ("Squeeze", "Unsqueeze") or kind in SIMPLE_REDUCTIONS:
        axes = operation.integers("axes", 1)
        if not axes:
            return None
        count = rank + len(axes) if kind == "Unsqueeze" else rank
        places = {axis + count if axis < 0 else axis for axis in axes}
        if len(places) != len(axes) or not places <= set(range(count)):
            raise Unproved("an axis does not exist")
        if kind == "Unsqueeze":
            given = iter(groups)
            return tuple(() if axis in places else next(given) for axis in range(count))
        if any(groups[axis] for axis in places):
            return None
        if kind in SIMPLE_REDUCTIONS and attributes.get("keepdims", 1):
            return groups
        return tuple(group for axis, group in enumerate(groups) if axis not in places)
    return None


def _only_positions(operation: Operation, groups: Groups) -> Groups | None:
    """Return the groups of a Gather of the only position of an axis, with the axis or without."""
    places, axis = operation.constant(1), int(operation.attributes.get("axis", 0))
    if places is None or places.shape not in ((), (1,)) or places.item() not in (0, -1):
        return None
    if not -len(groups) <= axis < len(groups) or groups[axis]:
        return None
    axis %= len(groups)
    return groups if places.ndim else (*groups[:axis], *groups[axis + 1 :])


def _blocks(operation: Operation, groups: Groups) -> Groups | None:
    if len(groups) != 4:
        return None
    size = int(operation.attributes.get("blocksize", 1))
    batch, channels, height, width = extents_of(groups)
    deep = quotient(channels, size * size)
    rows = quotient(height, size)
    columns = quotient(width, size)
    order: tuple[tuple[int, ...], ...]
    if operation.kind == "SpaceToDepth":
        if rows is None or columns is None:
            return None
        split = regrouped(groups, (batch, channels, rows, size, columns, size))
        order = (0,), (3, 5, 1), (2,), (4,)
    elif deep is None:
        return None
    elif operation.attributes.get("mode", b"DCR") == b"CRD":
        split = regrouped(groups, (batch, deep, size, size, height, width))
        order = (0,), (1,), (4, 2), (5, 3)
    else:
        split = regrouped(groups, (batch, size, size, deep, height, width))
        order = (0,), (3,), (4, 1), (5, 2)
    return tuple(_merged([part for axis in axes for part in split[axis]]) for axes in order)


def moved(array: Array, groups: Groups) -> Array:
    """Return an array that broadcasts against a value as one for a view of it.

    Raises Unproved where it varies along an axis that a view joins with one of unknown extent.
    """
    parts = [part for group in groups for part in group if array.shape[part[0]] > 1]
    numbers = [
        (axis, -step, n) for axis, step, n in parts if isinstance(step, int) and isinstance(n, int)
    ]
    order = sorted(range(len(numbers)), key=lambda i: numbers[i][:2])
    known = [extent for _, _, extent in numbers]
    tiled = [
        product([known[i] for i in order if numbers[i][0] == axis]) for axis in range(array.ndim)
    ]
    if len(numbers) < len(parts) or tiled != list(array.shape):
        raise Unproved("the numbers do not fit the extents")
    split = array.reshape([known[i] for i in order]).transpose(np.argsort(order))
    joined: list[int] = []
    place, full = 0, []
    for group in groups:
        varies = any(array.shape[axis] > 1 for axis, _, _ in group)
        total = 1
        for axis, _, extent in group:
            if array.shape[axis] > 1:
                full.append(known[place])
                place += 1
            elif varies:
                if not isinstance(extent, int):
                    raise Unproved(
                        "the numbers vary along an axis that is joined with one of unknown extent"
                    )
                split = np.expand_dims(split, len(full))
                full.append(extent)
            if varies:
                total *= full[-1]
        joined.append(total)
    return compressed(np.broadcast_to(split, full).reshape(joined))


def moved_line(line: Line, groups: Groups) -> Line:
    """Return a line of a value as one of a view of it. Raises Unproved."""
    return line.map(lambda array: moved(array, groups))
