"""Type inference that operators of several families share.

Each function returns the types of a node's outputs. Shapes follow the ONNX operator of the same
meaning; unknown parts are left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ..extents import absorbs
from ..graph import Node
from ..types import F64, UNKNOWN, Dim, DType, Shape, TensorType, Type, dtype_of, shape_of
from .row import Constants, complete_by_types

Types = tuple[Type, ...]

MAX_RANK = 64
"""The greatest rank of a tensor whose shape is not constant: as many axes as numpy has."""


def input_dtype(node: Node, name: str | None = None) -> DType | None:
    """Return the dtype of an operand, by default the first; None if it is absent or unknown."""
    value = node.input(0) if name is None else node[name]
    return None if value is None else dtype_of(value.type)


def input_shape(node: Node, name: str | None = None) -> Shape:
    """Return the shape of an operand, by default the first; None if it is absent or unknown."""
    if name is None:
        value = node.inputs[0] if node.inputs else None
    else:
        value = node[name]
    return None if value is None else shape_of(value.type)


def input_shapes(node: Node) -> list[Shape]:
    """Return the shapes of all operands."""
    return [None if value is None else shape_of(value.type) for value in node.inputs]


def listed(node: Node, name: str, constants: Constants) -> tuple[int, ...] | None:
    """Return the integers of an operand, None if it is absent or not constant."""
    array = constants.array(node[name])
    return None if array is None or array.dtype.kind not in "iu" else tuple(array.ravel().tolist())


def pieces_of(node: Node, name: str, constants: Constants) -> tuple[Dim, ...] | None:
    """Return the integers of an operand as far as they are known, None if not even how many."""
    numbers = listed(node, name, constants)
    return constants.extents(node[name]) if numbers is None else numbers


def target_shape(node: Node, name: str, constants: Constants) -> tuple[Dim, ...] | None:
    """Return the shape that an operand lists, as far as it is known; None without its length."""
    target = pieces_of(node, name, constants)
    if target is not None:
        return tuple([None if isinstance(dim, int) and dim < 0 else dim for dim in target])
    length = input_shape(node, name)
    count = length[0] if length is not None and len(length) == 1 else None
    return (None,) * count if isinstance(count, int) and count <= MAX_RANK else None


def integers_of(node: Node, name: str, constants: Constants) -> tuple[int, ...] | None:
    """Return the integers of an operand, none if it is absent, None if they are unknown."""
    return () if node[name] is None else listed(node, name, constants)


def list_attribute(
    node: Node, name: str, default: tuple[int, ...] | None = None
) -> tuple[int, ...] | None:
    """Return an attribute that is a list of integers, None if it is something else.

    An absent attribute is `default`, and so is an empty list; others must have as many integers as
    `default`, if given.
    """
    found = node.attrs.get(name)
    if default is not None and found in (None, ()):
        return default
    if not isinstance(found, tuple) or (default is not None and len(found) != len(default)):
        return None
    return tuple([item for item in found if isinstance(item, int)])


def number_of(node: Node, name: str, constants: Constants) -> float | None:
    """Return the number of an operand in float64, 0 if it is absent, None if unknown."""
    value = node[name]
    if value is None:
        return 0.0
    array = constants.array(value)
    return None if array is None or array.size != 1 else float(array.ravel()[0])


def integer_of(node: Node, name: str, default: int) -> int:
    """Return an integer attribute."""
    found = node.attrs.get(name, default)
    return found if isinstance(found, int) else default


def normal_axes(axes: tuple[int, ...], rank: int) -> list[int] | None:
    """Return axes counted from the left, None if one is out of range or occurs twice."""
    found = [axis + rank if axis < 0 else axis for axis in axes]
    return (
        found if len(set(found)) == len(found) and all(0 <= axis < rank for axis in found) else None
    )


def are_distinct(axes: Sequence[int]) -> bool:
    """Return whether `axes`, of which there are some, are different axes of any rank that has them.

    0 and -1 are one axis if the rank is 1.
    """
    return 0 < len(axes) == len(set(axes)) and (min(axes) >= 0 or max(axes) < 0)


def broadcast_dims(a: Dim, b: Dim) -> Dim:
    """Return the extent that two extents broadcast to, None if that depends on run time."""
    if a == 1:
        return b
    if b == 1 or a == b:
        return a
    if isinstance(a, int) == isinstance(b, int):
        return next((x for x, y in ((a, b), (b, a)) if absorbs(x, y)), None)
    return a if isinstance(a, int) else b


def broadcast_shapes(a: Shape, b: Shape) -> Shape:
    """Return numpy's broadcast of two shapes; unknown if either rank is."""
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    wide = [(1,) * (rank - len(shape)) + shape for shape in (a, b)]
    return tuple(broadcast_dims(x, y) for x, y in zip(*wide, strict=True))


@complete_by_types
def same(node: Node, constants: Constants) -> Types:
    """Infer the type of the first input."""
    first = node.input(0)
    return (UNKNOWN if first is None else first.type,)


@complete_by_types
def elementwise(node: Node, constants: Constants) -> Types:
    """Infer the broadcast of two operands in the first one's dtype; with `axis`, its shape."""
    first, second = input_dtype(node), input_dtype(node, "rhs")
    dtype = first or (second if second is not F64 else None)
    if "axis" in node.attrs:
        return (TensorType(dtype, _along_axis(node)),)
    return (TensorType(dtype, broadcast_shapes(input_shape(node), input_shape(node, "rhs"))),)


def _along_axis(node: Node) -> Shape:
    """Return the shape of an operand, whose 1 a greater number of the other stretches."""
    shape, other, axis = input_shape(node), input_shape(node, "rhs"), integer_of(node, "axis", 0)
    if shape is None or other is None:
        return shape
    start = axis + len(shape) if axis < 0 else axis
    others = dict(enumerate(other, start))
    return tuple(
        [
            wide if dim == 1 and isinstance(wide := others.get(i), int) else dim
            for i, dim in enumerate(shape)
        ]
    )


def broadcast_of_inputs(node: Node) -> Shape:
    """Return the broadcast of all operands."""
    return reduce(broadcast_shapes, input_shapes(node))


@complete_by_types
def broadcast(node: Node, constants: Constants) -> Types:
    """Infer the broadcast of all operands, in the first one's dtype."""
    return (TensorType(input_dtype(node), broadcast_of_inputs(node)),)


def dtype_only(node: Node, constants: Constants) -> Types:
    """Infer the first input's dtype."""
    return (TensorType(input_dtype(node), None),)


def unknown(node: Node, constants: Constants) -> Types:
    """Leave every type to the model's declarations and onnx's shape inference."""
    return (UNKNOWN,) * len(node.outputs)
