"""Likely mean and deviation of values that `moments` cannot tell: guesses, for ranges.

- The axis along which channels are known is changed if an operator needs another one: channels
  are pooled.
- The greatest of some elements is taken to be distributed as the elements are.
- The results of a normalization have its scale for their deviation and its shift for their mean.
- Elements of a product of two matrices that are computed at run time are taken to be independent.
- Any other result is as its operand if it has about the same range, else it is spread evenly
  over its interval.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from ...ir.graph import Node, Value
from ...ir.ops import terms_of
from ...ir.ops.inference import input_shapes, integer_of
from ...ir.ops.normalization import NORMALIZATIONS, normalized_parameters
from ...ir.tensor import Array, to_float64
from ...ir.types import shape_of
from .intervals import interval_of, to_channels
from .moments import Moments, Propagator

ALIKE = 1.5
"""How much wider than its operand a result may be that is distributed alike."""


class LikelyMoments(Propagator):
    """The walk that guesses moments if none follow.

    Every value with a finite range has moments in `found`.
    """

    def get(self, node: Node, index: int = 0) -> Moments | None:
        value = node.input(index)
        return None if value is None else self.of(value)

    def of(self, value: Value) -> Moments | None:
        """Return the moments of a value, which may be a constant."""
        found = self.found.get(value)
        if found is None:
            array = self.params.evaluator.array(value)
            if array is not None and array.size and array.dtype.kind not in "OUSc":
                found = self.found[value] = of_elements(to_float64(array))
        return found

    def along(self, value: Value, axis: int | None, count: int) -> Moments | None:
        found = self.of(value)
        return None if found is None else found.along(axis, count)

    def extremum(self, data: Moments) -> Moments:
        return data

    def aligned(self, node: Node) -> list[Moments] | None:
        """Return the operands along the first axis of channels in the result, else as a whole."""
        parts = [self.get(node, i) for i in range(len(node.inputs))]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        shape = shape_of(node.output.type)
        axes = [self.result_axis(node, i, known[i]) for i in range(len(known))]
        for part, axis in zip(known, axes, strict=True):
            if axis is not None and shape is not None and shape[axis] in (len(part.mean), None):
                count = len(part.mean)
                return [
                    replace(each, axis=axis)
                    if own == axis and len(each.mean) == count
                    else each.along(None, 1).along(axis, count)
                    for each, own in zip(known, axes, strict=True)
                ]
        return [part.whole for part in known]

    def result_axis(self, node: Node, index: int, part: Moments) -> int | None:
        """Return the axis of the result that has the channels of an operand, if it is known."""
        own, shape = input_shapes(node)[index], shape_of(node.output.type)
        if part.axis is None or own is None or shape is None:
            return None
        if "axis" in node.attrs or len(part.mean) == 1:
            return None
        axis = part.axis + len(shape) - len(own)
        return axis if 0 <= axis < len(shape) else None

    def concatenated(self, node: Node) -> Moments | None:
        """Return the moments of a Concat, along its axis if the extents are known."""
        parts = [self.get(node, i) for i in range(len(node.inputs))]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        shape, axis = shape_of(node.output.type), integer_of(node, "axis", 1)
        extents = [(own or ())[axis : axis + 1 or None] for own in input_shapes(node)]
        counts = [
            extent[0]
            for extent in extents
            if extent and isinstance(extent[0], int) and extent[0] > 0
        ]
        if shape is None or len(counts) < len(known) or sum(counts) > MAX_CHANNELS:
            wholes = [part.whole for part in known]
            axis, joined = 0, wholes
        else:
            axis %= len(shape)
            joined = [part.along(axis, count) for part, count in zip(known, counts, strict=True)]
        mean, std, low, high = (
            np.concatenate([getattr(part, name) for part in joined]) for name in FIELDS
        )
        found = Moments(axis, mean, std, low, high)
        return found if len(counts) == len(known) and shape is not None else found.whole

    def guess(
        self, node: Node, index: int, low: Array, high: Array, axis: int | None
    ) -> tuple[Moments, bool]:
        """Return moments of a result in [low, high], and whether they rest on that alone."""
        if node.op in NORMALIZATIONS and index == 0:
            return self.normalized(node, low, high, axis), False
        terms = terms_of(node)
        if terms is not None:
            found = self.products(node, terms)
            if found is not None:
                return replace(found.along(axis, len(low)), low=low, high=high), False
        width = high.max() - low.min()
        for i in range(len(node.inputs)):
            data = self.get(node, i)
            if data is None or node.inputs[i] is None or self.is_constant(node.inputs[i]):
                continue
            own = data.high.max() - data.low.min()
            alike = own <= width * ALIKE and width <= own * ALIKE
            if alike and data.low.min() <= high.max() and low.min() <= data.high.max():
                return replace(data.whole.along(axis, len(low)), low=low, high=high), False
        return evenly(axis, low, high), True

    def is_constant(self, value: Value | None) -> bool:
        """Return whether the elements of a value are known."""
        return self.params.evaluator.is_constant(value)

    def normalized(self, node: Node, low: Array, high: Array, axis: int | None) -> Moments:
        """Return the moments of the result of a normalization."""
        operands = [interval_of(None, None)] * len(node.inputs)
        for i, value in enumerate(node.inputs):
            if value is not None:
                operands[i] = interval_of(self.get(node, i), shape_of(value.type))
        scale, shift = normalized_parameters(node, operands)
        rank = len(shape_of(node.output.type) or ())
        std = to_channels(scale.magnitude, rank, axis, len(low), np.max)
        mean = to_channels((shift.low + shift.high) / 2, rank, axis, len(low), np.mean)
        return Moments(axis, mean, std, low, high)

    def products(self, node: Node, terms: float) -> Moments | None:
        """Return the moments of sums of products of two independent operands, as a whole."""
        first, second = self.get(node), self.get(node, 1)
        if first is None or second is None or not math.isfinite(terms):
            return None
        x, y = first.whole, second.whole
        mean = terms * x.mean * y.mean
        std = np.sqrt(terms * (x.std**2 * y.std**2 + x.std**2 * y.mean**2 + y.std**2 * x.mean**2))
        return Moments(None, mean, std, mean, mean)


FIELDS = ("mean", "std", "low", "high")

MAX_CHANNELS = 1 << 20
"""Most channels that are told apart."""


def evenly(axis: int | None, low: Array, high: Array) -> Moments:
    """Return the moments of a value that is spread evenly between `low` and `high`."""
    return Moments(axis, (low + high) / 2, (high - low) / math.sqrt(12), low, high)


def of_elements(array: Array) -> Moments:
    """Return the moments of known elements, along the only axis of several if there is one."""
    axes = [axis for axis, extent in enumerate(array.shape) if extent > 1]
    if len(axes) == 1:
        flat = array.reshape(-1)
        return Moments(axes[0], flat, np.zeros_like(flat), flat, flat)
    return Moments(
        None,
        *(
            np.full(1, float(number))
            for number in (array.mean(), array.std(), array.min(), array.max())
        ),
    )
