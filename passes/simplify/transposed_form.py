"""How operands, constants and attributes of an operator change if its data are transposed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct, field

from ...ir.attributes import Attribute
from ...ir.graph import Node, Value, producer_of
from ...ir.ops import has_trait, is_legal
from ...ir.ops.inference import integer_of, listed
from ...ir.ops.row import NUMPY_BROADCAST, Trait
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.tensor import Array
from ...ir.types import shape_of

Perm = tuple[int, ...]


class TransposedForm(Struct, eq=False):
    """The changes of an operator by which it computes the transposed result."""

    moved: list[int]
    """Indices of the operands that must be transposed at run time."""

    constants: dict[int, Array] = field(default_factory=dict)
    """The new constants, by the index of the operand."""

    attrs: dict[str, Attribute] = field(default_factory=dict)
    """The attributes that change."""

    old_name: str = ""
    """The name of the result before the change."""


def transposed_form(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> TransposedForm | None:
    """Return how `node` changes for data transposed by `perm`, if it can."""
    if not _has_rank(node.output, perm):
        return None
    if has_trait(node, Trait.ELEMENTWISE):
        return TransposedForm([0]) if _has_rank(node.operand(), perm) else None
    for trait, form in ((Trait.BROADCASTS, _broadcast), (Trait.REDUCES, _reduce)):
        if has_trait(node, trait):
            return form(node, perm, evaluator)
    special = _SPECIAL.get(node.op)
    return None if special is None else special(node, perm, evaluator)


def _has_rank(value: Value, perm: Perm) -> bool:
    shape = shape_of(value.type)
    return shape is not None and len(shape) == len(perm)


def _broadcast(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> TransposedForm | None:
    """Return the form of a broadcasting operator: constants are transposed too."""
    if not is_legal(node.op, NUMPY_BROADCAST, node):
        return None
    axis = node.attrs.get("axis")
    if isinstance(axis, int):
        return _aligned(node, axis, perm)
    form = TransposedForm([])
    for i, value in enumerate(node.inputs):
        if value is None:
            return None
        shape = shape_of(value.type)
        if shape is not None and all(dim == 1 for dim in shape):
            continue
        array = evaluator.array(value)
        if array is not None and array.ndim <= len(perm):
            form.constants[i] = np.transpose(
                array.reshape((1,) * (len(perm) - array.ndim) + array.shape), perm
            )
        elif _has_rank(value, perm):
            form.moved.append(i)
        else:
            return None
    return form if form.moved else None


def _aligned(node: Node, axis: int, perm: Perm) -> TransposedForm | None:
    """Return the form of an operator whose second operand is a vector along `axis`."""
    parameter, position = node["rhs"], perm.index(axis % len(perm))
    if len(shape_of(parameter.type) or ()) != 1 or not _has_rank(node.operand(), perm):
        return None
    # Written as a BatchNormalization again, which has its channels along axis 1.
    if producer_of(parameter, "nn.batch_norm_to_affine") is not None and position != 1:
        return None
    return TransposedForm([0], attrs={"axis": position})


def _concatenate(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> TransposedForm | None:
    axis = node.attrs.get("axis", 1)
    if not isinstance(axis, int):
        return None
    if not all(value is not None and _has_rank(value, perm) for value in node.inputs):
        return None
    form = TransposedForm([], attrs={"axis": perm.index(axis % len(perm))})
    for i, value in enumerate(node.inputs):
        array = evaluator.array(value)
        if array is None:
            form.moved.append(i)
        else:
            form.constants[i] = np.transpose(array, perm)
    return form if form.moved else None


def _pad(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> TransposedForm | None:
    pads, rank = listed(node, "pads", evaluator), len(perm)
    # With `axes` the pads are of these only.
    if pads is None or len(pads) != 2 * rank or node["axes"] is not None:
        return None
    if not _has_rank(node.operand(), perm):
        return None
    return _with_integers([pads[axis] for axis in perm] + [pads[rank + axis] for axis in perm])


def _reduce(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> TransposedForm | None:
    axes = listed(node, "axes", evaluator)
    if not axes or not integer_of(node, "keepdims", 1) or not _has_rank(node.operand(), perm):
        return None
    return _with_integers(sorted(perm.index(axis % len(perm)) for axis in axes))


def _take(node: Node, perm: Perm, evaluator: ShapeEvaluator) -> TransposedForm | None:
    indices = shape_of(node["indices"].type) if node["indices"] is not None else None
    if indices is None or len(indices) != 1 or not _has_rank(node.operand(), perm):
        return None
    return TransposedForm([0], attrs={"axis": perm.index(integer_of(node, "axis", 0) % len(perm))})


def _with_integers(items: list[int]) -> TransposedForm:
    """Return the form with other integers in operand 1."""
    return TransposedForm([0], constants={1: np.asarray(items, np.int64)})


_SPECIAL: Mapping[str, Callable[[Node, Perm, ShapeEvaluator], TransposedForm | None]] = {
    "concatenate": _concatenate,
    "nn.pad": _pad,
    "take": _take,
}
"""The forms of operators without a trait that tells them."""
