"""Elements that ONNX leaves open: infinity, NaN and numbers out of range, cast to integers.

The other elements are known. The tensor is constant again behind a Where that does not choose open
elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .graph import Node
from .ops import has_trait
from .ops.evaluation import NotEvaluable
from .ops.reshaping import convert
from .ops.row import Evaluate, Trait
from .record import Record
from .tensor import Array, to_float64
from .types import dtype_of


class PartlyKnown(Record):
    """Elements of a value; those in the mask `is_open` may be any number."""

    array: Array
    is_open: Array


Operands = Sequence[Array | PartlyKnown | None]


def partly_known(node: Node, evaluate: Evaluate, operands: Operands) -> PartlyKnown:
    """Return the result of `node`, and which of its elements are open.

    Raises NotEvaluable if that is not known. An element is open if an open one may reach it: an
    element at its place, if an operator works element by element; the element that moves to it, if
    an operator moves elements; in a Where the condition, and the element that is chosen.
    """
    arrays = [each.array if isinstance(each, PartlyKnown) else each for each in operands]
    masks = [_mask(each) for each in operands]
    if node.op in ("cast", "cast_like"):
        return _cast(node, arrays[0], masks[0])
    if len(node.outputs) != 1 or ("axis" in node.attrs and has_trait(node, Trait.ALIGNED)):
        raise NotEvaluable("open elements of an operator of another kind")
    (result,) = evaluate(node, arrays)
    only_data = not any([mask is not None and mask.any() for mask in masks[1:]])
    if node.op == "where":
        condition, chosen, other = (_given(mask) for mask in masks)
        is_open = condition | np.where(arrays[0], chosen, other)  # type: ignore[arg-type]
    elif has_trait(node, Trait.BROADCASTS):
        is_open = np.logical_or.reduce(
            np.broadcast_arrays(*[mask for mask in masks if mask is not None])
        )
    elif has_trait(node, Trait.ELEMENTWISE) and only_data:
        is_open = _given(masks[0])
    elif has_trait(node, Trait.MOVES) and only_data:
        (is_open,) = evaluate(node, [masks[0], *arrays[1:]])
    else:
        raise NotEvaluable("open elements of an operator of another kind")
    if np.shape(is_open) != np.shape(result) or np.asarray(is_open).dtype != np.bool_:
        raise NotEvaluable("the mask of its open elements does not fit")
    return PartlyKnown(np.asarray(result), np.asarray(is_open))


def _cast(node: Node, data: Array | None, is_open: Array | None) -> PartlyKnown:
    """Cast any data; floats out of range of an integer type become open."""
    dtype = dtype_of(node.output.type)
    if data is None or is_open is None or dtype is None:
        raise NotEvaluable("the target dtype is unknown")
    if dtype.kind in ("int", "uint") and data.dtype.kind not in "iub":
        numbers = to_float64(data)
        low, high = (
            -(2.0 ** (dtype.bits - 1)) if dtype.kind == "int" else 0.0,
            2.0 ** (dtype.bits - (dtype.kind == "int")),
        )
        is_open = is_open | ~((numbers >= low) & (numbers < high))
        data = np.where(is_open, np.zeros((), data.dtype), data)
    return PartlyKnown(convert(data, dtype), is_open)


def _mask(operand: Array | PartlyKnown | None) -> Array | None:
    """Return which elements of an operand are open."""
    if isinstance(operand, PartlyKnown):
        return operand.is_open
    return None if operand is None else np.zeros(operand.shape, np.bool_)


def _given(mask: Array | None) -> Array:
    if mask is None:
        raise NotEvaluable("an operand is absent")
    return mask
