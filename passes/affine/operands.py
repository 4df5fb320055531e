"""Parameters of operators that ONNX gives as attributes in some versions and as inputs in others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Node, Value
from ...ir.ops import has_trait
from ...ir.ops.inference import is_given, listed
from ...ir.ops.row import Trait
from ...ir.ops.views import window_of
from ...ir.tensor import Array, Tensor
from ...ir.types import ELEMENT_COUNT_LIMIT, Dim, dtype_of, element_count, shape_of

_COMPARED = frozenset(map(np.dtype, (np.float16, np.float32, np.float64)))
"""Element types whose greatest number numpy finds fast."""


class Parameters:
    """Reads the constant operands of nodes. With `quantized`, weights that are dequantized at run time count too;
    `border` says what becomes of a shift in front of a layer that pads with zeros: with `ignore`, what would be right
    if nothing were padded.
    """

    def __init__(self, evaluator: ConstantEvaluator, *, quantized: bool = False, border: str = "keep") -> None:
        self.evaluator = evaluator
        self.quantized = quantized
        self.border = border
        self._largest: dict[tuple[Value, tuple[int, ...], tuple[int, ...], tuple[int, ...]], Array] = {}

    def largest(self, value: Value, array: Array, axes: tuple[int, ...]) -> Array:
        """The greatest magnitude over `axes` of the elements of `value`, seen as `array`; NaN where there is one.

        In float64, and remembered: a layer is asked for every affine that might go there.
        """
        key = (value, axes, array.shape, array.strides)
        if key not in self._largest:
            self._largest[key] = _magnitude(array, axes)
        return self._largest[key]

    def measure_rows(self, values: Iterable[Value]) -> None:
        """Find what `largest_of_rows` will be asked for of constants with few elements, all of one type at once."""
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
        """As `largest`, over all axes but the first, for which not more than a block is in memory at a time."""
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
    top, bottom = np.maximum.reduce(wide, axis=axes, initial=0), np.minimum.reduce(wide, axis=axes, initial=0)
    largest: Array = np.maximum(top.astype(np.float64), -bottom.astype(np.float64))
    return largest


def shapes(node: Node, index: int = 0) -> tuple[tuple[Dim, ...] | None, tuple[Dim, ...] | None]:
    """The shapes of input `index` and of the first result, None where a rank is unknown."""
    value = node.input(index)
    return None if value is None else shape_of(value.type), shape_of(node.output.type)


def integers(
    node: Node, params: Parameters, name: str, index: int, default: tuple[int, ...] = ()
) -> tuple[int, ...] | None:
    """The attribute `name` or the elements of input `index`; `default` where it is not given, None where unknown."""
    return listed(node, name, index, params.evaluator) if is_given(node, name, index) else default


def number(node: Node, params: Parameters, name: str, index: int, default: float) -> float | None:
    """The attribute `name` or the one element of input `index` as float64, as `integers` does."""
    found = node.attrs.get(name)
    if found is not None:
        return float(found) if isinstance(found, float | int) else None
    value = node.input(index)
    if value is None:
        return default
    array = params.evaluator.array(value)
    return None if array is None or array.size != 1 else float(array.ravel()[0])


def parameter_axis(node: Node) -> int | None:
    """The axis, counted from the left, that the second operand of an arithmetic operator is aligned at, if it is."""
    axis = node.attrs.get("axis", 1 if node.op == "nn.bias_add" else None)
    return axis if isinstance(axis, int) and has_trait(node, Trait.ALIGNED) else None


def text(node: Node, name: str, default: str) -> str:
    """An attribute that is a string."""
    found = node.attrs.get(name, default)
    return found.decode(errors="replace") if isinstance(found, bytes) else found if isinstance(found, str) else default


def implicit_padding(node: Node, kernel: tuple[Dim, ...] | None) -> bool:
    """Whether a convolution or pool with windows of `kernel` elements may read beyond the border of its data.

    `auto_pad` SAME pads as much as ceil(extent / stride) windows need, which is nothing for windows of one element.
    """
    mode = text(node, "auto_pad", "NOTSET") or "NOTSET"
    if mode == "VALID":
        return False
    if mode == "NOTSET":
        pads = node.attrs.get("pads", ())
        return not isinstance(pads, tuple) or any(pads)
    if kernel is None:
        return True
    before, _ = shapes(node)
    rank = len(kernel)
    window = window_of(node, rank)
    if window is None:
        return True
    for i, extent in enumerate(kernel):
        if extent == 1:
            continue
        size = before[i + 2] if before is not None and len(before) == rank + 2 else None
        if not (isinstance(size, int) and isinstance(extent, int)):
            return True
        if window.reach(i, -(-size // window.strides[i]), extent) > size:
            return True
    return False


def common_value(array: Array) -> float | None:
    """The number that all float64 elements are, but for their rounding; None where they differ."""
    flat = np.atleast_1d(array).ravel()
    if flat.size and (flat == flat[0]).all():
        return float(flat[0])
    if not flat.size or not np.isfinite(flat).all():
        return None
    spread = float(flat.max() - flat.min())
    return float(flat[0]) if spread <= 4 * np.finfo(np.float64).eps * np.abs(flat).max() else None


def fits_attribute(node: Node, value: float) -> bool:
    """Whether an attribute, which is a float32, is precise enough for a number beside the data of `node`."""
    dtype = dtype_of(node.output.type)
    with np.errstate(over="ignore"):
        exact = float(np.float32(value)) == value
    return exact or (dtype is not None and dtype.bits <= 32)


def static_size(dims: tuple[Dim, ...]) -> int | None:
    """The product of extents, None where one is not a number, or no tensor has so many elements."""
    numbers = [dim for dim in dims if isinstance(dim, int)]
    count = element_count(numbers)
    return count if len(numbers) == len(dims) and count < ELEMENT_COUNT_LIMIT else None
