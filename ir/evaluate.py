"""Evaluation of constant expressions with numpy.

An operator is evaluated exactly as ONNX defines it or not at all: an evaluator raises `NotEvaluable` where the result
would depend on the runtime (a float out of an integer's range, division by zero, an unknown attribute form).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from .graph import Node, Value
from .tensor import Array, ArrayTensor, Tensor, numpy_dtype, round_to, to_float64
from .types import (
    DTYPES,
    ELEMENT_COUNT_LIMIT,
    F64,
    DType,
    Shape,
    dtype_of,
    element_count,
    shape_of,
)

Inputs = Sequence[Array | None]
Evaluate = Callable[[Node, Inputs], tuple[Array, ...]]


MAX_BYTES = 1 << 28
"""Bound on a computed result, folded weights excepted: an expression like Expand must not exhaust the memory."""


PRODUCTS_PER_BYTE = 16
"""Products of a matrix product that take about as long as reading a byte."""

WORK = 16
"""All evaluations together may read so many times the bound on one; what they keep in memory costs more."""

KEEPING = 8
"""What a byte costs that is kept, where one that is read costs 1."""

READINGS = 256
"""Each payload of the model pays for so many readings of itself; what rewrites made of one does not."""

AFFINE = 256
"""What each number of an affine costs, which is kept in float64 with what is computed from it."""

FREE = 1024
"""Numbers of an affine that are not counted: nodes are."""


SMALL = 1024
"""Bytes of a payload with which numpy takes less time than Python does to call it."""


DEFAULT_EPSILON = float(np.float32(1e-5))
"""The epsilon of a BatchNormalization that gives none: a float32, as all attributes are."""


_FLOAT64 = np.dtype(np.float64)
_UNSEEN: Any = object()
"""Stands for what has not been asked for, where None is an answer."""


class NotEvaluable(Exception):
    """A node's result cannot be computed here; the message says why."""


UNREADABLE = (NotEvaluable, ValueError, IndexError, TypeError, OSError, MemoryError, OverflowError, AssertionError)
"""What an evaluation may raise where there is no result."""


def _data(inputs: Inputs, index: int = 0) -> Array:
    array = inputs[index] if index < len(inputs) else None
    if array is None:
        raise NotEvaluable(f"input {index} is absent")
    return array


def is_wide(node: Node) -> bool:
    """Whether `multiply` or `add` combines narrow data with a float64 affine parameter.

    That is where the second operand is float64 and the first is not, and where FoldScaleAxis marked the product of a
    weight and its factor with `folded`. Such a node means the exact product or sum, rounded to the data's dtype where
    the value is used: a chain of them is rounded once.
    """
    if node.op not in ("multiply", "add", "nn.bias_add") or len(node.inputs) != 2:
        return False
    if "folded" in node.attrs:
        return True
    data, parameter = node.inputs
    assert data is not None and parameter is not None
    return dtype_of(parameter.type) is F64 and dtype_of(data.type) not in (F64, None)


def align(parameter: Array, axis: int, rank: int) -> Array:
    """`parameter` viewed so that its first axis broadcasts against axis `axis` (counted from the left) of `rank`."""
    axis += rank if axis < 0 else 0
    if axis < 0 or axis + parameter.ndim > rank:
        raise NotEvaluable(f"a parameter of rank {parameter.ndim} does not fit at axis {axis} of rank {rank}")
    return parameter.reshape(parameter.shape + (1,) * (rank - axis - parameter.ndim))


def _operands(node: Node, inputs: Inputs) -> tuple[Array, Array]:
    a, b = _data(inputs), _data(inputs, 1)
    axis = node.attrs.get("axis")
    if isinstance(axis, int):
        b = align(b, axis, a.ndim)
    return a, b


