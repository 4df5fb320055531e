"""Operators that pick, join or repeat elements: slices, gathers, padding and resizing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...support.statement import states
from ..extents import (
    difference,
    exact_quotient,
    is_same,
    least,
    maximum,
    minimum,
    most,
    product,
    total,
)
from ..graph import Node, Value
from ..provenance import Refusal, Refused
from ..tensor import Array
from ..types import ELEMENT_COUNT_LIMIT, Dim, TensorType, shape_of
from .bounds import joined, operand_bounds
from .channel_map import MAX_EXTENT, ChannelAxis, ChannelMap, Limit, block_channels, unknown_shape
from .evaluation import NotEvaluable, check_size, listed_operand, operand, operands
from .inference import (
    Types,
    dtype_only,
    input_dtype,
    input_shape,
    input_shapes,
    integer_of,
    list_attribute,
    listed,
    normal_axes,
    number_of,
    pieces_of,
    target_shape,
)
from .interval import ZERO, Interval
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
    number,
    text_of,
)
from .views import known_slice, pads_of, resized_extent, scales_of, slice_bounds, sliced_axes


@complete_by_types
def infer_take(node: Node, constants: Constants) -> Types:
    """Infer the indices' shape in place of the axis."""
    dtype, shape, indices = input_dtype(node), input_shape(node), input_shape(node, "indices")
    axis = integer_of(node, "axis", 0)
    if shape is None or indices is None or not -len(shape) <= axis < len(shape):
        return (TensorType(dtype, None),)
    axis %= len(shape)
    return (TensorType(dtype, (*shape[:axis], *indices, *shape[axis + 1 :])),)


