"""Type inference of the operators that move data or work in windows: shapes as far as attributes and constants tell."""

from __future__ import annotations

from .evaluate import ConstantEvaluator
from .graph import Node
from .infer import broadcast_shapes
from .tensor import Tensor
from .types import (
    ELEMENT_COUNT_LIMIT,
    F32,
    Dim,
    DType,
    Shape,
    TensorType,
    Type,
    dtype_of,
    element_count,
    shape_of,
)

Types = tuple[Type, ...]


def listed(node: Node, name: str, index: int, evaluator: ConstantEvaluator) -> tuple[int, ...] | None:
    """Integers given as attribute `name` or, in newer operator versions, as input `index`; None where they are absent
    or not constant, which `is_given` tells apart.
    """
    found = node.attrs.get(name)
    if isinstance(found, tuple):
        return tuple(int(item) for item in found) if all(isinstance(item, int) for item in found) else None  # type: ignore[arg-type]
    array = evaluator.array(node.input(index))
    return None if array is None or array.dtype.kind not in "iu" else tuple(int(item) for item in array.ravel())


def is_given(node: Node, name: str, index: int) -> bool:
    """Whether the operand of `listed` is there at all."""
    return name in node.attrs or node.input(index) is not None


def integer(node: Node, name: str, default: int) -> int:
    """An integer attribute."""
    found = node.attrs.get(name, default)
    return found if isinstance(found, int) else default


def _first(node: Node) -> tuple[DType | None, Shape]:
    data = node.inputs[0]
    return (None, None) if data is None else (dtype_of(data.type), shape_of(data.type))


def _normal(axes: tuple[int, ...], rank: int) -> list[int] | None:
    """Axes counted from the left, None where one is out of range or occurs twice."""
    found = [axis + rank if axis < 0 else axis for axis in axes]
    return found if len(set(found)) == len(found) and all(0 <= axis < rank for axis in found) else None


def expand_dims(node: Node, evaluator: ConstantEvaluator) -> Types:
    """An extent of 1 at each of the axes of the result."""
    dtype, shape = _first(node)
    axes = listed(node, "axes", 1, evaluator)
    if shape is None or axes is None or (places := _normal(axes, len(shape) + len(axes))) is None:
        return (TensorType(dtype, None),)
    rest = iter(shape)
    return (TensorType(dtype, tuple(1 if i in places else next(rest) for i in range(len(shape) + len(axes)))),)


def squeeze(node: Node, evaluator: ConstantEvaluator) -> Types:
    """Without the given axes, or without those of extent 1 where all extents are known."""
    dtype, shape = _first(node)
    if shape is None:
        return (TensorType(dtype, None),)
    axes = listed(node, "axes", 1, evaluator)
    if axes is None and (is_given(node, "axes", 1) or not all(isinstance(dim, int) for dim in shape)):
        return (TensorType(dtype, None),)
    places = [i for i, dim in enumerate(shape) if dim == 1] if axes is None else _normal(axes, len(shape))
    if not places:
        return (TensorType(dtype, None),)
    return (TensorType(dtype, tuple(dim for i, dim in enumerate(shape) if i not in places)),)


def flatten(node: Node, evaluator: ConstantEvaluator) -> Types:
    """Rank 2; an extent is known where its factors are, or where it is the only factor."""
    dtype, shape = _first(node)
    axis = integer(node, "axis", 1)
    if shape is None:
        return (TensorType(dtype, (None, None)),)
    axis += len(shape) if axis < 0 else 0
    return (TensorType(dtype, (product(shape[:axis]), product(shape[axis:]))),)


def product(dims: tuple[Dim, ...]) -> Dim:
    """The product of extents, a symbol where the others are 1; None where it is not known, or that of no tensor."""
    others = [dim for dim in dims if dim != 1]
    if len(others) == 1:
        return others[0]
    known = [dim for dim in others if isinstance(dim, int)]
    count = element_count(known)
    return count if len(known) == len(others) and count < ELEMENT_COUNT_LIMIT else None


