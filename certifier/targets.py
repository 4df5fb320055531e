"""Extents as expressions: the elements of integer tensors that are computed from the extents of values."""

from __future__ import annotations

from typing import TypeGuard

from .parts import rejoined
from .program import Datum, Operation, Unproved

Extent = int | str | tuple[int, int]
"""A number, a symbol of an input, or an extent that the models do not state: that of a class along an axis."""

ORDERED = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"))
"""Operators that keep the order of elements."""

MAX_DEPTH = 32


def extents_of(value: Datum) -> list[Extent]:
    """Return the extents of a value. Raises Unproved where the rank is unknown."""
    if value.extents is None:
        raise Unproved("a rank is unknown")
    return [each if is_known(each) else (value.term, axis) for axis, each in enumerate(value.extents)]


def is_known(extent: int | str | None) -> TypeGuard[int | str]:
    """Return whether an extent is a number, or a symbol of the models; onnx's inference calls its own `unk__`."""
    return isinstance(extent, int) or (isinstance(extent, str) and not extent.startswith("unk__"))


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
        forward = operation.operand(4) is None or steps == [1]
        if starts is not None and ends is not None and forward and len(starts) == 1:
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


def final_extents(operation: Operation) -> list[Extent]:
    """Return the extents of the result of an operation that keeps the order of elements."""
    result = operation.outputs[0]
    if result.extents is not None and all(is_known(each) for each in result.extents):
        return extents_of(result)
    if operation.kind != "Reshape":
        raise Unproved("the extents are unknown")
    found = target_of(operation)
    known = result.extents if result.extents is not None and len(result.extents) == len(found) else [None] * len(found)
    return [other if other is not None and is_known(other) else each for each, other in zip(found, known, strict=True)]


def ordered_from(value: Datum) -> list[int]:
    """Return the classes of the values whose elements `value` holds in their order, itself included."""
    found = [value.term]
    while value.producer is not None and not value.producer.domain and value.producer.kind in ORDERED:
        data = value.producer.operand(0)
        if data is None or len(found) > MAX_DEPTH:
            break
        value = data
        found.append(value.term)
    return found


def joined(value: Datum, axis: int) -> list[int]:
    """Return the classes of the values that nested Concats join along `axis`, counted from the left."""
    return [each.term for each in rejoined(_joined(value, axis), axis)]


def _joined(value: Datum, axis: int, depth: int = 0) -> list[Datum]:
    operation = value.producer
    if operation is None or operation.domain or operation.kind != "Concat" or value.rank is None or depth > MAX_DEPTH:
        return [value]
    own = int(operation.attributes.get("axis", 0))
    if (own + value.rank if own < 0 else own) != axis:
        return [value]
    return [part for each in operation.inputs if each is not None for part in _joined(each, axis, depth + 1)]


def same_join(source: Datum, result: Datum) -> None:
    """Prove that nested Concats along one axis join the same values. Raises Unproved."""
    operation, rank = source.producer, source.rank
    if operation is None or rank is None or rank != result.rank:
        raise Unproved("the ranks are unknown, or differ")
    axis = int(operation.attributes.get("axis", 0))
    axis += rank if axis < 0 else 0
    if joined(source, axis) != joined(result, axis):
        raise Unproved("the Concats join different values")


def same_target(source: Operation, result: Operation) -> None:
    """Prove that elements in one order get one target.

    All extents but one are equal, and so the last one is, because the number of elements is. Raises Unproved.
    """
    if set(ordered_from(source.outputs[0])).isdisjoint(ordered_from(result.outputs[0])[1:]):
        raise Unproved("the elements come from different values")
    first, second = final_extents(source), final_extents(result)
    if len(first) != len(second):
        raise Unproved("the targets have different ranks")
    if 0 in first or 0 in second:
        raise Unproved("an extent is zero")
    different = [i for i, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]]
    if len(different) > 1 or sum(each == -1 for each in second) > 1:
        raise Unproved("the targets differ")
    if different and -1 not in (first[different[0]], second[different[0]]):
        raise Unproved("the targets differ")
