"""Operators that make tensors from little or nothing: constants, ranges, shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..attributes import SparseTensor
from ..extents import difference, maximum, quotient, total
from ..graph import Node
from ..tensor import Array, Tensor
from ..types import (
    ELEMENT_COUNT_LIMIT,
    F32,
    I64,
    UNKNOWN,
    Shape,
    TensorType,
    element_count,
    shape_of,
    static_dims,
)
from .evaluation import NotEvaluable, check_size, operand, operands
from .inference import Types, input_dtype, input_shape, pieces_of, target_shape
from .interval import Interval, interval
from .row import Constants, Inputs, OpInfo, Trait, complete, complete_by_types, integer


@complete_by_types
def infer_constant(node: Node, constants: Constants) -> Types:
    """Infer the payload's type."""
    payload = node.attrs.get("value")
    if isinstance(payload, SparseTensor):
        return (payload.type if min(payload.shape, default=0) >= 0 else UNKNOWN,)
    return (payload.type if isinstance(payload, Tensor) else UNKNOWN,)


def evaluate_constant(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Return the payload's elements."""
    payload = node.attrs.get("value")
    if not isinstance(payload, Tensor):
        raise NotEvaluable("not a dense tensor")
    return (payload.numpy(),)


@complete
def infer_full(node: Node, constants: Constants) -> Types:
    """Infer the requested shape in the dtype of `value`, f32 by default."""
    value, target = node.attrs.get("value"), target_shape(node, "shape", constants)
    return (TensorType(value.dtype if isinstance(value, Tensor) else F32, target),)


def evaluate_full(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute ConstantOfShape: `value` (one element, by default 0.0 f32) everywhere."""
    value = node.attrs.get("value")
    fill = value.numpy().ravel()[:1] if isinstance(value, Tensor) else np.zeros(1, np.float32)
    shape = tuple(int(dim) for dim in operand(inputs).ravel())
    if any(dim < 0 for dim in shape):
        raise NotEvaluable(f"negative extent in {shape}")
    return (np.broadcast_to(fill.reshape((1,) * len(shape)), shape),)


def evaluate_arange(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Range of integers; a runtime may accumulate the rounding of floats."""
    start, limit, delta = operands(inputs)
    are_integers = start.dtype.kind in "iu" and start.dtype == limit.dtype == delta.dtype
    if not are_integers or delta.size != 1 or not delta:
        raise NotEvaluable("a range of floats, or one without end")
    low, high, step = (int(array.item()) for array in (start, limit, delta))
    check_size(len(range(low, high, step)), start)
    return (np.arange(low, high, step, dtype=start.dtype),)


@complete
def infer_arange(node: Node, constants: Constants) -> Types:
    """Infer one extent, known if all runtimes count alike, for whole bounds also with symbols."""
    arrays = [constants.array(value) for value in node.inputs]
    numbers = [array.ravel()[0] for array in arrays if array is not None and array.size == 1]
    dtype = input_dtype(node)
    if len(numbers) == 3:
        return (TensorType(dtype, (range_length(*numbers),)),)
    bounds = [pieces_of(node, name, constants) for name in ("start", "limit", "delta")]
    start, limit, delta = (None if each is None or len(each) != 1 else each[0] for each in bounds)
    if dtype is not I64 or not isinstance(delta, int) or delta < 1:
        return (TensorType(dtype, (None,)),)
    count = quotient(total(difference(limit, start), delta - 1), delta)
    return (TensorType(dtype, (maximum(0, count),)),)


def range_length(start: np.generic, limit: np.generic, delta: np.generic) -> int | None:
    """Return the number of elements of a Range: ceil((limit - start) / delta), or 0 if negative.

    None stands for bounds of which it depends on the precision: onnx's shape inference subtracts in
    the type of the elements, onnxruntime in float64. With the float32 next to 0.1, 1.1 and 0.1
    there are 10 for the one, 11 for the other.
    """
    if any(number.dtype.kind not in "iuf" for number in (start, limit, delta)) or not delta:
        return None
    if delta.dtype.kind != "f":
        count = -((int(start) - int(limit)) // int(delta))
        return max(0, count) if count < ELEMENT_COUNT_LIMIT else None
    with np.errstate(all="ignore"):
        wide = np.ceil((np.float64(limit) - np.float64(start)) / np.float64(delta))
        others = [(limit - start) / delta, np.float64(limit - start) / np.float64(delta)]  # type: ignore[operator]
        is_sure = np.isfinite(wide) and all(np.ceil(count) == wide for count in others)
    return max(0, int(wide)) if is_sure and wide < ELEMENT_COUNT_LIMIT else None


def _extents(node: Node, inputs: Inputs) -> Shape:
    """Return the shape of the first operand, of its elements if it is constant, or of its type."""
    array, first = inputs[0] if inputs else None, node["data"]
    if array is not None:
        return tuple(map(int, array.shape))
    return None if first is None else shape_of(first.type)


@complete_by_types
def infer_shape_of(node: Node, constants: Constants) -> Types:
    """Infer i64[rank]."""
    shape, start, end = input_shape(node), node.attrs.get("start", 0), node.attrs.get("end")
    if shape is None or not (isinstance(start, int) and isinstance(end, int | None)):
        return (TensorType(I64, (None,)),)
    return (TensorType(I64, (len(shape[start:end]),)),)


def evaluate_shape_of(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Return the extents of the input's type from `start` to `end`, which must be static."""
    dims = _extents(node, inputs)
    if dims is None:
        raise NotEvaluable("the rank is unknown")
    start, end = node.attrs.get("start", 0), node.attrs.get("end")
    assert isinstance(start, int) and isinstance(end, int | None)
    wanted = static_dims(dims[start:end])
    if wanted is None:
        raise NotEvaluable("an extent is not static")
    return (np.array(wanted, np.int64),)


def infer_ndarray_size(node: Node, constants: Constants) -> Types:
    """Infer i64[]."""
    return (TensorType(I64, ()),)


def evaluate_ndarray_size(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute Size: the product of the extents of the input's type, 1 for a scalar."""
    dims = static_dims(_extents(node, inputs))
    if dims is None:
        raise NotEvaluable("an extent is not static")
    count = element_count(dims)
    if count == ELEMENT_COUNT_LIMIT:
        raise NotEvaluable("no tensor has so many elements")
    return (np.array(count, np.int64),)


def _filled(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    value = node.attrs.get("value")
    fill = float(value.numpy().ravel()[0]) if isinstance(value, Tensor) else 0.0
    return [interval(fill, fill)]


def _shape_bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    dims = static_dims(_extents(node, ()))
    return [interval(0, math.inf) if not dims else interval(min(dims), max(dims))]


ROWS = (
    OpInfo("constant", (), infer_constant, evaluate_constant, traits=frozenset({Trait.ATOMIC})),
    OpInfo("variable", (), infer_constant, pure=False),
    OpInfo(
        "full",
        ("shape",),
        infer_full,
        evaluate_full,
        onnx="ConstantOfShape",
        since=9,
        forms={"bf16": 20},
        bounds=_filled,
    ),
    OpInfo(
        "arange",
        ("start", "limit", "delta"),
        infer_arange,
        evaluate_arange,
        onnx="Range",
        since=11,
        traits=frozenset({Trait.EVALUATED_FOR_INTEGERS}),
        bounds=lambda node, x, constants: [x[0].whole.hull(x[1].whole)],
    ),
    OpInfo(
        "shape_of",
        ("data",),
        infer_shape_of,
        evaluate_shape_of,
        onnx="Shape",
        forms={"part": 15},
        attrs={"end": integer, "start": integer},
        by_type=("data",),
        bounds=_shape_bounds,
    ),
    OpInfo(
        "ndarray_size",
        ("data",),
        infer_ndarray_size,
        evaluate_ndarray_size,
        onnx="Size",
        by_type=("data",),
    ),
)
