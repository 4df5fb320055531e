"""Operators that an affine crosses: if every operand is an affine, the result is one, too.

CROSSINGS is the table. A row takes the operation, which is the same on both sides, and the lines of
its operands; it returns the line of each result or raises Unproved. A line goes from one model to
the other in either direction; a row holds in both, because it says only that op(line(x)) =
line'(op(x)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import numpy as np

from .affine_operators import compressed
from .lines import GROWTH, Line, scaled
from .pools import check_exact, check_filled
from .program import Array, Operation, Unproved, product, static
from .slices import bounds_of, selected

Lines = Mapping[int, Line]
Crossing = Callable[[Operation, Lines], Sequence[Line | None]]
"""Returns the line of each result: None if it stays, nothing for last ones that change."""


def _only(operation: Operation, lines: Lines) -> Line:
    if list(lines) != [0]:
        raise Unproved(f"an operand of {operation.kind} other than its data changed")
    return lines[0]


def _no_shift(line: Line) -> None:
    if line.has_shift:
        raise Unproved("a shift does not pass the operator")


def _no_negative(line: Line) -> None:
    if (line.scale < 0).any():
        raise Unproved("a negative scale does not pass the operator")


def _uniform(line: Line, axes: Sequence[int]) -> None:
    if not line.is_uniform_along(tuple(axes)):
        raise Unproved("the scales differ along an axis that the operator joins")


def _axis(operation: Operation, rank: int, name: str = "axis", default: int = 0) -> int:
    axis = int(operation.attributes.get(name, default))
    return axis + rank if axis < 0 else axis


def homogeneous(operation: Operation, lines: Lines) -> list[Line]:
    """Prove f(s * x) = s * f(x) for s >= 0."""
    line = _only(operation, lines)
    _no_shift(line)
    _no_negative(line)
    return [line]


def magnitude(operation: Operation, lines: Lines) -> list[Line]:
    """Prove |s * x| = |s| * |x|."""
    line = _only(operation, lines)
    _no_shift(line)
    return [Line(np.abs(line.scale), line.shift, line.reach)]


def norm(operation: Operation, lines: Lines) -> list[Line]:
    """Prove |s * x|_p = |s| * |x|_p along axes of one scale; |s|^p may not be far from one."""
    (line,) = magnitude(operation, lines)
    order = float(operation.attributes.get("p", 2))
    powers = np.abs(order * np.log2(line.scale[line.scale != 0]))
    if not order or powers.max(initial=0.0) > 2 * np.log2(GROWTH):
        raise Unproved(
            "the order of the norm is zero, or a power of a scale is far beyond the data"
        )
    if operation.kind.endswith("Pool"):
        return [_pooled(operation, line)]
    return reduction(operation, {0: line})


def repeated(operation: Operation, lines: Lines) -> list[Line]:
    """Let a line pass that is one number along the axes on which elements are repeated."""
    line = _only(operation, lines)
    data, result = operation.inputs[0], operation.outputs[0]
    if data is None or data.extents is None or result.extents is None:
        raise Unproved("the extents are unknown")
    extra = len(result.extents) - line.rank
    after = result.extents[extra:]
    changed = [
        i for i in range(line.rank) if data.extents[i] != after[i] or data.extents[i] is None
    ]
    _uniform(line, changed)
    return [line.map(lambda array: array.reshape((1,) * extra + array.shape))]


def monotone_pool(operation: Operation, lines: Lines) -> list[Line | None]:
    """Prove that the maximum over a window of one channel commutes with s * x + t for s >= 0.

    It is at the same place for s > 0.
    """
    line = _only(operation, lines)
    _no_negative(line)
    if len(operation.outputs) > 1 and not (line.scale > 0).all():
        raise Unproved("the indices of the maxima are a result, and a scale is zero")
    check_filled(operation)
    return [_pooled(operation, line), None][: len(operation.outputs)]


def average_pool(operation: Operation, lines: Lines) -> list[Line]:
    """Prove that mean(s * x + t) over a window of a channel is s * mean(x) + t.

    A shift may not be among counted zeros.
    """
    line = _pooled(operation, _only(operation, lines))
    pads = any(operation.attributes.get("pads", ())) or "auto_pad" in operation.attributes
    counts = operation.attributes.get("count_include_pad", 0) or operation.version < 7
    if line.has_shift:
        check_filled(operation)
    if line.has_shift and counts:
        if pads:
            raise Unproved("the mean counts zeros of the padding, which have no shift")
        if operation.attributes.get("ceil_mode", 0):
            check_exact(operation)
    return [line]


def _pooled(operation: Operation, line: Line) -> Line:
    """Return the line behind a pool: one number in each window, or everywhere.

    Windows of one position, without pads, are at each position that a stride hits.
    """
    given, data = operation.attributes, operation.inputs[0]
    varying = [axis for axis in range(2, line.rank) if not line.is_uniform_along((axis,))]
    for axis in varying:
        place, count = axis - 2, line.rank - 2
        extent = None if data is None or data.extents is None else data.extents[axis]
        pads = given.get("pads", (0,) * 2 * count)
        if (
            not isinstance(extent, int)
            or given.get("kernel_shape", ())[place : place + 1] != (1,)
            or pads[place]
            or pads[place + count]
            or "auto_pad" in given
            or given.get("ceil_mode", 0)
        ):
            raise Unproved("the scales differ along an axis that the operator joins")
        line = line.taken(axis, np.arange(0, extent, given.get("strides", (1,) * count)[place]))
    return line


def global_pool(operation: Operation, lines: Lines) -> list[Line]:
    """Prove that the mean of a channel commutes with s * x + t, and the maximum for s >= 0."""
    line = _only(operation, lines)
    if operation.kind == "GlobalMaxPool":
        _no_negative(line)
        _uniform(line, range(2, line.rank))
    return [_averaged(operation, line, range(2, line.rank))]


def _averaged(operation: Operation, line: Line, axes: Sequence[int]) -> Line:
    """Return the line of a mean along axes: mean(s * x + t) is s * mean(x) + mean(t)."""
    data = operation.inputs[0]
    _uniform(Line(line.scale, 0.0 * line.scale, line.reach), axes)
    if line.is_uniform_along(tuple(axes)):
        return line
    if data is None or data.extents is None or not line.fits(data.extents):
        raise Unproved("the extents are unknown, or others than the shifts have")
    if static(tuple(data.extents[axis] for axis in axes)) is None:
        raise Unproved("the number of summands is unknown")
    shift, reach = np.broadcast_arrays(line.shift, line.reach)
    return Line(
        line.scale, *(each.mean(axis=tuple(axes), keepdims=True) for each in (shift, reach))
    )


def reduction(operation: Operation, lines: Lines) -> list[Line]:
    """Let a line pass a reduction, if it is one number along the reduced axes.

    Mean: any line; maximum and minimum: s >= 0; sum: no shift.
    """
    line = _only(operation, lines)
    axes = operation.integers("axes", 1)
    if axes is None and operation.operand(1) is not None:
        raise Unproved("the reduced axes are not constant")
    if not axes:
        if operation.attributes.get("noop_with_empty_axes"):
            if operation.kind in ("ReduceL1", "ReduceL2"):
                raise Unproved("the axes are empty")
            return [line]
        axes = list(range(line.rank))
    axes = [axis + line.rank if axis < 0 else axis for axis in axes]
    if operation.kind in ("ReduceMean", "ReduceSum"):
        line = _averaged(operation, line, axes)
    _uniform(line, axes)
    if operation.kind == "ReduceSum" and line.has_shift:
        data = operation.inputs[0]
        known: tuple[int, ...] | None = ()
        if data is not None and data.extents is not None:
            known = static(tuple(data.extents[axis] for axis in axes))
        if known is None or len(known) != len(set(axes)):
            raise Unproved("the number of summands, which multiplies the shift, is unknown")
        count = float(product(known))
        line = Line(line.scale, count * line.shift, count * line.reach)
    if operation.kind in ("ReduceMax", "ReduceMin"):
        _no_negative(line)
    if operation.attributes.get("keepdims", 1):
        return [line]
    return [line.map(lambda array: array.squeeze(tuple(axes)))]


def addition(operation: Operation, lines: Lines) -> list[Line]:
    """Prove (s * x + t) + (s * y + u) = s * (x + y) + (t + u)."""
    if len(lines) != len(operation.inputs):
        raise Unproved("only some of the operands of a sum are scaled")
    ranked = _ranked(operation, lines)
    first = ranked[0]
    scales = [Line(each.scale, 0 * each.shift, 0 * each.reach) for each in ranked]
    if not all(each.near(scales[0]) for each in scales):
        raise Unproved("the operands of a sum have different scales")
    signs = [1.0, -1.0] if operation.kind == "Sub" else [1.0] * len(ranked)
    shift = sum(
        (s * each.shift for s, each in zip(signs, ranked, strict=True)), np.zeros((1,) * first.rank)
    )
    reach = sum((each.reach for each in ranked), np.zeros((1,) * first.rank))
    if operation.kind == "Mean":
        shift, reach = shift / len(ranked), reach / len(ranked)
    return [Line(first.scale, shift, reach)]


def multiplication(operation: Operation, lines: Lines) -> list[Line]:
    """Prove (s * x) * (r * y) = (s * r) * (x * y), and likewise for quotients."""
    ranked = _ranked(operation, lines)
    made = None
    for index, line in zip(lines, ranked, strict=True):
        _no_shift(line)
        factor = line.scale
        if operation.kind == "Div":
            if not factor.all():
                raise Unproved("a scale in a quotient is zero, and 0 / 0 is no number")
            factor = 1.0 / factor if index else factor
        made = factor if made is None else scaled(made, factor)
    assert made is not None
    zero = np.zeros((1,) * made.ndim)
    return [Line(made, zero, zero)]


def extremum(operation: Operation, lines: Lines) -> list[Line]:
    """Prove max(s * x + t, s * y + t) = s * max(x, y) + t for s >= 0."""
    if len(lines) != len(operation.inputs):
        raise Unproved("only some of the operands of an extremum are scaled")
    ranked = _ranked(operation, lines)
    _no_negative(ranked[0])
    if not all(each.near(ranked[0]) for each in ranked):
        raise Unproved("the operands of an extremum have different scales or shifts")
    return [ranked[0]]


def selection(operation: Operation, lines: Lines) -> list[Line]:
    """Prove where(c, s * x + t, s * y + t) = s * where(c, x, y) + t."""
    if sorted(lines) != [1, 2]:
        raise Unproved("the condition or only one of the branches changed")
    ranked = _ranked(operation, lines)
    if not ranked[0].near(ranked[1]):
        raise Unproved("the branches have different scales or shifts")
    return [ranked[0]]


def _ranked(operation: Operation, lines: Lines) -> list[Line]:
    """Return the lines of operands in the rank of the result: broadcasting adds leading axes."""
    if operation.attributes.get("broadcast"):
        raise Unproved("the operands are aligned by an attribute")
    rank = max(line.rank for line in lines.values())
    known = [each.rank for each in operation.inputs if each is not None]
    if any(each is None or each > rank for each in known):
        raise Unproved("an operand has more axes than the affine, or an unknown number")
    return [
        line.map(lambda array: array.reshape((1,) * (rank - array.ndim) + array.shape))
        for line in lines.values()
    ]


def concatenate(operation: Operation, lines: Lines) -> list[Line]:
    """Join the lines of the operands: they stand one behind the other along the axis."""
    if len(lines) != len(operation.inputs):
        raise Unproved("an operand is in no relation")
    rank = next(iter(lines.values())).rank
    axis = _axis(operation, rank, default=1)
    extents = [
        None if each is None or each.extents is None else each.extents[axis]
        for each in operation.inputs
    ]
    parts = list(lines.values())
    known = [extent for extent in extents if isinstance(extent, int)]
    if len(known) != len(extents):
        if all(part.near(parts[0]) and part.is_uniform_along((axis,)) for part in parts):
            return [parts[0]]
        raise Unproved("the extents along the axis are unknown")

    def joined(arrays: list[Array]) -> Array:
        common = np.broadcast_shapes(*[(*a.shape[:axis], 1, *a.shape[axis + 1 :]) for a in arrays])
        full = [
            np.broadcast_to(a, (*common[:axis], extent, *common[axis + 1 :]))
            for a, extent in zip(arrays, known, strict=True)
        ]
        return compressed(np.concatenate(full, axis))

    scale = joined([part.scale for part in parts])
    shift = joined([part.shift for part in parts])
    return [Line(scale, shift, joined([part.reach for part in parts]))]


def split(operation: Operation, lines: Lines) -> list[Line]:
    """Give each result its part of the line along the axis."""
    line = _only(operation, lines)
    axis = _axis(operation, line.rank)
    if line.is_uniform_along((axis,)):
        return [line] * len(operation.outputs)
    made, first = [], 0
    for result in operation.outputs:
        extent = None if result.extents is None else result.extents[axis]
        if not isinstance(extent, int):
            raise Unproved("the extents of the parts are unknown")
        made.append(line.taken(axis, np.arange(first, first + extent)))
        first += extent
    return made


def slice_(operation: Operation, lines: Lines) -> list[Line]:
    """Cut the line like the data, along the axes on which it varies."""
    line = _only(operation, lines)
    data = operation.inputs[0]
    assert data is not None and data.extents is not None
    for axis, bounds in bounds_of(operation, line.rank).items():
        if not line.is_uniform_along((axis,)):
            line = line.taken(axis, selected(bounds, data.extents[axis]))
    return [line]


def gather(operation: Operation, lines: Lines) -> list[Line]:
    """Take the line at the indices."""
    line = _only(operation, lines)
    axis = _axis(operation, line.rank)
    indices = operation.operand(1)
    if indices is None or indices.rank is None:
        raise Unproved("the rank of the indices is unknown")
    if line.is_uniform_along((axis,)):
        extents = (1,) * indices.rank

        def reshaped(array: Array) -> Array:
            return array.reshape(array.shape[:axis] + extents + array.shape[axis + 1 :])

        return [line.map(reshaped)]
    if indices.stored is None:
        raise Unproved("the indices are not constant")
    positions = indices.stored.array
    data = operation.inputs[0]
    extent = None if data is None or data.extents is None else data.extents[axis]
    if not isinstance(extent, int):
        raise Unproved("the extent along the axis is unknown")

    def taken(array: Array) -> Array:
        wide = (*array.shape[:axis], extent, *array.shape[axis + 1 :])
        return np.broadcast_to(array, wide).take(positions, axis=axis)

    return [line.map(taken)]


def resize(operation: Operation, lines: Lines) -> list[Line]:
    """Let a line pass: the weights of an interpolation add up to one; channels stay apart."""
    line = _only(operation, lines)
    mode = operation.attributes.get("mode", b"nearest")
    if operation.attributes.get("coordinate_transformation_mode", b"") == b"tf_crop_and_resize":
        _check_crop(operation, line)
    if mode not in (b"nearest", b"linear", b"bilinear", b"cubic"):
        raise Unproved(f"mode {mode!r}")
    rank = line.rank
    axes = [i for i in range(rank) if i > 1 or not _keeps_axis(operation, i, rank)]
    _uniform(line, axes)
    return [line]


def _check_crop(operation: Operation, line: Line) -> None:
    """Prove that zeros outside take the line, and that channels are not cropped."""
    region = operation.constant(1)
    _no_shift(line)
    if (
        operation.attributes.get("extrapolation_value", 0.0)
        or "axes" in operation.attributes
        or region is None
    ):
        raise Unproved("positions outside have a value of their own, or the region is not constant")
    if (
        region.size != 2 * line.rank
        or (region[:2] != 0).any()
        or (region[line.rank : line.rank + 2] != 1).any()
    ):
        raise Unproved("channels may be cropped")


def _keeps_axis(operation: Operation, axis: int, rank: int) -> bool:
    """Return whether a Resize leaves the positions along an axis."""
    axes = [int(each) % rank for each in operation.attributes.get("axes", range(rank))]
    if axis not in axes:
        return True
    is_half = (
        operation.attributes.get("coordinate_transformation_mode", b"") == b"tf_half_pixel_for_nn"
    )
    if is_half or "keep_aspect_ratio_policy" in operation.attributes:
        return False
    given = operation.operand(2 if operation.version >= 11 and operation.kind == "Resize" else 1)
    scales: Array | None = np.array(operation.attributes.get("scales", ()))
    if operation.kind == "Resize" or operation.version >= 9:
        if given is None or given.extents == (0,) or given.stored is None:
            scales = None
        else:
            scales = given.stored.array
        if given is not None and given.extents != (0,) and scales is None:
            return False
    if scales is not None:
        return scales.size == len(axes) and scales.reshape(-1)[axes.index(axis)] == 1.0
    before, after = operation.operand(0), operation.outputs[0]
    if before is None or before.extents is None or after.extents is None:
        return False
    return before.extents[axis] is not None and before.extents[axis] == after.extents[axis]


def pad(operation: Operation, lines: Lines) -> list[Line]:
    """Let a line pass: elements have the line of their channel, and so has the padding.

    That is for the caller to prove: the value is an operand or an attribute, and differs between
    the models.
    """
    line = _only(operation, lines)
    pads = operation.numbers("pads" if operation.version > 1 else "paddings", 1)
    axes = None if operation.operand(3) is None else operation.constant(3)
    if pads is None or (operation.operand(3) is not None and axes is None):
        raise Unproved("the pads are unknown")
    padded = list(range(line.rank))
    if axes is not None:
        padded = [int(axis) % line.rank for axis in axes.reshape(-1)]
    for i, axis in enumerate(padded):
        if pads[i] != 0 or pads[i + len(padded)] != 0:
            _uniform(line, (axis,))
    return [line]


def reshaped(operation: Operation, lines: Lines) -> list[Line]:
    """Let a line pass that varies only along leading axes, which a Reshape keeps."""
    line = _only(operation, lines)
    data, result = operation.inputs[0], operation.outputs[0]
    assert data is not None
    if data.extents is None or result.extents is None:
        raise Unproved("the extents are unknown")
    pairs = zip(data.extents, result.extents, strict=False)
    kept = sum(1 for _ in takewhile(lambda pair: pair[0] is not None and pair[0] == pair[1], pairs))
    _uniform(line, range(kept, line.rank))
    extents = (1,) * (len(result.extents) - kept)
    return [line.map(lambda array: array.reshape(array.shape[:kept] + extents))]


def depth_to_space(operation: Operation, lines: Lines) -> list[Line]:
    """Let a line pass by which the channels that become one, or come from one, have one number."""
    line = _only(operation, lines)
    blocks = int(operation.attributes["blocksize"]) ** 2
    data = operation.inputs[0]
    if (
        line.rank != 4
        or data is None
        or data.extents is None
        or not line.is_uniform_along((0, 2, 3))
    ):
        raise Unproved("the rank is not 4, or the line varies along another axis than the channels")
    if line.is_uniform_along((1,)):
        return [line]
    channels = data.extents[1]
    if not isinstance(channels, int) or (operation.kind == "DepthToSpace" and channels % blocks):
        raise Unproved("the number of channels is unknown")

    def change(array: Array) -> Array:
        vector = np.broadcast_to(array.reshape(-1), (channels,))
        if operation.kind == "SpaceToDepth":
            return np.tile(vector, blocks).reshape(1, -1, 1, 1)
        is_outer = operation.attributes.get("mode", b"DCR") == b"DCR"
        parts = vector.reshape(blocks, -1) if is_outer else vector.reshape(-1, blocks).T
        if (parts != parts[0]).any():
            raise Unproved("channels that become one have different numbers")
        return np.asarray(parts[0]).reshape(1, -1, 1, 1)

    return [line.map(change)]


def rows(operation: Operation, lines: Lines) -> list[Line]:
    """Let a scale pass a MatMul: of rows of the left operand, of columns of the right one."""
    if list(lines) == [0]:
        line = lines[0]
        _no_shift(line)
        _uniform(line, (line.rank - 1,))
    elif list(lines) == [1]:
        line = lines[1]
        _no_shift(line)
        if line.rank < 2:
            raise Unproved("the right operand is a vector")
        _uniform(line, (line.rank - 2,))
    else:
        raise Unproved("both operands are scaled")
    other = operation.inputs[1 - next(iter(lines))]
    if other is None or other.rank is None or other.rank != 2 or line.rank < 2:
        if line.scale.size != 1:
            raise Unproved("the ranks differ")
    result = operation.outputs[0]
    if result.rank is None:
        raise Unproved("the rank of the result is unknown")
    rank = result.rank
    if line.scale.size == 1:
        return [line.map(lambda array: array.reshape((1,) * rank))]
    return [line]


def centred(operation: Operation, lines: Lines) -> list[None]:
    """Prove that a normalization, which subtracts a mean, is the same for x + t, t a number."""
    line = _only(operation, lines)
    if line.has_scale:
        raise Unproved("a scale does not pass the operator")
    if operation.kind == "LayerNormalization":
        _uniform(line, range(_axis(operation, line.rank, default=-1), line.rank))
        return [None]
    _uniform(line, range(2, line.rank))
    if operation.kind == "GroupNormalization" and not line.is_uniform_along((1,)):
        groups = line.shift.swapaxes(0, 1).reshape(
            int(operation.attributes["num_groups"]), -1, line.shift.shape[0]
        )
        if (groups != groups[:, :1]).any():
            raise Unproved("channels of one group have different shifts")
    return [None]


def lp_normalized(operation: Operation, lines: Lines) -> list[Line]:
    """Prove that x / norm(x) of s * x, s one number along the axis, has the sign of s alone."""
    line = _only(operation, lines)
    if line.has_shift or not line.scale.all():
        raise Unproved("a shift, or a scale of zero, does not pass the operator")
    if (2 * np.abs(np.log2(np.abs(line.scale))) > 2 * np.log2(GROWTH)).any():
        raise Unproved("a power of a scale is far beyond the data")
    _uniform(line, (_axis(operation, line.rank, default=-1),))
    return [Line.of(np.sign(line.scale), np.zeros_like(line.scale))]


def unchanged(operation: Operation, lines: Lines) -> list[None]:
    """Let an affine end: attributes take it, which the caller proves."""
    _only(operation, lines)
    return [None]


def squeeze(operation: Operation, lines: Lines) -> list[Line]:
    """Prove that an affine passes where an axis of unknown extent, 1 then, is removed."""
    line, axes = _only(operation, lines), operation.integers("axes", 1)
    if not axes:
        raise Unproved("the axes are not constant")
    places = tuple(axis % line.rank for axis in axes)
    _uniform(line, places)
    return [line.map(lambda array: array.squeeze(places))]


CROSSINGS: dict[str, Crossing] = {
    **dict.fromkeys(("LeakyRelu", "PRelu"), homogeneous),
    "Abs": magnitude,
    **dict.fromkeys(("GlobalLpPool", "LpPool", "ReduceL1", "ReduceL2"), norm),
    **dict.fromkeys(("Expand", "Tile"), repeated),
    "MaxPool": monotone_pool,
    "AveragePool": average_pool,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), global_pool),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), reduction),
    **dict.fromkeys(("Add", "Sub", "Sum", "Mean"), addition),
    **dict.fromkeys(("Mul", "Div"), multiplication),
    **dict.fromkeys(("Max", "Min"), extremum),
    "Where": selection,
    "Concat": concatenate,
    "Split": split,
    "Slice": slice_,
    "Gather": gather,
    **dict.fromkeys(("Resize", "Upsample"), resize),
    "Pad": pad,
    "Reshape": reshaped,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), depth_to_space),
    "MatMul": rows,
    "Squeeze": squeeze,
    "HardSigmoid": unchanged,
    "LpNormalization": lp_normalized,
    **dict.fromkeys(("InstanceNormalization", "LayerNormalization", "GroupNormalization"), centred),
}
"""The rows by ONNX operator of the default domain."""
