"""Typed views of attributes and constant operands: the one reader of each."""

from __future__ import annotations

import math

import numpy as np

from ..extents import maximum, quotient, total
from ..graph import Node, Value
from ..record import Record
from ..tensor import Array
from ..types import Dim, shape_of, static_dims
from .inference import (
    input_shape,
    integers_of,
    list_attribute,
    normal_axes,
    pieces_of,
)
from .row import Constants, text_of


class ClipBounds(Record):
    """The least and the greatest result of a Clip or Relu; None if there is no bound."""

    low: float | None
    high: float | None

    @property
    def ends(self) -> tuple[float, float]:
        """Both bounds as floats; a missing one is infinite."""
        low = -math.inf if self.low is None else float(self.low)
        return low, math.inf if self.high is None else float(self.high)

    @property
    def is_ordered(self) -> bool:
        """Whether the bounds are numbers, the lower one not above the upper one."""
        low, high = self.ends
        return low <= high


def clip_bounds(node: Node, constants: Constants) -> ClipBounds | None:
    """Return the bounds of a `clip` or `nn.relu`, None if they are computed at run time."""
    if node.op == "nn.relu":
        return ClipBounds(0, None)
    found: list[float | None] = []
    for given in (node["min"], node["max"]):
        if given is None:
            found.append(None)
            continue
        array = constants.array(given)
        if array is None or array.size != 1 or array.dtype.kind == "O":
            return None
        found.append(
            array.ravel()[0].item() if array.dtype.kind in "iuf" else float(array.ravel()[0])
        )
    return ClipBounds(*found)


def normalizes_last_axis(node: Node) -> bool:
    """Return whether the results of a `nn.softmax` add up to 1 along the last axis alone.

    Before opset 13 they do so over all axes from `axis` on.
    """
    shape, axis = input_shape(node), node.attrs.get("axis", -1 if node.opset >= 13 else 1)
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


