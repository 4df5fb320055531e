"""Operators on permuted data: the same operator with other axes permutes the result.

Element by element operators do not know axes. Constants that are broadcast are permuted, too. An
axis that an operator joins, reduces, pads or takes elements of is named by its new place; a result
without it has the others in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .operators import BROADCASTING, ELEMENTWISE, REDUCTIONS
from .program import Array, Datum, Operation, Stored, Unproved

View = Callable[[Datum, Sequence[int]], Datum]
"""Returns the view of a value with its axes permuted."""


def transposed(operation: Operation, perm: Sequence[int], view: View) -> Operation:
    """Return the operation that computes the result with its axes permuted, from data like that.

    Raises Unproved.
    """
    kind, rank, result = operation.kind, len(perm), operation.outputs[0]
    if operation.domain or len(operation.outputs) != 1 or sorted(perm) != list(range(rank)):
        raise Unproved("it is no permutation, or there are several results")
    attributes, after = dict(operation.attributes), list(perm)
    inputs = list(operation.inputs)
    if kind in ELEMENTWISE:
        inputs[0] = _data(inputs[0], perm, view)
    elif kind in BROADCASTING and operation.version >= 7:
        inputs = [_broadcast(each, perm, view) for each in inputs]
    elif kind == "Concat" or (kind in ("Softmax", "LogSoftmax") and operation.version >= 13):
        inputs = [_data(each, perm, view) for each in inputs]
        attributes["axis"] = _place(int(attributes.get("axis", -1)), perm)
    elif kind in REDUCTIONS or kind == "Gather":
        inputs[0] = _data(inputs[0], perm, view)
        axes = operation.integers("axes", 1)
        if kind == "Gather":
            axes = [int(attributes.get("axis", 0))]
        if not axes:
            raise Unproved("the axes are not constant, or all")
        gone = {axis % rank for axis in axes}
        places = sorted(perm.index(axis) for axis in gone)
        if kind == "Gather":
            indices = operation.operand(1)
            if indices is None or indices.rank is None or indices.rank > 1:
                raise Unproved("the rank of the indices is unknown, or more than 1")
            attributes["axis"] = places[0]
            keeps = indices.rank == 1
        else:
            inputs = inputs[:1]
            attributes["axes"] = tuple(places)
            keeps = bool(attributes.get("keepdims", 1))
        if not keeps:
            left = [axis for axis in range(rank) if axis not in gone]
            after = [left.index(axis) for axis in perm if axis not in gone]
    elif kind == "Pad":
        pads = operation.integers("pads", 1)
        if (
            pads is None
            or operation.version == 1
            or len(pads) != 2 * rank
            or operation.operand(3) is not None
        ):
            raise Unproved("the pads are not constant")
        inputs[0] = _data(inputs[0], perm, view)
        attributes["pads"] = tuple(pads[half + axis] for half in (0, rank) for axis in perm)
        inputs[1:2] = [None] if len(inputs) > 1 else []
    else:
        raise Unproved(f"{kind} on permuted data is not looked at")
    made = Operation(operation.label, "", kind, operation.version, attributes, {}, inputs, [])
    same = view(result, after)
    made.outputs = [Datum(same.label, made, 0, same.kind, same.extents, None, same.term)]
    return made


def in_order(operation: Operation, rank: int) -> Operation:
    """Return an operation with its axes written as `transposed` writes them. Raises Unproved."""
    made = transposed(operation, range(rank), lambda value, _: value)
    made.outputs = operation.outputs
    return made


def _place(axis: int, perm: Sequence[int]) -> int:
    return list(perm).index(axis % len(perm))


def _data(value: Datum | None, perm: Sequence[int], view: View) -> Datum:
    if value is None or value.rank != len(perm):
        raise Unproved("an operand has another rank")
    return view(value, perm) if value.stored is None else _constant(value.stored.array, value, perm)


def _constant(array: Array, value: Datum, perm: Sequence[int]) -> Datum:
    stored = Stored(None, np.ascontiguousarray(array.transpose(perm)))
    return Datum(value.label, None, 0, value.kind, stored.array.shape, stored)


def _broadcast(value: Datum | None, perm: Sequence[int], view: View) -> Datum | None:
    """Return an operand that is broadcast; one of a single element stays as it is."""
    if value is None or (
        value.extents is not None and all(extent == 1 for extent in value.extents)
    ):
        return value
    if value.stored is not None and value.stored.array.ndim <= len(perm):
        array = value.stored.array
        return _constant(array.reshape((1,) * (len(perm) - array.ndim) + array.shape), value, perm)
    return _data(value, perm, view)