def evaluate_take(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Gather."""
    (data, indices), axis = operands(inputs), node.attrs.get("axis", 0)
    assert isinstance(axis, int)
    extent = data.shape[axis] if -data.ndim <= axis < data.ndim else 0
    if indices.size and not (-extent <= indices.min() and indices.max() < extent):
        raise NotEvaluable("an index is out of range")
    check_size(data.size // max(extent, 1) * indices.size, data)
    return (np.take(data, indices, axis=axis),)


@complete_by_types
def infer_concatenate(node: Node, constants: Constants) -> Types:
    """Infer the sum of extents along the axis, and other extents that any operand knows."""
    dtype = input_dtype(node)
    shapes = input_shapes(node)
    known = [shape for shape in shapes if shape is not None]
    axis = integer_of(node, "axis", 1)
    rank = len(known[0]) if known else 0
    if not -rank <= axis < rank or any(len(shape) != rank for shape in known):
        return (TensorType(dtype, None),)
    axis %= rank
    dims = [_equal_extent(column) for column in zip(*known, strict=True)]
    along = [shape[axis] for shape in known]
    dims[axis] = total(*along) if len(known) == len(shapes) else None
    return (TensorType(dtype, tuple(dims)),)


def _equal_extent(dims: Sequence[Dim]) -> Dim:
    """Merge what several types say about one extent: the number, if there is one."""
    known = [dim for dim in dims if dim is not None]
    return next((dim for dim in known if isinstance(dim, int)), known[0] if known else None)


def evaluate_concatenate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Concat."""
    axis = node.attrs.get("axis", 1)
    assert isinstance(axis, int)
    parts = operands(inputs)
    check_size(sum(part.size for part in parts), parts[0])
    return (np.concatenate(parts, axis=axis),)


@complete
def infer_strided_slice(node: Node, constants: Constants) -> Types:
    """Infer the length of each slice; axes that are not sliced keep theirs."""
    dtype, shape = input_dtype(node), input_shape(node)
    if shape is None:
        return (TensorType(dtype, None),)
    dims, bounds = list(shape), slice_bounds(node, constants)
    if bounds is None:
        return (TensorType(dtype, (None,) * len(shape)),)
    for axis, (start, end, step) in bounds.items():
        dims[axis] = sliced_extent(dims[axis], start, end, step)
    return (TensorType(dtype, tuple(dims)),)


def sliced_extent(extent: Dim, start: Dim, end: Dim, step: int | None) -> Dim:
    """Return the number of elements between two bounds, None if they are unknown."""
    if isinstance(start, int) and isinstance(end, int) and step is not None:
        if isinstance(extent, int):
            is_known = _as_in_numpy(start, end, step, extent)
            return len(range(extent)[start:end:step]) if is_known else None
        if (start, step) == (-1, -1) and end <= -FAR:  # it reverses the whole axis
            return extent
    if step != 1:
        return None
    return maximum(0, difference(_bound(end, extent), _bound(start, extent)))


def _bound(bound: Dim, extent: Dim) -> Dim:
    """Return a bound of a slice as it counts from the beginning, inside the axis."""
    if isinstance(bound, int) and (bound in GREATEST or bound > FAR):
        return extent
    low, high = least(bound), most(bound)
    if low is not None and low >= 0:
        return minimum(bound, extent)
    return maximum(0, total(bound, extent)) if high is not None and high < 0 else None


FAR = 1 << 62
"""More elements than an axis has.

Exporters write the least integer for an end before the first element.
"""


GREATEST = ((1 << 31) - 1, (1 << 63) - 1)
"""The greatest integers of 32 and 64 bits, which stand for the end of an axis."""


def _as_in_numpy(start: int, end: int, step: int, extent: int) -> bool:
    """Return whether Slice and numpy select the same elements."""
    # Both count negative bounds from the end and clamp them: an end to [0, n] going forward, to
    # [-1, n - 1] going backward. But going backward Slice clamps a start below -n to 0, the first
    # element, and numpy to no element. And onnxruntime takes the two greatest integers for the end
    # of the axis in either direction.
    return step > 0 or (step < 0 and start >= -extent and end not in GREATEST)


def evaluate_strided_slice(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Slice."""
    data = operand(inputs)
    starts, ends, axes, steps = [
        listed_operand(node, inputs, name) for name in ("starts", "ends", "axes", "steps")
    ]
    if starts is None or ends is None:
        raise NotEvaluable("starts or ends are not given")
    slices: list[slice] = [slice(None)] * data.ndim
    for i, start in enumerate(starts):
        axis, step, end = axes[i] if axes else i, steps[i] if steps else 1, ends[i]
        if not _as_in_numpy(start, end, step, data.shape[axis]):
            raise NotEvaluable(
                "a slice whose step is 0, or that goes backward from before the first element"
            )
        slices[axis] = slice(start, end, step)
    return (data[tuple(slices)],)


@complete
def infer_split(node: Node, constants: Constants) -> Types:
    """Infer the extent of each part along the axis, if the sizes or the extent are known."""
    dtype, shape, count = input_dtype(node), input_shape(node), len(node.outputs)
    axis, sizes = integer_of(node, "axis", 0), split_sizes(node, constants)
    if shape is None or not -len(shape) <= axis < len(shape):
        return dtype_only(node, constants) * count
    axis %= len(shape)
    extents = _part_extents(node, constants) if sizes is None else sizes
    return tuple(
        TensorType(dtype, (*shape[:axis], extent, *shape[axis + 1 :])) for extent in extents
    )


def _part_extents(node: Node, constants: Constants) -> tuple[Dim, ...]:
    """Return the extents of the parts of a `split` as far as they are known."""
    count, shape, axis = len(node.outputs), input_shape(node), integer_of(node, "axis", 0)
    unknown = (None,) * count
    if node["split"] is not None:
        sizes = target_shape(node, "split", constants)
        return sizes if sizes is not None and len(sizes) == count else unknown
    if shape is None or isinstance(shape[axis], int):
        return unknown
    return (exact_quotient(shape[axis], count),) * count


def split_sizes(node: Node, constants: Constants) -> tuple[int, ...] | None:
    """Return the extents of the parts of a `split`, None unless there is one for each result."""
    count, shape, axis = len(node.outputs), input_shape(node), integer_of(node, "axis", 0)
    if node["split"] is not None:
        sizes = listed(node, "split", constants)
        return sizes if sizes is not None and len(sizes) == count and min(sizes) >= 0 else None
    extent = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if not isinstance(extent, int):
        return None
    # With `num_outputs` the last part is smaller if the extent cannot be divided.
    part = -(-extent // count) if "num_outputs" in node.attrs else extent // count
    last = extent - part * (count - 1)
    return (
        (*(part,) * (count - 1), last)
        if last == part or ("num_outputs" in node.attrs and last > 0)
        else None
    )


@complete
def infer_pad(node: Node, constants: Constants) -> Types:
    """Infer every known extent plus its pads."""
    dtype, shape = input_dtype(node), input_shape(node)
    pads = pads_of(node, constants)
    if shape is None or pads is None:
        return (TensorType(dtype, None if shape is None else (None,) * len(shape)),)
    dims = [total(dim, *pads.get(axis, ())) for axis, dim in enumerate(shape)]
    return (TensorType(dtype, tuple(dims)),)


@complete
def infer_resize(node: Node, constants: Constants) -> Types:
    """Infer the sizes if they are given, else the extents that are the same in every precision."""
    dtype, shape = input_dtype(node), input_shape(node)
    axes = None if shape is None else _resized_axes(node, len(shape))
    if shape is None or axes is None:
        return (TensorType(dtype, None if shape is None else (None,) * len(shape)),)
    if not _stretches(node):
        return (TensorType(dtype, None),)  # onnx computes the one scale of all axes
    sizes, scales, found = _sizes_of(node, constants), scales_of(node, constants), list(shape)
    for place, axis in enumerate(axes):
        if sizes is not None and len(sizes) == len(axes):
            found[axis] = sizes[place]
        elif scales is None or len(scales) != len(axes) or _crops(node):
            found[axis] = None  # of a crop the region counts, too
        else:
            found[axis] = resized_extent(shape[axis], scales[place])
    return (TensorType(dtype, tuple(found)),)


def _resized_axes(node: Node, rank: int) -> list[int] | None:
    """Return the axes of which a Resize lists the sizes or scales, None if they are not valid."""
    return normal_axes(list_attribute(node, "axes") or tuple(range(rank)), rank)


def _sizes_of(node: Node, constants: Constants) -> tuple[Dim, ...] | None:
    """Return the sizes of a Resize as far as they are known, None if it has none."""
    is_sized = node.op == "image.resize" and node["sizes"] is not None
    return target_shape(node, "sizes", constants) if is_sized else None


def _stretches(node: Node) -> bool:
    """Return whether the result has the sizes that a Resize lists, whatever its data."""
    return text_of(node, "keep_aspect_ratio_policy", "stretch") == "stretch"


@states(
    "slice(affine(x, s, t, a, r), b, e, a, d) == affine(slice(x, b, e, a, d), s[i], t[i], a, r)"
)
def sliced_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Slice: along a sliced axis, the channels that it reads."""
    if at.axis is None:
        return ChannelMap()
    before, axes = input_shape(node), sliced_axes(node, constants)
    if before is None or axes is None:
        raise Refused("non_constant_params", f"{node.description}: its bounds are not constant")
    if at.axis not in axes:
        return ChannelMap(at.axis)
    extent, bounds = before[at.axis], slice_bounds(node, constants)
    chosen = None if bounds is None else known_slice(*bounds[at.axis])
    if chosen is None or not isinstance(extent, int):
        raise Refused("non_constant_params", f"{node.description}: its bounds are not constant")
    if extent > MAX_EXTENT:
        raise unknown_shape(node)
    return ChannelMap(at.axis, np.arange(extent)[chosen], extent)


@states("take(affine(x, s, t, a, r), i, a) == affine(take(x, i, a), s[i], t[i], a, r)")
def taken_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Gather: along its axis, the channels that it reads.

    Indices of rank r stand in the place of that axis.
    """
    if at.axis is None:
        return ChannelMap()
    before, wanted = input_shape(node), input_shape(node, "indices")
    if not before or wanted is None:
        raise unknown_shape(node)
    axis, rank = integer_of(node, "axis", 0) % len(before), len(wanted)
    indices, extent = constants.array(node["indices"]), before[axis]
    if indices is None or indices.dtype.kind == "i":
        if at.axis < axis:
            return ChannelMap(at.axis)
        if at.of_data and at.axis > axis:
            return ChannelMap(at.axis + rank - 1)
        if not at.of_data and at.axis >= axis + rank:
            return ChannelMap(at.axis - rank + 1)
        size = extent if isinstance(extent, int) and 0 < extent <= MAX_EXTENT else None
        if indices is not None and size is not None and rank == 1:
            count = extent if at.of_data else len(indices)
            if count == at.count:
                return ChannelMap(axis, indices % size, size)
    raise Refused(
        "axis_mismatch", f"{node.description}: the channels are not a list of constant indices"
    )


@states("split(affine(x, s, t, a, r), n, a)[k] == affine(split(x, n, a)[k], s[i], t[i], a, r)")
def split_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Split: each result has its part of the channels along its axis, all along another."""
    before, count = input_shape(node), len(node.outputs)
    are_read = any(value.users for i, value in enumerate(node.outputs) if i != at.result)
    others = are_read and not at.of_data
    if at.axis is None and not others:
        return ChannelMap(results=count)
    if before is None:
        raise unknown_shape(node)
    axis = integer_of(node, "axis", 0) % len(before)
    if at.axis not in (axis, None):
        if others:
            raise Refused(
                "multi_consumer", f"{node.description}: its other results would be scaled, too"
            )
        return ChannelMap(at.axis, results=count)
    extents = [_extent(value, axis) for value in node.outputs]
    known = [extent for extent in extents if extent is not None]
    total = sum(known)
    if len(known) < count or (not at.of_data and before[axis] != total):
        raise unknown_shape(node)
    if at.count not in (None, total if at.of_data else known[at.result]):
        raise unknown_shape(node)
    start = sum(known[: at.result])
    return ChannelMap(axis, np.arange(start, start + known[at.result]), total, results=count)


def _extent(value: Value, axis: int) -> int | None:
    shape = shape_of(value.type)
    extent = shape[axis] if shape is not None and axis < len(shape) else None
    return extent if isinstance(extent, int) else None


MAX_REPEATS = 1 << 16
"""Copies of its data that a Tile may make for channels to pass it."""


def lists_repeats(node: NodeView) -> Refusal | None:
    """Refuse opsets below 6, in which a Tile repeats one axis."""
    return (
        None if len(node.inputs) == 2 else Refusal("unsupported_op", f"{len(node.inputs)} inputs")
    )


@states(
    "affine(tile(x, n), s, t, 1, r) == tile(affine(x, s[:c], t[:c], 1, r), n) if s == tiles(s[:c],"
    " copies) and t == tiles(t[:c], copies)"
)
def tiled_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Tile: the channels are repeated as a whole."""
    if at.axis is None:
        return ChannelMap()
    repeats = pieces_of(node, "repeats", constants) or ()
    copies, count = repeats[at.axis] if at.axis < len(repeats) else None, at.count
    if not isinstance(copies, int):
        raise Refused("non_constant_params", f"{node.description}: its repeats are not constant")
    if copies == 1:
        return ChannelMap(at.axis)
    if count is None or copies < 1:
        raise unknown_shape(node)
    if copies > MAX_REPEATS if at.of_data else count % copies:
        raise unknown_shape(node)
    return ChannelMap(
        at.axis, block_channels(copies, count if at.of_data else count // copies, by_block=True)
    )


MAX_BLOCKS = 1 << 12
"""Blocks of DepthToSpace and SpaceToDepth, which are 4 as a rule."""


@complete
def infer_tile(node: Node, constants: Constants) -> Types:
    """Infer every extent times its repeats."""
    dtype, shape = input_dtype(node), input_shape(node)
    repeats = pieces_of(node, "repeats", constants)
    if shape is None or repeats is None or len(repeats) != len(shape):
        return (TensorType(dtype, None if shape is None else (None,) * len(shape)),)
    return (TensorType(dtype, tuple(map(_times, shape, repeats))),)


def _times(dim: Dim, factor: Dim) -> Dim:
    """Return a multiple of an extent, None if it is unknown or no tensor has so many elements."""
    found = product(dim, factor)
    if isinstance(found, int):
        return found if 0 <= found < ELEMENT_COUNT_LIMIT else None
    low = least(factor)
    return found if low is not None and low >= 0 else None


def _divided(dim: Dim, divisor: int) -> Dim:
    """Return a part of an extent, None if it is not known, or not whole."""
    return exact_quotient(dim, divisor)


@complete_by_types
def infer_depth_to_space(node: Node, constants: Constants) -> Types:
    """Infer [N, C / B^2, H B, W B] for blocks of B by B."""
    dtype, shape, size = input_dtype(node), input_shape(node), integer_of(node, "blocksize", 0)
    if shape is None or len(shape) != 4 or size < 1:
        return (TensorType(dtype, None),)
    batch, channels, rows, columns = shape
    return (
        TensorType(
            dtype, (batch, _divided(channels, size**2), _times(rows, size), _times(columns, size))
        ),
    )


@complete_by_types
def infer_space_to_depth(node: Node, constants: Constants) -> Types:
    """Infer [N, C B^2, H / B, W / B] for blocks of B by B."""
    dtype, shape, size = input_dtype(node), input_shape(node), integer_of(node, "blocksize", 0)
    if shape is None or len(shape) != 4 or size < 1:
        return (TensorType(dtype, None),)
    batch, channels, rows, columns = shape
    return (
        TensorType(
            dtype, (batch, _times(channels, size**2), _divided(rows, size), _divided(columns, size))
        ),
    )


@states(
    "affine(depth_to_space(x, b, mode), s, t, 1, r) == depth_to_space(affine(x, s[block(b, c,"
    " mode)], t[block(b, c, mode)], 1, r), b, mode); depth_to_space(affine(x, u, v, 1, r), b, mode)"
    " == affine(depth_to_space(x, b, mode), first(u, b, c, mode), first(v, b, c, mode), 1, r) if u"
    " == first(u, b, c, mode)[block(b, c, mode)] and v == first(v, b, c, mode)[block(b, c, mode)]"
)
def depth_to_space_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """DepthToSpace: B channels of the data become one of the result, B blocks in all.

    Channel c of the result is channels c + k C (DCR) or c B + k (CRD) of the data.
    """
    if at.axis is None or at.axis == 0:
        return ChannelMap(at.axis)
    blocks, count = integer_of(node, "blocksize", 1) ** 2, at.count
    # B channels of the data make one: their number is a multiple of B.
    if at.axis != 1 or count is None or (at.of_data and count % blocks):
        raise Refused("axis_mismatch", f"{node.description} moves channels into axis {at.axis}")
    if not at.of_data and blocks > MAX_BLOCKS:
        raise unknown_shape(node)
    by_block = text_of(node, "mode", "DCR") == "DCR"
    channels = block_channels(blocks, count // blocks if at.of_data else count, by_block=by_block)
    return ChannelMap(1, result_of_data=channels)


@states(
    "affine(space_to_depth(x, b), s, t, 1, r) == space_to_depth(affine(x, s[:c], t[:c], 1, r), b)"
    " if s == tiles(s[:c], b * b) and t == tiles(t[:c], b * b)"
)
def space_to_depth_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """SpaceToDepth: every block of the result has the channels of the data."""
    if at.axis is None or at.axis == 0:
        return ChannelMap(at.axis)
    blocks, count = integer_of(node, "blocksize", 1) ** 2, at.count
    # One channel of the data makes B: the number of the result's is a multiple of B.
    if at.axis != 1 or count is None or (not at.of_data and count % blocks):
        raise Refused("axis_mismatch", f"{node.description} moves axis {at.axis} into the channels")
    if at.of_data and blocks > MAX_BLOCKS:
        raise unknown_shape(node)
    return ChannelMap(
        1, block_channels(blocks, count if at.of_data else count // blocks, by_block=True)
    )


@states(
    "affine(pad(x, p, v), s, t, 1, r) == pad(affine(x, s, t, 1, r), p, (s * v + t)[0]) if"
    " one_number(s * v + t); pad(affine(x, s, t, 1, r), p, v) == affine(pad(x, p, ((v - t) /"
    " s)[0]), s, t, 1, r) if s != 0 and one_ratio(v - t, s); affine(pad(x, p, 0, m), s, t, 1, r) =="
    " pad(affine(x, s, t, 1, r), p, 0, m)"
)
def padded_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Pad: a constant takes the affine, too; the other modes repeat data.

    If the channels are padded with a constant, the channels of the data are in the middle.
    """
    is_constant = text_of(node, "mode", "constant") == "constant"
    value = number_of(node, "constant_value", constants) if is_constant else None
    if is_constant and value is None:
        raise Refused("non_constant_params", f"{node.description}: its value is not constant")
    if at.axis is None:
        return ChannelMap(fill=value)
    pads = pads_of(node, constants)
    if pads is None and input_shape(node) is None:
        raise unknown_shape(node)
    if pads is None:
        raise Refused("non_constant_params", f"{node.description}: its pads are not constant")
    begin, end = pads.get(at.axis, (0, 0))
    if not (isinstance(begin, int) and isinstance(end, int)):
        detail = f"{node.description}: its pads of axis {at.axis} are not constant"
        raise Refused("non_constant_params", detail)
    if not begin and not end:
        return ChannelMap(at.axis, fill=value)
    if at.of_data:
        raise Refused("axis_mismatch", f"{node.description} pads or crops the channels")
    if value is None or begin < 0 or end < 0:
        raise Refused(
            "axis_mismatch", f"{node.description} pads the channels with data, or crops them"
        )
    assert at.count is not None
    return ChannelMap(
        at.axis, result_of_data=np.arange(at.count)[begin : at.count - end], fill=value
    )


@states(
    "affine(resize(x, f, m), s, t, 1, r) == resize(affine(x, s, t, 1, r), f, m);"
    " affine(crop_and_resize(x, size), s, t, 1, r) == crop_and_resize(affine(x, s, t, 1, r), size)"
    " if t == 0"
)
def resized_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """Resize, Upsample: every result is a mean of data with weights that add up to one.

    Not so if tf_crop_and_resize extrapolates a constant, and not along the axis that is resized.
    """
    if at.axis is not None and not _keeps_axis(node, at.axis, constants):
        raise Refused("axis_mismatch", f"{node.description} resizes axis {at.axis}, or may")
    if not _crops(node):
        return ChannelMap(at.axis)
    reason = Refusal("nonzero_padding", f"{node.description} extrapolates a constant")
    if node.attrs.get("extrapolation_value", 0.0):
        raise Refused.of(reason)
    return ChannelMap(at.axis, limits=((Limit.NO_SHIFT, reason),))


def _crops(node: Node) -> bool:
    return text_of(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"


def _keeps_axis(node: Node, axis: int, constants: Constants) -> bool:
    """Return whether a Resize is known to leave the elements along `axis` as they are."""
    before = input_shape(node)
    axes = None if before is None else _resized_axes(node, len(before))
    if before is None or axes is None:
        return False
    if axis not in axes:
        return True
    place = axes.index(axis)
    # batch and channels stay if the region of interest has them as a whole
    if _crops(node) and (axis > 1 or not _keeps_region(node, place, len(axes), constants)):
        return False
    sizes, scales = _sizes_of(node, constants), scales_of(node, constants)
    if sizes is not None:
        # another policy has one scale for all axes, whatever extents it rounds to
        is_listed = len(sizes) == len(axes) and _stretches(node)
        return is_listed and is_same(sizes[place], before[axis])
    # An extent that stays does not prove a scale of one: 3 * 1.3 is rounded to 3, too.
    return scales is not None and len(scales) == len(axes) and scales[place] == 1


def _keeps_region(node: Node, place: int, count: int, constants: Constants) -> bool:
    """Return whether the region of interest, of `count` axes, has the whole of that at `place`."""
    roi = constants.array(node["roi"])
    if roi is None or roi.size != 2 * count:
        return False
    begins, ends = roi.ravel()[:count], roi.ravel()[count:]
    return bool(begins[place] == 0 and ends[place] == 1)


_MOVES = frozenset({Trait.MOVES})
_AVERAGES = frozenset({Trait.AVERAGES})


def _padded(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound Pad: elements of the data, and the padding."""
    if text_of(node, "mode", "constant") != "constant":
        return [x[0].whole]
    return [x[0].whole.hull(operand_bounds(node, x, "constant_value", ZERO).whole)]


def overshoots(node: Node) -> bool:
    """Return whether a Resize interpolates by cubics, whose weights may be negative.

    Its averages may lie beyond the data.
    """
    return text_of(node, "mode", "nearest") == "cubic"


def _resized(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound Resize and Upsample: averages of elements, which a cubic interpolation goes beyond.

    With the coefficient a < 0, its four weights along an axis add up to 1, and their magnitudes to
    1 + |a| / 2 halfway between two elements. A Resize that crops may put a number of its own
    outside the data.
    """
    data, shape = x[0].whole, shape_of(node.output.type)
    if overshoots(node):
        a = node.attrs.get("cubic_coeff_a", -0.75)
        assert isinstance(a, int | float)
        middle, axes = (data.low + data.high) / 2, 2 if shape is None else len(shape) - 2
        radius = (data.high - data.low) / 2 * (1 + abs(a) / 2) ** axes
        data = Interval(middle - radius, middle + radius)
    if _crops(node):
        outside = node.attrs.get("extrapolation_value", 0.0)
        assert isinstance(outside, int | float)
        data = data.hull(ZERO.map(lambda v: v + outside))
    return [data]


ROWS = (
    OpInfo(
        "take",
        ("data", "indices"),
        infer_take,
        evaluate_take,
        onnx="Gather",
        attrs={"axis": integer},
        traits=_MOVES,
        channels=taken_channels,
    ),
    OpInfo(
        "concatenate",
        ("inputs*",),
        infer_concatenate,
        evaluate_concatenate,
        onnx="Concat",
        attrs={"axis": integer},
        traits=frozenset({Trait.EXACT_AT_RUNTIME}),
        bounds=joined,
    ),
    OpInfo(
        "strided_slice",
        ("data", "starts?", "ends?", "axes?", "steps?"),
        infer_strided_slice,
        evaluate_strided_slice,
        onnx="Slice",
        parameters={"starts": Parameter(10), "ends": Parameter(10), "axes": Parameter(10)},
        attrs={"axes": integers, "ends": integers, "starts": integers},
        traits=_MOVES,
        channels=sliced_channels,
    ),
    OpInfo(
        "split",
        ("data", "split?"),
        infer_split,
        onnx="Split",
        parameters={"split": Parameter(13)},
        attrs={"axis": integer, "num_outputs": integer, "split": integers},
        results=("outputs*",),
        traits=_MOVES,
        channels=split_channels,
    ),
    OpInfo(
        "tile",
        ("data", "repeats", "axis?"),
        infer_tile,
        onnx="Tile",
        when=lists_repeats,
        traits=_MOVES,
        channels=tiled_channels,
    ),
    OpInfo(
        "nn.pad",
        ("data", "pads?", "constant_value?", "axes?"),
        infer_pad,
        onnx="Pad",
        parameters={
            "pads": Parameter(11, first="paddings"),
            "constant_value": Parameter(11, attribute="value"),
        },
        attrs={"paddings": integers, "pads": integers, "value": number},
        channels=padded_channels,
        bounds=_padded,
    ),
    OpInfo(
        "image.resize",
        ("data", "roi?", "scales?", "sizes?"),
        infer_resize,
        onnx="Resize",
        since=10,
        parameters={"scales": Parameter(11, place=1)},
        attrs={"axes": integers, "exclude_outside": integer},
        traits=_AVERAGES | {Trait.HEAVY},
        channels=resized_channels,
        bounds=_resized,
    ),
    OpInfo(
        "nn.upsampling",
        ("data", "scales?"),
        infer_resize,
        onnx="Upsample",
        parameters={"scales": Parameter(9)},
        traits=_AVERAGES,
        channels=resized_channels,
        bounds=_resized,
    ),
    OpInfo(
        "nn.depth_to_space",
        ("data",),
        infer_depth_to_space,
        onnx="DepthToSpace",
        attrs={"blocksize": integer},
        traits=_MOVES,
        channels=depth_to_space_channels,
    ),
    OpInfo(
        "nn.space_to_depth",
        ("data",),
        infer_space_to_depth,
        onnx="SpaceToDepth",
        forms={"f16": 13},
        attrs={"blocksize": integer},
        traits=_MOVES,
        channels=space_to_depth_channels,
    ),
)