def broadcast_to(node: Node, evaluator: ConstantEvaluator) -> Types:
    """The data broadcast with the requested shape."""
    dtype, shape = _first(node)
    target = listed(node, "shape", 1, evaluator)
    return (TensorType(dtype, None if target is None else broadcast_shapes(shape, target)),)


def full(node: Node, evaluator: ConstantEvaluator) -> Types:
    """The requested shape in the dtype of `value`, f32 by default."""
    value, target = node.attrs.get("value"), listed(node, "shape", 0, evaluator)
    return (TensorType(value.dtype if isinstance(value, Tensor) else F32, target),)


def take(node: Node, evaluator: ConstantEvaluator) -> Types:
    """The indices' shape in place of the axis."""
    dtype, shape = _first(node)
    indices = None if node.inputs[1] is None else shape_of(node.inputs[1].type)
    axis = integer(node, "axis", 0)
    if shape is None or indices is None or not -len(shape) <= axis < len(shape):
        return (TensorType(dtype, None),)
    axis %= len(shape)
    return (TensorType(dtype, (*shape[:axis], *indices, *shape[axis + 1 :])),)


def concatenate(node: Node, evaluator: ConstantEvaluator) -> Types:
    """The sum of the extents along the axis; elsewhere whatever one of the operands knows."""
    dtype = _first(node)[0]
    shapes = [None if value is None else shape_of(value.type) for value in node.inputs]
    known = [shape for shape in shapes if shape is not None]
    axis = integer(node, "axis", 1)
    rank = len(known[0]) if known else 0
    if not -rank <= axis < rank or any(len(shape) != rank for shape in known):
        return (TensorType(dtype, None),)
    axis %= rank
    dims = [next((dim for dim in column if dim is not None), None) for column in zip(*known, strict=True)]
    along = [shape[axis] for shape in known]
    extents = [dim for dim in along if isinstance(dim, int)]
    dims[axis] = sum(extents) if len(extents) == len(shapes) else along[0] if len(shapes) == 1 else None
    return (TensorType(dtype, tuple(dims)),)


def strided_slice(node: Node, evaluator: ConstantEvaluator) -> Types:
    """The length of each slice of a known extent; axes that are not sliced keep theirs."""
    dtype, shape = _first(node)
    starts, ends = listed(node, "starts", 1, evaluator), listed(node, "ends", 2, evaluator)
    axes, steps = listed(node, "axes", 3, evaluator), listed(node, "steps", 4, evaluator)
    if shape is None:
        return (TensorType(dtype, None),)
    unknown = any(is_given(node, name, i) and x is None for name, i, x in (("axes", 3, axes), ("steps", 4, steps)))
    if starts is None or ends is None or unknown:
        return (TensorType(dtype, (None,) * len(shape)),)
    places = _normal(tuple(range(len(starts))) if axes is None else axes, len(shape))
    if places is None or not len(starts) == len(ends) == len(places) or (steps and len(steps) != len(places)):
        return (TensorType(dtype, (None,) * len(shape)),)
    dims = list(shape)
    for i, axis in enumerate(places):
        extent, step = dims[axis], steps[i] if steps else 1
        known = isinstance(extent, int) and step > 0
        dims[axis] = len(range(extent)[starts[i] : ends[i] : step]) if known else None  # type: ignore[arg-type]
    return (TensorType(dtype, tuple(dims)),)


def pad(node: Node, evaluator: ConstantEvaluator) -> Types:
    """Every known extent plus its pads."""
    dtype, shape = _first(node)
    pads = listed(node, "pads", 1, evaluator)
    if shape is None or pads is None or is_given(node, "axes", 3) or len(pads) != 2 * len(shape):
        return (TensorType(dtype, None if shape is None else (None,) * len(shape)),)
    ends = pads[len(shape) :]
    both = [before + after for before, after in zip(pads, ends, strict=False)]
    dims = [
        dim + extra if isinstance(dim, int) else dim if not extra else None
        for dim, extra in zip(shape, both, strict=True)
    ]
    return (TensorType(dtype, tuple(dims)),)


