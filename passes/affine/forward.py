"""How an affine of an operand passes an operator: op(scale * x + shift) = scale' * op(x) + shift'.

The mirror images of the rules in `backward`, whose conditions they share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...ir.graph import Node
from ...ir.ops.inference import integer_of
from ...ir.ops.reshaping import permutation
from ...ir.provenance import Refused
from ...ir.tensor import Array
from ...ir.types import shape_of
from . import backward
from .algebra import Affine
from .backward import (
    MAX_BLOCKS,
    clip_bounds,
    gathered,
    new_bounds,
    one_block,
    padded,
    padding,
    parted,
    result_extents,
    sliced,
)
from .operands import (
    Parameters,
    common_value,
    fits_attribute,
    integers,
    shapes,
    static_size,
    text,
)
from .remap import through_reshape
from .transfer import Transfer, check_no_shift, check_scale_sign, is_extent, reduced_axes, unknown_shape

Given = Mapping[int, Affine]


def _result(affine: Affine) -> Transfer:
    return Transfer(results=((0, affine),))


def _only(node: Node, given: Given) -> Affine:
    """The affine of the data, which is the first operand and the only one that has one."""
    if list(given) != [0]:
        raise Refused("unsupported_op", f"{node.label} reads the affine as a parameter")
    return given[0]


def unchanged(node: Node, given: Given, params: Parameters) -> Transfer:
    """Identity, Dropout: op(x) = x."""
    affine = _only(node, given)
    if any(value.users for value in node.outputs[1:]):
        raise Refused("unsupported_op", f"{node.label}: its mask is read")
    return _result(affine)


def negative(node: Node, given: Given, params: Parameters) -> Transfer:
    """Neg: -(s x + t) = s (-x) - t."""
    affine = _only(node, given)
    return _result(affine.rescaled_data(-1.0))


def rectifier(node: Node, given: Given, params: Parameters) -> Transfer:
    """Relu, LeakyRelu, PRelu, Abs: op(s x) = s op(x) for s >= 0; no shift passes."""
    affine = _only(node, given)
    check_no_shift(node, affine)
    check_scale_sign(node, affine)
    return _result(affine)


def clip(node: Node, given: Given, params: Parameters) -> Transfer:
    """Clip: the bounds a and b become (a - t) / s and (b - t) / s, swapped where s < 0."""
    affine = _only(node, given)
    bounds = clip_bounds(node, affine, params)
    with np.errstate(all="ignore"):
        ends = [float((b - affine.shift) / affine.scale) if np.isfinite(b) else b for b in bounds]
    if not all(np.isfinite(end) == np.isfinite(b) for end, b in zip(ends, bounds, strict=True)):
        raise Refused("nonfinite", f"{node.label}: a new bound is not finite")
    changed = new_bounds(node, ends, swapped=bool(affine.scale < 0))
    return replace(changed, results=((0, affine),))


def hard_sigmoid(node: Node, given: Given, params: Parameters) -> Transfer:
    """HardSigmoid: clip(alpha x + beta, 0, 1) of s x + t has alpha s and alpha t + beta, which are scalars."""
    affine = _only(node, given)
    if affine.axis is not None:
        raise Refused("activation_between", f"{node.label}: its slope is not per channel")
    alpha, beta = node.attrs.get("alpha", float(np.float32(0.2))), node.attrs.get("beta", 0.5)
    assert isinstance(alpha, float | int) and isinstance(beta, float | int)
    slope, offset = float(alpha * affine.scale), float(alpha * affine.shift + beta)
    if max(abs(slope), abs(offset)) > float(np.finfo(np.float32).max):
        raise Refused("overflow", f"{node.label}: the new slope is not finite")
    if not (fits_attribute(node, slope) and fits_attribute(node, offset)):
        raise Refused("dtype_mismatch", f"{node.label}: its slope is an attribute, which is a float32")
    return Transfer(attrs=(("alpha", slope), ("beta", offset)))


def pool(node: Node, given: Given, params: Parameters, *, kind: str) -> Transfer:
    """Pools: the conditions are those of the way back."""
    affine = _only(node, given)
    backward.pool(node, 0, affine, params, kind=kind)
    return _result(affine)


def reduce(node: Node, given: Given, params: Parameters, *, kind: str) -> Transfer:
    """ReduceMax, -Min, -Mean, -Sum, -L1, -L2 over other axes than the channels, or of a uniform affine."""
    affine = _only(node, given)
    found = reduced_axes(node, params)
    axes, _ = found
    moved = affine
    if affine.axis is not None:
        if affine.axis in axes:
            raise Refused("axis_mismatch", f"{node.label} reduces the channels")
        kept = affine.axis if node.attrs.get("keepdims", 1) else affine.axis - sum(a < affine.axis for a in axes)
        moved = affine.at(kept)
    if kind in ("max", "norm"):
        check_scale_sign(node, affine)
        if kind == "norm":
            check_no_shift(node, affine)
        return _result(moved)
    if kind == "sum" and affine.has_shift:
        before, _ = shapes(node)
        assert before is not None
        terms = static_size(tuple(before[axis] for axis in axes))
        if not terms:
            raise Refused("unknown_rank", f"{node.label}: the number of terms is unknown")
        moved = moved.rescaled_data(1.0 / terms)
    return _result(moved)


def pad(node: Node, given: Given, params: Parameters) -> Transfer:
    """Pad: a constant v becomes (v - t) / s, which must be the same number in every channel."""
    affine = _only(node, given)
    found = padding(node, params, affine)
    begin, end, value = found
    if begin or end:
        raise Refused("axis_mismatch", f"{node.label} pads or crops the channels")
    if value is None or (value == 0 and not affine.has_shift):
        return _result(affine)
    if not affine.scale.all():
        raise Refused("zero_scale", f"{node.label}: a scale is zero")
    with np.errstate(all="ignore"):
        new = common_value((value - affine.shift) / affine.scale)
    if new is None:
        raise Refused("nonzero_padding", f"{node.label}: the padding {value:.6g} would differ between channels")
    return padded(node, value, new, _result(affine))[0]


def resize(node: Node, given: Given, params: Parameters) -> Transfer:
    """Resize, Upsample: the conditions are those of the way back."""
    affine = _only(node, given)
    backward.resize(node, 0, affine, params)
    return _result(affine)


def transpose(node: Node, given: Given, params: Parameters) -> Transfer:
    """Transpose: axis perm[a] of the data is axis a of the result."""
    affine = _only(node, given)
    if affine.axis is None:
        return _result(affine)
    perm = permutation(node)
    if perm is None:
        raise unknown_shape(node)
    moved = affine.permuted([perm.index(axis) for axis in range(len(perm))])
    if moved is None:
        raise parted(node)
    return _result(moved)


def reshape(node: Node, given: Given, params: Parameters) -> Transfer:
    """Reshape, Flatten, Squeeze, Unsqueeze: the row-major order of the elements stays."""
    affine = _only(node, given)
    if affine.axis is None:
        return _result(affine)
    before, after = shapes(node)
    if before is None or after is None:
        raise unknown_shape(node)
    moved = through_reshape(affine, before, after)
    if moved is None:
        raise Refused("axis_mismatch", f"{node.label}: the channels are no channels behind it")
    return _result(moved)


def depth_to_space(node: Node, given: Given, params: Parameters) -> Transfer:
    """DepthToSpace: the blocks that become one channel must agree."""
    affine = _only(node, given)
    if affine.axis in (None, 0):
        return _result(affine)
    blocks = integer_of(node, "blocksize", 1) ** 2
    if affine.axis != 1 or affine.channels is None or affine.channels % blocks:
        raise Refused("axis_mismatch", f"{node.label} moves channels into axis {affine.axis}")
    moved = one_block(node, affine, blocks, by_block=text(node, "mode", "DCR") == "DCR")
    return _result(moved)


def space_to_depth(node: Node, given: Given, params: Parameters) -> Transfer:
    """SpaceToDepth: every block of the result has the channels of the data."""
    affine = _only(node, given)
    if affine.axis in (None, 0):
        return _result(affine)
    if affine.axis != 1:
        raise Refused("axis_mismatch", f"{node.label} moves axis {affine.axis} into the channels")
    blocks = integer_of(node, "blocksize", 1) ** 2
    if blocks > MAX_BLOCKS:
        raise unknown_shape(node)
    return _result(affine.map(1, lambda array: np.tile(array, blocks)))


def concatenate(node: Node, given: Given, params: Parameters) -> Transfer:
    """Concat along the channels: the other operands have the identity; along another axis all must agree."""
    shape = shape_of(node.output.type)
    axis = integer_of(node, "axis", 1)
    if axis < 0 and shape is None:
        raise unknown_shape(node)
    axis += len(shape) if axis < 0 and shape is not None else 0
    first = next(iter(given.values()))
    if len(given) == len(node.inputs) and first.axis != axis and all(first.equals(other) for other in given.values()):
        return _result(first)
    if any(affine.axis not in (axis, None) for affine in given.values()):
        raise Refused("multi_consumer", f"{node.label}: not all operands have the same affine")
    places, end = {}, 0
    for i, value in enumerate(node.inputs):
        extents = None if value is None else shape_of(value.type)
        extent = extents[axis] if extents is not None and axis < len(extents) else None
        if not isinstance(extent, int):
            raise unknown_shape(node)
        if i in given:
            places[i] = slice(end, end + extent)
        end += extent
    scale, shift = np.ones(end), np.zeros(end)
    for i, affine in given.items():
        if affine.channels not in (None, places[i].stop - places[i].start):
            raise unknown_shape(node)
        scale[places[i]], shift[places[i]] = affine.scale, affine.shift
    origins = tuple(dict.fromkeys(origin for affine in given.values() for origin in affine.origins))
    return _result(Affine.joined(axis, scale, shift, origins))


def split(node: Node, given: Given, params: Parameters) -> Transfer:
    """Split: along the channels each result has its part of the affine."""
    affine = _only(node, given)
    before, _ = shapes(node)
    if affine.axis is None:
        return Transfer(results=tuple((i, affine) for i in range(len(node.outputs))))
    if before is None:
        raise unknown_shape(node)
    axis = integer_of(node, "axis", 0) % len(before)
    if affine.axis != axis:
        return Transfer(results=tuple((i, affine) for i in range(len(node.outputs))))
    extents = result_extents(node, axis)
    if extents is None or sum(extents) != affine.channels:
        raise unknown_shape(node)
    results, start = [], 0
    for i, extent in enumerate(extents):
        part = slice(start, start + extent)
        results.append((i, affine.map(axis, lambda array, part=part: array[part])))  # type: ignore[misc]
        start += extent
    return Transfer(results=tuple(results))


def strided_slice(node: Node, given: Given, params: Parameters) -> Transfer:
    """Slice: along the channels, those that are read."""
    affine = _only(node, given)
    if affine.axis is None:
        return _result(affine)
    picked = sliced(node, affine.axis, params)
    if picked is None:
        return _result(affine)
    _, places = picked
    return _result(affine.map(affine.axis, lambda array: array[places]))


def take(node: Node, given: Given, params: Parameters) -> Transfer:
    """Gather: along the channels, those that are read."""
    affine = _only(node, given)
    if affine.axis is None:
        return _result(affine)
    picked = gathered(node, params)
    axis, extent, indices, rank = picked
    if affine.axis < axis:
        return _result(affine)
    if affine.axis > axis:
        return _result(affine.at(affine.axis + rank - 1))
    if rank != 1 or indices is None or extent != affine.channels:
        raise Refused("axis_mismatch", f"{node.label}: the channels are not a list of constant indices")
    return _result(affine.map(axis, lambda array: array[indices]))


def broadcast_to(node: Node, given: Given, params: Parameters) -> Transfer:
    """Expand: the channels stay channels."""
    affine = _only(node, given)
    if affine.axis is None:
        return _result(affine)
    before, after = shapes(node)
    if before is None or after is None:
        raise unknown_shape(node)
    axis = affine.axis + len(after) - len(before)
    if not is_extent(after, axis, affine.channels):
        raise unknown_shape(node)
    return _result(affine.at(axis))


MAX_REPEATS = 1 << 16


def tile(node: Node, given: Given, params: Parameters) -> Transfer:
    """Tile: the channels are repeated."""
    affine = _only(node, given)
    if affine.axis is None:
        return _result(affine)
    repeats = integers(node, params, "repeats", 1)
    if repeats is None or len(node.inputs) != 2 or affine.axis >= len(repeats) or repeats[affine.axis] < 1:
        raise Refused("non_constant_params", f"{node.label}: its repeats are not constant")
    count = repeats[affine.axis]
    if count > MAX_REPEATS:
        raise unknown_shape(node)

    def repeated(array: Array) -> Array:
        return np.tile(array, count)

    return _result(affine.map(affine.axis, repeated))
