"""The operators that lines name.

Their meaning on tensors, from the ONNX specification, and the nodes of a model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from graphs import Array, onnx_dtype

from .tensors import Field, Tensor, Undefined, Value, folded, total, type_of

Function = Callable[..., Any]
Both = Any
"""A Tensor, or a Value of a model: both have `node`."""


def operator(write: Function) -> Callable[[Function], Function]:
    """Make a function that is `write` for values of a model, else the decorated one."""

    def wrap(meaning: Function) -> Function:
        def call(*operands: Any, **attrs: Any) -> Any:
            is_value = any(
                isinstance(each, Value)
                or (isinstance(each, list | tuple) and any(isinstance(e, Value) for e in each))
                for each in operands
            )
            return (write if is_value else meaning)(*operands, **attrs)

        call.__name__ = meaning.__name__
        return call

    return wrap


def _node(kind: str) -> Function:
    return lambda *operands, **attrs: _first(operands).node(kind, *operands, **attrs)


def _first(operands: Sequence[Any]) -> Value:
    return next(each for each in operands if isinstance(each, Value))


def _elementwise(function: Function, *tensors: Tensor) -> Tensor:
    field = tensors[0].field
    try:
        with np.errstate(all="ignore"):
            found = np.frompyfunc(lambda *e: function(field, *e), len(tensors), 1)(
                *[each.array for each in tensors]
            )
    except ValueError as error:
        raise Undefined(str(error)) from None
    return tensors[0].like(found)


def _greater(field: Field, a: Any, b: Any) -> Any:
    larger = field.choose(field.less_equal(b, a), a, b)
    return field.choose(field.is_nan(a), a, field.choose(field.is_nan(b), b, larger))


def _smaller(field: Field, a: Any, b: Any) -> Any:
    smaller = field.choose(field.less_equal(a, b), a, b)
    return field.choose(field.is_nan(a), a, field.choose(field.is_nan(b), b, smaller))


def greatest(a: Tensor, b: Any) -> Tensor:
    """Return the greater of two numbers; no operator of a model."""
    return a.join(b, lambda x, y: _greater(a.field, x, y))


def least(a: Tensor, b: Any) -> Tensor:
    """Return the smaller of two numbers; no operator of a model."""
    return a.join(b, lambda x, y: _smaller(a.field, x, y))


# elementwise


@operator(_node("Max"))
def maximum(x: Tensor, *others: Tensor) -> Tensor:
    return reduce(greatest, others, x)


@operator(_node("Min"))
def minimum(x: Tensor, *others: Tensor) -> Tensor:
    return reduce(least, others, x)


@operator(_node("Mean"))
def mean_n(*x: Tensor) -> Tensor:
    found = x[0]
    for other in x[1:]:
        found = found + other
    return found / len(x)  # type: ignore[no-any-return]


@operator(_node("Sum"))
def add_n(*x: Tensor) -> Tensor:
    found = x[0]
    for other in x[1:]:
        found = found + other
    return found


@operator(_node("Where"))
def where(c: Tensor, x: Tensor, y: Tensor) -> Tensor:
    field = x.field
    try:
        return x.like(np.frompyfunc(field.choose, 3, 1)(c.array, x.array, y.array))
    except ValueError as error:
        raise Undefined(str(error)) from None


def _rectified(x: Tensor, slope: Any) -> Tensor:
    slopes = slope if isinstance(slope, Tensor) else Tensor(x.field, x.field.number(slope))
    return _elementwise(
        lambda f, e, a: f.choose(f.less(e, f.number(0)), f.multiply(a, e), e), x, slopes
    )


@operator(_node("Relu"))
def relu(x: Tensor) -> Tensor:
    return _elementwise(lambda f, e: _greater(f, e, f.number(0)), x)


@operator(lambda x, alpha: x.node("LeakyRelu", x, alpha=alpha))
def leaky_relu(x: Tensor, alpha: float) -> Tensor:
    return _rectified(x, float(np.float32(alpha)))


@operator(_node("PRelu"))
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return _rectified(x, slope)


@operator(_node("Abs"))
def absolute(x: Tensor) -> Tensor:
    return _elementwise(lambda f, e: f.choose(f.less(e, f.number(0)), f.negate(e), e), x)


@operator(_node("Floor"))
def floor(x: Tensor) -> Tensor:
    return _elementwise(lambda f, e: f.whole(e, "down"), x)


@operator(_node("Ceil"))
def ceil(x: Tensor) -> Tensor:
    return _elementwise(lambda f, e: f.whole(e, "up"), x)


@operator(_node("Round"))
def round_(x: Tensor) -> Tensor:
    return _elementwise(lambda f, e: f.whole(e, "nearest"), x)


@operator(_node("Sign"))
def sign(x: Tensor) -> Tensor:
    def found(f: Field, e: Any) -> Any:
        zero = f.number(0)
        return f.choose(f.less(e, zero), f.number(-1), f.choose(f.less(zero, e), f.number(1), e))

    return _elementwise(found, x)


@operator(_node("Neg"))
def negative(x: Tensor) -> Tensor:
    return -x


@operator(_node("Not"))
def negation(x: Tensor) -> Tensor:
    return _elementwise(lambda f, e: f.opposite(e), x)


@operator(_node("And"))
def both(x: Tensor, y: Tensor) -> Tensor:
    return _elementwise(lambda f, a, b: f.choose(a, b, a), x, y)


@operator(_node("Or"))
def either(x: Tensor, y: Tensor) -> Tensor:
    return _elementwise(lambda f, a, b: f.choose(a, a, b), x, y)


@operator(_node("Clip"))
def clip(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    found = x if low is None else greatest(x, low)
    return found if high is None else least(found, high)


@operator(lambda x, alpha, beta: x.node("HardSigmoid", x, alpha=alpha, beta=beta))
def hard_sigmoid(x: Tensor, alpha: Any, beta: Any) -> Tensor:
    return clip(alpha * x + beta, 0, 1)  # type: ignore[no-any-return]


def ones(x: Tensor) -> Tensor:
    return x.like(np.full(x.shape, x.field.number(1), object))


@operator(lambda x: x.node("Dropout", x))
def mask(x: Tensor) -> Tensor:
    """Return the second result of a Dropout in inference."""
    return ones(x)


@operator(_node("Identity"))
def identity(x: Tensor) -> Tensor:
    return x


@operator(_node("Dropout"))
def dropout(x: Tensor) -> Tensor:
    return x


@operator(_node("Pow"))
def power(x: Tensor, c: Tensor) -> Tensor:
    """Compute x for an exponent of 1, and anything else for others: x times x for 2, and so on."""
    return _elementwise(
        lambda f, e, n: f.choose(f.equal(n, f.number(1)), e, f.multiply(e, e)),
        x,
        Tensor(x.field, c.array),
    )


def _dequantize_node(q: Value, d: Tensor, z: int) -> Value:
    point = q.graph.initializer(np.asarray(z, np.int8))
    integers = q.node("QuantizeLinear", q, 0.5, point)
    return q.node("DequantizeLinear", integers, d, point)


@operator(_dequantize_node)
def dequantize(q: Tensor, d: Tensor, z: int) -> Tensor:
    """Compute a DequantizeLinear, whose scale must be above 0."""
    d.field.defined.append((d > 0).value)
    return (q - z) * d  # type: ignore[no-any-return]


# affines


def along(numbers: Tensor, axis: int | None, rank: int) -> Tensor:
    """Return a vector with the rank of the data, along an axis."""
    if axis is None or not numbers.rank:
        return numbers
    return numbers.like(numbers.array.reshape([-1 if i == axis else 1 for i in range(rank)]))


def _affine_nodes(x: Value, s: Tensor, t: Tensor, axis: int, rank: int | None = None) -> Value:
    if rank is None:
        raise ValueError("the line is run as a model: write affine(x, s, t, axis, rank)")
    return x * along(s, axis, rank) + along(t, axis, rank)


@operator(_affine_nodes)
def affine(x: Tensor, s: Tensor, t: Tensor, axis: int, rank: int | None = None) -> Tensor:
    """Compute s x + t with one number for each channel along an axis."""
    if not axis < x.rank or s.rank > 1 or (s.rank and s.shape != (x.shape[axis],)):
        raise Undefined("no such channels")
    return along(s, axis, x.rank) * x + along(t, axis, x.rank)  # type: ignore[no-any-return]


# reductions


def _axes(rank: int, axes: Sequence[int] | None) -> tuple[int, ...]:
    if axes and any(not -rank <= a < rank for a in axes):
        raise Undefined("no such axis")
    return tuple(range(rank)) if not axes else tuple(sorted({a % rank for a in axes}))


def _reduced(kind: str) -> Function:
    def write(x: Value, axes: Sequence[int], keepdims: int = 1) -> Value:
        return x.node(kind, x, list(axes), keepdims=keepdims)

    return write


def count(x: Tensor, axes: Sequence[int]) -> int:
    """Return how many elements one sum over the axes has."""
    return prod(x.shape[a] for a in _axes(x.rank, axes))


@operator(_reduced("ReduceSum"))
def sum_(x: Tensor, axes: Sequence[int], keepdims: int = 1) -> Tensor:
    return x.like(total(x.field, x.array, _axes(x.rank, axes), keepdims=bool(keepdims)))


@operator(_reduced("ReduceMean"))
def mean(x: Tensor, axes: Sequence[int], keepdims: int = 1) -> Tensor:
    return sum_(x, axes, keepdims) / count(x, axes)  # type: ignore[no-any-return]


@operator(_reduced("ReduceMax"))
def max_(x: Tensor, axes: Sequence[int], keepdims: int = 1) -> Tensor:
    return x.like(
        folded(
            x.array,
            _axes(x.rank, axes),
            lambda a, b: _greater(x.field, a, b),
            keepdims=bool(keepdims),
        )
    )


@operator(_reduced("ReduceMin"))
def min_(x: Tensor, axes: Sequence[int], keepdims: int = 1) -> Tensor:
    return x.like(
        folded(
            x.array,
            _axes(x.rank, axes),
            lambda a, b: _smaller(x.field, a, b),
            keepdims=bool(keepdims),
        )
    )


@operator(_reduced("ReduceProd"))
def product_of(x: Tensor, axes: Sequence[int], keepdims: int = 1) -> Tensor:
    return x.like(folded(x.array, _axes(x.rank, axes), x.field.multiply, keepdims=bool(keepdims)))


@operator(_reduced("ReduceL1"))
def l1(x: Tensor, axes: Sequence[int], keepdims: int = 1) -> Tensor:
    return sum_(absolute(x), axes, keepdims)  # type: ignore[no-any-return]


@operator(_reduced("ReduceL2"))
def l2(x: Tensor, axes: Sequence[int], keepdims: int = 1) -> Tensor:
    return _elementwise(lambda f, e: f.root(e), sum_(x * x, axes, keepdims))


# windows along the last axes


def windows(
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    *,
    ceil: bool = False,
) -> list[list[Any]]:
    """Return, by position of the result, its index and elements; None for padding.

    With `ceil`, a last window that begins inside the data or the padding before them may end
    beyond.
    """
    k = len(kernel)
    spatial = x.shape[-k:]
    counts = [(spatial[i] + pads[i] + pads[k + i] - kernel[i]) // strides[i] + 1 for i in range(k)]
    if min(counts, default=0) < 1:
        raise Undefined("no window")
    if ceil:
        beyond = [spatial[i] + pads[i] + pads[k + i] - kernel[i] for i in range(k)]
        counts = [
            n + (beyond[i] % strides[i] > 0 and n * strides[i] < spatial[i] + pads[i])
            for i, n in enumerate(counts)
        ]
    found = []
    for position in np.ndindex(*counts):
        taps = []
        for tap in np.ndindex(*kernel):
            at = tuple(position[i] * strides[i] - pads[i] + tap[i] for i in range(k))
            inside = all(0 <= a < n for a, n in zip(at, spatial, strict=True))
            taps.append(x.array[(..., *at)] if inside else None)
        found.append([position, taps])
    return found


def pooled(
    x: Tensor,
    function: Function,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    **more: Any,
) -> Tensor:
    """Return the results of `function` on the taps of each window, by batch and channel."""
    parts = windows(x, kernel, strides, pads, **more)
    counts = [max(p[i] for p, _ in parts) + 1 for i in range(len(kernel))]
    found = np.empty((*x.shape[: -len(kernel)], *counts), object)
    for position, taps in parts:
        found[(..., *position)] = function(taps)
    return x.like(found)


def _pool_node(kind: str) -> Function:
    def write(
        x: Value, kernel: Any, strides: Any, pads: Any, counts: int | None = None, **attrs: Any
    ) -> Value:
        attrs |= {} if counts is None else {"count_include_pad": counts}
        return x.node(
            kind, x, kernel_shape=list(kernel), strides=list(strides), pads=list(pads), **attrs
        )

    return write


def _combined(function: Function, taps: Sequence[Any]) -> Any:
    inside = [tap for tap in taps if tap is not None]
    if not inside:
        raise Undefined("a window of padding alone")
    return folded(np.stack(inside, axis=-1), (inside[0].ndim,), function)


@operator(_pool_node("MaxPool"))
def max_pool(x: Tensor, kernel: Any, strides: Any, pads: Any, **more: Any) -> Tensor:
    def largest(taps: Sequence[Any]) -> Any:
        return _combined(lambda a, b: _greater(x.field, a, b), taps)

    return pooled(x, largest, kernel, strides, pads, **more)


@operator(lambda *operands: _pool_node("MaxPool")(*operands, ceil_mode=1))
def ceil_pool(x: Tensor, kernel: Any, strides: Any, pads: Any) -> Tensor:
    return max_pool(x, kernel, strides, pads, ceil=True)  # type: ignore[no-any-return]


def max_pool_indices(x: Tensor, kernel: Any, strides: Any, pads: Any) -> Tensor:
    """Return for each window the number of its first greatest tap."""
    field = x.field

    def index(taps: Sequence[Any]) -> Any:
        inside = [(i, tap) for i, tap in enumerate(taps) if tap is not None]
        found = np.full(inside[0][1].shape, field.number(inside[0][0]), object)
        best = inside[0][1]
        for i, tap in inside[1:]:
            wins = np.frompyfunc(field.less, 2, 1)(best, tap)
            found = np.frompyfunc(field.choose, 3, 1)(wins, field.number(i), found)
            best = np.frompyfunc(field.choose, 3, 1)(wins, tap, best)
        return found

    return pooled(x, index, kernel, strides, pads)


@operator(_pool_node("AveragePool"))
def avg_pool(x: Tensor, kernel: Any, strides: Any, pads: Any, count_include_pad: int = 0) -> Tensor:
    field = x.field

    def average(taps: Sequence[Any]) -> Any:
        inside = [tap for tap in taps if tap is not None]
        number = len(taps) if count_include_pad else len(inside)
        found = total(field, np.stack(inside, axis=-1), (inside[0].ndim,)) if inside else None
        if found is None:
            raise Undefined("a window of padding alone")
        return np.frompyfunc(lambda e: field.divide(e, field.number(number)), 1, 1)(found)

    return pooled(x, average, kernel, strides, pads)


@operator(_pool_node("LpPool"))
def lp_pool(x: Tensor, kernel: Any, strides: Any, pads: Any, p: int = 2) -> Tensor:
    field = x.field

    def norm(taps: Sequence[Any]) -> Any:
        inside = [tap for tap in taps if tap is not None]
        if not inside:
            raise Undefined("a window of padding alone")
        data = Tensor(field, np.stack(inside, axis=-1))
        return (l1 if p == 1 else l2)(data, [-1], 0).array

    return pooled(x, norm, kernel, strides, pads)


def _global(kind: str, function: Function) -> Function:
    return operator(lambda x: x.node(kind, x))(lambda x: function(x, range(2, x.rank), 1))


global_max_pool = _global("GlobalMaxPool", max_)
global_avg_pool = _global("GlobalAveragePool", mean)
global_lp_pool = _global("GlobalLpPool", l2)


# layers


def _conv_node(
    x: Value, w: Any, b: Any = None, group: int = 1, strides: Any = (1,), pads: Any = (0, 0)
) -> Value:
    attrs = {"group": group, "strides": list(strides), "pads": list(pads)}
    return x.node("Conv", *[x, w, b][: 2 + (b is not None)], **attrs)


@operator(_conv_node)
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    group: int = 1,
    strides: Any = (1,),
    pads: Any = (0, 0),
) -> Tensor:
    field, kernel = x.field, w.shape[2:]
    rows, columns = w.shape[0] // group, w.shape[1]
    if len(kernel) != x.rank - 2 or x.shape[1] != columns * group:
        raise Undefined("channels do not fit")
    flat = w.array.reshape(group, rows, columns, -1)

    def response(taps: Sequence[Any]) -> Array:
        found = np.full((x.shape[0], group, rows), field.number(0), object)
        for i, tap in enumerate(taps):
            if tap is not None:
                data = tap.reshape(x.shape[0], group, 1, columns)
                found = np.frompyfunc(field.add, 2, 1)(
                    found,
                    total(field, np.frompyfunc(field.multiply, 2, 1)(data, flat[..., i]), (3,)),
                )
        return found.reshape(x.shape[0], -1)

    parts = windows(x, kernel, strides, pads)
    counts = [max(p[i] for p, _ in parts) + 1 for i in range(len(kernel))]
    result = np.empty((x.shape[0], w.shape[0], *counts), object)
    for position, taps in parts:
        result[(..., *position)] = response(taps)
    found = x.like(result)
    return found if b is None else found + along(b, 1, x.rank)  # type: ignore[no-any-return]


def _conv_transpose_node(x: Value, w: Any, b: Any, group: int, strides: Any, pads: Any) -> Value:
    return x.node("ConvTranspose", x, w, b, group=group, strides=list(strides), pads=list(pads))


@operator(_conv_transpose_node)
def conv_transpose(x: Tensor, w: Tensor, b: Tensor, group: int, strides: Any, pads: Any) -> Tensor:
    """Compute a ConvTranspose along one axis."""
    field = x.field
    (stride,), (begin, end) = strides, pads
    batch, channels, extent = x.shape
    rows, columns, kernel = channels // group, w.shape[1], w.shape[2]
    size = (extent - 1) * stride + kernel - begin - end
    if size < 1:
        raise Undefined("no position")
    result = np.full((batch, columns * group, size), field.number(0), object)
    for n, c, i, j, k in itertools.product(*map(range, (batch, channels, extent, columns, kernel))):
        at = i * stride + k - begin
        if 0 <= at < size:
            out = (n, c // rows * columns + j, at)
            result[out] = field.add(result[out], field.multiply(x.array[n, c, i], w.array[c, j, k]))
    return x.like(result) + along(b, 1, 3)  # type: ignore[no-any-return]


@operator(
    lambda x, w, c, alpha, beta, trans=0: x.node(
        "Gemm", *[x, w, c][: 2 + (c is not None)], alpha=alpha, beta=beta, transB=trans
    )
)
def gemm(x: Tensor, w: Tensor, c: Tensor | None, alpha: Any, beta: Any, trans: int = 0) -> Tensor:
    if x.rank != 2:
        raise Undefined("no matrix")
    right = w.like(w.array.T) if trans else w
    found = alpha * (x @ right)
    summed = found if c is None else found + beta * c
    if summed.shape != found.shape:
        raise Undefined("a bias larger than the product")
    return summed  # type: ignore[no-any-return]


@operator(_node("MatMul"))
def matmul(x: Tensor, w: Tensor) -> Tensor:
    return x @ w  # type: ignore[no-any-return]


# normalizations: gamma n(x) + beta

EPSILON = 2.0**-10


def standardized(
    x: Tensor, axes: Sequence[int], *, centered: bool = True, epsilon: float = EPSILON
) -> Tensor:
    """Return data with the mean 0 and nearly the variance 1 over the axes."""
    data = x - mean(x, axes) if centered else x
    return data / _elementwise(lambda f, e: f.root(e), mean(data * data, axes) + epsilon)


def _norm_node(kind: str, *names: str) -> Function:
    """Write a normalization: tensors are operands, other arguments are the attributes `names`."""

    def write(x: Value, *operands: Any) -> Value:
        tensors = [each for each in operands if isinstance(each, Tensor)]
        attrs = dict(zip((*names, "epsilon"), operands[len(tensors) :], strict=False))
        return x.node(kind, x, *tensors, **{"epsilon": EPSILON, **attrs})

    return write


@operator(_norm_node("InstanceNormalization"))
def instance_norm(x: Tensor, g: Tensor, b: Tensor, epsilon: float = EPSILON) -> Tensor:
    return affine(standardized(x, range(2, x.rank), epsilon=epsilon), g, b, 1)  # type: ignore[no-any-return]


@operator(_norm_node("GroupNormalization", "num_groups"))
def group_norm(x: Tensor, g: Tensor, b: Tensor, num_groups: int) -> Tensor:
    parts = x.like(x.array.reshape(x.shape[0], num_groups, -1))
    found = x.like(standardized(parts, [2]).array.reshape(x.shape))
    return affine(found, g, b, 1)  # type: ignore[no-any-return]


@operator(_norm_node("GroupNormalization", "num_groups"))
def group_norm_by_group(x: Tensor, g: Tensor, b: Tensor, num_groups: int) -> Tensor:
    """Compute a GroupNormalization before opset 21: a scale and a bias for each group."""
    size = x.shape[1] // num_groups
    spread = [v.like(np.repeat(v.array, size)) for v in (g, b)]
    return group_norm(x, *spread, num_groups)  # type: ignore[no-any-return]


@operator(_norm_node("LayerNormalization", "axis"))
def layer_norm(x: Tensor, g: Tensor, b: Tensor, axis: int = -1, epsilon: float = EPSILON) -> Tensor:
    return standardized(x, range(axis % x.rank, x.rank), epsilon=epsilon) * g + b  # type: ignore[no-any-return]


@operator(lambda x, a, p: x.node("LpNormalization", x, axis=a, p=p))
def lp_normalize(x: Tensor, a: int, p: int) -> Tensor:
    return x / (l1 if p == 1 else l2)(x, [a])  # type: ignore[no-any-return]


@operator(_norm_node("RMSNormalization", "axis"))
def rms_norm(x: Tensor, g: Tensor, axis: int = -1, epsilon: float = EPSILON) -> Tensor:
    axes = range(axis % x.rank, x.rank)
    return standardized(x, axes, centered=False, epsilon=epsilon) * g  # type: ignore[no-any-return]


def deviation(v: Tensor) -> Tensor:
    """Return the root of a variance plus epsilon."""
    found = v + EPSILON
    v.field.defined.append((found >= 0).value)
    return _elementwise(lambda f, e: f.root(e), found)


@operator(_norm_node("BatchNormalization"))
def batch_norm(x: Tensor, g: Tensor, b: Tensor, m: Tensor, v: Tensor) -> Tensor:
    scale = g / deviation(v)
    return affine(x, scale, b - m * scale, 1)  # type: ignore[no-any-return]


# movement of elements: one meaning, that of the evaluator of models, for numbers, terms and types


def transpose(x: Both, perm: Sequence[int]) -> Both:
    return x.node("Transpose", x, perm=list(perm))


def target(shape: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that a Reshape gives, with 0 for a copy and -1 for the rest."""
    if any(n == 0 and i >= len(shape) for i, n in enumerate(wanted)):
        raise Undefined("no extent to copy")
    found = [shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if -1 in found:
        rest = -prod(found)
        if found.count(-1) > 1 or rest == 0 or prod(shape) % rest:
            raise Undefined("no such shape")
        found[found.index(-1)] = prod(shape) // rest
    if prod(found) != prod(shape):
        raise Undefined("another number of elements")
    return tuple(found)


@operator(_node("Reshape"))
def reshape(x: Tensor, wanted: Sequence[int]) -> Tensor:
    return x.like(x.array.reshape(target(x.shape, wanted)))


@operator(_node("Shape"))
def shape(x: Tensor) -> Tensor:
    return x.like(np.array([np.int64(extent) for extent in x.shape], object))


def full(extents: Sequence[int], v: Tensor) -> Tensor:
    """Compute a ConstantOfShape."""
    return v.like(np.broadcast_to(v.array, tuple(extents)).astype(object))


def flatten(x: Both, axis: int = 1) -> Both:
    return x.node("Flatten", x, axis=axis)


def squeeze(x: Both, axes: Sequence[int]) -> Both:
    return x.node("Squeeze", x, axes)


def unsqueeze(x: Both, axes: Sequence[int]) -> Both:
    return x.node("Unsqueeze", x, axes)


def expand(x: Both, shape: Sequence[int]) -> Both:
    return x.node("Expand", x, shape)


def slice_(x: Both, begin: int, end: int, axis: int, step: int = 1) -> Both:
    """Compute a Slice along one axis."""
    return x.node("Slice", x, *[[item] for item in (begin, end, axis, step)])


def take(x: Both, indices: Any, axis: int) -> Both:
    return x.node("Gather", x, np.asarray(indices, np.int64), axis=axis)


def gather_nd(x: Both, rows: Any) -> Both:
    return x.node("GatherND", x, np.asarray(rows, np.int64)[:, np.newaxis])


def split(x: Both, sizes: Sequence[int], axis: int) -> list[Both]:
    return x.nodes("Split", x, list(sizes), results=len(sizes), axis=axis)


def concat(parts: Sequence[Both], axis: int) -> Both:
    first = next((each for each in parts if isinstance(each, Value)), parts[0])
    return first.node("Concat", *parts, axis=axis)


def tile(x: Both, repeats: Sequence[int]) -> Both:
    return x.node("Tile", x, repeats)


def depth_to_space(x: Both, b: int, mode: str) -> Both:
    return x.node("DepthToSpace", x, blocksize=b, mode=mode)


def space_to_depth(x: Both, b: int) -> Both:
    return x.node("SpaceToDepth", x, blocksize=b)


def pad(x: Both, pads: Sequence[int], value: Any = 0, mode: str = "constant") -> Both:
    if mode != "constant" and min(pads) < 0:
        raise Undefined("crops")
    return x.node("Pad", x, list(pads), value, mode=mode)


def _position(i: int, factor: float, n: int, at: str) -> float:
    """Return the position in the data of element i of the result of a Resize."""
    size = int(n * factor)
    half = (i + 0.5) / factor - 0.5
    return {
        "half_pixel": half,
        "pytorch_half_pixel": half if size > 1 else 0.0,
        "half_pixel_symmetric": n / 2 * (1 - size / (factor * n)) + half,
        "asymmetric": i / factor,
        "align_corners": i * (n - 1) / max(size - 1, 1),
        "tf_half_pixel_for_nn": (i + 0.5) / factor,
    }[at]


def _resize_node(x: Value, factor: float, mode: str, at: str = "half_pixel") -> Value:
    scales = x.graph.initializer(np.asarray([1.0, 1.0, factor], np.float32))
    return x.node("Resize", x, None, scales, mode=mode, coordinate_transformation_mode=at)


@operator(_resize_node)
def resize(x: Tensor, factor: float, mode: str, at: str = "half_pixel") -> Tensor:
    """Compute a Resize of the last axis."""
    n, field = x.shape[-1], x.field
    columns = []
    for i in range(int(n * factor)):
        position = _position(i, factor, n, at)
        if mode == "nearest":
            columns.append(x.array[..., min(max(int(np.ceil(position - 0.5)), 0), n - 1)])
            continue
        low = int(np.floor(position))
        share = position - low
        left, right = (x[..., min(max(j, 0), n - 1)] for j in (low, low + 1))
        found = left if share == 0 else left * field.number(1 - share) + right * field.number(share)
        columns.append(found.array)
    return x.like(np.stack(columns, axis=-1))


def _crop_node(x: Value, size: int) -> Value:
    roi = x.graph.initializer(np.asarray([0, 0, 0, 1, 1, 2], np.float32))
    sizes = [1, 2, size]
    return x.node(
        "Resize",
        x,
        roi,
        None,
        sizes,
        coordinate_transformation_mode="tf_crop_and_resize",
        mode="linear",
    )


@operator(_crop_node)
def crop_and_resize(x: Tensor, size: int) -> Tensor:
    """Compute a Resize of a region twice as long as the last axis: 0 stands beyond the data."""
    n, field = x.shape[-1], x.field
    columns = []
    for i in range(size):
        at = i * 2 * (n - 1) / (size - 1)
        low, share = int(at), at - int(at)
        left, right = x[..., min(low, n - 1)], x[..., min(low + 1, n - 1)]
        found = (left * (1 - share) + right * share).array
        columns.append(found if at <= n - 1 else np.full(found.shape, field.number(0), object))
    return x.like(np.stack(columns, axis=-1))


def _sequence_node(x: Value, size: int, axis: int, k: int) -> Value:
    length = x.graph.initializer(np.asarray(size, np.int64))
    parts = x.node("SplitToSequence", x, length, axis=axis)
    return parts.node("SequenceAt", parts, x.graph.initializer(np.asarray(k, np.int64)))


@operator(_sequence_node)
def part_of_sequence(x: Tensor, size: int, axis: int, k: int) -> Tensor:
    """Compute a part of a SplitToSequence into parts of one size, but for the last."""
    return slice_(x, k * size, (k + 1) * size, axis)  # type: ignore[no-any-return]


def stepped(x: Both, i: int, j: int, b: int) -> Both:
    """Compute every b-th row and column, from i and j on."""
    return x.node("Slice", x, [i, j], [2**31, 2**31], [2, 3], [b, b])


def branch(c: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Compute an If that returns one of two values."""
    return where(c, x, y)  # type: ignore[no-any-return]


def rnn(x: Tensor, w: Tensor, u: Tensor, h: Tensor | None) -> Tensor:
    """Compute one step of a recurrent layer with Relu; a state that is absent is 0."""
    state = w * 0 if h is None else h
    return relu(w * x + u * state)  # type: ignore[no-any-return]


@operator(lambda x, kind: x.node("Cast", x, to=_onnx(kind)))
def cast(x: Tensor, kind: str) -> Tensor:
    field = x.field.of(kind)
    convert = np.frompyfunc(lambda e: x.field.converted(e, field), 1, 1)
    return Tensor(field, convert(x.array), constant=x.constant)


def _onnx(kind: str) -> int:
    return onnx_dtype(type_of(kind))


OPERATORS: dict[str, Function] = {
    name.rstrip("_"): each
    for name, each in list(globals().items())
    if callable(each)
    and not name.startswith("_")
    and not isinstance(each, type)
    and name not in ("operator", "prod")
}
"""All functions that a line may name."""


class Op:
    """An operator with its attributes, as a variable of a line: `op(x)`."""

    def __init__(self, name: str, *constants: Any, **attrs: Any) -> None:
        self.name = name
        self.constants = constants
        self.attrs = attrs

    def __call__(self, *operands: Any) -> Any:
        return OPERATORS[self.name](*operands, *self.constants, **self.attrs)

    def __repr__(self) -> str:
        shown = [
            *map(str, self.constants),
            *[f"{key}={value}" for key, value in self.attrs.items()],
        ]
        return f"{self.name}({', '.join(['x', *shown])})"
