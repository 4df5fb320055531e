"""Extents as expressions: the elements of integer tensors that are computed from the extents of values."""

from __future__ import annotations

from .program import Datum, Operation, Unproved

Extent = int | tuple[int, int]
"""A number, or an extent that the models do not state: that of a class along an axis."""

MAX_DEPTH = 32


def extents_of(value: Datum) -> list[Extent]:
    """Return the extents of a value. Raises Unproved where the rank is unknown."""
    if value.extents is None:
        raise Unproved("a rank is unknown")
    return [each if isinstance(each, int) else (value.term, axis) for axis, each in enumerate(value.extents)]


def elements(value: Datum, depth: int = 0) -> list[Extent]:
    """Return the elements of an integer tensor of one axis, or of none. Raises Unproved."""
    if value.stored is not None:
        array = value.stored.array
        if array.dtype.kind not in "iu" or array.ndim > 1 or array.size > 64:
            raise Unproved("a target is no small list of integers")
        return [int(each) for each in array.reshape(-1)]
    operation = value.producer
    if operation is None or operation.domain or depth > MAX_DEPTH:
        raise Unproved("a target is computed from data")
    if operation.kind == "Concat":
        return [each for operand in operation.inputs if operand is not None for each in elements(operand, depth + 1)]
    data = operation.operand(0)
    if data is None:
        raise Unproved("an operand is absent")
    if operation.kind == "Shape":
        found = extents_of(data)
        end = operation.attributes.get("end")
        return found[slice(int(operation.attributes.get("start", 0)), len(found) if end is None else int(end))]
    found = elements(data, depth + 1)
    if operation.kind in ("Identity", "Unsqueeze", "Squeeze"):
        return found
    if operation.kind == "Cast" and operation.attributes.get("to") in (6, 7):
        return found
    if operation.kind == "Reshape" and len(found) == 1:
        return found
    if operation.kind == "Gather":
        indices = operation.constant(1)
        if (
            indices is not None
            and indices.ndim <= 1
            and all(-len(found) <= i < len(found) for i in indices.reshape(-1))
        ):
            return [found[int(i)] for i in indices.reshape(-1)]
    if operation.kind == "Slice":
        starts, ends = operation.integers("starts", 1), operation.integers("ends", 2)
        steps = operation.integers("steps", 4)
        if starts is not None and ends is not None and operation.operand(4) is None and steps is None:
            return found[starts[0] : ends[0]]
    raise Unproved(f"{operation.kind} is no operator of extents")


def target_of(reshape: Operation) -> list[Extent]:
    """Return the target of a Reshape, with the extents of its data for zeros; -1 stands for the rest."""
    data = reshape.operand(0)
    if data is None:
        raise Unproved("an operand is absent")
    if reshape.version >= 5:
        given = reshape.operand(1)
        if given is None:
            raise Unproved("the target is absent")
        found = elements(given)
    else:
        found = [int(each) for each in reshape.attributes.get("shape", ())]
    if reshape.attributes.get("allowzero", 0):
        return found
    own = extents_of(data) if 0 in found else []
    return [own[i] if each == 0 and i < len(own) else each for i, each in enumerate(found)]


def same_target(source: Operation, result: Operation) -> None:
    """Prove that two Reshapes of one value have one target.

    All extents but one are equal, and so the last one is, because the number of elements is. Raises Unproved.
    """
    first, second = target_of(source), target_of(result)
    if len(first) != len(second):
        raise Unproved("the targets have different ranks")
    if 0 in first or 0 in second:
        raise Unproved("an extent is zero")
    different = [i for i, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]]
    if len(different) > 1 or sum(each == -1 for each in second) > 1:
        raise Unproved("the targets differ")
    if different and -1 not in (first[different[0]], second[different[0]]):
        raise Unproved("the targets differ")
