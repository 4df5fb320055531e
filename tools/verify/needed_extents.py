"""Extents of open dimensions that operators need for windows and for constants of fixed shape.

They are found by running parts of the model, so nothing has to be known of the operators between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ...ir.ops import DEFAULT_DOMAINS
from .onnx_graph import constant_tensors

POOLS = ("AveragePool", "LpPool", "MaxPool")
SAME_EXTENTS = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Where", "PRelu", "Concat")
"""Operators whose operands have equal extents, but for the axis of Concat: more is fine there."""
MOST_NEEDS = 64
"""Most needs that are looked at: each runs a part of the model."""

ShapeOf = Callable[[str, int, int], Sequence[int] | None]
"""Returns the shape of a tensor for extents of open first and other axes, None if not computed."""


@dataclass(frozen=True, slots=True)
class Need:
    """The least extent of an axis of a tensor, or of all its axes together if `axis` is None."""

    tensor: str
    axis: int | None
    least: int

    def measure(self, shape: Sequence[int]) -> int:
        """Return the number that `least` bounds; `least` itself if the tensor has no such axis."""
        if self.axis is None:
            return prod(shape)
        return shape[self.axis] if -len(shape) <= self.axis < len(shape) else self.least


def find_needs(model: ModelProto) -> Iterator[Need]:
    """Yield the needs of the operators of the main graph, in its order."""
    constants = constant_tensors(model.graph)
    for node in model.graph.node:
        if node.domain in DEFAULT_DOMAINS and node.input:
            for need in _needs_of(node, constants):
                if need.least > 1 and need.tensor not in constants:
                    yield need


def _needs_of(node: NodeProto, constants: Mapping[str, TensorProto]) -> Iterator[Need]:
    data = node.input[0]
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    second = constants.get(node.input[1]) if len(node.input) > 1 else None
    dims = [] if second is None else list(second.dims)
    is_convolution = node.op_type == "Conv" and dims
    if node.op_type in POOLS or is_convolution:
        kernel = attributes.get("kernel_shape") or dims[2:]
        pads = attributes.get("pads") or [0] * (2 * len(kernel))
        dilations = attributes.get("dilations") or [1] * len(kernel)
        is_explicit = attributes.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
        if is_explicit and len(pads) == 2 * len(kernel):
            for i, (size, dilation) in enumerate(zip(kernel, dilations, strict=False)):
                yield Need(data, 2 + i, (size - 1) * dilation + 1 - pads[i] - pads[i + len(kernel)])
    elif node.op_type == "Gemm" and len(dims) == 2:
        axis = 0 if attributes.get("transA") else 1
        yield Need(data, axis, dims[1 if attributes.get("transB") else 0])
    elif node.op_type == "MatMul" and dims:
        yield Need(data, -1, dims[max(len(dims) - 2, 0)])
    elif node.op_type == "Reshape" and second is not None:
        # A target in another file is not read, and one of rank 0 is no list.
        is_here = dims and not second.external_data
        target = numpy_helper.to_array(second).tolist() if is_here else []
        if all(extent > 0 for extent in target):
            yield Need(data, None, prod(target))
    elif node.op_type in SAME_EXTENTS:
        yield from _broadcast_needs(node, constants)


def _broadcast_needs(node: NodeProto, constants: Mapping[str, TensorProto]) -> Iterator[Need]:
    """Yield the extents of constants with which the other operands are combined elementwise."""
    for name in node.input:
        for other in node.input:
            dims = constants[other].dims if other in constants else ()
            for i, extent in enumerate(dims):
                if extent > 1:
                    yield Need(name, i - len(dims), extent)


def find_extents(needs: Sequence[Need], shape_of: ShapeOf, most: int) -> tuple[int, int]:
    """Return the least extents up to `most` of open first and other axes that satisfy needs.

    Extents of tensors must not fall if extents of inputs rise. A need that no extent satisfies is
    passed over.
    """
    extents = [1, 1]
    for need in needs[:MOST_NEEDS]:
        for i in (1, 0):

            def enough(extent: int, i: int = i, need: Need = need) -> bool:
                tried = [extent if place == i else other for place, other in enumerate(extents)]
                shape = shape_of(need.tensor, *tried)
                return shape is not None and need.measure(shape) >= need.least

            found = _least(extents[i], most, enough)
            if found is not None:
                extents[i] = found
                break
    return extents[0], extents[1]


def _least(low: int, most: int, enough: Callable[[int], bool]) -> int | None:
    """Return the least number in `low` to `most` that is enough, by bisection, or None."""
    high = low
    while not enough(high):
        if high >= most:
            return None
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return high