class Window(Record):
    """The window of a convolution or pool along its spatial axes.

    `pads` are the pads at all beginnings, then those at all ends; None if `auto_pad` decides on
    them.
    """

    auto_pad: str
    pads: tuple[int, ...] | None
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    def padding(
        self, extents: tuple[Dim, ...] | None, kernel: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """Return the pads beside data of spatial `extents`, None if they need an unknown one."""
        if self.pads is not None:
            return self.pads
        begins, ends = [], []
        for i, extent in enumerate(kernel):
            size = extents[i] if extents is not None and i < len(extents) else None
            if not isinstance(size, int):
                return None
            total = max(0, self.reach(i, -(-size // self.strides[i]), extent) - size)
            small, large = total // 2, total - total // 2
            begins.append(small if self.auto_pad == "SAME_UPPER" else large)
            ends.append(large if self.auto_pad == "SAME_UPPER" else small)
        return (*begins, *ends)

    def reach(self, axis: int, count: int, kernel: int) -> int:
        """Return the extent of data that `count` windows of `kernel` elements cover."""
        return (count - 1) * self.strides[axis] + (kernel - 1) * self.dilations[axis] + 1

    def count(self, axis: int, size: int, kernel: int, *, ceil: bool = False) -> int | None:
        """Return the number of windows along data of `size` elements.

        None if `auto_pad` decides on the pads, and if a window is larger than the data with their
        pads: runtimes count one there, or none. With `ceil`, a last window that the data do not
        fill counts if it starts inside the data or the padding before them. onnx's shape inference
        counts it anyway.
        """
        if self.pads is None or self.auto_pad != "NOTSET":
            return None
        stride, before = self.strides[axis], self.pads[axis]
        beyond = size + before + self.pads[len(self.strides) + axis] - self.reach(axis, 1, kernel)
        if beyond < 0:
            return None
        count, rest = divmod(beyond, stride)
        return count + (2 if ceil and rest and (count + 1) * stride < size + before else 1)

    def extent(
        self, axis: int, size: Dim, kernel: int, *, ceil: bool = False, fits: bool = False
    ) -> Dim:
        """Return `count`, or by `auto_pad` the number of windows that all runtimes count.

        These are windows without dilations: runtimes disagree on the pads of others. An operator
        that `fits` refuses data that are smaller than a window.
        """
        if not isinstance(size, int):
            return None if size is None or ceil else self._open_extent(axis, size, kernel, fits)
        if self.auto_pad == "NOTSET":
            return self.count(axis, size, kernel, ceil=ceil)
        if ceil or self.dilations[axis] != 1:
            return None
        if self.auto_pad == "VALID":
            return None if size < kernel else (size - kernel) // self.strides[axis] + 1
        return -(-size // self.strides[axis])

    def _open_extent(self, axis: int, size: Dim, kernel: int, fits: bool) -> Dim:
        """Return the number of windows along data of an open extent.

        None if a window may be larger than the data with their pads: runtimes round the number of
        these windows in several ways. If it is larger than empty data alone, by one, onnx's shape
        inference and onnxruntime round the quotient towards 0: they count one window.
        """
        stride = self.strides[axis]
        if self.pads is None:
            return quotient(total(size, stride - 1), stride) if self.dilations[axis] == 1 else None
        pads = self.pads[axis] + self.pads[len(self.strides) + axis]
        spare = pads - self.reach(axis, 1, kernel)
        room = total(size, spare)
        if not fits and stride > 1:
            if spare < -1:
                return None
            room = maximum(room, 0)
        return total(quotient(room, stride), 1)


def auto_pad_of(node: Node) -> str:
    """Return the attribute `auto_pad`: NOTSET, VALID, SAME_UPPER or SAME_LOWER."""
    return text_of(node, "auto_pad", "NOTSET") or "NOTSET"


def window_of(node: Node, rank: int) -> Window | None:
    """Return the window of a convolution or pool over `rank` axes, None if attributes are wrong."""
    auto_pad = auto_pad_of(node)
    # Of the others, only VALID says how much it pads without the extents of the data.
    pads: tuple[int, ...] | None = (0,) * (2 * rank)
    if auto_pad == "NOTSET":
        pads = list_attribute(node, "pads", pads)
    elif auto_pad != "VALID":
        pads = None
    strides, dilations = (
        list_attribute(node, name, (1,) * rank) for name in ("strides", "dilations")
    )
    if strides is None or dilations is None or not all(strides):
        return None
    if pads is None and auto_pad == "NOTSET":
        return None
    return Window(auto_pad, pads, strides, dilations)


def pads_of(node: Node, constants: Constants) -> dict[int, tuple[Dim, Dim]] | None:
    """Return how many elements a Pad adds before and after each axis; a negative number crops.

    Numbers that are computed at run time are known in part. None stands for axes that are unknown,
    or if it is not known how many pads there are.
    """
    pads = pieces_of(node, "pads", constants)
    axes = _axes_of(node, None if pads is None else len(pads) // 2, constants)
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return None
    if node["axes"] is not None and input_shape(node) is None:
        return None
    return dict(zip(axes, zip(pads, pads[len(axes) :], strict=False), strict=True))


def sliced_axes(node: Node, constants: Constants) -> list[int] | None:
    """Return the axes that a Slice slices, None if they are unknown.

    They are counted from the left if the rank is known.
    """
    starts = pieces_of(node, "starts", constants)
    return _axes_of(node, None if starts is None else len(starts), constants)


def slice_bounds(node: Node, constants: Constants) -> dict[int, tuple[Dim, Dim, int | None]] | None:
    """Return start, end and step along each axis that a Slice slices, None if it is not known."""
    axes, steps = sliced_axes(node, constants), integers_of(node, "steps", constants)
    if axes is None:
        return None
    unknown = (None,) * len(axes)
    starts, ends = (pieces_of(node, side, constants) or unknown for side in ("starts", "ends"))
    columns = (starts, ends, unknown if steps is None else steps or (1,) * len(axes))
    if any(len(column) != len(axes) for column in columns):
        return None
    return dict(zip(axes, zip(*columns, strict=True), strict=True))


def slices_of(node: Node, constants: Constants) -> dict[int, slice] | None:
    """Return the slice along each axis that a Slice slices, None if it is computed at run time."""
    bounds = slice_bounds(node, constants)
    if bounds is None:
        return None
    found: dict[int, slice] = {}
    for axis, listed_bounds in bounds.items():
        chosen = known_slice(*listed_bounds)
        if chosen is None:
            return None
        found[axis] = chosen
    return found


def known_slice(start: Dim, end: Dim, step: int | None) -> slice | None:
    """Return the slice with these bounds, None if one is computed at run time."""
    is_known = isinstance(start, int) and isinstance(end, int) and step
    return slice(start, end, step) if is_known else None


def _axes_of(node: Node, count: int | None, constants: Constants) -> list[int] | None:
    """Return the axes of a Slice or Pad, by default the first `count`; None if one comes twice."""
    axes, shape = integers_of(node, "axes", constants), input_shape(node)
    if axes is None or (not axes and count is None):
        return None
    axes = axes or tuple(range(count or 0))
    if shape is None:
        return list(axes) if len(set(axes)) == len(axes) else None
    return normal_axes(axes, len(shape))


def scales_of(node: Node, constants: Constants) -> tuple[float | None, ...] | None:
    """Return the scales of a Resize or Upsample, None if it is not known how many there are.

    A scale that is computed at run time is None. Constants that are joined with it are known.
    """
    value, found = node["scales"], list[float | None]()
    joined = value.node if value is not None and constants.array(value) is None else None
    parts = joined.inputs if joined is not None and joined.op == "concatenate" else [value]
    for part in parts:
        array, shape = constants.array(part), None if part is None else shape_of(part.type)
        count = shape[0] if shape else None
        if array is not None:
            found += array.ravel().tolist()
        elif isinstance(count, int):
            found += [None] * count
        else:
            return None
    return tuple(found)


MAX_RESIZED = 1 << 20
"""Largest extent and scale of which the product is computed."""


def resized_extent(dim: Dim, scale: float | None) -> Dim:
    """Return floor(dim * scale), None if that is unknown or differs from the product in float32.

    Runtimes compute with float32.
    """
    if scale == 1 or dim is None:
        return dim
    if scale is None or not isinstance(dim, int):
        return None
    if not 0 < scale <= MAX_RESIZED or dim > MAX_RESIZED:
        return None
    extent = math.floor(dim * scale)
    return extent if extent == math.floor(np.float32(dim) * np.float32(scale)) else None


def resizes_in_doubt(value: Value, scales: Array) -> bool:
    """Return whether a reader of `value` resizes to extents in doubt if `scales` are its scales.

    If they are constant, onnx's shape inference says extents that onnxruntime may contradict.
    """
    for node in value.users:
        if node.op in RESIZERS and node["scales"] is value:
            shape = input_shape(node)
            if shape is None or len(shape) != scales.size:
                return True
            # A symbol has another value in each run, and onnx's inference says nothing of it.
            pairs = zip(shape, scales.ravel().tolist(), strict=True)
            scaled = [pair for pair in pairs if pair[1] != 1 and not isinstance(pair[0], str)]
            if any(resized_extent(dim, scale) is None for dim, scale in scaled):
                return True
    return False


RESIZERS = ("image.resize", "nn.upsampling")


def spatial_extents(node: Node, rank: int) -> tuple[int, ...] | None:
    """Return the extents of a convolution's data after batch and channels, None if one is open."""
    shape = input_shape(node)
    dims = None if shape is None else static_dims(shape[2:])
    return dims if dims is not None and len(dims) == rank else None


def explicit_pads(node: Node, kernel: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the pads of a convolution, all beginnings and then all ends.

    None stands for pads that depend on unknown extents.
    """
    window = window_of(node, len(kernel))
    return None if window is None else window.padding(spatial_extents(node, len(kernel)), kernel)


def may_read_padding(node: Node, kernel: tuple[Dim, ...] | None) -> bool:
    """Return whether windows of `kernel` elements may reach beyond the border of the data.

    `auto_pad` SAME pads as much as ceil(extent / stride) windows need, which is nothing for windows
    of one element.
    """
    mode = auto_pad_of(node)
    if mode == "VALID":
        return False
    if mode == "NOTSET":
        pads = node.attrs.get("pads", ())
        return not isinstance(pads, tuple) or any(pads)
    window = None if kernel is None else window_of(node, len(kernel))
    if kernel is None or window is None:
        return True
    shape = input_shape(node)
    sizes = (
        shape[2:] if shape is not None and len(shape) == len(kernel) + 2 else (None,) * len(kernel)
    )
    for i, (size, extent) in enumerate(zip(sizes, kernel, strict=True)):
        if extent == 1:
            continue
        if not (isinstance(size, int) and isinstance(extent, int)):
            return True
        if window.reach(i, -(-size // window.strides[i]), extent) > size:
            return True
    return False
