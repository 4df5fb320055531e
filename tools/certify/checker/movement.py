"""Regions of operators that only move elements: two of them are equal if their index maps are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .operators import MOVING, SIMPLE_REDUCTIONS
from .parts import rejoined
from .program import Array, Datum, Operation, Same, Unproved, product, static
from .recomputation import EVALUATORS

MAX_ELEMENTS = 1 << 22
"""Most elements of a tensor whose index map is computed."""

MAX_OPERATIONS = 64
"""Most operations of a region."""


def index_map(value: Datum, leaves: Mapping[int, int], *, batch: bool, depth: int = 0) -> Array:
    """Return for each element of `value` the number of the element of a leaf that it holds.

    `leaves` gives the first number of each leaf, by its term. With `batch` the first axis is
    unknown, and handed on as the first by every operation: the map is of one element of it.
    Raises Unproved where the region has another leaf.
    """
    if value.term in leaves:
        known = leaf_extents(value, batch=batch)
        return leaves[value.term] + np.arange(product(known), dtype=np.int64).reshape(known)
    operation = value.producer
    if operation is None or not is_move(operation) or depth > MAX_OPERATIONS:
        raise Unproved("the region has another value to begin with")
    first = operation.operand(0)
    if operation.kind == "Reshape" and not batch and first is not None and _is_line(first, leaves):
        known = leaf_extents(value, batch=False)
        return np.arange(product(known), dtype=np.int64).reshape(known)
    arrays = []
    for i, each in enumerate(operation.inputs):
        is_data = operation.kind == "Concat" or i == 0
        if each is None:
            raise Unproved("an operand is absent")
        if is_data:
            arrays.append(index_map(each, leaves, batch=batch, depth=depth + 1))
        elif each.stored is not None:
            arrays.append(each.stored.array)
        elif operation.kind != "Reshape" or not batch:
            raise Unproved("an index or a shape is not constant")
    try:
        found = _moved(operation, arrays, batch=batch)
    except (ValueError, IndexError, TypeError) as error:
        raise Unproved(f"it cannot be computed: {error}") from None
    if found.size > MAX_ELEMENTS:
        raise Unproved("the extents are too large")
    return found


def _is_line(leaf: Datum, leaves: Mapping[int, int]) -> bool:
    """Return whether a value of unknown extents is the only leaf: Reshape keeps the order."""
    return leaves.keys() == {leaf.term} and (leaf.extents is None or static(leaf.extents) is None)


def leaf_extents(leaf: Datum, *, batch: bool) -> tuple[int, ...]:
    """Return the extents of a leaf; with `batch` of one element of the first axis.

    Raises Unproved.
    """
    extents = leaf.extents
    if extents is None or (batch and not extents):
        known = None
    else:
        known = static(extents[1:] if batch else extents)
    if known is None or product(known) > MAX_ELEMENTS:
        raise Unproved("the extents are unknown or too large")
    return (1, *known) if batch else known


def _moved(operation: Operation, arrays: list[Array], *, batch: bool) -> Array:
    """Return the elements of the result.

    With `batch`, prove that the first axis stays the first.
    """
    kind, data, rank = operation.kind, arrays[0], arrays[0].ndim
    if kind in SIMPLE_REDUCTIONS:
        axes = tuple(axis % rank for axis in operation.integers("axes", 1) or ())
        if batch and 0 in axes:
            raise Unproved("the first axis is reduced")
        return data if operation.attributes.get("keepdims", 1) else data.squeeze(axes)
    if not batch:
        return EVALUATORS[kind](operation, arrays)
    if kind == "Reshape":
        found = _reshaped(operation, data)
    else:
        _check_first_axis(operation, arrays, rank)
        found = EVALUATORS[kind](operation, arrays)
    if found.ndim < 1 or found.shape[0] != 1:
        raise Unproved("the first axis is joined with another")
    return found


def _reshaped(operation: Operation, data: Array) -> Array:
    """Return one row of the data, with the extents of a Reshape that keeps the first axis."""
    given, result = operation.operand(0), operation.outputs[0]
    inner = None if result.extents is None else static(result.extents[1:])
    if given is None or not given.extents or not result.extents or inner is None:
        raise Unproved("an extent behind the first is unknown")
    if given.extents[0] != result.extents[0] or given.extents[0] is None:
        raise Unproved("the first axis may change")
    return data.reshape((1, *inner))


def _check_first_axis(operation: Operation, arrays: list[Array], rank: int) -> None:
    """Refuse an operation that moves, cuts, joins or repeats elements along the first axis."""
    kind = operation.kind
    axes: Iterable[int]
    if kind in ("Squeeze", "Unsqueeze", "Slice"):
        found = operation.integers("axes", 3 if kind == "Slice" else 1)
        if found is None:
            raise Unproved("the axes are not stated")
        behind = rank + len(found) if kind == "Unsqueeze" else rank
        axes = [axis % behind for axis in found]
    elif kind == "Transpose":
        axes = [] if operation.attributes.get("perm", (1,))[0] == 0 else [0]
    elif kind in ("Gather", "Concat"):
        axes = [int(operation.attributes.get("axis", 0)) % rank]
    elif kind == "Flatten":
        axes = [] if operation.attributes.get("axis", 1) == 1 else [0]
    elif kind in ("Expand", "Tile"):
        counts = arrays[1].reshape(-1)
        axes = [] if counts.size < rank or (counts.size == rank and counts[0] == 1) else [0]
    else:
        axes = [] if kind in ("Identity", "SpaceToDepth") else [0]
    if 0 in axes:
        raise Unproved("elements are moved along the first axis, which is unknown")


def is_move(operation: Operation) -> bool:
    """Return whether an operation only moves elements of its data."""
    if operation.domain or len(operation.outputs) != 1:
        return False
    if operation.kind in SIMPLE_REDUCTIONS:
        data, axes = operation.operand(0), operation.integers("axes", 1)
        if not axes or data is None or data.extents is None:
            return False
        return all(
            -len(data.extents) <= axis < len(data.extents) and data.extents[axis] == 1
            for axis in axes
        )
    return operation.kind in MOVING


def _is_batch(leaves: Sequence[Datum]) -> bool:
    """Return whether the first axis of a leaf is unknown."""
    return any(
        bool(leaf.extents) and not isinstance((leaf.extents or (0,))[0], int) for leaf in leaves
    )


def same_moves(first: Datum, second: Datum, leaves: Sequence[Datum]) -> None:
    """Prove that both values hold the same elements of the leaves in the same order.

    Raises Unproved.
    """
    numbers: dict[int, int] = {}
    count, batch = 0, _is_batch(leaves)
    for leaf in leaves:
        if leaf.term not in numbers:
            numbers[leaf.term] = count
            is_line = len(leaves) == 1 and not batch and _is_line(leaf, numbers)
            count += 0 if is_line else product(leaf_extents(leaf, batch=batch))
    one, other = (index_map(each, numbers, batch=batch) for each in (first, second))
    if one.shape != other.shape or not np.array_equal(one, other):
        raise Unproved("the regions put elements in different places")


def joined(value: Datum, axis: int, same: Same, depth: int = 0) -> list[Datum]:
    """Return the values that nested Concats join along `axis`, in order.

    `same` may give another value that is equal.
    """
    value = same(value)
    operation = value.producer
    if operation is None or operation.domain or operation.kind != "Concat" or value.rank is None:
        return [value]
    own = int(operation.attributes.get("axis", 0))
    if own % value.rank != axis or depth > MAX_OPERATIONS:
        return [value]
    operands = [each for each in operation.inputs if each is not None]
    return [part for each in operands for part in joined(each, axis, same, depth + 1)]


def join_alike(source: Datum, result: Datum, axis: int, same: Same) -> bool:
    """Return whether nested Concats along an axis join the same values."""
    parts = [rejoined(joined(each, axis, same), axis) for each in (source, result)]
    return [each.term for each in parts[0]] == [each.term for each in parts[1]]
