"""Rules for shapes: successive reshapes, operators that keep all elements, and shapes that are known statically."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.graph import Node, Value
from ...ir.ops import has_trait
from ...ir.ops.inference import integer_of, is_given, listed
from ...ir.ops.row import Trait
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.tensor import numpy_dtype
from ...ir.types import dtype_of, shape_of
from .extents import Piece, ShapeEvaluator, piece_of
from .rules import become_constant, data_of, int_vector, substitute


@rule(affine="untouched")
def fold_extents(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """shape(x)[i] -> c, where the selected extents are static, though others may not be"""
    pieces = evaluator.pieces(node.output)
    dtype = dtype_of(node.output.type)
    if pieces is None or dtype is None or not all(isinstance(piece, int) for piece in pieces.ravel()):
        return rewriter.decline("some elements of its result are not static")
    if evaluator.array(node.output) is not None:
        return rewriter.decline("its result is a constant expression, which FoldConstant computes")
    return become_constant(node, rewriter, pieces.astype(numpy_dtype(dtype)))


@rule(affine="untouched")
def constant_target(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(x, [shape(x)[0], c1, c2]) -> reshape(x, [0, c1, c2]), or -1 for an extent of another axis"""
    target = node.input(1)
    pieces = evaluator.pieces(target)
    if target is None or pieces is None or pieces.ndim != 1 or evaluator.array(target) is not None:
        return rewriter.decline("its target shape is a constant already, or is not computed from extents")
    found = reshape_target(pieces.tolist(), data_of(node), allowzero=bool(node.attrs.get("allowzero")))
    if found is None:
        return rewriter.decline("no constant target shape can replace it")
    rewriter.set_inputs(node, [node.inputs[0], int_vector(found, node, rewriter, "shape")])
    return True


def reshape_target(wanted: Sequence[Piece], data: Value, *, allowzero: bool = False) -> tuple[int, ...] | None:
    """Return a constant target that reshapes `data` to the extents `wanted`, None where there is none.

    0 copies an extent that `data` has at the same position, unless `allowzero` is set. -1 stands for one other extent,
    as in `wanted` itself.
    """
    # -1 is the number of elements divided by the product of the other extents, which is undefined if one of these is 0.
    # A copied extent may be 0 at run time, so 0 and an unknown extent do not go together.
    shape = shape_of(data.type)
    found: list[int] = []
    inferred = copies = 0
    for i, piece in enumerate(wanted):
        if isinstance(piece, int):
            if piece == 0 or piece < -1:
                return None
            found.append(piece)
        elif (
            piece is not None and not allowzero and shape is not None and i < len(shape) and piece_of(data, i) == piece
        ):
            found.append(0)
            copies += 1
        else:
            found.append(-1)
            inferred += 1
    if found.count(-1) > 1 or (inferred and copies):
        return None
    return tuple(found)


def _target(node: Node, evaluator: ShapeEvaluator) -> list[Piece] | None:
    """Return the extents to which `node` reshapes its data, with 0 resolved and -1 kept; None where unknown."""
    data = data_of(node)
    shape = shape_of(data.type)
    if node.op == "reshape":
        target = listed(node, "shape", 1, evaluator)
        if target is None or (node.attrs.get("allowzero") and 0 in target):
            return None
        if any(dim == 0 and (shape is None or i >= len(shape)) for i, dim in enumerate(target)):
            return None
        return [piece_of(data, i) if dim == 0 else dim for i, dim in enumerate(target)]
    if shape is None:
        return None
    if node.op == "nn.batch_flatten":
        result = shape_of(node.output.type)
        axis = integer_of(node, "axis", 1)
        sides = (shape[:axis], shape[axis:])
        if result is None or len(result) != 2 or any(dim is None for dim in result):
            known = [all(isinstance(dim, int) for dim in side) for side in sides]
            if len(sides[0]) != 1 or not known[1]:
                return None
            return [piece_of(data, 0), *_product(sides[1])]
        return list(result)
    axes = listed(node, "axes", 1, evaluator)
    if not axes:
        return None
    rank = len(shape) + (len(axes) if node.op == "expand_dims" else 0)
    positions = {axis % rank for axis in axes if -rank <= axis < rank}
    if len(positions) != len(axes):
        return None
    if node.op == "squeeze":
        return [piece_of(data, i) for i in range(rank) if i not in positions]
    others = iter(range(len(shape)))
    return [1 if i in positions else piece_of(data, next(others)) for i in range(rank)]


