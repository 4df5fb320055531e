"""How an affine of a result passes an operator: scale * op(x) + shift = op(scale' * x + shift').

Each rule states the identity that it rests on and checks what it needs, scale and shift apart. A rule may offer more
than one way, where the shift, or a gate's scale, may go to either operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...ir.graph import Node
from ...ir.ops.inference import integer_of
from ...ir.ops.reshaping import permutation
from ...ir.ops.views import clip_bounds as clip_bounds_of
from ...ir.provenance import Refused
from ...ir.tensor import Array
from ...ir.types import shape_of
from .algebra import MAX_EXTENT, Affine
from .operands import (
    Parameters,
    common_value,
    fits_attribute,
    implicit_padding,
    integers,
    number,
    shapes,
    static_size,
    text,
)
from .remap import through_reshape
from .transfer import Transfer, check_no_shift, check_scale_sign, is_extent, reduced_axes, unknown_shape

Ways = Sequence[Transfer]


def _data(affine: Affine) -> Ways:
    """The first operand takes the affine."""
    return [Transfer(operands=((0, affine),))]


def unchanged(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Identity, Dropout: op(x) = x."""
    if index != 0:
        raise Refused("unsupported_op", f"{node.label}: not its first result")
    return _data(affine)


def negative(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Neg: -(s x - t) = s (-x) + t."""
    return _data(affine.rescaled_data(-1.0))


def rectifier(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Relu, LeakyRelu, PRelu, Abs: op(s x) = s op(x) for s >= 0, whatever the slope; no shift passes."""
    check_no_shift(node, affine)
    check_scale_sign(node, affine)
    return _data(affine)


def clip(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Clip: the affine of what lies between a and b lies between those of a and b, swapped where s < 0.

    The bounds are scalars, so scale and shift must be, too.
    """
    bounds = clip_bounds(node, affine, params)
    ends = [float(affine.apply(np.array(bound))) if np.isfinite(bound) else bound for bound in bounds]
    changed = new_bounds(node, ends, swapped=bool(affine.scale < 0))
    return [replace(changed, operands=((0, affine),))]


def clip_bounds(node: Node, affine: Affine, params: Parameters) -> tuple[float, float]:
    """The bounds of a Clip that `affine` may pass; infinite where there is none."""
    if affine.axis is not None:
        raise Refused("activation_between", f"{node.label}: its bounds are not per channel")
    bounds = clip_bounds_of(node, params.evaluator)
    if bounds is None:
        raise Refused("non_constant_params", f"{node.label}: its bounds are not constant")
    low, high = bounds.ends
    if not low <= high or not affine.scale:
        raise Refused("activation_between", f"{node.label}: bounds {low:.6g} and {high:.6g} cannot be scaled")
    return low, high


def new_bounds(node: Node, bounds: Sequence[float], *, swapped: bool) -> Transfer:
    """A Clip with other bounds, as attributes or inputs; they are `swapped` where the scale is negative."""
    if swapped:
        bounds = [-bound if np.isinf(bound) else bound for bound in reversed(bounds)]
    names = ("min", "max")
    if len(node.inputs) == 1 and any(name in node.attrs for name in names):
        lowest = {"min": -np.finfo(np.float32).max, "max": np.finfo(np.float32).max}
        given = [(n, float(b if np.isfinite(b) else lowest[n])) for n, b in zip(names, bounds, strict=True)]
        if not all(fits_attribute(node, bound) for _, bound in given):
            raise Refused("dtype_mismatch", f"{node.label}: its bounds are attributes, which are float32")
        return Transfer(attrs=tuple(given))
    inputs = [i for i, b in enumerate(bounds) if np.isfinite(b) or node.input(i + 1) is not None]
    return Transfer(constants=tuple((i + 1, np.array(bounds[i])) for i in inputs))


def pool(node: Node, index: int, affine: Affine, params: Parameters, *, kind: str) -> Ways:
    """MaxPool, AveragePool, LpPool and their global forms, along a channel or batch axis.

    max: s >= 0, and > 0 where the indices are used; the padding never wins, so a shift passes. mean: any scale; a
    shift passes where the weights of every window add up to one, so padding must not count. lp: s >= 0, no shift.
    """
    if affine.axis is not None and affine.axis > 1:
        raise Refused("axis_mismatch", f"{node.label} pools along axis {affine.axis}")
    if kind == "max":
        if index != 0:
            raise Refused("unsupported_op", f"{node.label}: its indices are integers")
        check_scale_sign(node, affine)
        if any(value.users for value in node.outputs[1:]) and not affine.scale.all():
            raise Refused("negative_scale", f"{node.label}: its indices are read, and a scale is zero")
    elif kind == "lp":
        check_no_shift(node, affine)
        check_scale_sign(node, affine)
    elif affine.has_shift and not sums_to_one(node):
        raise Refused("nonzero_padding", f"{node.label}: zeros in the padding count, which a shift is not")
    return _data(affine)


def sums_to_one(node: Node) -> bool:
    """Whether an average pool divides each window by the number of elements that it has.

    Where padding counts, so does what ceil_mode adds at the end; runtimes disagree on the divisor there.
    """
    if node.op == "nn.global_avg_pool" or not node.attrs.get("count_include_pad", 0):
        return True
    kernel = node.attrs.get("kernel_shape")
    window = kernel if isinstance(kernel, tuple) else None
    return not implicit_padding(node, window) and not node.attrs.get("ceil_mode", 0)  # type: ignore[arg-type]


def reduce(node: Node, index: int, affine: Affine, params: Parameters, *, kind: str) -> Ways:
    """ReduceMax, -Min, -Mean, -Sum, -L1, -L2 over other axes than the channels, or of a uniform affine.

    max, min: s >= 0, shift passes. mean: both pass. sum: the shift is divided by the number of terms. norm: s >= 0.
    """
    found = reduced_axes(node, params)
    axes, rank = found
    moved = affine
    if affine.axis is not None:
        kept = [axis for axis in range(rank) if axis not in axes]
        places = list(range(rank)) if node.attrs.get("keepdims", 1) else kept
        if affine.axis >= len(places):  # the types disagree
            raise unknown_shape(node)
        axis = places[affine.axis]
        if axis in axes:
            raise Refused("axis_mismatch", f"{node.label} reduces the channels")
        moved = affine.at(axis)
    if kind in ("max", "norm"):
        check_scale_sign(node, affine)
        if kind == "norm":
            check_no_shift(node, affine)
        return _data(moved)
    if kind == "sum" and affine.has_shift:
        before, _ = shapes(node)
        assert before is not None
        terms = static_size(tuple(before[axis] for axis in axes))
        if not terms:
            raise Refused("unknown_rank", f"{node.label}: the number of terms is unknown")
        moved = moved.rescaled_data(float(terms))
    return _data(moved)


def pad(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Pad: the padding, too, must become the affine of what it was.

    A constant v becomes s v + t, which must be the same number in every channel; the other modes repeat data. Where
    the channels are padded, those in the middle are the data's.
    """
    found = padding(node, params, affine)
    begin, end, value = found
    moved = affine
    if begin or end:
        if value is None or begin < 0 or end < 0:
            raise Refused("axis_mismatch", f"{node.label} pads the channels with data, or crops them")
        assert affine.channels is not None and affine.axis is not None
        moved = affine.map(affine.axis, lambda array: array[begin : len(array) - end])
    if value is None:
        return _data(moved)
    new = common_value(affine.apply(np.array(value)))
    if new is None:
        raise Refused("nonzero_padding", f"{node.label}: the padding {value:.6g} would differ between channels")
    return padded(node, value, new, Transfer(operands=((0, moved),)))


def padded(node: Node, old: float, new: float, carry: Transfer) -> Ways:
    """The carry, with the value of a constant Pad replaced where it changes."""
    if new == old:
        return [carry]
    if len(node.inputs) == 1:
        if not fits_attribute(node, new):
            raise Refused("dtype_mismatch", f"{node.label}: its value is an attribute, which is a float32")
        return [Transfer(carry.operands, carry.results, attrs=(("value", new),))]
    return [Transfer(carry.operands, carry.results, constants=((2, np.array(new)),))]


def padding(node: Node, params: Parameters, affine: Affine) -> tuple[int, int, float | None]:
    """What a Pad adds on the axis of `affine` in front and behind, and the value, None where it repeats data."""
    mode = text(node, "mode", "constant")
    value = number(node, params, "value", 2, 0.0) if mode == "constant" else None
    if mode == "constant" and value is None:
        raise Refused("non_constant_params", f"{node.label}: its value is not constant")
    if affine.axis is None:
        return 0, 0, value
    pads = integers(node, params, "pads" if "pads" in node.attrs else "paddings", 1)
    axes = integers(node, params, "axes", 3)
    if pads is None or axes is None:
        raise Refused("non_constant_params", f"{node.label}: its pads are not constant")
    count = len(pads) // 2
    if axes or node.input(3) is not None:
        before, _ = shapes(node)
        if before is None:
            raise unknown_shape(node)
        places = [axis % len(before) for axis in axes]
    else:
        places = list(range(count))
    if affine.axis not in places:
        return 0, 0, value
    place = places.index(affine.axis)
    return pads[place], pads[count + place], value


def resize(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Resize, Upsample: every result is a mean of data with weights that add up to one.

    Not so where tf_crop_and_resize extrapolates a constant, and not along the axis that is resized.
    """
    if not is_kept_by_resize(node, affine, params):
        raise Refused("axis_mismatch", f"{node.label} resizes axis {affine.axis}, or may")
    if text(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        outside = node.attrs.get("extrapolation_value", 0.0)
        if affine.has_shift or outside:
            raise Refused("nonzero_padding", f"{node.label} extrapolates a constant")
    return _data(affine)


def is_kept_by_resize(node: Node, affine: Affine, params: Parameters) -> bool:
    """Whether the axis of `affine` goes through a Resize as it is."""
    axis = affine.axis
    if axis is None:
        return True
    before, after = shapes(node)
    if before is None:
        return False
    axes = integers(node, params, "axes", 1 << 30)
    if axes and axis not in [a % len(before) for a in axes]:
        return True
    crop = text(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if axes or (crop and (axis > 1 or not is_spatial_crop(node, axis, len(before), params))):
        return False
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        if text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
            return False  # one scale for all axes, whatever extents it rounds to
        return isinstance(before[axis], int) and after is not None and before[axis] == after[axis]
    scales = resize_scales(node, params)
    return scales is not None and len(scales) == len(before) and scales[axis] == 1


def resize_scales(node: Node, params: Parameters) -> tuple[float, ...] | None:
    """The scales of a Resize or Upsample. An extent that stays does not prove a scale of one: 3 * 1.3 is 3, too."""
    found = node.attrs.get("scales")
    if isinstance(found, tuple):
        return tuple(float(item) for item in found if isinstance(item, float | int))
    value = node.input(1 if node.op == "nn.upsampling" or len(node.inputs) == 2 else 2)
    array = None if value is None else params.evaluator.array(value)
    return None if array is None else tuple(float(item) for item in array.ravel())


def is_spatial_crop(node: Node, axis: int, rank: int, params: Parameters) -> bool:
    """Whether the region of interest has the whole of `axis`."""
    value = node.input(1)
    roi = None if value is None else params.evaluator.array(value)
    return roi is not None and roi.size == 2 * rank and roi.ravel()[axis] == 0 and roi.ravel()[rank + axis] == 1


def transpose(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Transpose: axis a of the result is axis perm[a] of the data."""
    perm = permutation(node)
    if perm is None:
        if affine.axis is not None:
            raise unknown_shape(node)
        return _data(affine)
    moved = affine.permuted(perm)
    if moved is None:
        raise parted(node)
    return _data(moved)


def parted(node: Node) -> Refused:
    """Return the refusal of a Transpose that puts other axes between those that the channels lie on."""
    return Refused("axis_mismatch", f"{node.label} parts the axes that the channels lie on")


def reshape(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Reshape, Flatten, Squeeze, Unsqueeze: the row-major order of the elements stays."""
    if affine.axis is None:
        return _data(affine)
    before, after = shapes(node)
    if before is None or after is None:
        raise unknown_shape(node)
    moved = through_reshape(affine, after, before)
    if moved is None:
        raise Refused("axis_mismatch", f"{node.label}: the channels are no channels in front of it")
    return _data(moved)


MAX_BLOCKS = 1 << 12
"""Blocks of DepthToSpace and SpaceToDepth, which are 4 as a rule."""


def depth_to_space(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """DepthToSpace: channel c of the result is channels c + k C (DCR) or c B + k (CRD) of the data, B blocks in all."""
    if affine.axis is None or affine.axis == 0:
        return _data(affine)
    if affine.axis != 1:
        raise Refused("axis_mismatch", f"{node.label} moves channels into axis {affine.axis}")
    blocks = integer_of(node, "blocksize", 1) ** 2
    if blocks > MAX_BLOCKS:
        raise unknown_shape(node)
    if text(node, "mode", "DCR") == "DCR":
        return _data(affine.map(1, lambda array: np.tile(array, blocks)))
    return _data(affine.map(1, lambda array: np.repeat(array, blocks)))


def space_to_depth(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """SpaceToDepth: the blocks of the result must agree on the channels of the data."""
    if affine.axis is None or affine.axis == 0:
        return _data(affine)
    blocks = integer_of(node, "blocksize", 1) ** 2
    if affine.axis != 1 or affine.channels is None or affine.channels % blocks:
        raise Refused("axis_mismatch", f"{node.label} moves axis {affine.axis} into the channels")
    moved = one_block(node, affine, blocks, by_block=True)
    return _data(moved)


def one_block(node: Node, affine: Affine, blocks: int, *, by_block: bool) -> Affine:
    """The affine of the channels in one of `blocks` blocks that agree; they stand block by block, or interleaved."""
    view = (blocks, -1) if by_block else (-1, blocks)

    def block(array: Array) -> Array:
        parts = array.reshape(view) if by_block else array.reshape(view).T
        return np.ascontiguousarray(parts[0])

    for array in (array for stage in affine.stages for array in stage.arrays() if array.ndim):
        parts = array.reshape(view) if by_block else array.reshape(view).T
        if (parts != parts[:1]).any():
            raise Refused("channel_mismatch", f"{node.label}: its blocks have different scales or shifts")
    return affine.map(1, block)


def concatenate(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Concat: along the channels each operand takes its part of the affine, along another axis all take it whole."""
    shape = shape_of(node.output.type)
    axis = integer_of(node, "axis", 1)
    if axis < 0 and shape is None:
        raise unknown_shape(node)
    axis += len(shape) if axis < 0 and shape is not None else 0
    parts: list[Affine] = []
    if affine.axis != axis:
        parts = [affine] * len(node.inputs)
    else:
        start = 0
        for value in node.inputs:
            extents = None if value is None else shape_of(value.type)
            extent = extents[axis] if extents is not None and axis < len(extents) else None
            if not isinstance(extent, int):
                raise unknown_shape(node)
            parts.append(affine.map(axis, lambda array, start=start, extent=extent: array[start : start + extent]))  # type: ignore[misc]
            start += extent
        if start != affine.channels:
            raise unknown_shape(node)
    operands, constants = [], []
    for i, (value, part) in enumerate(zip(node.inputs, parts, strict=True)):
        assert value is not None
        array = params.evaluator.exact(value)
        if array is None:
            operands.append((i, part))
        elif part.axis is not None and not is_extent(array.shape, part.axis, part.channels):
            raise unknown_shape(node)
        elif array.size:
            constants.append((i, part.apply_along(array)))
    return [Transfer(operands=tuple(operands), constants=tuple(constants))]


def split(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Split along the channels: the data takes the affine in the range of this result, and nothing elsewhere."""
    before, _ = shapes(node)
    axis = integer_of(node, "axis", 0)
    others = any(value.users for i, value in enumerate(node.outputs) if i != index)
    if not others and affine.axis is None:
        return _data(affine)
    if before is None:
        raise unknown_shape(node)
    axis %= len(before)
    if affine.axis not in (axis, None):
        if others:
            raise Refused("multi_consumer", f"{node.label}: its other results would be scaled, too")
        return _data(affine)
    extents = result_extents(node, axis)
    if extents is None or before[axis] != sum(extents) or affine.channels not in (None, extents[index]):
        raise unknown_shape(node)
    start = sum(extents[:index])
    return _data(affine.scattered(axis, sum(extents), np.arange(start, start + extents[index])))


def result_extents(node: Node, axis: int) -> list[int] | None:
    """The extents of all results on `axis`, None where one is unknown."""
    extents: list[int] = []
    for value in node.outputs:
        shape = shape_of(value.type)
        extent = shape[axis] if shape is not None and axis < len(shape) else None
        if not isinstance(extent, int):
            return None
        extents.append(extent)
    return extents


def strided_slice(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Slice: along the channels, those that are read take the affine."""
    if affine.axis is None:
        return _data(affine)
    picked = sliced(node, affine.axis, params)
    if picked is None:
        return _data(affine)
    extent, places = picked
    if len(places) != affine.channels:
        raise unknown_shape(node)
    return _data(affine.scattered(affine.axis, extent, places))


def sliced(node: Node, axis: int, params: Parameters) -> tuple[int, Array] | None:
    """The extent of `axis` in front of a Slice and the places that it reads; None where it takes the whole axis."""
    before, _ = shapes(node)
    starts, ends = integers(node, params, "starts", 1), integers(node, params, "ends", 2)
    axes, steps = integers(node, params, "axes", 3), integers(node, params, "steps", 4)
    if axes is None or (starts is None and not axes) or before is None:
        raise Refused("non_constant_params", f"{node.label}: its bounds are not constant")
    places = [a % len(before) for a in axes] if axes else list(range(len(starts or ())))
    if axis not in places:
        return None
    extent = before[axis]
    if starts is None or ends is None or steps is None or not isinstance(extent, int):
        raise Refused("non_constant_params", f"{node.label}: its bounds are not constant")
    if not len(starts) == len(ends) == len(places) or len(steps) not in (0, len(places)) or extent > MAX_EXTENT:
        raise Refused("axis_mismatch", f"{node.label}: its bounds are not those of its axes")
    place = places.index(axis)
    step = steps[place] if steps else 1
    end: int | None = ends[place]
    if step < 0 and end is not None and end < -extent:
        end = None
    return extent, np.arange(extent)[slice(starts[place], end, step)]


def take(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Gather: along the channels, those that are read take the affine, and readers of one channel must agree."""
    if affine.axis is None:
        return _data(affine)
    picked = gathered(node, params)
    axis, extent, indices, rank = picked
    if affine.axis < axis:
        return _data(affine)
    if affine.axis >= axis + rank:
        return _data(affine.at(affine.axis - rank + 1))
    if rank != 1 or indices is None or not extent or indices.shape != (affine.channels,):
        raise Refused("axis_mismatch", f"{node.label}: the channels are not a list of constant indices")
    places = indices % extent
    for array in (array for stage in affine.stages for array in stage.arrays() if array.ndim):
        full = np.zeros(extent)
        full[places] = array
        if (full[places] != array).any():
            raise Refused("channel_mismatch", f"{node.label} reads one channel twice, for different affines")
    return _data(affine.scattered(axis, extent, places))


def gathered(node: Node, params: Parameters) -> tuple[int, int | None, Array | None, int]:
    """Axis and its extent in front of a Gather, its indices if they are constant, and their rank."""
    before, _ = shapes(node)
    wanted = node.inputs[1]
    ranks = None if wanted is None else shape_of(wanted.type)
    if not before or ranks is None or wanted is None:
        raise unknown_shape(node)
    axis = integer_of(node, "axis", 0) % len(before)
    indices, extent = params.evaluator.array(wanted), before[axis]
    if indices is not None and indices.dtype.kind != "i":
        raise Refused("axis_mismatch", f"{node.label}: the channels are not a list of constant indices")
    return axis, extent if isinstance(extent, int) and 0 <= extent <= MAX_EXTENT else None, indices, len(ranks)


def broadcast_to(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Expand: the channels must be channels in front of it, not copies of one."""
    if affine.axis is None:
        return _data(affine)
    before, after = shapes(node)
    if before is None or after is None:
        raise unknown_shape(node)
    axis = affine.axis - (len(after) - len(before))
    if not is_extent(before, axis, affine.channels):
        raise Refused("axis_mismatch", f"{node.label}: the channels are copies")
    return _data(affine.at(axis))


def tile(node: Node, index: int, affine: Affine, params: Parameters) -> Ways:
    """Tile: where the channels are repeated, the copies must agree."""
    if affine.axis is None:
        return _data(affine)
    repeats = integers(node, params, "repeats", 1)
    if repeats is None or len(node.inputs) != 2 or affine.axis >= len(repeats):
        raise Refused("non_constant_params", f"{node.label}: its repeats are not constant")
    count = repeats[affine.axis]
    if count == 1:
        return _data(affine)
    if count < 1 or affine.channels is None or affine.channels % count:
        raise unknown_shape(node)
    for array in (array for stage in affine.stages for array in stage.arrays() if array.ndim):
        parts = array.reshape(count, -1)
        if (parts != parts[:1]).any():
            raise Refused("channel_mismatch", f"{node.label} repeats channels, for different affines")
    return _data(affine.map(affine.axis, lambda array: array[: len(array) // count]))
