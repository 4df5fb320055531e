"""Rules for shapes: reshapes in a row, operators that keep elements, static shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from ...ir.extents import (
    Piece,
    difference,
    exact_quotient,
    first_nonzero,
    is_same,
    least,
    product,
)
from ...ir.graph import Node, Value
from ...ir.matching import integers, known_dtype, known_shape, result_of
from ...ir.ops.indexing import sliced_extent
from ...ir.ops.inference import broadcast_shapes, integer_of, list_attribute, normal_axes
from ...ir.ops.views import scales_of, sliced_axes
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator, extents_of, piece_of
from ...ir.tensor import Array, ArrayTensor, numpy_dtype
from ...ir.type_inference import infer_types
from ...ir.types import dtype_of, shape_of, static_dims
from ..affine.units.attention import is_of_mask
from .rules import become_constant, int_vector, substitute

MASK = "its result is the mask of an attention, which a runtime computes as one operator"


@rule(affine="untouched", skips_floats=True)
def fold_extents(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """shape(x)[i] -> c, if the selected extents are static, though others may not be"""
    pieces = evaluator.pieces(node.output)
    if pieces is None or not all(isinstance(piece, int) for piece in pieces.ravel()):
        return rewriter.decline("some elements of its result are not static")
    if evaluator.array(node.output) is not None:
        return rewriter.decline("its result is a constant expression, which FoldConstant computes")
    return become_constant(node, rewriter, pieces.astype(numpy_dtype(known_dtype(node.output))))


@rule(
    affine="untouched",
    identity="reshape(x, extents(n, x.shape, e)) == reshape(x, constant_target(n, e))",
)
def constant_target(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(x, [shape(x)[0], c1, c2]) -> reshape(x, [0, c1, c2]), or -1 for another axis"""
    found = _constant_target(
        _computed_target(node, evaluator),
        node.operand(),
        allowzero=bool(node.attrs.get("allowzero")),
    )
    infer_types(node, evaluator)  # a -1 no longer tells the extents of the target
    rewriter.set_inputs(node, [node.operand(), int_vector(found, node, rewriter, "shape")])
    infer_types(node, evaluator, again=True)
    return True


