"""Operators that pick, join or repeat elements: slices, gathers, concatenation, padding and resizing."""

from __future__ import annotations

import numpy as np

from ..graph import Node
from ..tensor import Array
from ..types import TensorType, shape_of
from .evaluation import NotEvaluable, check_size, listed_operand, operand
from .inference import Types, dtype_only, input_dtype, input_shape, integer_of, is_given, listed, normal_axes
from .row import MANY, Constants, Inputs, OpInfo, Trait, integer, integers


def infer_take(node: Node, constants: Constants) -> Types:
    """Infer the indices' shape in place of the axis."""
    dtype, shape, indices = input_dtype(node), input_shape(node), input_shape(node, 1)
    axis = integer_of(node, "axis", 0)
    if shape is None or indices is None or not -len(shape) <= axis < len(shape):
        return (TensorType(dtype, None),)
    axis %= len(shape)
    return (TensorType(dtype, (*shape[:axis], *indices, *shape[axis + 1 :])),)


def evaluate_take(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Gather."""
    data, indices, axis = operand(inputs), operand(inputs, 1), node.attrs.get("axis", 0)
    assert isinstance(axis, int)
    extent = data.shape[axis] if -data.ndim <= axis < data.ndim else 0
    if indices.size and not (-extent <= indices.min() and indices.max() < extent):
        raise NotEvaluable("an index is out of range")
    check_size(data.size // max(extent, 1) * indices.size, data)
    return (np.take(data, indices, axis=axis),)


def infer_concatenate(node: Node, constants: Constants) -> Types:
    """Infer the sum of the extents along the axis; elsewhere the extent that any of the operands knows."""
    dtype = input_dtype(node)
    shapes = [None if value is None else shape_of(value.type) for value in node.inputs]
    known = [shape for shape in shapes if shape is not None]
    axis = integer_of(node, "axis", 1)
    rank = len(known[0]) if known else 0
    if not -rank <= axis < rank or any(len(shape) != rank for shape in known):
        return (TensorType(dtype, None),)
    axis %= rank
    dims = [next((dim for dim in column if dim is not None), None) for column in zip(*known, strict=True)]
    along = [shape[axis] for shape in known]
    extents = [dim for dim in along if isinstance(dim, int)]
    dims[axis] = sum(extents) if len(extents) == len(shapes) else along[0] if len(shapes) == 1 else None
    return (TensorType(dtype, tuple(dims)),)


def evaluate_concatenate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Concat."""
    axis = node.attrs.get("axis", 1)
    assert isinstance(axis, int)
    parts = [operand(inputs, i) for i in range(len(inputs))]
    check_size(sum(part.size for part in parts), parts[0])
    return (np.concatenate(parts, axis=axis),)


def infer_strided_slice(node: Node, constants: Constants) -> Types:
    """Infer the length of each slice of a known extent; axes that are not sliced keep theirs."""
    dtype, shape = input_dtype(node), input_shape(node)
    starts, ends = listed(node, "starts", 1, constants), listed(node, "ends", 2, constants)
    axes, steps = listed(node, "axes", 3, constants), listed(node, "steps", 4, constants)
    if shape is None:
        return (TensorType(dtype, None),)
    unknown = any(is_given(node, name, i) and x is None for name, i, x in (("axes", 3, axes), ("steps", 4, steps)))
    if starts is None or ends is None or unknown:
        return (TensorType(dtype, (None,) * len(shape)),)
    sliced = normal_axes(tuple(range(len(starts))) if axes is None else axes, len(shape))
    if sliced is None or not len(starts) == len(ends) == len(sliced) or (steps and len(steps) != len(sliced)):
        return (TensorType(dtype, (None,) * len(shape)),)
    dims = list(shape)
    for i, axis in enumerate(sliced):
        extent, step = dims[axis], steps[i] if steps else 1
        known = isinstance(extent, int) and step > 0
        dims[axis] = len(range(extent)[starts[i] : ends[i] : step]) if known else None  # type: ignore[arg-type]
    return (TensorType(dtype, tuple(dims)),)


def evaluate_strided_slice(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Slice, with starts, ends, axes and steps as attributes or inputs."""
    data = operand(inputs)
    starts, ends = listed_operand(node, inputs, "starts", 1), listed_operand(node, inputs, "ends", 2)
    axes, steps = listed_operand(node, inputs, "axes", 3), listed_operand(node, inputs, "steps", 4)
    if starts is None or ends is None:
        raise NotEvaluable("starts or ends are not given")
    slices: list[slice] = [slice(None)] * data.ndim
    for i, start in enumerate(starts):
        axis, step, end = axes[i] if axes else i, steps[i] if steps else 1, ends[i]
        if step < 0:
            raise NotEvaluable("a slice with a negative step")
        slices[axis] = slice(start, end, step)
    return (data[tuple(slices)],)


def infer_split(node: Node, constants: Constants) -> Types:
    """Infer the first input's dtype for every result."""
    return dtype_only(node, constants) * len(node.outputs)


def infer_pad(node: Node, constants: Constants) -> Types:
    """Infer every known extent plus its pads."""
    dtype, shape = input_dtype(node), input_shape(node)
    pads = listed(node, "pads", 1, constants)
    if shape is None or pads is None or is_given(node, "axes", 3) or len(pads) != 2 * len(shape):
        return (TensorType(dtype, None if shape is None else (None,) * len(shape)),)
    both = [before + after for before, after in zip(pads, pads[len(shape) :], strict=False)]
    dims = [
        dim + extra if isinstance(dim, int) else dim if not extra else None
        for dim, extra in zip(shape, both, strict=True)
    ]
    return (TensorType(dtype, tuple(dims)),)


def infer_resize(node: Node, constants: Constants) -> Types:
    """Infer the sizes if they are given; else the extents whose scale is one stay, the others are left to onnx."""
    dtype, shape = input_dtype(node), input_shape(node)
    sizes = listed(node, "sizes", 3, constants)
    if "axes" in node.attrs or "keep_aspect_ratio_policy" in node.attrs or shape is None:
        return (TensorType(dtype, None),)
    if sizes is not None and len(sizes) == len(shape):
        return (TensorType(dtype, tuple(sizes)),)
    last = 1 if node.op == "nn.upsampling" or len(node.inputs) == 2 else 2
    scales = node.attrs.get("scales")
    if not isinstance(scales, tuple):
        array = constants.array(node.input(last))
        scales = None if array is None else tuple(float(item) for item in array.ravel())
    if scales is None or len(scales) != len(shape):
        return (TensorType(dtype, (None,) * len(shape)),)
    return (TensorType(dtype, tuple(dim if scale == 1 else None for dim, scale in zip(shape, scales, strict=True))),)


_MOVES = frozenset({Trait.MOVES})
_AVERAGES = frozenset({Trait.AVERAGES})

ROWS = (
    OpInfo("take", (2, 2), infer_take, evaluate_take, onnx="Gather", attrs={"axis": integer}, traits=_MOVES),
    OpInfo(
        "concatenate",
        (1, MANY),
        infer_concatenate,
        evaluate_concatenate,
        onnx="Concat",
        attrs={"axis": integer},
        traits=frozenset({Trait.EXACT_AT_RUNTIME}),
    ),
    OpInfo(
        "strided_slice",
        (1, 5),
        infer_strided_slice,
        evaluate_strided_slice,
        onnx="Slice",
        attrs={"axes": integers, "ends": integers, "starts": integers},
        traits=_MOVES,
    ),
    OpInfo(
        "split",
        (1, 2),
        infer_split,
        onnx="Split",
        attrs={"axis": integer, "num_outputs": integer},
        max_results=1 << 31,
        traits=_MOVES,
    ),
    OpInfo("tile", (2, 3), dtype_only, onnx="Tile", traits=_MOVES),
    OpInfo("nn.pad", (1, 4), infer_pad, onnx="Pad", attrs={"pads": integers}),
    OpInfo(
        "image.resize",
        (1, 4),
        infer_resize,
        onnx="Resize",
        since=10,
        attrs={"axes": integers, "exclude_outside": integer},
        traits=_AVERAGES | {Trait.HEAVY},
    ),
    OpInfo("nn.upsampling", (1, 2), infer_resize, onnx="Upsample", traits=_AVERAGES),
    OpInfo("nn.depth_to_space", (1, 1), dtype_only, onnx="DepthToSpace", attrs={"blocksize": integer}, traits=_MOVES),
    OpInfo("nn.space_to_depth", (1, 1), dtype_only, onnx="SpaceToDepth", attrs={"blocksize": integer}, traits=_MOVES),
)