def _binary(function: Callable[[Array, Array], Array]) -> Evaluate:
    def evaluate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
        a, b = _operands(node, inputs)
        if is_wide(node):
            if a.dtype.kind == "c":
                raise NotEvaluable("a float64 parameter beside complex numbers")
            a = a.astype(np.float64, copy=False)
            size = prod(np.broadcast_shapes(a.shape, b.shape))
            if size > max(a.size, b.size):
                _bound(size, a)
        elif a.dtype != b.dtype or a.dtype == object:
            raise NotEvaluable(f"operands are {a.dtype} and {b.dtype}")
        else:
            _bound(prod(np.broadcast_shapes(a.shape, b.shape)), a)
        with np.errstate(all="ignore"):
            return (function(a, b),)

    return evaluate


def _bound(size: int, like: Array) -> None:
    """Refuse a result of `size` elements of the dtype of `like` that exceeds MAX_BYTES before it is allocated."""
    if size * like.itemsize > MAX_BYTES:
        raise NotEvaluable(f"the result would take {size * like.itemsize} bytes")


def divide(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Floats as IEEE 754 says; integers truncate towards zero."""
    a, b = _operands(node, inputs)
    if a.dtype != b.dtype or a.dtype == object:
        raise NotEvaluable(f"operands are {a.dtype} and {b.dtype}")
    if a.dtype.kind not in "iu":
        _bound(prod(np.broadcast_shapes(a.shape, b.shape)), a)
        with np.errstate(all="ignore"):
            return (np.divide(a, b),)
    least = np.iinfo(a.dtype).min
    if not b.all() or (a.dtype.kind == "i" and ((a == least).any() or (b == least).any())):
        raise NotEvaluable("integer division by zero or overflow")
    _bound(prod(np.broadcast_shapes(a.shape, b.shape)), a)
    quotient = np.abs(a) // np.abs(b)
    return (np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype),)


def _unary(function: Callable[[Array], Array]) -> Evaluate:
    def evaluate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
        data = _data(inputs)
        with np.errstate(all="ignore"):
            return (np.asarray(function(data), dtype=data.dtype),)

    return evaluate


def identity(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """The input."""
    return (_data(inputs),)


def _int_list(node: Node, inputs: Inputs, name: str, index: int) -> list[int] | None:
    """Integers given as attribute `name` or, in newer operator versions, as input `index`."""
    found = node.attrs.get(name)
    if isinstance(found, tuple):
        return [int(item) for item in found]  # type: ignore[arg-type]
    array = inputs[index] if index < len(inputs) else None
    return None if array is None else [int(item) for item in array.ravel()]


def reshape(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """0 keeps an extent unless `allowzero`, -1 takes what is left."""
    data, target = _data(inputs), _int_list(node, inputs, "shape", 1)
    if target is None:
        raise NotEvaluable("the target shape is not given")
    if not node.attrs.get("allowzero"):
        target = [data.shape[i] if dim == 0 and i < data.ndim else dim for i, dim in enumerate(target)]
    try:
        return (data.reshape(target),)
    except ValueError as error:
        raise NotEvaluable(str(error)) from None


def expand_dims(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Unsqueeze."""
    data, axes = _data(inputs), _int_list(node, inputs, "axes", 1)
    if axes is None:
        raise NotEvaluable("the axes are not given")
    return (np.expand_dims(data, tuple(axes)),)


def squeeze(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Squeeze; without axes every extent of 1 goes. Runtimes disagree on axes that are given and empty."""
    data, axes = _data(inputs), _int_list(node, inputs, "axes", 1)
    if axes == []:
        raise NotEvaluable("the axes are empty")
    return (np.squeeze(data, None if axes is None else tuple(axes)),)


def flatten(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """To rank 2, split at `axis`."""
    data, axis = _data(inputs), node.attrs.get("axis", 1)
    assert isinstance(axis, int)
    axis += data.ndim if axis < 0 else 0
    return (data.reshape(prod(data.shape[:axis]), prod(data.shape[axis:])),)


def transpose(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Permute axes; without `perm` reverse them."""
    perm = node.attrs.get("perm")
    return (np.transpose(_data(inputs), perm if isinstance(perm, tuple) else None),)  # type: ignore[arg-type]


def convert(array: Array, dtype: DType) -> Array:
    """Cast as ONNX defines it, refusing what it leaves to the runtime."""
    source = array.dtype
    target = numpy_dtype(dtype)
    if source == target:
        return array
    floats = ("f16", "bf16", "f32", "f64")
    is_float = any(source == numpy_dtype(DTYPES[name]) for name in floats)
    if source.kind == "O" or not (is_float or source.kind in "iub"):
        raise NotEvaluable(f"cast from {source}")
    if dtype.name in floats:
        if source.kind in "iu" and source.itemsize == 8 and (np.abs(array.astype(np.float64)) > 2.0**53).any():
            raise NotEvaluable("a cast of an integer above 2**53 to floating point")
        return round_to(array.astype(np.float64), dtype)
    if dtype.kind == "bool":
        return np.asarray(array != 0)
    if dtype.kind not in ("int", "uint") or dtype.bits < 8:
        raise NotEvaluable(f"cast to {dtype}")
    info = np.iinfo(target)
    low, high = (array.min(), array.max()) if array.size else (0, 0)
    if not (np.isfinite(array.astype(np.float64)).all() and info.min <= low and high <= info.max):
        raise NotEvaluable(f"a value out of the range of {dtype}")
    if is_float and array.size and float(high) >= 2.0 ** (dtype.bits - (dtype.kind == "int")):
        raise NotEvaluable(f"a value out of the range of {dtype}")
    result: Array = array.astype(target)
    return result


def cast(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Cast to the dtype of the output's type."""
    dtype = dtype_of(node.output.type)
    if dtype is None:
        raise NotEvaluable("the target dtype is unknown")
    return (convert(_data(inputs), dtype),)


def broadcast_to(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Expand: broadcast both ways with the requested shape."""
    data, target = _data(inputs), tuple(int(dim) for dim in _data(inputs, 1).ravel())
    try:
        return (np.broadcast_to(data, np.broadcast_shapes(data.shape, target)),)
    except ValueError as error:
        raise NotEvaluable(str(error)) from None


def full(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """ConstantOfShape: `value` (one element, by default 0.0 f32) everywhere."""
    value = node.attrs.get("value")
    fill = value.numpy().ravel()[:1] if isinstance(value, Tensor) else np.zeros(1, np.float32)
    shape = tuple(int(dim) for dim in _data(inputs).ravel())
    if any(dim < 0 for dim in shape):
        raise NotEvaluable(f"negative extent in {shape}")
    return (np.broadcast_to(fill.reshape((1,) * len(shape)), shape),)


def _extents(node: Node, inputs: Inputs) -> Shape:
    """The shape of the first operand, by its elements where it is constant and by its type elsewhere."""
    array, first = inputs[0] if inputs else None, node.input(0)
    if array is not None:
        return tuple(map(int, array.shape))
    return None if first is None else shape_of(first.type)


def _is_static(value: Value) -> bool:
    dims = shape_of(value.type)
    return dims is not None and all(isinstance(dim, int) for dim in dims)


def shape(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """The extents of the input's type from `start` to `end`, which must be static."""
    dims = _extents(node, inputs)
    if dims is None:
        raise NotEvaluable("the rank is unknown")
    start, end = node.attrs.get("start", 0), node.attrs.get("end")
    assert isinstance(start, int) and isinstance(end, int | None)
    wanted = dims[start:end]
    if not all(isinstance(dim, int) for dim in wanted):
        raise NotEvaluable("an extent is not static")
    return (np.array(wanted, np.int64),)


def take(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Gather."""
    data, indices, axis = _data(inputs), _data(inputs, 1), node.attrs.get("axis", 0)
    assert isinstance(axis, int)
    extent = data.shape[axis] if -data.ndim <= axis < data.ndim else 0
    if indices.size and not (-extent <= indices.min() and indices.max() < extent):
        raise NotEvaluable("an index is out of range")
    _bound(data.size // max(extent, 1) * indices.size, data)
    return (np.take(data, indices, axis=axis),)


def concatenate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Concat."""
    axis = node.attrs.get("axis", 1)
    assert isinstance(axis, int)
    parts = [_data(inputs, i) for i in range(len(inputs))]
    _bound(sum(part.size for part in parts), parts[0])
    return (np.concatenate(parts, axis=axis),)


def strided_slice(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Slice, with starts, ends, axes and steps as attributes or inputs."""
    data = _data(inputs)
    starts, ends = _int_list(node, inputs, "starts", 1), _int_list(node, inputs, "ends", 2)
    axes, steps = _int_list(node, inputs, "axes", 3), _int_list(node, inputs, "steps", 4)
    if starts is None or ends is None:
        raise NotEvaluable("starts or ends are not given")
    slices: list[slice] = [slice(None)] * data.ndim
    for i, start in enumerate(starts):
        axis, step, end = axes[i] if axes else i, steps[i] if steps else 1, ends[i]
        if step < 0:
            raise NotEvaluable("a slice with a negative step")
        slices[axis] = slice(start, end, step)
    return (data[tuple(slices)],)


def first_of_channel(array: Array) -> Array | None:
    """The vector [C] that an array [C, ...] repeats all over each channel, None where it does not."""
    if array.ndim < 2:
        return array
    flat = array.reshape(array.shape[0], -1)
    return np.ascontiguousarray(flat[:, 0]) if flat.shape[1] and (flat == flat[:, :1]).all() else None


def batch_norm_to_affine(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Scale = gamma / sqrt(var + epsilon) and shift = beta - mean * scale, in float64 [C]."""
    vectors = [first_of_channel(_data(inputs, i)) for i in range(4)]
    if any(vector is None for vector in vectors):
        raise NotEvaluable("parameters per element")
    epsilon = node.attrs.get("epsilon", DEFAULT_EPSILON)
    assert isinstance(epsilon, float)
    gamma, beta, mean, var = [to_float64(vector) for vector in vectors if vector is not None]
    return scale_and_shift(gamma, beta, mean, var, epsilon)


def scale_and_shift(gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float | Array) -> tuple[Array, Array]:
    """What a BatchNormalization with these parameters, float64 of one shape, multiplies by and adds."""
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(var + epsilon)
        return scale, beta - mean * scale


multiply: Evaluate = _binary(np.multiply)
add: Evaluate = _binary(np.add)
subtract: Evaluate = _binary(np.subtract)
negative: Evaluate = _unary(np.negative)
sqrt: Evaluate = _unary(np.sqrt)
reciprocal: Evaluate = _unary(lambda x: np.divide(np.ones((), x.dtype), x))
floor: Evaluate = _unary(np.floor)
ceil: Evaluate = _unary(np.ceil)
logical_not: Evaluate = _unary(np.logical_not)
equal: Evaluate = _binary(np.equal)
less: Evaluate = _binary(np.less)
less_equal: Evaluate = _binary(np.less_equal)
greater: Evaluate = _binary(np.greater)
greater_equal: Evaluate = _binary(np.greater_equal)
logical_and: Evaluate = _binary(np.logical_and)
logical_or: Evaluate = _binary(np.logical_or)
logical_xor: Evaluate = _binary(np.logical_xor)


def absolute(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Abs; the least signed integer has none."""
    data = _data(inputs)
    if data.dtype.kind == "i" and (data == np.iinfo(data.dtype).min).any():
        raise NotEvaluable("the absolute value of the least integer")
    return (np.abs(data),)


def power(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Pow of integers, which wraps; how a floating power is rounded is up to the runtime."""
    a, b = _data(inputs), _data(inputs, 1)
    if a.dtype != b.dtype or a.dtype.kind not in "iu" or (b < 0).any():
        raise NotEvaluable("a floating or negative power")
    _bound(prod(np.broadcast_shapes(a.shape, b.shape)), a)
    return (np.power(a, b),)


def mod(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Mod of integers: the sign is that of the divisor or, with `fmod`, of the dividend."""
    a, b = _data(inputs), _data(inputs, 1)
    if a.dtype != b.dtype or a.dtype.kind not in "iu" or not b.all():
        raise NotEvaluable("a floating remainder, or one of a division by zero")
    _bound(prod(np.broadcast_shapes(a.shape, b.shape)), a)
    return ((np.fmod if node.attrs.get("fmod") else np.mod)(a, b),)


def matmul(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """numpy.matmul; floating products are summed in float64 and rounded once."""
    a, b = _data(inputs), _data(inputs, 1)
    dtype = dtype_of(node.output.type)
    if a.dtype != b.dtype or dtype is None or not a.ndim or not b.ndim:
        raise NotEvaluable(f"operands are {a.dtype} and {b.dtype}")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    _bound(prod(batch) * prod(a.shape[-2:-1]) * prod(b.shape[-1:] if b.ndim > 1 else ()), a)
    if not dtype.is_float:
        return (np.matmul(a, b),)
    with np.errstate(all="ignore"):
        return (round_to(np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))), dtype),)


def _reduction(function: Callable[..., Array], *, integers: bool) -> Evaluate:
    """A Reduce operator; floating terms are taken in float64 and the result is rounded once."""

    def evaluate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
        data, axes = _data(inputs), _int_list(node, inputs, "axes", 1)
        dtype = dtype_of(node.inputs[0].type) if node.inputs[0] is not None else None
        if dtype is None or not data.size or not (dtype.is_float or (integers and data.dtype.kind in "iu")):
            raise NotEvaluable(f"a reduction of {dtype} elements")
        if not axes and node.attrs.get("noop_with_empty_axes", 0):
            return (data,)
        keepdims = bool(node.attrs.get("keepdims", 1))
        wide = data.astype(np.float64) if dtype.is_float else data
        with np.errstate(all="ignore"):
            result = np.asarray(function(wide, axis=tuple(axes) if axes else None, keepdims=keepdims))
        return (round_to(result, dtype) if dtype.is_float else result.astype(data.dtype),)

    return evaluate


def _norm(order: int) -> Callable[..., Array]:
    def norm(data: Array, **options: Any) -> Array:
        if order == 1:
            return np.asarray(np.abs(data).sum(**options))
        return np.asarray(np.sqrt(np.square(data).sum(**options)))

    return norm


reduce_max = _reduction(np.max, integers=True)
reduce_min = _reduction(np.min, integers=True)
reduce_sum = _reduction(np.sum, integers=True)
reduce_mean = _reduction(np.mean, integers=False)
reduce_l1 = _reduction(_norm(1), integers=False)
reduce_l2 = _reduction(_norm(2), integers=False)


def _variadic(function: Callable[[Array, Array], Array]) -> Evaluate:
    def evaluate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
        parts = [_data(inputs, i) for i in range(len(inputs))]
        if any(part.dtype != parts[0].dtype or (part != part).any() for part in parts):
            raise NotEvaluable("operands of several dtypes, or NaN")
        _bound(prod(np.broadcast_shapes(*(part.shape for part in parts))), parts[0])
        return (reduce(function, parts),)

    return evaluate


maximum: Evaluate = _variadic(np.maximum)
minimum: Evaluate = _variadic(np.minimum)


def where(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Where."""
    condition, x, y = (_data(inputs, i) for i in range(3))
    if x.dtype != y.dtype or condition.dtype != np.bool_:
        raise NotEvaluable(f"operands are {condition.dtype}, {x.dtype} and {y.dtype}")
    _bound(prod(np.broadcast_shapes(condition.shape, x.shape, y.shape)), x)
    return (np.where(condition, x, y),)


def arange(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Range of integers; a runtime may accumulate the rounding of floats."""
    start, limit, delta = (_data(inputs, i) for i in range(3))
    if start.dtype.kind not in "iu" or not start.dtype == limit.dtype == delta.dtype or delta.size != 1 or not delta:
        raise NotEvaluable("a range of floats, or one without end")
    low, high, step = (int(array.item()) for array in (start, limit, delta))
    _bound(len(range(low, high, step)), start)
    return (np.arange(low, high, step, dtype=start.dtype),)


def ndarray_size(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Size: the product of the extents of the input's type, 1 for a scalar."""
    dims = _extents(node, inputs)
    if dims is None or not all(isinstance(dim, int) for dim in dims):
        raise NotEvaluable("an extent is not static")
    count = element_count(dim for dim in dims if isinstance(dim, int))
    if count == ELEMENT_COUNT_LIMIT:
        raise NotEvaluable("no tensor has so many elements")
    return (np.array(count, np.int64),)


class ConstantEvaluator:
    """Evaluates constant values on demand and remembers the results.

    `max_bytes` bounds every single result, and `WORK` times that what all evaluations read and keep, beyond `READINGS`
    times the payloads: neither one Expand nor a thousand operators behind it can exhaust memory or time. A value keeps
    its meaning through every rewrite, so one evaluator may live as long as its module.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, known: Mapping[Value, Array] | None = None) -> None:
        """Begin with what is `known`, as `Module.computed`."""
        self._max_bytes = max_bytes
        self._left = WORK * max_bytes
        self._known: dict[Value, Array | None] = dict(known or {})

    def array(self, value: Value | None) -> Array | None:
        """The elements of a constant value in its own dtype, or None where it is not constant or not evaluable."""
        found = self.exact(value)
        if found is None or value is None or found.dtype != _FLOAT64:
            return found
        dtype = dtype_of(value.type)
        return found if dtype is None or dtype is F64 else round_to(found, dtype)

    def is_constant(self, value: Value | None) -> bool:
        """Whether the elements of `value` are known; those of a payload are not read for it."""
        node = None if value is None else value.node
        if node is not None and node.op == "constant":
            return isinstance(node.attrs.get("value"), Tensor)
        return self.array(value) is not None

    def is_small(self, value: Value | None) -> bool:
        """Whether `value` is a payload in memory that is not worth a call of numpy."""
        payload = None if value is None or value.node is None else value.node.attrs.get("value")
        return isinstance(payload, Tensor) and payload.in_memory and payload.nbytes <= SMALL

    def exact(self, value: Value | None) -> Array | None:
        """As `array`, but float64 and not rounded yet where the value is a product or sum that `is_wide`."""
        if value is None:
            return None
        found = self._known.get(value, _UNSEEN)
        return self._resolve(value) if found is _UNSEEN else found

    def provide(self, value: Value, array: Array) -> None:
        """Take `array`, computed elsewhere, for the elements of a constant value."""
        self._known[value] = array

    def forget_unknown(self) -> None:
        """Evaluate anew what was no constant so far: a rewrite may have made it one."""
        self._known = {value: array for value, array in self._known.items() if array is not None}

    def tensor(self, value: Value | None) -> Tensor | None:
        """The payload of a constant value: the node's own where it is a `constant`, a computed one elsewhere."""
        if value is None:
            return None
        node = value.node
        if node is not None and node.op == "constant":
            payload = node.attrs.get("value")
            return payload if isinstance(payload, Tensor) else None
        array = self.array(value)
        if array is None:
            return None
        dtype = dtype_of(value.type)
        return ArrayTensor(array, dtype) if dtype is not None else ArrayTensor(array)

    def _resolve(self, value: Value) -> Array | None:
        node = value.node
        if node is None:
            self._known[value] = None
            return None
        if node.op == "constant":
            return self._payload(value, node)
        from .ops import op_info

        stack = [value]
        while stack:
            top = stack[-1]
            if top in self._known:
                stack.pop()
                continue
            node = top.node
            if node is not None and node.op == "constant":
                self._payload(top, node)
                continue
            info = None if node is None else op_info(node.op)
            if node is None or info is None or info.evaluate is None:
                self._known[top] = None
                stack.pop()
                continue
            needed = [v for i, v in enumerate(node.inputs) if v is not None and i not in info.by_type]
            shaped = [v for i, v in enumerate(node.inputs) if v is not None and i in info.by_type and not _is_static(v)]
            missing = [v for v in (*needed, *shaped[:1]) if v not in self._known]
            computed = [v for v in missing if v.node is None or v.node.op != "constant"]
            if any(self._known.get(v, ...) is None for v in needed):
                self._known[top] = None
            elif missing:
                stack.extend(computed[:1] or missing)  # payloads are read last: there may be no need to
                continue
            else:
                self._evaluate(node, info.evaluate, info.by_type)
            stack.pop()
        return self._known[value]

    def _payload(self, value: Value, node: Node) -> Array | None:
        payload, found = node.attrs.get("value"), None
        if isinstance(payload, Tensor):
            try:
                found = payload.numpy()
            except UNREADABLE:
                found = None
            else:
                self._left += found.nbytes * READINGS if node.source is not None else 0
        self._known[value] = found
        return found

    def _evaluate(self, node: Node, evaluate: Evaluate, by_type: frozenset[int]) -> None:
        wide = is_wide(node)
        arrays: list[Array | None] = []
        for i, value in enumerate(node.inputs):
            if value is None or i in by_type:
                arrays.append(None if value is None else self._known.get(value))
            else:
                arrays.append(self._known[value] if wide else self.array(value))
        self._known.update(dict.fromkeys(node.outputs))  # a mask of Dropout is not evaluated
        if not self._afford(node, arrays):
            return
        for output, result in zip(node.outputs, self._results(node, evaluate, arrays), strict=False):
            array = None if result is None else np.asarray(result)  # numpy gives scalars where the rank is 0
            if array is None:
                continue
            self._known[output] = array if array.nbytes <= self._max_bytes else None
            self._left -= KEEPING * _kept(array, arrays)

    def affords(self, count: int) -> bool:
        """Whether an affine of `count` numbers may be computed with; if so it is paid for.

        Many may read one payload, which pays for a few of them; a parameter of its own pays for itself.
        """
        if count <= FREE:
            return True
        if AFFINE * count > self._left:
            return False
        self._left -= AFFINE * count
        return True

    def _afford(self, node: Node, arrays: Sequence[Array | None]) -> bool:
        """Whether an evaluation that reads `arrays` is still within the bound; if so it is paid for."""
        given = [array for array in arrays if array is not None]
        cost = sum(array.nbytes for array in given)
        if node.op == "matmul" and len(given) == 2 and all(array.ndim for array in given):
            a, b = given
            batch = max(min(prod(a.shape[:-2]), prod(b.shape[:-2])), 1)
            cost += a.size * b.size // max(a.shape[-1], 1) // batch // PRODUCTS_PER_BYTE
        if cost > self._left:
            return False
        self._left -= cost
        return True

    def _results(self, node: Node, evaluate: Evaluate, arrays: Inputs) -> Sequence[Array | None]:
        try:
            return evaluate(node, arrays)
        except UNREADABLE:
            return (None,) * len(node.outputs)


def _kept(array: Array, inputs: Inputs) -> int:
    """Bytes that `array` keeps in memory beside `inputs`, of which it may be a view."""
    if any(given is not None and np.may_share_memory(array, given) for given in inputs):
        return 0
    low, high = np.lib.array_utils.byte_bounds(array)
    return int(high - low)


def constant(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """The payload's elements."""
    payload = node.attrs.get("value")
    if not isinstance(payload, Tensor):
        raise NotEvaluable("not a dense tensor")
    return (payload.numpy(),)
