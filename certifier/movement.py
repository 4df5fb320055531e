"""Regions of operators that only move elements: two of them are equal if their index maps are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .program import Array, Datum, Operation, Unproved, product, static
from .recomputation import EVALUATORS

MOVES = frozenset(
    (
        "Identity",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Slice",
        "Gather",
        "Expand",
        "Concat",
        "Tile",
    )
)
"""Operators of the default domain whose results hold elements of their data, in an order that extents decide."""

REDUCTIONS = frozenset(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"))
"""Operators that only move elements where the reduced axes have one element each."""

MAX_ELEMENTS = 1 << 22
"""Most elements of a tensor whose index map is computed."""

MAX_OPERATIONS = 64
"""Most operations of a region."""


def index_map(value: Datum, leaves: Mapping[int, int], depth: int = 0) -> Array:
    """Return for each element of `value` the number of the element of a leaf that it holds.

    `leaves` gives the first number of each leaf, by its term. Raises Unproved where the region has another leaf.
    """
    if value.term in leaves:
        known = static(value.extents)
        assert known is not None
        return leaves[value.term] + np.arange(product(known), dtype=np.int64).reshape(known)
    operation = value.producer
    if operation is None or not is_move(operation) or depth > MAX_OPERATIONS:
        raise Unproved("the region has another value to begin with")
    if operation.kind in REDUCTIONS:
        data, axes = operation.inputs[0], operation.integers("axes", 1)
        assert data is not None and axes is not None
        found = index_map(data, leaves, depth + 1)
        return found if operation.attributes.get("keepdims", 1) else found.squeeze(tuple(axes))
    arrays = []
    for i, each in enumerate(operation.inputs):
        is_data = operation.kind == "Concat" or i == 0
        if each is None:
            raise Unproved("an operand is absent")
        if is_data:
            arrays.append(index_map(each, leaves, depth + 1))
        elif each.stored is None:
            raise Unproved("an index or a shape is not constant")
        else:
            arrays.append(each.stored.array)
    try:
        found = EVALUATORS[operation.kind](operation, arrays)
    except (ValueError, IndexError, TypeError) as error:
        raise Unproved(f"it cannot be computed: {error}") from None
    if found.size > MAX_ELEMENTS:
        raise Unproved("the extents are too large")
    return found


def is_move(operation: Operation) -> bool:
    """Return whether an operation only moves elements of its data."""
    if operation.domain or len(operation.outputs) != 1:
        return False
    if operation.kind in REDUCTIONS:
        data, axes = operation.operand(0), operation.integers("axes", 1)
        if not axes or data is None or data.extents is None:
            return False
        return all(-len(data.extents) <= axis < len(data.extents) and data.extents[axis] == 1 for axis in axes)
    return operation.kind in MOVES


def same_moves(first: Datum, second: Datum, leaves: Sequence[Datum]) -> None:
    """Prove that both values hold the same elements of the leaves in the same order. Raises Unproved."""
    numbers: dict[int, int] = {}
    count = 0
    for leaf in leaves:
        known = static(leaf.extents)
        if known is None or count + product(known) > MAX_ELEMENTS:
            raise Unproved("the extents are unknown or too large")
        if leaf.term not in numbers:
            numbers[leaf.term] = count
            count += product(known)
    one, other = index_map(first, numbers), index_map(second, numbers)
    if one.shape != other.shape or not np.array_equal(one, other):
        raise Unproved("the regions put elements in different places")


def moved_places(result: Datum, result_leaf: Datum, source: Datum, source_leaf: Datum) -> Array:
    """Return the places of the leaf's elements in both values, which are the same. Raises Unproved."""
    known = static(source_leaf.extents)
    if known is None or known != static(result_leaf.extents) or product(known) > MAX_ELEMENTS:
        raise Unproved("the extents are unknown, too large, or differ")
    one, other = index_map(result, {result_leaf.term: 0}), index_map(source, {source_leaf.term: 0})
    if one.shape != other.shape or not np.array_equal(one, other):
        raise Unproved("the regions put elements in different places")
    return one