def _product(dims: Sequence[object]) -> list[Piece]:
    total = 1
    for dim in dims:
        assert isinstance(dim, int)
        total *= dim
    return [total]


@rule(affine="untouched")
def drop_reshape(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(x, shape of x) -> x"""
    data = data_of(node)
    shape = shape_of(data.type)
    if shape is None:
        return rewriter.decline("the rank of its data is unknown")
    if node.op == "nn.batch_flatten" and len(shape) == 2 and integer_of(node, "axis", 1) in (1, -1):
        return rewriter.forward(node.output, data)
    wanted = _target(node, evaluator)
    if wanted is None or len(wanted) != len(shape):
        return rewriter.decline("its target shape is unknown, or has another rank than its data")
    # The number of elements stays, so if all extents but one are equal and none is 0, the last one is equal too.
    differing = [i for i, piece in enumerate(wanted) if piece != piece_of(data, i)]
    equal = not differing or (len(differing) == 1 and wanted[differing[0]] == -1 and 0 not in shape)
    return equal and rewriter.forward(node.output, data)


@rule(affine="untouched")
def merge_reshapes(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(reshape(x, s), t) -> reshape(x, t), also of flatten, squeeze and unsqueeze"""
    producer = data_of(node).node
    if producer is None or not has_trait(producer, Trait.RESHAPES):
        return rewriter.decline("its data is not the result of a Reshape, Flatten, Squeeze or Unsqueeze")
    if any(
        op.op == "reshape" and op.attrs.get("allowzero") and _target(op, evaluator) is None for op in (producer, node)
    ):
        return rewriter.decline("allowzero is set, and a zero in the target shape may be an extent")
    data = data_of(producer)
    shapes = [shape_of(value.type) for value in (data, data_of(node), node.output)]
    wanted = _target(node, evaluator)
    if wanted is None or any(shape is None or 0 in shape for shape in shapes[:2]):
        return rewriter.decline("its target shape is unknown, or an extent is 0")
    # A reshape keeps the elements in their order, so the shape between the two does not matter.
    shape = shapes[0]
    if shape is not None and len(shape) == len(wanted) and all(p == piece_of(data, i) for i, p in enumerate(wanted)):
        return rewriter.forward(node.output, data)
    target = reshape_target(wanted, data)
    if target is None:
        return rewriter.decline("no constant target shape can replace it")
    if node.opset < 5:
        return substitute(node, rewriter, "reshape", [data], {"shape": target})
    return substitute(node, rewriter, "reshape", [data, int_vector(target, node, rewriter, "shape")])


@rule(affine="untouched")
def drop_expand(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """expand(x, s) -> x, where s repeats nothing"""
    data = data_of(node)
    shape, pieces = shape_of(data.type), evaluator.pieces(node.inputs[1])
    if pieces is None or pieces.ndim != 1 or shape is None or len(pieces) > len(shape):
        return rewriter.decline("its target shape is unknown, or has a higher rank than its data")
    first = len(shape) - len(pieces)
    if any(piece != 1 and piece != piece_of(data, first + i) for i, piece in enumerate(pieces)):
        return rewriter.decline("it may repeat an axis")
    return rewriter.forward(node.output, data)


@rule(affine="untouched")
def drop_slice(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """x[0:n] -> x"""
    data = data_of(node)
    starts, ends = listed(node, "starts", 1, evaluator), listed(node, "ends", 2, evaluator)
    axes, steps = listed(node, "axes", 3, evaluator), listed(node, "steps", 4, evaluator)
    if starts is None or ends is None or (axes is None and is_given(node, "axes", 3)):
        return rewriter.decline("starts, ends or axes is not a constant")
    if (steps is None and is_given(node, "steps", 4)) or any(step != 1 for step in steps or ()):
        return rewriter.decline("a step is not 1, or not a constant")
    shape = shape_of(data.type)
    narrow = node.input(2)
    # Exporters write the largest integer for an open end.
    limit = np.iinfo(np.int32 if narrow is not None and str(dtype_of(narrow.type)) == "i32" else np.int64).max
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        known = shape is not None and -len(shape) <= axis < len(shape)
        extent = shape[axis] if shape is not None and known else None
        begins = starts[i] == 0 or (isinstance(extent, int) and starts[i] <= -extent)
        if not begins or not (ends[i] == limit or (isinstance(extent, int) and ends[i] >= extent)):
            return rewriter.decline("it may select only a part of its data")
    return rewriter.forward(node.output, data)


@rule(affine="untouched")
def drop_pad(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """pad(x, 0) -> x"""
    pads = listed(node, "pads", 1, evaluator)
    return pads is not None and not any(pads) and rewriter.forward(node.output, data_of(node))


@rule(affine="untouched")
def drop_tile(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """tile(x, 1) -> x"""
    repeats = None if len(node.inputs) > 2 else listed(node, "repeats", 1, evaluator)
    return repeats is not None and all(count == 1 for count in repeats) and rewriter.forward(node.output, data_of(node))


@rule(affine="untouched")
def drop_split(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """split(x) into one part -> x"""
    return len(node.outputs) == 1 and rewriter.forward(node.output, data_of(node))


_EXACT_COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Coordinate transformation modes that map every position to itself at a scale of 1."""


@rule(affine="untouched")
def drop_resize(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """resize(x) by a factor of 1, or to the size of x -> x"""
    data = data_of(node)
    shape = shape_of(data.type)
    if node.attrs.get("coordinate_transformation_mode", "half_pixel") not in _EXACT_COORDINATES:
        return rewriter.decline("its coordinate_transformation_mode may move positions at a scale of 1")
    upsampling = node.op == "nn.upsampling"
    scales = evaluator.array(node.input(1 if upsampling or node.opset < 11 else 2))
    attribute = node.attrs.get("scales")
    if isinstance(attribute, tuple):
        scales = np.asarray(attribute)
    if scales is not None and scales.size:
        return bool((scales == 1).all()) and rewriter.forward(node.output, data)
    sizes = None if upsampling else listed(node, "sizes", 3, evaluator)
    if not sizes or shape is None:
        return rewriter.decline("its sizes, or the rank of its data, are unknown")
    axes = listed(node, "axes", 9, evaluator) or tuple(range(len(shape)))
    same = len(axes) == len(sizes) and all(shape[axis] == size for axis, size in zip(axes, sizes, strict=True))
    return same and rewriter.forward(node.output, data)


_FOLDABLE = ("take", "strided_slice", "squeeze", "expand_dims", "concatenate", "multiply", "add", "subtract", "divide")

RULES: Rules[ShapeEvaluator] = {
    "broadcast_to": (drop_expand,),
    "cast": (fold_extents,),
    "image.resize": (drop_resize,),
    "nn.batch_flatten": (drop_reshape, merge_reshapes),
    "nn.pad": (drop_pad,),
    "nn.upsampling": (drop_resize,),
    "reshape": (constant_target, drop_reshape, merge_reshapes, fold_extents),
    "split": (drop_split,),
    "tile": (drop_tile,),
    **dict.fromkeys(_FOLDABLE, (fold_extents,)),
    "expand_dims": (drop_reshape, merge_reshapes, fold_extents),
    "squeeze": (drop_reshape, merge_reshapes, fold_extents),
    "strided_slice": (drop_slice, fold_extents),
}
"""The rules for each operator, in the order in which they are tried."""
