"""How many multiplications a layer takes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .graph import Node, Value
from .types import Dim, shape_of


def multiplications(node: Node, open_extent: int | None = None) -> int | None:
    """Return the multiplications of a layer for a sample, None if an extent is unknown.

    An open batch counts as 1; with an `open_extent` every open extent counts as that. Other
    operators have none that are known.
    """
    first, second = (_shape(node.input(index), open_extent) for index in (0, 1))
    result = _sample(_shape(node.outputs[0], open_extent))
    # Without a rank there is no telling which extents are multiplied.
    if first is None or second is None or result is None:
        return None
    match node.op:
        case "nn.conv":
            return _product(result, second[1:])
        case "nn.conv_transpose":
            return _product(_sample(first) or (), second[1:])
        case "nn.dense" if len(first) == len(second) == 2:
            summed = (
                first[0 if node.attrs.get("transA", 0) else 1],
                second[1 if node.attrs.get("transB", 0) else 0],
            )
            return _product(result, (summed[0] if isinstance(summed[0], int) else summed[1],))
        case "matmul" if first and second:
            inner = second[-2:][0]
            return _product(result, (first[-1] if isinstance(first[-1], int) else inner,))
    return None


def _shape(value: Value | None, open_extent: int | None) -> tuple[Dim, ...] | None:
    shape = None if value is None else shape_of(value.type)
    if shape is None or open_extent is None:
        return shape
    return tuple([dim if isinstance(dim, int) else open_extent for dim in shape])


def _sample(shape: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    """Return a shape with an open batch as 1."""
    return (1, *shape[1:]) if shape and not isinstance(shape[0], int) else shape


def _product(*shapes: Sequence[Dim]) -> int | None:
    found = [elements(shape) for shape in shapes]
    return None if None in found else prod(number for number in found if number is not None)


def elements(shape: Sequence[Dim] | None) -> int | None:
    """Return the number of elements of a shape, None if an extent is unknown."""
    if shape is None or not all(isinstance(extent, int) for extent in shape):
        return None
    return prod(extent for extent in shape if isinstance(extent, int))
