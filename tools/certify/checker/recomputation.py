"""Constant expressions, recomputed: integers exactly, floats in float64 with one rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from onnx import helper

from .affine_operators import EPSILON
from .kernels import BOUNDS
from .layer_constants import scale_places
from .lines import FORMATS
from .program import FLOATS, Array, Operation, Stored, Unproved, product, static
from .slices import bounds_of, selected

MAX_ELEMENTS = 1 << 26
"""Most elements of a result that is computed."""

Evaluate = Callable[[Operation, list[Array]], Array]

_INT = np.int64


def _axes(operation: Operation, index: int, default: Sequence[int] | None = None) -> list[int]:
    found = operation.integers("axes", index)
    if found is None:
        if default is None:
            raise Unproved("the axes are not constant")
        return list(default)
    return found


def _axis(operation: Operation, default: int = 0) -> int:
    return int(operation.attributes.get("axis", default))


def _slice(operation: Operation, arrays: list[Array]) -> Array:
    data = arrays[0]
    for axis, bounds in bounds_of(operation, data.ndim).items():
        data = data.take(selected(bounds, data.shape[axis]), axis=axis)
    return data


def _reshape(operation: Operation, arrays: list[Array]) -> Array:
    shape = operation.integers("shape", 1)
    if shape is None:
        raise Unproved("the shape is not constant")
    if not operation.attributes.get("allowzero", 0):
        shape = [arrays[0].shape[i] if extent == 0 else extent for i, extent in enumerate(shape)]
    return arrays[0].reshape(shape)


def _flatten(operation: Operation, arrays: list[Array]) -> Array:
    axis = _axis(operation, 1)
    axis += arrays[0].ndim if axis < 0 else 0
    return arrays[0].reshape(product(arrays[0].shape[:axis]), -1)


def _squeeze(operation: Operation, arrays: list[Array]) -> Array:
    axes = operation.integers("axes", 1)
    if not axes and axes is not None:
        raise Unproved("the axes are empty")
    return arrays[0].squeeze(None if axes is None else tuple(axes))


def _unsqueeze(operation: Operation, arrays: list[Array]) -> Array:
    return np.expand_dims(arrays[0], tuple(_axes(operation, 1)))


def _expand(operation: Operation, arrays: list[Array]) -> Array:
    extents = np.broadcast_shapes(arrays[0].shape, tuple(int(each) for each in arrays[1]))
    if product(extents) > MAX_ELEMENTS:
        raise Unproved("the result is too large")
    return np.broadcast_to(arrays[0], extents)


def _tile(operation: Operation, arrays: list[Array]) -> Array:
    data, repeats = arrays  # of the first version, a third operand is an axis
    counts = [int(each) for each in repeats]
    if (
        any(not 0 <= each <= MAX_ELEMENTS for each in counts)
        or data.size * product(counts) > MAX_ELEMENTS
    ):
        raise Unproved("the result is too large")
    return np.tile(data, counts)


def _constant_of_shape(operation: Operation, arrays: list[Array]) -> Array:
    extents = [int(each) for each in arrays[0]]
    if product(extents) > MAX_ELEMENTS:
        raise Unproved("the result is too large")
    value = operation.attributes.get("value")
    if value is None:
        return np.zeros(extents, np.float32)
    return np.broadcast_to(value.array.reshape(()), extents)


def _divide(operation: Operation, arrays: list[Array]) -> Array:
    first, second = arrays
    if first.dtype.kind not in "iu":
        return np.asarray(first / second)
    if not second.all():
        raise Unproved("a division by zero")
    return np.asarray((first - np.fmod(first, second)) // second)


def _power(operation: Operation, arrays: list[Array]) -> Array:
    if arrays[0].dtype.kind != "f":
        raise Unproved("a power of integers is not computed")
    return np.asarray(np.power(arrays[0], arrays[1].astype(arrays[0].dtype)))


def _range(operation: Operation, arrays: list[Array]) -> Array:
    """Return a Range of whole numbers, floats as far as the type has all of them."""
    given = [each.reshape(()) for each in arrays]
    if any(each.dtype.kind not in "iuf" or each != np.floor(each) for each in given):
        raise Unproved("the range is not one of whole numbers")
    start, limit, delta = (int(each) for each in given)
    if not delta or abs((limit - start) // delta) > MAX_ELEMENTS:
        raise Unproved("the range is too large")
    if given[0].dtype.kind == "f":
        dtype = helper.tensor_dtype_to_np_dtype(operation.outputs[0].kind)
        if max(abs(start), abs(limit) + abs(delta)) > 2.0 ** FORMATS[dtype.name][0]:
            raise Unproved("a number of the range may not be exact")
    return np.arange(start, limit, delta).astype(given[0].dtype)


def _gather_nd(operation: Operation, arrays: list[Array]) -> Array:
    data, places = arrays
    if operation.attributes.get("batch_dims", 0) or not places.ndim:
        raise Unproved("a GatherND of batches is not computed")
    return np.asarray(data[tuple(np.moveaxis(places.astype(_INT), -1, 0))])


def _space_to_depth(operation: Operation, arrays: list[Array]) -> Array:
    (data,), size = arrays, int(operation.attributes["blocksize"])
    batch, channels, rows, columns = data.shape
    blocks = data.reshape(batch, channels, rows // size, size, columns // size, size)
    found = blocks.transpose(0, 3, 5, 1, 2, 4)
    return found.reshape(batch, channels * size**2, rows // size, columns // size)


def _pad(operation: Operation, arrays: list[Array]) -> Array:
    raise Unproved("a constant Pad is not looked at")


def _clip(operation: Operation, arrays: list[Array]) -> Array:
    if len(arrays) != 3:
        raise Unproved("a Clip without both bounds as inputs is not computed")
    return np.asarray(np.minimum(np.maximum(arrays[0], arrays[1]), arrays[2]))


def _bound(clip: Operation, index: int) -> Stored | None:
    """Return the constant bound of a Clip of floats, an infinite one where it has none."""
    data, bound = clip.operand(0), clip.operand(index)
    if bound is not None or data is None or data.stored is None or not data.is_float:
        return None if bound is None else bound.stored
    return Stored(None, np.array(np.inf if index == 2 else -np.inf, data.stored.array.dtype))


def _reduce(function: Callable[..., Any]) -> Evaluate:
    def evaluate(operation: Operation, arrays: list[Array]) -> Array:
        axes = operation.integers("axes", 1)
        if not axes and operation.attributes.get("noop_with_empty_axes"):
            raise Unproved("the axes are empty")
        keep = bool(operation.attributes.get("keepdims", 1))
        given = {"axis": tuple(axes) if axes else None, "keepdims": keep}
        found = np.asarray(function(arrays[0], **given))
        if not np.array_equal(
            found, function(arrays[0].astype(np.float64), **given), equal_nan=True
        ):
            raise Unproved("an integer does not fit its type")
        return found

    return evaluate


def _of_floats(evaluate: Evaluate) -> Evaluate:
    """Return an evaluation that refuses integers."""

    def evaluated(operation: Operation, arrays: list[Array]) -> Array:
        if arrays[0].dtype.kind != "f":
            raise Unproved(f"{operation.kind} of integers is not computed")
        return evaluate(operation, arrays)

    return evaluated


def _norm(array: Array, **given: Any) -> Array:
    return np.asarray(np.sqrt(np.square(array).sum(**given)))


def _product(_operation: Operation, arrays: list[Array]) -> Array:
    rows, columns = arrays[0].shape[:-1], arrays[1].shape[-1:]
    if product(rows) * product((*arrays[1].shape[:-2], *columns)) > MAX_ELEMENTS:
        raise Unproved("the result is too large")
    return np.asarray(np.matmul(*arrays))


def _einsum(operation: Operation, arrays: list[Array]) -> Array:
    equation = operation.attributes["equation"].decode().replace(" ", "")
    if "->" not in equation or "..." in equation:
        raise Unproved("an equation without a result, or with an ellipsis")
    return np.asarray(np.einsum(equation, *arrays))


def _batch_norm(operation: Operation, arrays: list[Array]) -> Array:
    data, gamma, beta, mean, variance = arrays
    if (
        operation.version < 14
        or data.ndim < 2
        or {each.shape for each in arrays[1:]} != {data.shape[1:2]}
    ):
        raise Unproved("its form is not looked at")
    view = (-1, *(1,) * (data.ndim - 2))
    if operation.attributes.get("training_mode", 0):
        over = (0, *range(2, data.ndim))
        mean, variance = data.mean(over), data.var(over)
    deviation = np.sqrt(variance + operation.attributes.get("epsilon", EPSILON))
    centred = data - mean.reshape(view)
    return np.asarray(centred * (gamma / deviation).reshape(view) + beta.reshape(view))


def _elementwise(function: Callable[..., Any]) -> Evaluate:
    return lambda _operation, arrays: np.asarray(function(*arrays))


def _variadic(function: Callable[..., Any]) -> Evaluate:
    return lambda _operation, arrays: np.asarray(reduce(function, arrays))


EVALUATORS: dict[str, Evaluate] = {
    "Identity": lambda _operation, arrays: arrays[0],
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Concat": lambda operation, arrays: np.concatenate(arrays, _axis(operation)),
    "Gather": lambda operation, arrays: np.take(
        arrays[0], arrays[1].astype(_INT), axis=_axis(operation)
    ),
    "GatherND": _gather_nd,
    "SpaceToDepth": _space_to_depth,
    "Transpose": lambda operation, arrays: arrays[0].transpose(operation.attributes.get("perm")),
    "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "Div": _divide,
    "Neg": _elementwise(np.negative),
    "Abs": _elementwise(np.abs),
    "Sqrt": _elementwise(np.sqrt),
    "Reciprocal": _elementwise(np.reciprocal),
    "Sin": _elementwise(np.sin),
    "Cos": _elementwise(np.cos),
    "Exp": _elementwise(np.exp),
    "Log": _elementwise(np.log),
    "Tanh": _elementwise(np.tanh),
    "Sigmoid": _elementwise(lambda array: 1.0 / (1.0 + np.exp(-array))),
    "Softplus": _elementwise(lambda array: np.logaddexp(0.0, array)),
    "Floor": _elementwise(np.floor),
    "Ceil": _elementwise(np.ceil),
    "Pow": _power,
    "Min": _variadic(np.minimum),
    "Max": _variadic(np.maximum),
    "Sum": _variadic(np.add),
    "Equal": _elementwise(np.equal),
    "Less": _elementwise(np.less),
    "Greater": _elementwise(np.greater),
    "LessOrEqual": _elementwise(np.less_equal),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "And": _elementwise(np.logical_and),
    "Or": _elementwise(np.logical_or),
    "Xor": _elementwise(np.logical_xor),
    "Not": _elementwise(np.logical_not),
    "Where": _elementwise(np.where),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceMean": _of_floats(_reduce(np.mean)),
    "ReduceL1": _of_floats(_reduce(lambda array, **given: np.abs(array).sum(**given))),
    "ReduceL2": _of_floats(_reduce(_norm)),
    "MatMul": _of_floats(_product),
    "Einsum": _of_floats(_einsum),
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Relu": _elementwise(lambda array: np.maximum(array, 0)),
}
"""How the results of operators of the default domain are computed: the first, if there are more."""


BY_TYPE = frozenset(("Shape", "Size", "CastLike", "QuantizeLinear"))
"""Operators whose results may be constant where an operand is not."""


def recomputed(operation: Operation) -> list[Stored]:
    """Return the constant results of an operation whose inputs are constants. Raises Unproved.

    Of a BatchNormalization that is the first.
    """
    if operation.domain or operation.bodies or "broadcast" in operation.attributes:
        raise Unproved(f"{operation.domain or 'ai.onnx'} {operation.kind} is not computed")
    if operation.kind in ("Shape", "Size"):
        return [_extents(operation)]
    if operation.kind == "CastLike":
        return [_cast_like(operation)]
    if operation.kind == "QuantizeLinear":
        return [_quantized(operation)]
    given = [each.stored if each is not None else None for each in operation.inputs]
    if operation.kind == "Clip" and operation.version >= 11:
        given = [given[0], *(_bound(operation, i) for i in (1, 2))]
    if not given or any(stored is None for stored in given):
        raise Unproved("an input is not constant")
    stored = [each for each in given if each is not None]
    try:
        if operation.kind == "Cast":
            return [cast(operation.attributes["to"], stored[0])]
        if operation.kind == "Split":
            return _split(operation, stored[0])
        return [_computed(operation, stored)]
    except (ValueError, IndexError, TypeError, OverflowError) as error:
        raise Unproved(f"it cannot be computed: {error}") from None


def _computed(operation: Operation, stored: list[Stored]) -> Stored:
    evaluate = EVALUATORS.get(operation.kind)
    if evaluate is None:
        raise Unproved(f"{operation.kind} is not computed")
    kinds = {helper.np_dtype_to_tensor_dtype(each.array.dtype) for each in stored}
    if kinds & FLOATS:
        is_kernel = operation.kind in BOUNDS  # which reads numbers that were rounded before
        exact = evaluate(
            operation, [_wide(Stored(None, each.array) if is_kernel else each) for each in stored]
        )
        if any(each.is_unrounded for each in stored) and (
            exact.dtype != np.float64 or operation.kind in ("Floor", "Ceil")
        ):
            raise Unproved("numbers decide that are not rounded yet")
        if exact.dtype != np.float64:
            return Stored(None, exact)
        dtype = next(
            each.array.dtype
            for each in stored
            if helper.np_dtype_to_tensor_dtype(each.array.dtype) in FLOATS
        )
        array = exact.astype(dtype)
        if (np.isfinite(exact) & ~np.isfinite(array)).any() or np.isnan(exact).any():
            raise Unproved("a number does not fit its type, or is none")
        is_equal = bool((array == exact).all())
        return Stored(None, array, None if is_equal else exact)
    arrays = [each.array for each in stored]
    if operation.kind == "ConstantOfShape":
        return Stored(None, np.array(evaluate(operation, arrays)))
    result = evaluate(operation, arrays)
    if result.dtype.kind in "bf":
        dtype = result.dtype
    else:
        dtype = arrays[-1 if operation.kind == "Where" else 0].dtype
    if not np.array_equal(made := result.astype(dtype), result):
        raise Unproved("an integer does not fit its type")
    return Stored(None, made)


def _wide(stored: Stored) -> Array:
    is_float = helper.np_dtype_to_tensor_dtype(stored.array.dtype) in FLOATS
    return stored.exact if is_float else stored.array


def _cast_like(operation: Operation) -> Stored:
    data, other = operation.inputs
    if data is None or data.stored is None or other is None or not other.kind:
        raise Unproved("the data are not constant, or the element type is unknown")
    return cast(other.kind, data.stored)


def cast(to: int, stored: Stored) -> Stored:
    """Return a constant in another element type. Raises Unproved where ONNX leaves it open."""
    dtype = helper.tensor_dtype_to_np_dtype(to)
    was = helper.np_dtype_to_tensor_dtype(stored.array.dtype)
    if to in FLOATS and was in FLOATS:
        return Stored(None, stored.exact.astype(dtype))  # a Cast is there to round
    if stored.is_unrounded:
        raise Unproved("numbers decide that are not rounded yet")
    if was in FLOATS and dtype.kind in "iu":
        numbers = stored.array.astype(np.float64)
        limits = np.iinfo(dtype)
        if not (np.isfinite(numbers) & (numbers >= limits.min) & (numbers <= limits.max)).all():
            raise Unproved("a number does not fit into the integer type")
    elif dtype.kind not in "iufb" or stored.array.dtype.kind not in "iufb":
        raise Unproved("the element types are not looked at")
    return Stored(None, stored.array.astype(dtype))


def _quantized(operation: Operation) -> Stored:
    """Return the integers of a QuantizeLinear: the quotient, rounded half to even."""
    data, scale, point = (operation.constant(i) for i in range(3))
    if data is None or scale is None or point is None or point.dtype.kind not in "iu":
        raise Unproved("an input is not constant, or no zero point says the type")
    places = scale_places(operation, data.shape, scale.shape)
    if (
        places is None
        or data.dtype != scale.dtype
        or point.size != scale.size
        or set(operation.attributes) - {"axis"}
    ):
        raise Unproved("the scales do not fit the data, or an attribute is not looked at")
    limits = np.iinfo(point.dtype)
    found = np.rint(data / scale.reshape(-1)[places]).astype(np.float64) + point.reshape(-1)[places]
    if not np.isfinite(found).all():
        raise Unproved("a quotient is not finite")
    return Stored(None, np.clip(found, limits.min, limits.max).astype(point.dtype))


def _split(operation: Operation, stored: Stored) -> list[Stored]:
    axis, sizes = _axis(operation), operation.integers("split", 1)
    count = len(operation.outputs)
    extent = stored.array.shape[axis]
    if sizes is None:
        each = -(-extent // count)
        sizes = [min(each, extent - i * each) for i in range(count)]
    places = np.cumsum(sizes)[:-1]
    arrays, exact = np.split(stored.array, places, axis), np.split(stored.exact, places, axis)
    return [
        Stored(None, a, e if stored.is_unrounded else None)
        for a, e in zip(arrays, exact, strict=True)
    ]


def _extents(operation: Operation) -> Stored:
    data = operation.operand(0)
    if data is None or data.extents is None:
        raise Unproved("the extents are unknown")
    rank = len(data.extents)
    if operation.kind == "Size":
        known = static(data.extents)
        if known is None:
            raise Unproved("an extent is unknown")
        return Stored(None, np.array(product(known), np.int64))
    start, end = int(operation.attributes.get("start", 0)), operation.attributes.get("end")
    known = static(data.extents[slice(start, rank if end is None else int(end))])
    if known is None:
        raise Unproved("an extent is unknown")
    return Stored(None, np.array(known, np.int64))
