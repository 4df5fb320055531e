"""How many multiplications a layer takes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .graph import ONNX_NAMES, Node, Value
from .types import Dim, shape_of

Shape = Sequence[Dim]


def multiplications(node: Node, open_extent: int | None = None) -> int | None:
    """Return the multiplications of a layer for a sample, None if an extent is unknown.

    An open batch counts as 1; with an `open_extent` every open extent counts as that. Other
    operators have none that are known.
    """
    operands = [_shape(node.input(index), open_extent) for index in range(3)]
    result = _sample(_shape(node.outputs[0], open_extent))
    return layer_products(ONNX_NAMES.get(node.op, ""), operands, result)


def layer_products(
    op_type: str, operands: Sequence[Shape | None], result: Shape | None
) -> int | None:
    """Return the multiplications of an operator of ONNX by the shapes of its data and weights.

    Returns None for an operator that is no layer, and if an extent is unknown.
    """
    first, second, third = (*operands, None, None, None)[:3]
    # Without a rank there is no telling which extents are multiplied.
    if first is None or second is None:
        return None
    match op_type:
        case "Conv" if result is not None:
            return _product(result, second[1:])
        case "ConvTranspose":
            return _product(_sample(first) or (), second[1:])
        case "Gemm" if result is not None:
            found = _product(result[:1], second)
            return _product(first, result[1:]) if found is None else found
        case "MatMul" if result is not None and first and second:
            inner = second[-2:][0]
            return _product(result, (first[-1] if isinstance(first[-1], int) else inner,))
        case "RNN" | "GRU" | "LSTM" if third is not None:
            parts = [_product(first[:2], weight) for weight in (second, third)]
            return None if None in parts else sum(part for part in parts if part is not None)
    return None


def _shape(value: Value | None, open_extent: int | None) -> Shape | None:
    shape = None if value is None else shape_of(value.type)
    if shape is None or open_extent is None:
        return shape
    return tuple([dim if isinstance(dim, int) else open_extent for dim in shape])


def _sample(shape: Shape | None) -> Shape | None:
    """Return a shape with an open batch as 1."""
    return (1, *shape[1:]) if shape and not isinstance(shape[0], int) else shape


def _product(*shapes: Shape) -> int | None:
    found = [elements(shape) for shape in shapes]
    return None if None in found else prod(number for number in found if number is not None)


def elements(shape: Shape | None) -> int | None:
    """Return the number of elements of a shape, None if an extent is unknown."""
    if shape is None or not all(isinstance(extent, int) for extent in shape):
        return None
    return prod(extent for extent in shape if isinstance(extent, int))
