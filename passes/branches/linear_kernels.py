"""Kernels: layers, pools and affines in one form, so that they can be added and composed.

A convolution reads offset d * j - p of its data with tap j of an axis: dilation d, first pad p. So
convolutions of one value are one if their offsets lie on one grid, and their results have equal
extents. An affine is a kernel of one tap at offset 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, prod

import numpy as np

from ...ir.graph import Node, Value
from ...ir.ops.inference import input_shape, integer_of, list_attribute
from ...ir.ops.views import auto_pad_of, explicit_pads, may_read_padding, window_of
from ...ir.provenance import Refused
from ...ir.record import Record
from ...ir.tensor import Array, all_finite, fits, smallest_normal, to_float64
from ...ir.types import DType, shape_of, static_dims
from ...support.statement import states
from ..affine.algebra.layers import read_bias, read_weight
from ..affine.algebra.operands import Parameters

LAYERS = ("nn.conv", "nn.conv_transpose", "nn.dense", "matmul", "nn.avg_pool")
"""Operators that are kernels of their first operand."""

DENSE = ("nn.dense", "matmul")
"""Two operators of one kind of kernel, without spatial axes."""


class Axis(Record):
    """The taps of a kernel along one spatial axis: offsets dilation * j - start for j < count.

    `beyond` is the extent of the result for stride 1 minus the data's: kernels of equal `beyond`
    have results of equal extents.
    """

    count: int
    start: int
    dilation: int
    stride: int
    beyond: int

    @property
    def reach(self) -> int:
        """The distance between the first tap and the last."""
        return self.dilation * (self.count - 1)

    @property
    def last(self) -> int:
        """The offset of the last tap."""
        return self.reach - self.start

    @property
    def is_point(self) -> bool:
        """Whether there is one tap at offset 0, of stride 1, and no padding."""
        return (self.count, self.start, self.stride, self.beyond) == (1, 0, 1, 0)


class LinearKernel(Record):
    """A linear map in float64: `weight` [M, C / group, taps...], and `bias` [M] or [].

    `kind` is its layer: `nn.conv`, `nn.conv_transpose`, or `matmul` without axes. A kernel
    of one number for each channel and tap has C groups. `extra` is the output_padding of a
    transposed convolution, and `extents` has the spatial extents of the result if they are known.
    """

    kind: str
    weight: Array
    bias: Array
    group: int
    axes: tuple[Axis, ...]
    dtype: DType | None = None
    extra: tuple[int, ...] = ()
    extents: tuple[int, ...] | None = None

    @property
    def channels(self) -> int:
        """The number of channels of the data."""
        return int(self.weight.shape[1]) * self.group

    @property
    def results(self) -> int:
        """The number of channels of the result."""
        return len(self.weight)

    @property
    def is_diagonal(self) -> bool:
        """Whether each channel of the result reads the same channel of the data alone."""
        return self.group == self.channels == self.results

    @property
    def largest(self) -> Array:
        """The greatest magnitude of a weight for each channel of the result."""
        return np.asarray(np.abs(self.weight).max(axis=tuple(range(1, self.weight.ndim))))

    def check_fits(self, source: str) -> None:
        """Refuse numbers, of the `source` of the kernel in the reason, that its type does not hold.

        They are infinite or not numbers, or exceed the type when they are rounded.
        """
        assert self.dtype is not None
        for array in (self.weight, self.bias):
            if not (all_finite(array) and fits(array, self.dtype)):
                raise Refused("overflow", f"a weight of the {source} is not a finite {self.dtype}")

    def scaled(self, scale: Array, shift: Array) -> LinearKernel:
        """Return the kernel of scale * y + shift, y its result."""
        factor = np.broadcast_to(scale, (self.results,)).reshape(-1, *[1] * (self.weight.ndim - 1))
        return LinearKernel(
            self.kind, self.weight * factor, self.bias * scale + shift, self.group, self.axes,
            self.dtype, self.extra, self.extents,
        )  # fmt: skip


def weight_of(layer: Node) -> Value:
    """Return the weight of a layer or product."""
    return layer["rhs"] if layer.op == "matmul" else layer["weight"]


def bias_of(layer: Node) -> Value | None:
    """Return the bias of a layer, None for a MatMul."""
    return None if layer.op == "matmul" else layer["bias"]


def kernel_of(node: Node, params: Parameters) -> LinearKernel:
    """Return the kernel of a layer or pool. Raises Refused if it has none.

    A pool has one channel in its weight, and fits any number of channels: see `diagonal`.
    """
    if node.op in DENSE:
        return _dense(node, params)
    if node.op == "nn.avg_pool":
        return _pool(node)
    weight = read_weight(node, 1, params)
    array, group = to_float64(weight.array), integer_of(node, "group", 1)
    transposed = node.op == "nn.conv_transpose"
    if array.ndim < 3 or group < 1 or array.shape[0] % group:
        detail = f"{node.description}: weight {list(array.shape)} does not fit its groups"
        raise Refused("channel_mismatch", detail)
    if transposed:
        array = turned(array, group)
    bias = read_bias(node, params)
    if bias is not None and bias.shape != (len(array),):
        raise Refused("channel_mismatch", f"{node.description}: its bias does not fit")
    extra = _output_padding(node, array.ndim - 2) if transposed else ()
    axes = _axes(node, array.shape[2:], extra)
    bias = np.zeros(len(array)) if bias is None else bias
    return LinearKernel(node.op, array, bias, group, axes, weight.dtype, extra, _extents(node))


def _output_padding(node: Node, rank: int) -> tuple[int, ...]:
    found = list_attribute(node, "output_padding", (0,) * rank)
    if found is None or auto_pad_of(node) != "NOTSET" or "output_shape" in node.attrs:
        raise Refused("unsupported_attr", f"{node.description}: its pads are not stated")
    return tuple(found)


def turned(array: Array, group: int) -> Array:
    """Return a weight [A, B / group, ...] as [B, A / group, ...]: a transposed convolution's."""
    rows, columns, *taps = array.shape
    grouped = array.reshape(group, rows // group, columns, *taps)
    return np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(-1, rows // group, *taps)


def _axes(node: Node, kernel: tuple[int, ...], extra: Sequence[int] = ()) -> tuple[Axis, ...]:
    pads, window = explicit_pads(node, kernel), window_of(node, len(kernel))
    # Taps have offsets from the start of the data; negative pads would cut some of the data off.
    if pads is None or window is None or min(pads) < 0 or not prod(kernel):
        raise Refused("unsupported_attr", f"{node.description}: its pads depend on the data")
    found = []
    for axis, count in enumerate(kernel):
        begin, end = pads[axis], pads[axis + len(kernel)]
        dilation, stride = window.dilations[axis], window.strides[axis]
        beyond = begin + end - dilation * (count - 1)
        if extra:
            beyond = extra[axis] - beyond
        found.append(Axis(count, begin, dilation if count > 1 else 1, stride, beyond))
    return tuple(found)


def _extents(node: Node) -> tuple[int, ...] | None:
    shape = shape_of(node.output.type)
    return None if shape is None else static_dims(shape[2:])


def _pool(node: Node) -> LinearKernel:
    """Return an average pool that divides by one constant as a kernel of one channel."""
    kernel = list_attribute(node, "kernel_shape")
    counts_padding = bool(node.attrs.get("count_include_pad", 0))
    if kernel is None or node.attrs.get("ceil_mode", 0):
        detail = f"{node.description} may divide by another number at the end"
        raise Refused("unsupported_attr", detail)
    if not counts_padding and may_read_padding(node, tuple(kernel)):
        raise Refused("nonzero_padding", f"{node.description} divides by less at the border")
    weight = np.full((1, 1, *kernel), 1.0 / prod(kernel))
    axes = _axes(node, tuple(kernel))
    return LinearKernel("nn.conv", weight, np.zeros(1), 1, axes, extents=_extents(node))


def _dense(node: Node, params: Parameters) -> LinearKernel:
    """Return x W + c, the weight as [outputs, inputs]."""
    weight = read_weight(node, 1, params)
    array = to_float64(weight.array)
    shapes = (input_shape(node), shape_of(node.output.type))
    is_known = node.op != "matmul" or None not in shapes
    if array.ndim != 2 or node.attrs.get("transA", 0) or not is_known:
        detail = f"{node.description} is not a product of its data and a matrix"
        raise Refused("unsupported_attr", detail)
    if node.op == "matmul":
        return LinearKernel("matmul", array.T, np.zeros(array.shape[1]), 1, (), weight.dtype)
    if not node.attrs.get("transB", 0):
        array = array.T
    alpha, beta = (node.attrs.get(name, 1.0) for name in ("alpha", "beta"))
    assert isinstance(alpha, float | int) and isinstance(beta, float | int)
    bias = read_bias(node, params)
    total = np.zeros(len(array))
    if bias is not None and beta:
        if bias.ndim > 1 and bias.shape[:-1] != (1,) * (bias.ndim - 1):
            raise Refused("channel_mismatch", f"{node.description}: C differs between rows")
        total = np.broadcast_to(float(beta) * bias.reshape(-1), total.shape)
    return LinearKernel("matmul", array * float(alpha), total, 1, (), weight.dtype)


def diagonal(kernel: LinearKernel, channels: int) -> LinearKernel:
    """Return a kernel of one channel, the same for each of `channels`."""
    weight = np.broadcast_to(kernel.weight, (channels, *kernel.weight.shape[1:]))
    bias = np.broadcast_to(kernel.bias, (channels,))
    return LinearKernel(
        kernel.kind, weight, bias, channels, kernel.axes, kernel.dtype, kernel.extra, kernel.extents
    )


def identity(like: LinearKernel) -> LinearKernel:
    """Return the kernel of the data itself, for a sum with `like`."""
    axes = (Axis(1, 0, 1, 1, 0),) * len(like.axes)
    weight = np.ones((like.channels, 1, *[1] * len(axes)))
    zeros = np.zeros(like.channels)
    return LinearKernel(like.kind, weight, zeros, like.channels, axes, None, (0,) * len(like.extra))


@states(
    "conv(conv(x, v, b), w, c, 1, d, q) =="
    " conv(x, product(w, v), c + response(b, w, 1), 1, d, q) if (b == 0) | unpadded(q);"
    " conv(conv(x, w, c, 1, d, q), u, b) =="
    " conv(x, product(u, w), b + response(c, u, 1), 1, d, q);"
    " (y @ m) @ n == y @ (m @ n)"
)
def composed(last: LinearKernel, first: LinearKernel) -> LinearKernel:
    """Return the kernel of `last` of the result of `first`. Raises Refused if there is none.

    One of two convolutions has one tap, at offset 0, of stride 1. The zeros that the last one pads
    with are the bias of the first one only if that is zero.
    """
    if last.kind != first.kind or last.channels != first.results or last.group * first.group != 1:
        raise Refused("channel_mismatch", "the layers in a row have groups, or are not alike")
    if last.kind == "nn.conv_transpose":
        raise Refused("unsupported_op", "transposed convolutions in a row stay")
    if len(last.axes) != len(first.axes):
        raise Refused("channel_mismatch", "the layers in a row have different ranks")
    outer = first.axes if is_pointwise(last) else last.axes
    if not (is_pointwise(last) or is_pointwise(first)):
        raise Refused("unsupported_attr", "neither of the layers in a row has one tap")
    if first.bias.any() and any(axis.start or axis.beyond > -axis.reach for axis in last.axes):
        raise Refused("nonzero_padding", "the padding between the layers is not the bias")
    tapwise = [np.moveaxis(each.weight, (0, 1), (-2, -1)) for each in (last, first)]
    weight = np.moveaxis(np.matmul(*tapwise), (-2, -1), (0, 1))
    taps = last.weight.sum(axis=tuple(range(2, last.weight.ndim)))
    product = LinearKernel(
        last.kind, weight, taps @ first.bias + last.bias, 1, outer, last.dtype, (), last.extents
    )
    if last.dtype is not None:
        tiny = smallest_normal(last.dtype)
        lost = (product.largest < tiny) & (last.largest >= tiny)
        if lost.any() and first.largest.max(initial=0.0) >= tiny:
            detail = f"the product of the layers in a row vanishes in {last.dtype}"
            raise Refused("underflow", detail)
    return product


def is_pointwise(kernel: LinearKernel) -> bool:
    """Return whether a kernel reads and computes one position at a time."""
    return all(each.is_point for each in kernel.axes)


def in_groups(weight: Array, columns: int) -> Array:
    """Return a weight with `columns` channels a group: a diagonal one is written out."""
    if weight.shape[1] == columns:
        return weight
    found = np.zeros((len(weight), columns, *weight.shape[2:]), weight.dtype)
    rows = np.arange(len(weight))
    found[rows, rows % columns] = weight[:, 0]
    return found


@states(
    "conv(x, v, b, g, d, p) + conv(x, w, c, g, d, q) =="
    " conv(x, wider(v, p, r) + wider(w, q, r), b + c, g, d, r);"
    " conv(x, w, c, 1, h, q) - x == conv(x, w - unit(w, q), c, 1, h, q)"
)
def added(kernels: Sequence[LinearKernel]) -> LinearKernel:
    """Return the sum of kernels of one value. Raises Refused if it is not a kernel."""
    first = kernels[0]
    full = [each for each in kernels if not each.is_diagonal]
    group = full[0].group if full else first.group
    for each in kernels:
        if len(each.axes) != len(first.axes):
            raise Refused("channel_mismatch", "the branches have different ranks")
        if (each.kind, each.channels, each.results) != (first.kind, first.channels, first.results):
            raise Refused("channel_mismatch", "the branches have different channels")
        if each.group != group and not each.is_diagonal:
            raise Refused("channel_mismatch", "the branches have different groups")
        if each.extra != first.extra:
            raise Refused("unsupported_attr", "the branches have different output_padding")
    axes = tuple(_joined(column, kernels, i) for i, column in enumerate(_columns(kernels)))
    columns = first.channels // group
    total = np.zeros((first.results, columns, *[axis.count for axis in axes]))
    is_read = np.zeros(total.shape, bool)
    for each in kernels:
        places = tuple(_places(own, axis) for own, axis in zip(each.axes, axes, strict=True))
        taps = (slice(None), slice(None), *places)
        total[taps] += in_groups(each.weight, columns)
        is_read[taps] |= in_groups(np.ones(each.weight.shape, bool), columns)
    if not is_read.all():
        detail = "the layer would read more than the branches, and 0 times infinity is not a number"
        raise Refused("nonfinite", detail)
    dtype = next((each.dtype for each in kernels if each.dtype is not None), None)
    bias = np.sum([np.broadcast_to(each.bias, (first.results,)) for each in kernels], axis=0)
    return LinearKernel(first.kind, total, bias, group, axes, dtype, first.extra, first.extents)


def _columns(kernels: Sequence[LinearKernel]) -> Iterable[tuple[Axis, ...]]:
    return zip(*[each.axes for each in kernels], strict=True)


def _joined(axes: tuple[Axis, ...], kernels: Sequence[LinearKernel], index: int) -> Axis:
    """Return the taps of all kernels along one axis, on one grid. Raises Refused."""
    if len({axis.stride for axis in axes}) > 1:
        raise Refused("unsupported_attr", "the branches have different strides")
    if len({axis.beyond for axis in axes}) > 1:
        known = {None if each.extents is None else each.extents[index] for each in kernels}
        if len(known) > 1 or None in known or kernels[0].kind != "nn.conv":
            raise Refused("nonzero_padding", "the branches may have results of different extents")
    start, last = max(axis.start for axis in axes), max(axis.last for axis in axes)
    steps = {axis.dilation for axis in axes if axis.count > 1}
    if not steps:
        steps = {gcd(*[start - axis.start for axis in axes]) or 1}
    (step, *others) = steps
    if others or any((start - axis.start) % step for axis in axes):
        raise Refused("unsupported_attr", "the taps of the branches lie on different grids")
    return Axis(
        (last + start) // step + 1, start, step, axes[0].stride, max(axis.beyond for axis in axes)
    )


def _places(own: Axis, axis: Axis) -> slice:
    """Return the places of the taps of `own` among the taps of `axis`."""
    first = (axis.start - own.start) // axis.dilation
    return slice(first, first + own.count)


def end_pads(kernel: LinearKernel) -> tuple[int, ...]:
    """Return the pads at the ends of the axes of a kernel."""
    found = []
    for i, axis in enumerate(kernel.axes):
        beyond = axis.beyond
        if kernel.kind == "nn.conv_transpose":
            beyond = kernel.extra[i] - beyond
        found.append(beyond + axis.dilation * (axis.count - 1) - axis.start)
    return tuple(found)