@rule(affine="untouched", reads=("concatenate",))
def copied_extents(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(x, concat(shape(x)[0], n)) -> reshape(x, concat([0], n))"""
    if node.attrs.get("allowzero"):
        return rewriter.decline("a 0 in its target shape copies no extent")
    data, target = node.operand(), result_of(node.operand(1), "concatenate", only_for=node)
    rank, axis = len(known_shape(data)), 0
    parts: list[Value] = []
    for index in range(len(target.inputs)):
        part = target.operand(index)
        pieces = evaluator.pieces(part)
        if pieces is None:
            return rewriter.decline("a part of its target shape is unknown")
        stand = [_stands_at(piece, axis + i, data, rank) for i, piece in enumerate(pieces.flat)]
        axis += pieces.size
        is_copied = pieces.size and all(stand) and evaluator.array(part) is None
        zeros = [0] * pieces.size
        parts.append(int_vector(zeros, target, rewriter, "copied") if is_copied else part)
    if parts == list(target.inputs):
        return rewriter.decline("no computed part of its target shape is an extent of its data")
    join = rewriter.make("concatenate", parts, {"axis": 0}, before=target, hint=target.output.name)
    rewriter.set_inputs(node, [data, join.output])
    return True


@rule(affine="untouched")
def reshape_to_flatten(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(x, [B, C * H]) -> flatten(x, 1), of x of shape [B, C, H], with allowzero"""
    if not node.attrs.get("allowzero"):
        return rewriter.decline("a 0 in its target shape copies an extent")
    target, data = _computed_target(node, evaluator), node.operand()
    shape = _known_extents(data)
    for axis in range(len(shape) + 1):
        halves = (product(*shape[:axis]), product(*shape[axis:]))
        if len(target) == 2 and all(map(is_same, target, halves)):
            return substitute(node, rewriter, "nn.batch_flatten", [data], {"axis": axis})
    return rewriter.decline("its target shape is no product of the first and of the other extents")


def _known_extents(data: Value) -> list[Piece]:
    """Return the extents of `data`; decline if its rank is unknown."""
    known_shape(data)
    return extents_of(data)


def _computed_target(node: Node, evaluator: ShapeEvaluator) -> list[Piece]:
    """Return the elements of a target shape that is computed from extents; decline others."""
    target = node["shape"]
    pieces = None if evaluator.array(target) is not None else evaluator.pieces(target)
    if pieces is None or pieces.ndim != 1:
        raise Declined("its target shape is a constant already, or is not computed from extents")
    found: list[Piece] = pieces.tolist()
    return found


def _constant_target(pieces: list[Piece], data: Value, *, allowzero: bool) -> list[int]:
    """Return a constant target for a computed one."""
    wanted = _without_rest(pieces, data, allowzero=allowzero)
    return reshape_target(wanted, data, allowzero=allowzero)


def reshape_target(wanted: Sequence[Piece], data: Value, *, allowzero: bool = False) -> list[int]:
    """Return a constant target that reshapes `data` to the extents `wanted`.

    0 copies an extent that `data` has at the same position, unless `allowzero` is set. -1 stands
    for one other extent, as in `wanted` itself.
    """
    # -1 is the number of elements divided by the product of the other extents, which is undefined
    # if one of these is 0. A copied extent may be 0 at run time, so 0 and an unknown extent do not
    # go together.
    rank = 0 if allowzero else len(shape_of(data.type) or ())
    found = [_target_extent(piece, i, data, rank) for i, piece in enumerate(wanted)]
    copies = found.count(0)
    inferred = sum(new == -1 and old != -1 for new, old in zip(found, wanted, strict=True))
    if 0 in wanted or min(found, default=0) < -1 or found.count(-1) > 1 or (inferred and copies):
        raise Declined("no constant target shape can replace it")
    return found


def _target_extent(piece: Piece, axis: int, data: Value, rank: int) -> int:
    """Return the extent itself, 0 if it is copied from `data`, -1 if it is to be inferred."""
    if isinstance(piece, int):
        return piece
    return 0 if _stands_at(piece, axis, data, rank) else -1


def _stands_at(piece: Piece, axis: int, data: Value, rank: int) -> bool:
    """Return whether `piece` is the extent of `data`, whose rank is `rank`, along `axis`."""
    return axis < rank and is_same(piece, piece_of(data, axis))


def _without_rest(wanted: Sequence[Piece], data: Value, *, allowzero: bool) -> list[Piece]:
    """Return `wanted` with the number for its -1, if the extents of `data` give it."""
    # Only if no element is left out: without elements, -1 beside an extent of 0 is an error. A 0
    # at another position than the extent of the data that it is would not be an error: it copies
    # another extent, unless `allowzero` is set.
    dims = shape_of(data.type)
    if wanted.count(-1) != 1 or dims is None or 0 in wanted or 0 in dims:
        return list(wanted)
    left, taken = extents_of(data), []
    for axis, piece in enumerate(wanted):
        if piece == -1:
            continue
        if not (allowzero or isinstance(piece, int)):
            copied = piece_of(data, axis) if axis < len(dims) else None
            if not is_same(first_nonzero(piece, copied), piece):
                return list(wanted)
        if piece in left:
            left.remove(piece)
        elif allowzero and not isinstance(piece, int):
            return list(wanted)
        else:
            taken.append(piece)
    rest = exact_quotient(product(*left), product(*taken))
    if not isinstance(rest, int) or rest <= 0:
        return list(wanted)
    return [rest if piece == -1 else piece for piece in wanted]


def wanted_extents(node: Node, evaluator: ShapeEvaluator) -> list[Piece]:
    """Return the extents to which `node` reshapes its data, with 0 resolved and -1 kept."""
    return _WANTED[node.op](node, node.operand(), evaluator)


def _of_reshape(node: Node, data: Value, evaluator: ShapeEvaluator) -> list[Piece]:
    target, rank = integers(node, "shape", evaluator), len(shape_of(data.type) or ())
    if 0 in target and (node.attrs.get("allowzero") or 0 in target[rank:]):
        raise Declined("a zero in its target shape may be an extent, or copies an unknown one")
    return _without_rest(
        [piece_of(data, i) if dim == 0 else dim for i, dim in enumerate(target)],
        data,
        allowzero=False,
    )


def _of_flatten(node: Node, data: Value, evaluator: ShapeEvaluator) -> list[Piece]:
    shape, result = known_shape(data), shape_of(node.output.type)
    if result is not None and len(result) == 2 and None not in result:
        return list(result)
    axis = integer_of(node, "axis", 1)
    rest = static_dims(shape[axis:])
    if len(shape[:axis]) != 1 or rest is None:
        raise Declined("the shape of its result is unknown")
    return [piece_of(data, 0), prod(rest)]


def _of_squeeze(node: Node, data: Value, evaluator: ShapeEvaluator) -> list[Piece]:
    extents = _known_extents(data)
    gone = _axes(node, len(extents), evaluator)
    return [piece for i, piece in enumerate(extents) if i not in gone]


def _of_expand_dims(node: Node, data: Value, evaluator: ShapeEvaluator) -> list[Piece]:
    extents = _known_extents(data)
    rank = len(extents) + len(integers(node, "axes", evaluator))
    added, others = _axes(node, rank, evaluator), iter(extents)
    return [1 if i in added else next(others) for i in range(rank)]


def _axes(node: Node, rank: int, evaluator: ShapeEvaluator) -> list[int]:
    axes = normal_axes(integers(node, "axes", evaluator), rank)
    if not axes:
        raise Declined("it has no axes, or its data has no such axes")
    return axes


_WANTED: Mapping[str, Callable[[Node, Value, ShapeEvaluator], list[Piece]]] = {
    "expand_dims": _of_expand_dims,
    "nn.batch_flatten": _of_flatten,
    "reshape": _of_reshape,
    "squeeze": _of_squeeze,
}
"""The extents to which each operator reshapes its data."""


@rule(affine="untouched", identity="reshape(x, n) == x if target(x.shape, n) == x.shape")
def drop_reshape(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(x, shape of x) -> x"""
    data = node.operand()
    shape = known_shape(data)
    if node.op == "nn.batch_flatten" and len(shape) == 2 and integer_of(node, "axis", 1) in (1, -1):
        return rewriter.forward(node.output, data)
    if node.op == "reshape" and evaluator.array(node["shape"]) is None:
        if _computed_target(node, evaluator) == extents_of(data):
            return rewriter.forward(node.output, data)
    if not keeps_extents(wanted_extents(node, evaluator), data):
        return rewriter.decline("its target shape may differ from the shape of its data")
    return rewriter.forward(node.output, data)


def keeps_extents(wanted: Sequence[Piece], data: Value) -> bool:
    """Return whether the extents `wanted`, for the elements of `data`, are its extents."""
    shape = shape_of(data.type)
    if shape is None or len(wanted) != len(shape):
        return False
    # The number of elements stays, so if all extents but one are equal and none is 0, the last one
    # is equal too.
    extents = zip(wanted, extents_of(data), strict=True)
    differing = [piece for piece, extent in extents if not is_same(piece, extent)]
    return not differing or (differing == [-1] and 0 not in shape)


@rule(
    affine="untouched",
    reads=_WANTED,
    identity="reshape(reshape(x, m), n) == reshape(x, target(target(x.shape, m), n))",
)
def merge_reshapes(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """reshape(reshape(x, s), t) -> reshape(x, t), also of flatten, squeeze and unsqueeze"""
    producer = result_of(node.operand(), *_WANTED)
    if node.op == producer.op == "expand_dims" and is_of_mask(node, evaluator):
        return rewriter.decline(MASK)
    if producer.attrs.get("allowzero"):
        wanted_extents(producer, evaluator)
    # A reshape keeps the elements in their order, so the shape between the two does not matter.
    return become_reshape(node, rewriter, producer, wanted_extents(node, evaluator))


def become_reshape(node: Node, rewriter: Rewriter, before: Node, wanted: list[Piece]) -> bool:
    """Replace `node` by a Reshape of the data of `before` to `wanted`, or by the data."""
    data = before.operand()
    shape = known_shape(data)
    if 0 in shape or 0 in known_shape(before.output):
        return rewriter.decline("an extent is 0")
    if wanted == extents_of(data):
        return rewriter.forward(node.output, data)
    target = reshape_target(wanted, data)
    return substitute(
        node, rewriter, "reshape", [data, int_vector(target, node, rewriter, "shape")]
    )


@rule(affine="untouched", identity="expand(x, n) == x if repeats_nothing(n, x)")
def drop_expand(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """expand(x, s) -> x, or identity(x) as a result of the graph, if s repeats nothing"""
    data, pieces = node.operand(), evaluator.pieces(node["shape"])
    rank = len(known_shape(data))
    if pieces is None or pieces.ndim != 1 or len(pieces) > rank:
        return rewriter.decline("its target shape is unknown, or has a higher rank than its data")
    placed = enumerate(pieces, rank - len(pieces))
    if any(piece not in (1, piece_of(data, i)) for i, piece in placed):
        return rewriter.decline("it may repeat an axis")
    if rewriter.forward(node.output, data):
        return True
    if evaluator.array(node["shape"]) is not None:
        return False
    return substitute(
        node, rewriter, "identity", [data]
    )  # a result of the graph, without the operators of the target


@rule(affine="untouched", identity="expand(x, n) == expand(x, repeats(n, x.shape))")
def constant_repeats(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """expand(x, [shape(x)[0], 4]) -> expand(x, [1, 4]), where x keeps its other extents"""
    data = node.operand()
    shape = _known_extents(data)
    found = repeats(_computed_target(node, evaluator), shape)
    numbers = [piece for piece in found if isinstance(piece, int)]
    if len(numbers) < len(found) or min(numbers, default=0) < 0:
        return rewriter.decline("an extent of its target is not one of its data")
    infer_types(node, evaluator)  # a 1 no longer tells the extents of the target
    rewriter.set_inputs(node, [data, int_vector(numbers, node, rewriter, "shape")])
    return True


def repeats(wanted: Sequence[Piece], shape: Sequence[Piece]) -> list[Piece]:
    """Return a target shape of an Expand with 1 for the extents that its data has already.

    None, an extent that is unknown, stays: the axes that the data does not have are 1.
    """
    kept = [1] * (len(wanted) - len(shape)) + list(shape)[max(0, len(shape) - len(wanted)) :]
    return [1 if is_same(piece, at) else piece for piece, at in zip(wanted, kept, strict=True)]


@rule(affine="untouched", reads=("full",))
def expand_of_full(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """expand(full(s), t) -> full(t), if t is the shape of the result"""
    full, target = result_of(node.operand(), "full"), evaluator.extents(node["shape"])
    shape = shape_of(full.output.type)
    if target is None or None in target or shape is None or len(shape) > len(target):
        return rewriter.decline("a shape is unknown, or its target has a lower rank")
    if broadcast_shapes(shape, target) != target:
        return rewriter.decline("its target may not be the shape of its result")
    return substitute(node, rewriter, "full", [node["shape"]], full.attrs)


def open_end(node: Node) -> int:
    """Return the greatest end of a `strided_slice` in its type, which is an open end."""
    ends = node["ends"]
    return int(
        np.iinfo(
            np.int32 if ends is not None and str(dtype_of(ends.type)) == "i32" else np.int64
        ).max
    )


@rule(
    affine="untouched",
    identity=(
        "slice(x, b, e, a, d) == x if selected(b, e, d, x.shape[a]) == list(range(x.shape[a]))"
    ),
)
def drop_slice(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """x[0:n] -> x"""
    data, axes = node.operand(), sliced_axes(node, evaluator)
    starts, ends = (evaluator.pieces(node[name]) for name in ("starts", "ends"))
    if axes is None or starts is None or ends is None:
        return rewriter.decline("its starts, ends or axes are unknown")
    if any(step != 1 for step in integers(node, "steps", evaluator)):
        return rewriter.decline("its steps are not 1")
    if not starts.shape == ends.shape == (len(axes),):
        return rewriter.decline("its starts, ends and axes are not as many")
    for axis, start, end in zip(axes, starts, ends, strict=True):
        extent = piece_of(data, axis)
        if not is_same(sliced_extent(extent, start, end, 1), extent):
            return rewriter.decline("it may select only a part of its data")
    return rewriter.forward(node.output, data)


@rule(affine="untouched")
def constant_bounds(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """x[0 : shape(x)[0] - 1] -> x[0 : -1]"""
    data, axes = node.operand(), sliced_axes(node, evaluator)
    names = [name for name in ("starts", "ends") if evaluator.array(node[name]) is None]
    if not names or axes is None:
        return rewriter.decline("its starts and ends are constant, or its axes are unknown")
    if any(step != 1 for step in integers(node, "steps", evaluator)):
        return rewriter.decline("its steps are not 1")
    extents = [piece_of(data, axis) for axis in axes]
    found: dict[Value, Array] = {}
    for name in names:
        value, pieces = node[name], evaluator.pieces(node[name])
        if value is None or pieces is None or pieces.shape != (len(axes),):
            return rewriter.decline("its starts and ends are unknown")
        open_bound = open_end(node) if name == "ends" else None
        bounds = [_bound(*pair, open_bound) for pair in zip(pieces, extents, strict=True)]
        if None in bounds:
            return rewriter.decline("a start or end is at no known distance from the end")
        found[value] = np.array(bounds, numpy_dtype(known_dtype(value)))
    infer_types(node, evaluator)  # a number from the end no longer tells the extents
    made: dict[Value | None, Value] = {
        value: rewriter.constant(ArrayTensor(numbers), before=node, hint=f"{value.name}.bounds")
        for value, numbers in found.items()
    }
    starts, ends = (made.get(node[name], node[name]) for name in ("starts", "ends"))
    rewriter.set_inputs(node, [data, starts, ends, *node.inputs[3:]])
    return True


def _bound(piece: Piece, extent: Piece, open_bound: int | None) -> int | None:
    """Return a start or end of a slice as a number, which counts from the end if it is negative."""
    if isinstance(piece, int):
        return piece
    rest, low = difference(extent, piece), least(piece)
    if not isinstance(rest, int) or low is None or low < 0:
        return None
    return -rest if rest > 0 else open_bound


@rule(affine="untouched", identity="pad(x, p) == x if unpadded(p)")
def drop_pad(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """pad(x, 0) -> x"""
    if any(integers(node, "pads", evaluator)) or node["pads"] is None:
        return rewriter.decline("it pads or crops")
    return rewriter.forward(node.output, node.operand())


@rule(affine="untouched", identity="tile(x, n) == x if all_ones(n)")
def drop_tile(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """tile(x, 1) -> x"""
    if any(count != 1 for count in integers(node, "repeats", evaluator)):
        return rewriter.decline("it repeats its data")
    return rewriter.forward(node.output, node.operand())


@rule(affine="untouched", identity="split(x, n, a)[0] == x if len(n) == 1")
def drop_split(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """split(x) into one part -> x"""
    if len(node.outputs) > 1:
        return rewriter.decline("it has several results")
    return rewriter.forward(node.output, node.operand())


_EXACT_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)
"""Coordinate transformation modes that map every position to itself at a scale of 1."""


@rule(affine="untouched", identity="resize(x, f, m, at) == x if f == 1 and at in EXACT_COORDINATES")
def drop_resize(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """resize(x) by a factor of 1, or to the size of x -> x"""
    if node.attrs.get("coordinate_transformation_mode", "half_pixel") not in _EXACT_COORDINATES:
        return rewriter.decline(
            "its coordinate_transformation_mode may move positions at a scale of 1"
        )
    scales = scales_of(node, evaluator)
    if not scales:
        shape = known_shape(node.operand())
        sizes = evaluator.pieces(node["sizes"]) if node.op == "image.resize" else None
        data = node.operand()
        axes = normal_axes(list_attribute(node, "axes") or tuple(range(len(shape))), len(shape))
        if sizes is None or axes is None:
            return rewriter.decline("its sizes are unknown")
        if [piece_of(data, axis) for axis in axes] != sizes.tolist():
            return rewriter.decline("its sizes may differ from the extents of its data")
    elif any(scale != 1 for scale in scales):
        return rewriter.decline("a scale is not 1")
    return rewriter.forward(node.output, node.operand())


@rule(affine="untouched", skips_floats=True)
def forward_extents(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """N + m - m -> n, if a value before has the same elements of a shape"""
    pieces = evaluator.pieces(node.output)
    if pieces is None or not pieces.size or any(piece is None for piece in pieces.ravel()):
        return rewriter.decline("some elements of its result are unknown")
    if all(isinstance(piece, int) for piece in pieces.ravel()):
        return rewriter.decline("its result is constant")
    seen: dict[Value, None] = {}
    stack = [value for value in node.inputs if value is not None]
    while stack and len(seen) < MAX_BEFORE:
        value = stack.pop(0)
        if value in seen:
            continue
        seen[value] = None
        if dtype_of(value.type) == dtype_of(node.output.type):
            found = evaluator.pieces(value)
            if found is not None and found.shape == pieces.shape and (found == pieces).all():
                return rewriter.forward(node.output, value)
        if value.node is not None:
            stack += [each for each in value.node.inputs if each is not None]
    return rewriter.decline("no value before has the same elements")


MAX_BEFORE = 16
"""Values before an operator of which one may have its elements."""

_ARITHMETIC = (
    *("multiply", "add", "subtract", "divide", "mod", "maximum", "minimum", "negative", "abs"),
    *("equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_not", "logical_and", "logical_or", "where", "sum", "prod", "ndarray_size"),
)
_FOLDABLE = ("take", "concatenate", *_ARITHMETIC)

RULES: Rules[ShapeEvaluator] = {
    "broadcast_to": (drop_expand, expand_of_full, constant_repeats, fold_extents, forward_extents),
    "cast": (fold_extents, forward_extents),
    "image.resize": (drop_resize,),
    "nn.batch_flatten": (drop_reshape, merge_reshapes),
    "nn.pad": (drop_pad,),
    "nn.upsampling": (drop_resize,),
    "reshape": (
        *(constant_target, reshape_to_flatten, drop_reshape, merge_reshapes, copied_extents),
        fold_extents,
    ),
    "split": (drop_split,),
    "tile": (drop_tile,),
    **dict.fromkeys(_FOLDABLE, (fold_extents, forward_extents)),
    "expand_dims": (drop_reshape, merge_reshapes, fold_extents, forward_extents),
    "squeeze": (drop_reshape, merge_reshapes, fold_extents, forward_extents),
    "strided_slice": (drop_slice, constant_bounds, fold_extents, forward_extents),
}
"""The rules for each operator, in the order in which they are tried."""
