"""Sums of layers, and layers in a row: linear maps of one value, which one layer computes, too.

The checker computes the map of a value of the source in float64, with the sum of magnitudes for
each number, and proves that the weights and the bias of the layer are its roundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import helper

from .affine_operators import own_line
from .lines import Line, along, is_rounding, vanishes
from .program import Array, Datum, Operation, Unproved, product
from .relations import Relations
from .weighted_layers import weights_of

MAX_NUMBERS = 1 << 24
"""Most weights of a map, with one for each pair of channels."""

MAX_DEPTH = 128
"""Most operators in a row that make a map."""

DENSE = frozenset(("Gemm", "MatMul"))
LINEAR = DENSE | {"Conv", "AveragePool"}
SUMS = frozenset(("Add", "Sub", "Sum"))
SELECTIONS = frozenset(("Gather", "GatherND", "Transpose"))
"""Operators that may take channels at known positions."""


@dataclass(frozen=True, eq=False, slots=True)
class LinearMap:
    """y[o, p] = bias[o] + the sum of weight[o, i, t] * x[i, stride * p + first + t] over i and t.

    x is zero outside its extents n; y has (n - 1 - lost) // stride + 1, and the other extents of x.
    So all maps of one value with equal channels, strides and `lost` have equal extents. `is_padded`
    says that x is read outside. The reaches are the sums of magnitudes that made the numbers.
    """

    weight: Array
    bias: Array
    reach: Array
    bias_reach: Array
    first: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    is_padded: bool = False
    is_identity: bool = False

    @property
    def is_pointwise(self) -> bool:
        """Whether a result reads the channels at its own position."""
        return product(self.weight.shape[2:]) == 1 and not any(
            (*self.first, *self.lost, *(stride - 1 for stride in self.strides))
        )

    def placed(self, first: Sequence[int], taps: Sequence[int]) -> tuple[Array, Array]:
        """Return weights and reaches with taps from `first` on. Raises Unproved for others."""
        begins = [own - start for own, start in zip(self.first, first, strict=True)]
        sizes = zip(begins, self.weight.shape[2:], taps, strict=True)
        if any(begin < 0 or begin + own > size for begin, own, size in sizes):
            raise Unproved("the taps of the layer are others")
        _check_size((*self.weight.shape[:2], *taps))
        place: tuple[slice, ...] = tuple(
            slice(b, b + own) for b, own in zip(begins, self.weight.shape[2:], strict=True)
        )
        made = np.zeros((2, *self.weight.shape[:2], *taps))
        for into, given in zip(made, (self.weight, self.reach), strict=True):
            into[(slice(None), slice(None), *place)] = given
        return made[0], made[1]

    def scaled(self, scale: Array, shift: Array, reach: Array) -> LinearMap:
        """Return the map with an affine of its channels behind it."""
        wide = scale.reshape(-1, *[1] * (self.weight.ndim - 1))
        return replace(
            self,
            weight=wide * self.weight,
            reach=np.abs(wide) * self.reach,
            bias=scale * self.bias + shift,
            bias_reach=np.abs(scale) * self.bias_reach + reach,
            is_identity=False,
        )

    def plus(self, other: LinearMap) -> LinearMap:
        """Return the sum of two maps. Raises Unproved."""
        if (self.strides, self.lost) != (other.strides, other.lost):
            raise Unproved("the layers have other strides, or results of other extents")
        if self.weight.shape[:2] != other.weight.shape[:2]:
            raise Unproved("the layers have other channels")
        first = [min(pair) for pair in zip(self.first, other.first, strict=True)]
        ends = [
            [begin + size for begin, size in zip(each.first, each.weight.shape[2:], strict=True)]
            for each in (self, other)
        ]
        taps = [max(pair) - begin for *pair, begin in zip(*ends, first, strict=True)]
        pairs = [each.placed(first, taps) for each in (self, other)]
        return replace(
            self,
            weight=pairs[0][0] + pairs[1][0],
            reach=pairs[0][1] + pairs[1][1],
            bias=self.bias + other.bias,
            bias_reach=self.bias_reach + other.bias_reach,
            first=tuple(first),
            is_padded=self.is_padded or other.is_padded,
            is_identity=False,
        )

    def after(self, inner: LinearMap) -> LinearMap:
        """Return the map of `inner` and then this one, one of which is pointwise.

        Raises Unproved.
        """
        if not (self.is_pointwise or inner.is_pointwise):
            raise Unproved("two layers in a row read several positions")
        if self.is_padded and inner.bias.any():
            raise Unproved("the padding of the layer has no bias")
        if self.weight.shape[1] != len(inner.weight):
            raise Unproved("the layers have other channels")
        if inner.is_identity:
            return self
        outer, geometry = self, self if inner.is_pointwise else inner
        taps = geometry.weight.shape[2:]
        _check_size((len(outer.weight), inner.weight.shape[1], *taps))

        def joined(first: Array, second: Array) -> Array:
            wide = np.tensordot(
                first.reshape(*first.shape[:2], -1), second.reshape(*second.shape[:2], -1), (1, 0)
            )  # outputs, taps, inputs, taps
            return np.moveaxis(wide, 1, 2).reshape(len(first), second.shape[1], *taps)

        summed, magnitudes = (
            each.reshape(*each.shape[:2], -1).sum(2) for each in (outer.weight, outer.reach)
        )
        return LinearMap(
            joined(outer.weight, inner.weight),
            outer.bias + summed @ inner.bias,
            joined(outer.reach, inner.reach),
            outer.bias_reach + magnitudes @ inner.bias_reach,
            geometry.first,
            geometry.strides,
            geometry.lost,
            self.is_padded or inner.is_padded,
        )


def _check_size(extents: Sequence[int]) -> None:
    if product(extents) > MAX_NUMBERS:
        raise Unproved("the map has too many numbers")


def _identity(channels: object, axes: int) -> LinearMap:
    if not isinstance(channels, int):
        raise Unproved("the number of channels is unknown")
    _check_size((channels, channels))
    one, zero = np.eye(channels).reshape(channels, channels, *[1] * axes), np.zeros(channels)
    plain = (0,) * axes
    return LinearMap(one, zero, one, zero, plain, (1,) * axes, plain, is_identity=True)


def layer_map(operation: Operation) -> LinearMap:
    """Return the map of an operation with constant weights. Raises Unproved."""
    data = operation.operand(0)
    if operation.domain or data is None or not data.is_float:
        raise Unproved(f"{operation.kind} is no layer of floats")
    if operation.kind == "AveragePool":
        return _pool(operation, data)
    given = weights_of(operation)
    if given is None or given.addend is not None or given.weight.whole is not None or given.data:
        raise Unproved("a weight or bias is not constant, or quantized")
    count = len(given.matrix)
    bias = np.zeros(count)
    if given.bias is not None:
        if given.bias.whole is not None or given.bias.exact.size not in (1, count):
            raise Unproved("the bias is quantized, or another one for each row")
        bias = np.array(np.broadcast_to(given.bias_factor * given.bias.exact.reshape(-1), (count,)))
    if operation.kind in DENSE:
        rank = operation.outputs[0].rank
        if given.matrix.ndim != 2 or not given.axis == given.data_axis == (rank or 0) - 1:
            raise Unproved("the weights are no matrix, or read another axis")
        weight = given.factor * given.matrix
        return LinearMap(weight, bias, np.abs(weight), np.abs(bias))
    if operation.kind != "Conv":
        raise Unproved(f"{operation.kind} is no layer whose sums are looked at")
    return _windows(operation, given.matrix, bias, given.groups)


def _pool(operation: Operation, data: Datum) -> LinearMap:
    given = operation.attributes
    kernel = tuple(given["kernel_shape"])
    if given.get("ceil_mode", 0) or (any(given.get("pads", ())) and not _counts_pads(operation)):
        raise Unproved("windows of the pool have other numbers of elements")
    channels = (data.extents or (None, None))[1]
    if not isinstance(channels, int):
        raise Unproved("the number of channels is unknown")
    share = np.full((channels, 1, *kernel), 1.0 / product(kernel))
    return _windows(operation, share, np.zeros(channels), channels)


def _counts_pads(pool: Operation) -> bool:
    return bool(pool.attributes.get("count_include_pad", 0))


def _windows(operation: Operation, matrix: Array, bias: Array, groups: int) -> LinearMap:
    """Return the map of weights [outputs, inputs of a group, ...] with strides, pads and holes."""
    given, kernel = operation.attributes, matrix.shape[2:]
    axes = len(kernel)
    pads = tuple(given.get("pads", (0,) * 2 * axes))
    strides, dilations = (tuple(given.get(name, (1,) * axes)) for name in ("strides", "dilations"))
    if given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or min(pads, default=0) < 0:
        raise Unproved("the pads of the layer are not stated, or negative")
    if tuple(given.get("kernel_shape", kernel)) != kernel:
        raise Unproved("the weights have other extents than the layer states")
    spans = [step * (size - 1) + 1 for step, size in zip(dilations, kernel, strict=True)]
    outputs, inputs = matrix.shape[:2]
    _check_size((outputs, inputs * groups, *spans))
    weight = np.zeros((outputs, inputs * groups, *spans))
    holes = tuple(slice(None, None, step) for step in dilations)
    for group in range(groups):
        rows = slice(group * (outputs // groups), (group + 1) * (outputs // groups))
        columns = slice(group * inputs, (group + 1) * inputs)
        weight[(rows, columns, *holes)] = matrix[rows]
    lost = tuple(
        span - 1 - begin - end
        for span, begin, end in zip(spans, pads[:axes], pads[axes:], strict=True)
    )
    first = tuple(-begin for begin in pads[:axes])
    magnitudes = np.abs(weight), np.abs(bias)
    return LinearMap(weight, bias, *magnitudes, first, strides, lost, any(pads))


class Maps:
    """Values of the source as maps of a value of the result, of which `root` is a line."""

    def __init__(self, proof: Relations, root: Datum, line: Line, *, is_dense: bool) -> None:
        self._proof = proof
        self._data = root
        self._line = line
        self._is_dense = is_dense
        self._axis = (root.rank or 0) - 1 if is_dense else 1
        self._found: dict[int, LinearMap] = {}

    def of(self, value: Datum, depth: int = 0) -> LinearMap:
        """Return the map of a value. Raises Unproved."""
        value = self._proof.first_of(value)
        term = self._proof.term_of(value)
        if term not in self._found:
            self._found[term] = self._computed(value, depth + 1)
        return self._found[term]

    def _computed(self, value: Datum, depth: int) -> LinearMap:
        data, operation, rank = self._data, value.producer, self._data.rank or 0
        if self._proof.term_of(value) == self._proof.term_of(data):
            channels = (data.extents or ())[self._axis]
            return self._behind(_identity(channels, 0 if self._is_dense else rank - 2), self._line)
        if operation is None or operation.domain or value.index or depth > MAX_DEPTH:
            raise Unproved("the value is no linear map of the data")
        if value.rank != rank or value.kind != data.kind:
            raise Unproved("the ranks or types differ")
        own = own_line(operation)
        if own is not None:
            return self._behind(self.of(own[0], depth), own[1])
        if operation.kind in LINEAR and (operation.kind in DENSE) == self._is_dense:
            before = operation.inputs[0]
            assert before is not None
            inner = self.of(before, depth)
            return layer_map(operation).after(inner)
        if operation.kind in SUMS:
            return self._sum(operation, depth)
        if operation.kind in SELECTIONS:
            return self._selected(operation, depth)
        raise Unproved(f"{operation.kind} is no linear operator that is looked at")

    def _behind(self, inner: LinearMap, line: Line) -> LinearMap:
        """Return a map with an affine behind it."""
        if line is Line.identity(line.rank):
            return inner
        numbers, count = line.vector(self._axis), len(inner.bias)
        if numbers is None or numbers[0].size not in (1, count):
            raise Unproved("an affine varies along another axis than the channels")
        return inner.scaled(*(np.broadcast_to(each, (count,)) for each in numbers))

    def _selected(self, operation: Operation, depth: int) -> LinearMap:
        """Return the map of some channels of the data; a Transpose may stand behind the Gather."""
        perm, data = tuple(range(self._data.rank or 0)), operation.operand(0)
        if operation.kind == "Transpose" and data is not None:
            perm = operation.attributes.get("perm", perm[::-1])
            operation = self._proof.first_of(data).producer or operation
        operation = self._proof.rows(operation)
        data, places = operation.operand(0), operation.constant(1)
        if operation.kind != "Gather" or data is None or places is None or places.ndim != 1:
            raise Unproved("it takes no channels at known positions")
        if int(operation.attributes.get("axis", 0)) % len(perm) != perm[self._axis]:
            raise Unproved("it takes positions of another axis")
        inner = self.of(self._proof.permuted(data, perm), depth)
        rows = {
            name: getattr(inner, name)[places] for name in ("weight", "bias", "reach", "bias_reach")
        }
        return replace(inner, **rows, is_identity=False)

    def _sum(self, operation: Operation, depth: int) -> LinearMap:
        found: LinearMap | None = None
        for i, each in enumerate(operation.inputs):
            if each is None or each.stored is not None:
                raise Unproved("an operand of the sum is constant")
            term = self.of(each, depth)
            if i and operation.kind == "Sub":
                zeros = np.zeros(len(term.bias))
                term = term.scaled(zeros - 1.0, zeros, zeros)
            found = term if found is None else found.plus(term)
        if found is None:
            raise Unproved("the sum has no operand")
        return found


def check_map(exact: LinearMap, operation: Operation) -> Line:
    """Prove that a layer computes a map, and return its line over that. Raises Unproved.

    A layer without a bias computes the map without its bias.
    """
    given, made = weights_of(operation), layer_map(operation)
    if given is None or (given.factor, given.bias_factor) != (1.0, 1.0):
        raise Unproved("the layer multiplies its weights")
    if (exact.strides, exact.lost) != (made.strides, made.lost):
        raise Unproved("the layer has other strides, or results of other extents")
    if exact.weight.shape[:2] != made.weight.shape[:2]:
        raise Unproved("the layer has other channels")
    weight, reach = exact.placed(made.first, made.weight.shape[2:])
    dtype = helper.tensor_dtype_to_np_dtype(operation.outputs[0].kind)
    if not is_rounding(made.weight.astype(dtype), weight, reach):
        raise Unproved("the weight is not the rounded sum of the source's products")
    if vanishes(np.abs(weight).max(tuple(range(1, weight.ndim)), initial=0.0), dtype).any():
        raise Unproved("the weights of a channel are below the normal numbers of their type")
    rank = operation.outputs[0].rank or 0
    line = Line.identity(rank)
    if given.bias is None:
        shift, far = (along(each, given.axis, rank) for each in (-exact.bias, exact.bias_reach))
        return Line(line.scale, shift, far)
    if not is_rounding(made.bias.astype(dtype), exact.bias, exact.bias_reach):
        raise Unproved("the bias is not the rounded sum of the source's")
    return line
