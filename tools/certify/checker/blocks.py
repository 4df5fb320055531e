"""Parts of every n-th row and column, joined along the channels: blocks of data of any extents.

Each element of such a value is that of one channel, at one row and one column of each block. Two
values are equal if these are the same for each of their channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .movement import MAX_OPERATIONS
from .program import Array, Datum, Operation, Unproved, static
from .slices import END, bounds_of

MAX_CHANNELS = 1 << 14
"""Most channels of a value that is looked at."""


@dataclass(frozen=True, eq=False, slots=True)
class Blocks:
    """For each channel its channel of the data, and its row and column in each block.

    `is_cut` says whether there is one row, and one column, for each block.
    """

    places: Array
    is_cut: tuple[bool, bool] = (False, False)


def block_size(value: Datum, leaf: Datum) -> int | None:
    """Return the rows of a block that a value is made of, None if rows and columns are known.

    That is the step of the first Slice, or the block of SpaceToDepth.
    """
    if leaf.rank != 4 or static((leaf.extents or ())[2:]) is not None:
        return None
    data: Datum | None = value
    for _ in range(MAX_OPERATIONS):
        operation = None if data is None else data.producer
        if operation is None or operation.domain:
            return None
        steps = operation.integers("steps", 4) if operation.kind == "Slice" else None
        size = int(steps[0] if steps else operation.attributes.get("blocksize", 0))
        if size > 1:
            return size
        data = operation.operand(0)
    return None


def same_blocks(source: Datum, result: Datum, leaf: Datum, size: int) -> None:
    """Prove that both values hold the same elements of each block of a leaf. Raises Unproved."""
    first, second = (_blocks_of(each, leaf, size, 0) for each in (source, result))
    if not all((*first.is_cut, *second.is_cut)):
        raise Unproved("not every value is one of blocks")
    if not np.array_equal(first.places, second.places):
        raise Unproved("the regions put elements in different places")
    # The first and the last row of blocks are as many, so that blocks cover the data: else the
    # source fails.
    if not all({0, size - 1} <= set(first.places[:, i].tolist()) for i in (1, 2)):
        raise Unproved("the blocks may not cover the data")


def _blocks_of(value: Datum, leaf: Datum, size: int, depth: int) -> Blocks:
    """Return where the elements of a value are in each block. Raises Unproved."""
    if value.term == leaf.term:
        if leaf.rank != 4 or leaf.extents is None or not isinstance(leaf.extents[1], int):
            raise Unproved("the data have no known channels, rows and columns")
        channels = np.arange(leaf.extents[1])
        return Blocks(np.stack([channels, 0 * channels, 0 * channels], 1))
    operation = value.producer
    if operation is None or operation.domain or depth > MAX_OPERATIONS or value.index:
        raise Unproved("the region has another value to begin with")
    operands = operation.inputs if operation.kind == "Concat" else operation.inputs[:1]
    parts = [_blocks_of(each, leaf, size, depth + 1) for each in operands if each is not None]
    if operation.kind in ("Concat", "Gather"):
        return _selected(operation, parts)
    (inner,) = parts
    if operation.kind == "Identity":
        return inner
    if operation.kind == "SpaceToDepth" and operation.attributes.get("blocksize") == size:
        if any(inner.is_cut):
            raise Unproved("blocks of blocks")
        offsets = [(0, row, column) for row in range(size) for column in range(size)]
        return Blocks(np.concatenate([inner.places + each for each in offsets]), (True, True))
    if operation.kind == "Slice":
        return _sliced(operation, inner, size)
    raise Unproved(f"{operation.kind} is no operator of blocks")


def _selected(operation: Operation, parts: list[Blocks]) -> Blocks:
    """Return the channels that a Concat joins, or a Gather takes."""
    places = operation.constant(1)
    if int(operation.attributes.get("axis", 0)) not in (1, -3):
        raise Unproved("it joins or takes others than channels")
    if len({each.is_cut for each in parts}) != 1:
        raise Unproved("its operands have other rows or columns")
    if sum(len(each.places) for each in parts) > MAX_CHANNELS:
        raise Unproved("it has too many channels")
    if operation.kind == "Concat":
        return Blocks(np.concatenate([each.places for each in parts]), parts[0].is_cut)
    if places is None or places.ndim != 1:
        raise Unproved("the channels that a Gather takes are not known")
    return Blocks(parts[0].places[places], parts[0].is_cut)


def _sliced(operation: Operation, inner: Blocks, size: int) -> Blocks:
    """Return the rows or columns of blocks that a Slice takes."""
    places, is_cut = inner.places.copy(), list(inner.is_cut)
    for axis, bounds in bounds_of(operation, 4).items():
        if bounds is None or axis < 2 or is_cut[axis - 2]:
            raise Unproved("it slices others than rows and columns, or a part of blocks")
        if bounds.step != size or not 0 <= bounds.start < size or bounds.stop < END:
            raise Unproved("a Slice takes no row or column of each block")
        places[:, axis - 1] += bounds.start
        is_cut[axis - 2] = True
    return Blocks(places, (is_cut[0], is_cut[1]))
