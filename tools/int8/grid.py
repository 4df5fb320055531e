"""The grid onto which a quantized model rounds a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from ml_dtypes import int4, uint4
from onnx import NodeProto, TensorProto, numpy_helper

from ...ir.tensor import Array

NARROW = {np.dtype(int4): (-8, 7), np.dtype(uint4): (0, 15)}
"""Limits of the integers that numpy does not have."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The numbers scale * (q - zero) for the integers q of a type.

    `scale` and `zero` are float64: [] for the whole tensor, or [C] along `axis`.
    """

    scale: Array
    zero: Array
    dtype: np.dtype[np.generic]
    axis: int = 1

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest integer."""
        if self.dtype in NARROW:
            return NARROW[self.dtype]
        info = np.iinfo(self.dtype.type)  # type: ignore[type-var]
        return int(info.min), int(info.max)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest number."""
        low, high = self.limits
        return float((self.scale * (low - self.zero)).min()), float(
            (self.scale * (high - self.zero)).max()
        )

    def round(self, array: Array) -> Array:
        """Return the nearest numbers of a grid without ends, ties to even, in the array's type."""
        scale, zero = (each.astype(array.dtype) for each in self._spread(array))
        return np.asarray(scale * (np.rint(array / scale + zero) - zero))

    def clip(self, array: Array) -> Array:
        """Return the numbers, cut to the ends of the grid."""
        (low, high), (scale, zero) = self.limits, self._spread(array)
        ends = ((scale * (limit - zero)).astype(array.dtype) for limit in (low, high))
        return np.asarray(np.clip(array, *ends))

    def quantize(self, array: Array) -> Array:
        """Return the numbers of the grid that stand for an array."""
        return self.clip(self.round(array))

    def dequantize(self, integers: Array) -> Array:
        """Return the numbers for integers, as float64."""
        scale, zero = self._spread(integers)
        return np.asarray(scale * (integers.astype(np.float64) - zero))

    def steps(self, array: Array) -> Array:
        """Return the scales in a shape that broadcasts to the array."""
        return self._spread(array)[0]

    def _spread(self, array: Array) -> tuple[Array, Array]:
        if not self.scale.ndim:
            return self.scale, self.zero
        shape = [-1 if axis == self.axis % array.ndim else 1 for axis in range(array.ndim)]
        return self.scale.reshape(shape), self.zero.reshape(shape)


def grid_of(node: NodeProto, tensors: Mapping[str, TensorProto]) -> Grid | None:
    """Return the grid of a QuantizeLinear with one constant scale and zero point, else None."""
    if len(node.input) < 3 or not all(name in tensors for name in node.input[1:]):
        return None
    scale, zero = (numpy_helper.to_array(tensors[name]) for name in node.input[1:])
    if scale.size != 1 or zero.size != 1:
        return None
    return Grid(
        scale.reshape(()).astype(np.float64), zero.reshape(()).astype(np.float64), zero.dtype
    )
