"""Constant operands of operators, and checks on numbers that are written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Node, Value
from ....ir.ops import takes_operand
from ....ir.tensor import Array, Tensor
from ....ir.types import dtype_of
from .affine import Affine

_COMPARED = frozenset(map(np.dtype, (np.float16, np.float32, np.float64)))
"""Element types whose greatest number numpy finds fast."""


class Parameters:
    """Reads the constant operands of nodes, and remembers the magnitudes of weights.

    - With `quantized`, weights and biases that a DequantizeLinear makes of constants count as
      constant. A weight with one scale may get one for each channel with `per_channel`. The bias
      becomes float with `float_bias`. `unrounded` has constants before
      their rounding, in float64.
    - `border` is the treatment of a shift before a layer that pads with zeros: a word of
      FoldScaleAxis, or `ignore` for the result as if nothing were padded. Affines of `inserted`
      origins, which a preprocessing inserted, go the cheapest way in place of `keep`.
    - With `limits`, a Clip may get bounds per channel, which are a Max and a Min after it.
    """

    def __init__(
        self,
        evaluator: ConstantEvaluator,
        *,
        quantized: bool = False,
        per_channel: bool = False,
        float_bias: bool = False,
        unrounded: Mapping[Value, Array] = MappingProxyType({}),
        border: str = "keep",
        inserted: Collection[int] = (),
        limits: bool = False,
    ) -> None:
        self.evaluator = evaluator
        self.quantized = quantized
        self.per_channel = per_channel
        self.float_bias = float_bias
        self.unrounded = unrounded
        self.border = border
        self.inserted = inserted
        self.limits = limits
        self._largest: dict[
            tuple[Value, tuple[int, ...], tuple[int, ...], tuple[int, ...]], Array
        ] = {}

    def has_inserted(self, affine: Affine) -> bool:
        """Return whether a preprocessing inserted a part of an affine."""
        return any(origin in self.inserted for origin in affine.origins)

    def largest(self, value: Value, array: Array, axes: tuple[int, ...]) -> Array:
        """Return the greatest magnitude over `axes` of `array`, the elements of `value`.

        It is remembered: a layer is asked for every affine that might go there.
        """
        key = (value, axes, array.shape, array.strides)
        if key not in self._largest:
            self._largest[key] = _magnitude(array, axes)
        return self._largest[key]

    def measure_rows(self, values: Iterable[Value]) -> None:
        """Compute `largest_of_rows` of small constants, all of one type together."""
        alike: dict[tuple[np.dtype[Any], tuple[int, ...]], dict[Value, Array]] = {}
        for value in values:
            array = self.evaluator.exact(value) if self.evaluator.is_small(value) else None
            if array is not None and array.ndim:
                alike.setdefault((array.dtype, array.shape), {})[value] = array
        for (_, shape), arrays in alike.items():
            axes = tuple(range(1, len(shape)))
            together = _magnitude(np.array(list(arrays.values())), tuple(axis + 1 for axis in axes))
            for (value, array), found in zip(arrays.items(), together, strict=True):
                self._largest[value, axes, shape, array.strides] = found

    def largest_of_rows(self, value: Value, elements: Array | Tensor) -> Array:
        """Return `largest` over all axes but the first, read block by block."""
        shape = elements.shape
        axes = tuple(range(1, len(shape)))
        if not isinstance(elements, Tensor):
            return self.largest(value, elements, axes)
        key = (value, axes, shape, ())
        if key not in self._largest:
            found = [_magnitude(block, axes) for block in elements.blocks()]
            self._largest[key] = np.concatenate(found) if found else np.zeros(shape[0])
        return self._largest[key]


def _magnitude(array: Array, axes: tuple[int, ...]) -> Array:
    wide = array if array.dtype in _COMPARED else array.astype(np.float32)
    top, bottom = (
        np.maximum.reduce(wide, axis=axes, initial=0),
        np.minimum.reduce(wide, axis=axes, initial=0),
    )
    largest: Array = np.maximum(top.astype(np.float64), -bottom.astype(np.float64))
    return largest


def common_value(array: Array) -> float | None:
    """Return the number that all float64 elements are up to rounding, None if they differ."""
    flat = np.atleast_1d(array).ravel()
    if flat.size and (flat == flat[0]).all():
        return float(flat[0])
    if not flat.size or not np.isfinite(flat).all():
        return None
    spread = float(flat.max() - flat.min())
    return float(flat[0]) if spread <= 4 * np.finfo(np.float64).eps * np.abs(flat).max() else None


def fits_operand(op: str, name: str, at: Node, value: float) -> bool:
    """Return whether the parameter `name` of an `op` beside `at` can hold a number."""
    return takes_operand(op, name, at) or fits_attribute(at, value)


def fits_attribute(node: Node, value: float) -> bool:
    """Return whether a float32 attribute holds a number as exactly as the data of `node`."""
    dtype = dtype_of(node.output.type)
    with np.errstate(over="ignore"):
        exact = float(np.float32(value)) == value
    return exact or (dtype is not None and dtype.bits <= 32)
