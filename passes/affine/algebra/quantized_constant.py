"""Constants stored as integers, which a DequantizeLinear reads: (q - zero_point) * scale.

A factor that is constant in each part of the tensor with one scale goes into the scales, and the
integers stay. A negative one reflects its integers about the zero point, 2 * zero_point - q, and
zero makes them the zero point.

A scale is rounded once, however many folds it takes, and so is an integer bias:
`UnroundedConstants` has the numbers before. So a number of the folded tensor is rounded twice: with
its scale, and by DequantizeLinear. It differs from the correctly rounded product by one unit in the
last place at most. With n = q - zero_point, exact scale e = scale * |factor|, and s its rounding,
|n s - n e| <= |n| ulp(s) / 2 <= ulp(n s), as |n s| >= |n| 2**k for s >= 2**k: the result is off by
less than 1.5 ulp, and so by less than two from the rounding of n e.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from ....ir.graph import Node, Value
from ....ir.ops import is_legal
from ....ir.ops.inference import integer_of
from ....ir.ops.reshaping import permutation
from ....ir.provenance import Refused
from ....ir.record import Record
from ....ir.tensor import Array, expand_rank, fits, numpy_dtype, round_to, smallest_normal
from ....ir.types import DType
from .operands import Parameters
from .stored import dequantize_of

CODE = "quantized_weight"


class QuantizedConstant(Record):
    """The constant that the DequantizeLinear `node` makes of `integers` of type `dtype`.

    - `scale`, in float64 and not rounded to its `scale_dtype`, and `zero_point`, None for zero,
      have one shape.
    - They hold for the tensor if they have one element, for a channel of `axis` if they are
      vectors, and else for each `block` of elements along `axis`.
    - The layer reads `value`: the result, or its transpose with the axes `perm`.
    - `exact` are the numbers that `integers` were rounded from, if they were.
    """

    node: Node
    value: Value
    perm: tuple[int, ...] | None
    integers: Array
    dtype: DType
    scale: Array
    scale_dtype: DType
    zero_point: Array | None
    axis: int
    block: int
    exact: Array | None = None

    @property
    def elements(self) -> Array:
        """The numbers before any rounding, in float64."""
        if self.exact is not None:
            return self.exact
        centred: Array = self.integers.astype(np.float64)
        if self.zero_point is not None:
            centred = centred - self.over_elements(self._view(self.zero_point.astype(np.float64)))
        exact: Array = centred * self.over_elements(self._view(self.scale))
        return exact if self.perm is None else exact.transpose(self.perm)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `value`."""
        shape = self.integers.shape
        return shape if self.perm is None else tuple(shape[axis] for axis in self.perm)

    @property
    def is_per_tensor(self) -> bool:
        """Whether there is one scale."""
        return self.scale.size == 1

    def _view(self, parameter: Array) -> Array:
        """View a scale or zero point with as many axes as the integers."""
        rank = self.integers.ndim
        if parameter.size == 1:
            return parameter.reshape((1,) * rank)
        if parameter.ndim == rank and self.block:
            return parameter
        return parameter.reshape(tuple(-1 if axis == self.axis else 1 for axis in range(rank)))

    def over_elements(self, parts: Array) -> Array:
        """Broadcast an array with an entry for each scale against the integers."""
        extent = self.integers.shape[self.axis] if self.block else 0
        if not self.block or parts.shape[self.axis] in (1, extent):
            return parts
        whole = (slice(None),) * self.axis
        repeated: Array = np.repeat(parts, self.block, axis=self.axis)[(*whole, slice(extent))]
        return repeated

    def largest_by_scale(self, array: Array) -> Array:
        """Return the greatest elements of `array` in the part of each scale."""
        for axis, extent in enumerate(self._view(self.scale).shape):
            if array.shape[axis] in (1, extent):
                continue
            if extent == 1:
                array = array.max(axis=axis, keepdims=True)
            else:
                starts = np.arange(0, array.shape[axis], self.block)
                array = np.maximum.reduceat(array, starts, axis=axis)
        return array

    def scaled(
        self, factor: Array, channels: int | None, *, per_channel: bool
    ) -> QuantizedConstant:
        """Return the constant times `factor`, float64 and broadcast against `value`.

        With `per_channel`, a constant with one scale may get one for each index of the axis
        `channels`. Raises Refused if the product cannot be written with the same integers up to
        reflection, and with as many scales.
        """
        factor = expand_rank(factor, self.integers.ndim)
        if self.perm is not None:
            factor = factor.transpose(np.argsort(self.perm))
            channels = None if channels is None else self.perm[channels]
        found = self.rescaled(factor, channels, per_channel=per_channel)
        return replace(found, integers=self._reflected(factor)).finite()

    def finite(self) -> QuantizedConstant:
        """Return the constant. Raises Refused if a scale, rounded up, overflows."""
        scale = round_to(self.scale, self.scale_dtype).astype(np.float64)
        # No difference of integers is greater, and no number of float8.
        most = 2.0 ** max(self.dtype.bits, 16)
        if fits(most * scale, self.scale_dtype):
            return self
        if not fits(replace(self, scale=scale, exact=None).elements, self.scale_dtype):
            detail = f"{self.node.description}: its result exceeds {self.scale_dtype}"
            raise Refused("overflow", detail)
        return self

    def rescaled(
        self, factor: Array, channels: int | None, *, per_channel: bool
    ) -> QuantizedConstant:
        """Return the constant with scales times |factor|, which is finite; 0 leaves a scale."""
        label = self.node.description
        magnitude = np.abs(factor)
        largest = self.largest_by_scale(magnitude)
        if ((magnitude != self.over_elements(largest)) & (factor != 0)).any():
            finer = self._finer(factor, channels, per_channel)
            return finer.rescaled(factor, None, per_channel=False)
        exact = self._view(self.scale) * np.where(largest == 0, 1.0, largest)
        scale = exact.reshape(self.scale.shape)
        changed = scale[scale != self.scale]
        if not fits(scale, self.scale_dtype):
            raise Refused("overflow", f"{label}: a scale exceeds {self.scale_dtype}")
        if (np.abs(changed) < smallest_normal(self.scale_dtype)).any():
            detail = f"{label}: a scale is below the normal numbers of {self.scale_dtype}"
            raise Refused("underflow", detail)
        return replace(self, scale=scale)

    def _finer(self, factor: Array, channels: int | None, per_channel: bool) -> QuantizedConstant:
        """Return the constant with a scale for each index of the axis `channels`."""
        label = self.node.description
        block = integer_of(self.node, "block_size", 0)
        if not self.is_per_tensor or block:
            if block:
                where = f"blocks of {block} along axis {self.axis}"
            else:
                where = f"the channels of axis {self.axis}"
            detail = f"it has scales for {where}, and the factors differ along another axis"
            raise Refused(CODE, f"{label}: {detail}")
        if [axis for axis, extent in enumerate(factor.shape) if extent > 1] != [channels]:
            detail = f"{label}: it has one scale, and the factors differ, but not by output channel"
            raise Refused(CODE, detail)
        assert channels is not None
        if not per_channel:
            hint = "FoldScaleAxis{per_channel=allow} makes one for each channel"
            detail = f"{label}: it has one scale, and the factors of the channels differ: {hint}"
            raise Refused(CODE, detail)
        if not is_legal("dequantize", "axis", self.node):
            raise Refused("unsupported_op", f"{label}: scales per channel need opset 13")
        count = self.integers.shape[channels]
        scale, zero_point = np.repeat(self.scale.reshape(1), count), self.zero_point
        if zero_point is not None:
            zero_point = np.repeat(zero_point.reshape(1), count)
        return replace(self, scale=scale, zero_point=zero_point, axis=channels)

    def _reflected(self, factor: Array) -> Array:
        """Return the integers about the zero point on the side that the signs of `factor` say."""
        negative, zero = factor < 0, factor == 0
        if not (negative.any() or zero.any()):
            return self.integers
        storage = numpy_dtype(self.dtype)
        if self.dtype.kind == "float8":
            if self.dtype.name == "f8e8m0":
                detail = f"{self.node.description}: {self.dtype} has no sign"
                raise Refused("negative_scale", detail)
            wide = self.integers.astype(np.float32)
            signed = np.where(negative, -wide, wide)
            numbers: Array = np.where(zero, np.float32(0), signed).astype(storage)
            return numbers
        centre = np.zeros((), np.int64)
        if self.zero_point is not None:
            centre = self.over_elements(self._view(self.zero_point.astype(np.int64)))
        integers = self.integers.astype(np.int64)
        found = np.where(zero, centre, np.where(negative, 2 * centre - integers, integers))
        low, high = integer_range(self.dtype)
        outside = (found < low) | (found > high)
        if outside.any():
            number = int(integers.ravel()[int(np.argmax(outside.ravel()))])
            detail = f"{number} reflected about the zero point leaves {self.dtype}"
            raise Refused("negative_scale", f"{self.node.description}: {detail}")
        reflected: Array = found.astype(storage)
        return reflected

    def holding(self, numbers: Array) -> tuple[QuantizedConstant, float]:
        """Round `numbers` to integers; return the constant and the largest error."""
        label = self.node.description
        rounded = round_to(self.scale, self.scale_dtype).astype(np.float64)
        scale = self.over_elements(self._view(rounded))
        if ((scale == 0) & (numbers != 0)).any():
            raise Refused("zero_scale", f"{label}: its scale is zero")
        nearest = np.rint(numbers / np.where(scale == 0, 1.0, scale))
        centre = np.zeros(())
        if self.zero_point is not None:
            centre = self.over_elements(self._view(self.zero_point.astype(np.float64)))
        low, high = integer_range(self.dtype)
        if not ((nearest + centre >= low) & (nearest + centre <= high)).all():
            hint = "FoldScaleAxis{quantized_bias=float} keeps it float"
            raise Refused("overflow", f"{label}: the folded bias exceeds {self.dtype}: {hint}")
        error = float(np.abs(nearest * scale - numbers).max(initial=0.0))
        whole = (nearest + centre).astype(numpy_dtype(self.dtype))
        return replace(self, integers=whole, exact=numbers).finite(), error


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest integer of a type."""
    if dtype.kind == "uint":
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1


def read_quantized(value: Value, reader: Node, params: Parameters) -> QuantizedConstant | None:
    """Return the dequantized constant `value`, which `reader` alone reads.

    Returns None if `value` is the result of something else. Raises Refused if its operands are not
    constant, are not integers with scales of their shape, or if others read it.
    """
    node, moved = dequantize_of(value)
    if node is None:
        return None
    perm = None if moved is None else permutation(moved)
    label = node.description
    tensors = [
        None if operand is None else params.evaluator.tensor(operand) for operand in node.inputs
    ]
    if len(tensors) < 2:
        raise Refused(CODE, f"{label}: its operands are not constant")
    integers, scale, zero_point = (*tensors, None)[:3]
    is_constant = zero_point is not None or node["zero_point"] is None
    if integers is None or scale is None or not is_constant:
        raise Refused(CODE, f"{label}: its operands are not constant")
    is_read_before = moved is not None and node.output.sole_user() is not moved
    if value.sole_user() is not reader or is_read_before:
        raise Refused(CODE, f"{label}: others read it, too")
    if integers.dtype.kind not in ("int", "uint", "float8") or not integers.size:
        raise Refused("dtype_mismatch", f"{label}: it reads {integers.dtype}{list(integers.shape)}")
    if not scale.dtype.is_float or integer_of(node, "output_dtype", 0):
        detail = f"{label}: its scale is {scale.dtype}, or its result has another type"
        raise Refused("dtype_mismatch", detail)
    operands = [operand for operand in node.inputs if operand is not None]
    if any(params.evaluator.array(operand) is None for operand in operands):
        raise Refused(CODE, f"{label}: the elements of an operand cannot be read")
    rank, block = len(integers.shape), integer_of(node, "block_size", 0)
    axis = integer_of(node, "axis", 1)
    axis += rank if axis < 0 else 0
    _check_shapes(label, integers.shape, scale.shape, axis, block)
    points = None
    if zero_point is not None:
        points = zero_point.numpy()
        if zero_point.dtype is not integers.dtype or zero_point.size != scale.size:
            raise Refused("dtype_mismatch", f"{label}: its zero point does not fit the integers")
        if integers.dtype.kind == "float8" and points.astype(np.float32).any():
            raise Refused(CODE, f"{label}: its zero point is not zero")
    numbers = params.unrounded.get(node["scale"])
    if numbers is None:
        numbers = scale.numpy().astype(np.float64)
    return QuantizedConstant(
        node=node,
        value=value,
        perm=perm,
        integers=integers.numpy(),
        dtype=integers.dtype,
        scale=numbers,
        scale_dtype=scale.dtype,
        zero_point=points,
        axis=axis,
        block=block if numbers.size > 1 else 0,
        exact=params.unrounded.get(node["data"]),
    )


def _check_shapes(
    label: str, shape: tuple[int, ...], scale: tuple[int, ...], axis: int, block: int
) -> None:
    """Refuse a scale that is neither per tensor, per channel of `axis`, nor per block."""
    if all(extent == 1 for extent in scale) and not block:
        return
    if 0 <= axis < len(shape):
        if block > 0:
            blocks = list(shape)
            blocks[axis] = -(-shape[axis] // block)
            if scale == tuple(blocks):
                return
        elif not block and scale == (shape[axis],):
            return
    detail = f"{label}: the scale is neither per tensor, per channel, nor per block"
    raise Refused("channel_mismatch", detail)
