"""Operators that keep every element: reshapes, transposition, casts; and broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...support.statement import states
from ..extents import FirstNonzero, exact_quotient, first_nonzero, least, product
from ..graph import Node
from ..provenance import Refusal, Refused
from ..tensor import Array, numpy_dtype, round_to
from ..types import (
    DTYPES,
    ELEMENT_COUNT_LIMIT,
    Dim,
    DType,
    Shape,
    TensorType,
    dtype_of,
    element_count,
    shape_of,
    static_shape_of,
)
from .bounds import cast_bounds
from .channel_map import ChannelAxis, ChannelMap, is_extent, same_channels, unknown_shape
from .evaluation import NotEvaluable, identity, listed_operand, operand, operands
from .inference import (
    Types,
    broadcast_shapes,
    input_dtype,
    input_shape,
    integer_of,
    listed,
    normal_axes,
    pieces_of,
    same,
    target_shape,
)
from .row import (
    Constants,
    Inputs,
    NodeView,
    OpInfo,
    Parameter,
    Trait,
    complete,
    complete_by_types,
    integer,
    integers,
)

FLOATS = ("f16", "bf16", "f32", "f64")


@complete
def infer_reshape(node: Node, constants: Constants) -> Types:
    """Infer the shape of a target, 0 and -1 resolved as far as can be."""
    dtype, shape = input_dtype(node), input_shape(node)
    target = pieces_of(node, "shape", constants)
    if target is None:
        return (TensorType(dtype, target_shape(node, "shape", constants)),)
    copies = not node.attrs.get("allowzero")
    dims = [_target_extent(dim, i, shape, copies=copies) for i, dim in enumerate(target)]
    if target.count(-1) == 1 and shape is not None:
        kept = [i for i, dim in enumerate(target) if dim == 0 and copies]
        taken = [dim for i, dim in enumerate(dims) if i not in kept and target[i] != -1]
        left = [dim for i, dim in enumerate(shape) if i not in kept]
        is_sure = copies or all((least(dim) or 0) > 0 for dim in taken)
        is_known = is_sure and 0 not in shape
        dims[target.index(-1)] = _remaining_extent(left, taken) if is_known else None
    elif shape is not None:
        # The number of elements stays: it tells one extent beside numbers, whatever a 0 copies.
        rest = [i for i, dim in enumerate(dims) if not isinstance(dim, int) or dim == 0]
        if len(rest) == 1 and isinstance(dims[rest[0]], FirstNonzero | None):
            numbers = [dim for i, dim in enumerate(dims) if i != rest[0]]
            dims[rest[0]] = _remaining_extent(list(shape), numbers) or dims[rest[0]]
    return (TensorType(dtype, tuple(dims)),)


def _target_extent(dim: Dim, axis: int, shape: Shape, *, copies: bool) -> Dim:
    """Return the extent that an element of a target stands for, None if unknown or below 0.

    If 0 `copies`, it stands for the extent of the data along the same axis.
    """
    low = least(dim)
    if low is None or low < 0:
        return None
    if not copies or low > 0:
        return dim
    if shape is None:
        return None
    # A 0 that has no axis to copy is an error: at the other runs the element is not 0.
    return first_nonzero(dim, shape[axis]) if axis < len(shape) else dim


def _remaining_extent(extents: list[Dim], taken: list[Dim]) -> Dim:
    """Return the extent that -1 stands for: `extents` divided by `taken`; None if unknown."""
    # Beside an extent of 0, a -1 is an error: none of those that are taken is 0. With allowzero,
    # where runtimes compute one nevertheless, they are above 0.
    count, rest = _product(extents), _product(taken)
    if isinstance(count, int) and isinstance(rest, int):
        return count // rest if rest else None
    return exact_quotient(count, rest)


def evaluate_reshape(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Reshape: 0 keeps an extent unless `allowzero`, -1 takes the elements that are left."""
    data, target = operand(inputs), listed_operand(node, inputs, "shape")
    if target is None:
        raise NotEvaluable("the target shape is not given")
    if not node.attrs.get("allowzero"):
        target = [
            data.shape[i] if dim == 0 and i < data.ndim else dim for i, dim in enumerate(target)
        ]
    try:
        return (data.reshape(target),)
    except ValueError as error:
        raise NotEvaluable(str(error)) from None