def pool(node: Node, evaluator: ConstantEvaluator) -> Types:
    """[N, C, spatial...]; an extent is known where the window is given in numbers and nothing is rounded up."""
    dtype, shape = _first(node)
    kernel = listed(node, "kernel_shape", 9, evaluator)
    if shape is None or kernel is None or len(shape) != len(kernel) + 2:
        return (TensorType(dtype, None),)
    ones, rank = (1,) * len(kernel), len(kernel)
    strides = listed(node, "strides", 9, evaluator) or ones
    dilations = listed(node, "dilations", 9, evaluator) or ones
    pads = listed(node, "pads", 9, evaluator) or (0,) * (2 * rank)
    open_ = node.attrs.get("auto_pad", "NOTSET") != "NOTSET" or node.attrs.get("ceil_mode")
    if not len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        open_ = True
    dims: list[Dim] = []
    for i, dim in enumerate(shape[2:]):
        if open_ or not isinstance(dim, int) or not strides[i]:
            dims.append(None)
        else:
            dims.append((dim + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1)
    return (TensorType(dtype, (*shape[:2], *dims)),)


def global_pool(node: Node, evaluator: ConstantEvaluator) -> Types:
    """[N, C, 1, ...]."""
    dtype, shape = _first(node)
    return (TensorType(dtype, None if shape is None else (*shape[:2], *(1,) * (len(shape) - 2))),)


def reduction(node: Node, evaluator: ConstantEvaluator) -> Types:
    """Extents of 1 in place of the reduced ones or, without `keepdims`, none."""
    dtype, shape = _first(node)
    axes = listed(node, "axes", 1, evaluator)
    if shape is None or (axes is None and is_given(node, "axes", 1)):
        return (TensorType(dtype, None),)
    if not axes and integer(node, "noop_with_empty_axes", 0):
        return (TensorType(dtype, shape),)
    places = _normal(axes, len(shape)) if axes else list(range(len(shape)))
    if places is None:
        return (TensorType(dtype, None),)
    if integer(node, "keepdims", 1):
        return (TensorType(dtype, tuple(1 if i in places else dim for i, dim in enumerate(shape))),)
    return (TensorType(dtype, tuple(dim for i, dim in enumerate(shape) if i not in places)),)


def resize(node: Node, evaluator: ConstantEvaluator) -> Types:
    """The sizes if they are given; else the extents whose scale is one stay, the others are left to onnx."""
    dtype, shape = _first(node)
    sizes = listed(node, "sizes", 3, evaluator)
    if "axes" in node.attrs or "keep_aspect_ratio_policy" in node.attrs or shape is None:
        return (TensorType(dtype, None),)
    if sizes is not None and len(sizes) == len(shape):
        return (TensorType(dtype, tuple(sizes)),)
    last = 1 if node.op == "nn.upsampling" or len(node.inputs) == 2 else 2
    scales = node.attrs.get("scales")
    if not isinstance(scales, tuple):
        array = evaluator.array(node.input(last))
        scales = None if array is None else tuple(float(item) for item in array.ravel())
    if scales is None or len(scales) != len(shape):
        return (TensorType(dtype, (None,) * len(shape)),)
    return (TensorType(dtype, tuple(dim if scale == 1 else None for dim, scale in zip(shape, scales, strict=True))),)


def permutation(node: Node) -> tuple[int, ...] | None:
    """The axes of a `transpose`, None where it has none; without `perm` they are reversed, which takes a known rank."""
    perm = node.attrs.get("perm")
    if isinstance(perm, tuple):
        axes = tuple(axis for axis in perm if isinstance(axis, int))
        return axes if sorted(axes) == list(range(len(perm))) else None
    shape = shape_of(node.output.type)
    return None if shape is None else tuple(reversed(range(len(shape))))