@complete
def infer_expand_dims(node: Node, constants: Constants) -> Types:
    """Infer an extent of 1 at each of the axes of the result."""
    dtype, shape = input_dtype(node), input_shape(node)
    axes = listed(node, "axes", constants)
    if shape is None or axes is None or (new := normal_axes(axes, len(shape) + len(axes))) is None:
        return (TensorType(dtype, None),)
    rest = iter(shape)
    return (
        TensorType(
            dtype, tuple(1 if i in new else next(rest) for i in range(len(shape) + len(axes)))
        ),
    )


def evaluate_expand_dims(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Unsqueeze."""
    data, axes = operand(inputs), listed_operand(node, inputs, "axes")
    if axes is None:
        raise NotEvaluable("the axes are not given")
    return (np.expand_dims(data, tuple(axes)),)


@complete
def infer_squeeze(node: Node, constants: Constants) -> Types:
    """Infer the shape without the given axes, or without extents of 1 if all are known."""
    dtype, shape = input_dtype(node), input_shape(node)
    if shape is None:
        return (TensorType(dtype, None),)
    axes = listed(node, "axes", constants)
    if axes is None and (node["axes"] is not None or static_shape_of(node.operand().type) is None):
        return (TensorType(dtype, None),)
    gone = (
        [i for i, dim in enumerate(shape) if dim == 1]
        if axes is None
        else normal_axes(axes, len(shape))
    )
    if gone is None or (not gone and axes is not None):
        return (TensorType(dtype, None),)
    return (TensorType(dtype, tuple(dim for i, dim in enumerate(shape) if i not in gone)),)


def evaluate_squeeze(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Squeeze; without axes every extent of 1 goes.

    Runtimes disagree on axes that are given and empty.
    """
    data, axes = operand(inputs), listed_operand(node, inputs, "axes")
    if axes == []:
        raise NotEvaluable("the axes are empty")
    return (np.squeeze(data, None if axes is None else tuple(axes)),)


@complete_by_types
def infer_flatten(node: Node, constants: Constants) -> Types:
    """Infer rank 2; an extent is known if its factors are."""
    dtype, shape = input_dtype(node), input_shape(node)
    axis = integer_of(node, "axis", 1)
    if shape is None:
        return (TensorType(dtype, (None, None)),)
    axis += len(shape) if axis < 0 else 0
    return (TensorType(dtype, (_product(shape[:axis]), _product(shape[axis:]))),)


def _product(dims: Sequence[Dim]) -> Dim:
    """Return the product of extents, None if it is unknown or too large."""
    count = element_count(dim for dim in dims if isinstance(dim, int))
    if count == ELEMENT_COUNT_LIMIT:
        return None
    return product(count, *[dim for dim in dims if not isinstance(dim, int)])


def evaluate_flatten(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Reshape to rank 2, split at `axis`."""
    data, axis = operand(inputs), node.attrs.get("axis", 1)
    assert isinstance(axis, int)
    axis += data.ndim if axis < 0 else 0
    return (data.reshape(prod(data.shape[:axis]), prod(data.shape[axis:])),)


@states("affine(reshape(x, n), s[i], t[i], k, r) == reshape(affine(x, s, t, q), n)")
def reshaped_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Reshape, Flatten, Squeeze, Unsqueeze: the row-major order of the elements stays."""
    if at.axis is None:
        return ChannelMap()
    before, after = input_shape(node), shape_of(node.output.type)
    if before is None or after is None:
        raise unknown_shape(node)
    if not at.of_data and at.count is not None and at.count > 1:
        after = _with_channels(node, at, before, after, constants)
    return ChannelMap(shapes=(before, after))


def _with_channels(
    node: Node,
    at: ChannelAxis,
    before: tuple[Dim, ...],
    after: tuple[Dim, ...],
    constants: Constants,
) -> tuple[Dim, ...]:
    """Return the shape of a Reshape's result with the channels of an affine behind it for its -1.

    The -1 is another number only if an extent beside it is 0. No run has an affine of several
    channels behind it then: it would have none there.
    """
    target = pieces_of(node, "shape", constants) if node.op == "reshape" else None
    if target is None or at.axis is None or target.count(-1) != 1 or target[at.axis] != -1:
        return after
    copies = not node.attrs.get("allowzero")
    kept = [*before, *[None] * len(target)]
    resolved = [kept[i] if dim == 0 and copies else dim for i, dim in enumerate(target)]
    others = [dim for dim in resolved if dim != -1]
    if exact_quotient(product(*before), product(*others)) != at.count:
        return after
    return (*after[: at.axis], at.count, *after[at.axis + 1 :])


@complete_by_types
def infer_transpose(node: Node, constants: Constants) -> Types:
    """Infer the permuted shape; without `perm` the axes are reversed."""
    dtype, shape, perm = input_dtype(node), input_shape(node), node.attrs.get("perm")
    if shape is None:
        return (TensorType(dtype, (None,) * len(perm) if isinstance(perm, tuple) else None),)
    axes = perm if isinstance(perm, tuple) else tuple(reversed(range(len(shape))))
    if sorted(axes) != list(range(len(shape))):  # type: ignore[type-var]
        return (TensorType(dtype, None),)
    return (TensorType(dtype, tuple(shape[axis] for axis in axes)),)  # type: ignore[index]


def evaluate_transpose(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Permute axes; without `perm` reverse them."""
    perm = node.attrs.get("perm")
    return (np.transpose(operand(inputs), perm if isinstance(perm, tuple) else None),)  # type: ignore[arg-type]


def permutation(node: Node) -> tuple[int, ...] | None:
    """Return the axes of a `transpose`, None if they are unknown.

    Without `perm` they take a known rank.
    """
    perm = node.attrs.get("perm")
    if isinstance(perm, tuple):
        axes = tuple(axis for axis in perm if isinstance(axis, int))
        return axes if sorted(axes) == list(range(len(perm))) else None
    dtype_shape = node.output.type
    shape: Shape = dtype_shape.shape if isinstance(dtype_shape, TensorType) else None
    return None if shape is None else tuple(reversed(range(len(shape))))


def has_numeric_target(node: NodeView) -> Refusal | None:
    """Refuse opsets below 6, in which `to` is a name."""
    return (
        None
        if isinstance(node.attrs.get("to"), int)
        else Refusal("unsupported_attr", "the target type is a name")
    )


@states("affine(transpose(x, p), s, t, k, r) == transpose(affine(x, s, t, p[k]), p)")
def transposed_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Transpose: axis a of the result is axis perm[a] of the data."""
    if at.axis is None:
        return ChannelMap()
    perm = permutation(node)
    if perm is None:
        raise unknown_shape(node)
    return ChannelMap(permutation=perm)


@states("affine(expand(x, n), s, t, k, r) == expand(affine(x, s, t, k - d), n)")
def expanded_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Expand: channels of the data are channels of the result, but copies are not channels."""
    if at.axis is None:
        return ChannelMap()
    before, after = input_shape(node), shape_of(node.output.type)
    if before is None or after is None:
        raise unknown_shape(node)
    added = len(after) - len(before)
    if at.of_data:
        if not is_extent(after, at.axis + added, at.count):
            raise unknown_shape(node)
        return ChannelMap(at.axis + added)
    if not is_extent(before, at.axis - added, at.count):
        raise Refused("axis_mismatch", f"{node.description}: the channels are copies")
    return ChannelMap(at.axis - added)


_NUMBERED = (
    "f32",
    "u8",
    "i8",
    "u16",
    "i16",
    "i32",
    "i64",
    "str",
    "bool",
    "f16",
    "f64",
    "u32",
    "u64",
    "c64",
    "c128",
    "bf16",
)
CAST_TARGETS = dict(enumerate(_NUMBERED, 1))
"""The dtypes by ONNX's numbers. The newer ones are left to the model's declarations."""


@complete_by_types
def infer_cast(node: Node, constants: Constants) -> Types:
    """Infer the first input's shape in the dtype that `to` names."""
    target = node.attrs.get("to")
    name = CAST_TARGETS.get(target) if isinstance(target, int) else None
    return (TensorType(None if name is None else DTYPES[name], input_shape(node)),)


@complete_by_types
def infer_cast_like(node: Node, constants: Constants) -> Types:
    """Infer the first input's shape in the second one's dtype."""
    return (TensorType(input_dtype(node, "target_type"), input_shape(node)),)


def evaluate_cast(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Cast to the dtype of the output's type."""
    dtype = dtype_of(node.output.type)
    if dtype is None:
        raise NotEvaluable("the target dtype is unknown")
    return (convert(operand(inputs), dtype),)


def convert(array: Array, dtype: DType) -> Array:
    """Cast as ONNX defines it; refuse casts that it leaves to the runtime."""
    source = array.dtype
    target = numpy_dtype(dtype)
    if source == target:
        return array
    is_float = any(source == numpy_dtype(DTYPES[name]) for name in FLOATS)
    if source.kind == "O" or not (is_float or source.kind in "iub"):
        raise NotEvaluable(f"cast from {source}")
    if dtype.name in FLOATS:
        is_long = source.kind in "iu" and source.itemsize == 8
        if is_long and (np.abs(array.astype(np.float64)) > 2.0**53).any():
            raise NotEvaluable("a cast of an integer above 2**53 to floating point")
        return round_to(array.astype(np.float64), dtype)
    if dtype.kind == "bool":
        return np.asarray(array != 0)
    if dtype.kind not in ("int", "uint") or dtype.bits < 8:
        raise NotEvaluable(f"cast to {dtype}")
    info = np.iinfo(target)
    low, high = (array.min(), array.max()) if array.size else (0, 0)
    if not (np.isfinite(array.astype(np.float64)).all() and info.min <= low and high <= info.max):
        raise NotEvaluable(f"a value out of the range of {dtype}")
    if is_float and array.size and float(high) >= 2.0 ** (dtype.bits - (dtype.kind == "int")):
        raise NotEvaluable(f"a value out of the range of {dtype}")
    result: Array = array.astype(target)
    return result


@complete
def infer_broadcast_to(node: Node, constants: Constants) -> Types:
    """Infer the broadcast of the data with the requested shape."""
    target = target_shape(node, "shape", constants)
    return (
        TensorType(
            input_dtype(node),
            None if target is None else broadcast_shapes(input_shape(node), target),
        ),
    )


def evaluate_broadcast_to(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Expand: broadcast both ways with the requested shape."""
    data, shape = operands(inputs)
    target = tuple(int(dim) for dim in shape.ravel())
    try:
        return (np.broadcast_to(data, np.broadcast_shapes(data.shape, target)),)
    except ValueError as error:
        raise NotEvaluable(str(error)) from None


_ELEMENTWISE = frozenset({Trait.ELEMENTWISE})
_EXACT_MOVE = frozenset({Trait.EXACT_AT_RUNTIME, Trait.MOVES})
_SEVERAL_AXES = frozenset({Trait.SEVERAL_AXES})
_RESHAPES = _EXACT_MOVE | {Trait.RESHAPES, Trait.SEVERAL_AXES}
_AXES = {"axes": integers}
_AXES_13 = {"axes": Parameter(13)}

ROWS = (
    OpInfo(
        "identity",
        ("data",),
        same,
        identity,
        onnx="Identity",
        traits=_EXACT_MOVE | _ELEMENTWISE | _SEVERAL_AXES,
        channels=same_channels,
    ),
    OpInfo(
        "cast",
        ("data",),
        infer_cast,
        evaluate_cast,
        onnx="Cast",
        when=has_numeric_target,
        traits=_ELEMENTWISE,
        bounds=cast_bounds,
    ),
    OpInfo(
        "cast_like",
        ("data", "target_type"),
        infer_cast_like,
        evaluate_cast,
        onnx="CastLike",
        since=15,
        by_type=("target_type",),
        traits=_ELEMENTWISE,
        bounds=cast_bounds,
    ),
    OpInfo(
        "reshape",
        ("data", "shape?"),
        infer_reshape,
        evaluate_reshape,
        onnx="Reshape",
        parameters={"shape": Parameter(5)},
        attrs={"allowzero": integer, "shape": integers},
        traits=_RESHAPES,
        channels=reshaped_channels,
    ),
    OpInfo(
        "expand_dims",
        ("data", "axes?"),
        infer_expand_dims,
        evaluate_expand_dims,
        onnx="Unsqueeze",
        parameters=_AXES_13,
        attrs=_AXES,
        traits=_RESHAPES,
        channels=reshaped_channels,
    ),
    OpInfo(
        "squeeze",
        ("data", "axes?"),
        infer_squeeze,
        evaluate_squeeze,
        onnx="Squeeze",
        parameters=_AXES_13,
        attrs=_AXES,
        traits=_RESHAPES,
        channels=reshaped_channels,
    ),
    OpInfo(
        "nn.batch_flatten",
        ("data",),
        infer_flatten,
        evaluate_flatten,
        onnx="Flatten",
        attrs={"axis": integer},
        traits=_RESHAPES,
        channels=reshaped_channels,
    ),
    OpInfo(
        "transpose",
        ("data",),
        infer_transpose,
        evaluate_transpose,
        onnx="Transpose",
        attrs={"perm": integers},
        traits=_EXACT_MOVE | _SEVERAL_AXES,
        channels=transposed_channels,
    ),
    OpInfo(
        "broadcast_to",
        ("data", "shape"),
        infer_broadcast_to,
        evaluate_broadcast_to,
        onnx="Expand",
        since=8,
        traits=_EXACT_MOVE,
        channels=expanded_channels,
    ),
)
