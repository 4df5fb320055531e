"""Type inference of the in-house operators; each function returns the types of a node's outputs.

The evaluator is that of the caller, so that constant expressions are evaluated once.
What cannot be told is left unknown. Shapes follow the ONNX operator of the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from .evaluate import ConstantEvaluator
from .graph import Node, Value
from .tensor import Tensor
from .types import (
    BOOL,
    ELEMENT_COUNT_LIMIT,
    F64,
    I64,
    UNKNOWN,
    Dim,
    DType,
    Shape,
    TensorType,
    Type,
    dtype_of,
    element_count,
    shape_of,
)

Infer = Callable[[Node, ConstantEvaluator], tuple[Type, ...]]


def _dtype(value: Value | None) -> DType | None:
    return None if value is None else dtype_of(value.type)


def _shape(value: Value | None) -> Shape:
    return None if value is None else shape_of(value.type)


TYPE_OF_DATA = frozenset(
    f"::{name}"
    for name in (
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "CumSum", "Elu", "Erf", "Exp"),
        *("Gelu", "HardSwish", "Hardmax", "LRN", "Log", "LogSoftmax", "LpNormalization", "Mish", "Round", "Selu"),
        *("Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus", "Softsign", "Swish", "Tan", "Tanh"),
        *("ThresholdedRelu", "Trilu"),
    )
)
"""Foreign operators of ONNX's default domain whose result has the type of their first operand."""


def same(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """The type of the first input."""
    first = node.input(0)
    return (UNKNOWN if first is None else first.type,)


def broadcast_dims(a: Dim, b: Dim) -> Dim:
    """The extent that two extents broadcast to, None where that depends on run time."""
    if a == 1:
        return b
    if b == 1 or a == b:
        return a
    if (isinstance(a, int) and b is None) or isinstance(b, str):
        return a if isinstance(a, int) else None
    return b if isinstance(b, int) and not isinstance(a, int) else None


def broadcast_shapes(a: Shape, b: Shape) -> Shape:
    """Numpy's broadcast of two shapes; unknown where either rank is."""
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    wide = [(1,) * (rank - len(shape)) + shape for shape in (a, b)]
    return tuple(broadcast_dims(x, y) for x, y in zip(*wide, strict=True))


def elementwise(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """Broadcast of two operands, in the first one's dtype; with `axis` the second does not widen the first."""
    a, b = node.input(0), node.input(1)
    dtype = _dtype(a) or (_dtype(b) if _dtype(b) is not F64 else None)
    if "axis" in node.attrs:
        return (TensorType(dtype, _shape(a)),)
    return (TensorType(dtype, broadcast_shapes(_shape(a), _shape(b))),)


def broadcast(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """Broadcast of all operands, in the first one's dtype."""
    return (TensorType(_dtype(node.input(0)), reduce(broadcast_shapes, map(_shape, node.inputs))),)


def comparison(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """Broadcast of the operands, bool."""
    return (TensorType(BOOL, reduce(broadcast_shapes, map(_shape, node.inputs))),)


def scalar_i64(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """i64[]."""
    return (TensorType(I64, ()),)


def where(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """Broadcast of condition and both branches, in the branches' dtype."""
    return (TensorType(_dtype(node.input(1)), reduce(broadcast_shapes, map(_shape, node.inputs))),)


def bias_add(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """The data's type."""
    return same(node, evaluator)


def batch_norm_to_affine(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """Scale and shift, f64[C]."""
    shape = _shape(node.input(0))
    shape = None if shape is None else shape[:1]
    return (TensorType(F64, shape), TensorType(F64, shape))


def _ints(node: Node, name: str, default: int, count: int) -> tuple[int, ...] | None:
    found = node.attrs.get(name)
    if found is None:
        return (default,) * count
    if not isinstance(found, tuple) or len(found) != count or not all(isinstance(item, int) for item in found):
        return None
    return found  # type: ignore[return-value]


def _window(node: Node, rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Pads (begins, then ends), strides and dilations of a convolution; None where they are not given in numbers."""
    spatial = rank - 2
    pads, strides = _ints(node, "pads", 0, 2 * spatial), _ints(node, "strides", 1, spatial)
    dilations = _ints(node, "dilations", 1, spatial)
    if node.attrs.get("auto_pad", "NOTSET") != "NOTSET" or pads is None or strides is None or dilations is None:
        return None
    return (pads, strides, dilations) if all(strides) else None


def _convolved(node: Node, extent: Callable[[int, int, int], int] | None) -> tuple[Dim, list[Dim]]:
    """Batch and spatial extents of a convolution, these by `extent`(axis, of the input, of the kernel) if given."""
    x, weight = _shape(node.input(0)), _shape(node.input(1))
    assert weight is not None
    if x is None or len(x) != len(weight):
        return None, [None] * (len(weight) - 2)
    dims: list[Dim] = []
    for i, (size, kernel) in enumerate(zip(x[2:], weight[2:], strict=True)):
        static = extent is not None and isinstance(size, int) and isinstance(kernel, int)
        result = extent(i, size, kernel) if static else None  # type: ignore[misc, arg-type]
        dims.append(None if result is None or result < 0 else result)
    return x[0], dims


def conv(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """[N, M, spatial...] with rank and M from the weight [M, C/group, k...]."""
    weight = _shape(node.input(1))
    dtype = _dtype(node.input(1)) or _dtype(node.input(0))
    if weight is None or len(weight) < 2:
        return (TensorType(dtype, None),)
    window = _window(node, len(weight))

    def extent(i: int, size: int, kernel: int) -> int:
        assert window is not None
        pads, strides, dilations = window
        return (size + pads[i] + pads[len(strides) + i] - dilations[i] * (kernel - 1) - 1) // strides[i] + 1

    batch, dims = _convolved(node, extent if window else None)
    return (TensorType(dtype, (batch, weight[0], *dims)),)


def conv_transpose(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """[N, M, spatial...] with rank and M from the weight [C, M/group, k...]."""
    weight = _shape(node.input(1))
    dtype = _dtype(node.input(1)) or _dtype(node.input(0))
    if weight is None or len(weight) < 2:
        return (TensorType(dtype, None),)
    group = node.attrs.get("group", 1)
    channels = weight[1] * group if isinstance(weight[1], int) and isinstance(group, int) else None
    window = _window(node, len(weight))
    extra = _ints(node, "output_padding", 0, len(weight) - 2)

    def extent(i: int, size: int, kernel: int) -> int:
        assert window is not None
        assert extra is not None
        pads, strides, dilations = window
        covered = strides[i] * (size - 1) + dilations[i] * (kernel - 1) + 1
        return covered + extra[i] - pads[i] - pads[len(strides) + i]

    known = window is not None and extra is not None and "output_shape" not in node.attrs
    batch, dims = _convolved(node, extent if known else None)
    return (TensorType(dtype, (batch, channels, *dims)),)


def dense(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """[M, N] of Gemm."""
    a, b = _shape(node.input(0)), _shape(node.input(1))
    rows = a[1 if node.attrs.get("transA") else 0] if a is not None and len(a) == 2 else None
    columns = b[0 if node.attrs.get("transB") else 1] if b is not None and len(b) == 2 else None
    return (TensorType(_dtype(node.input(1)) or _dtype(node.input(0)), (rows, columns)),)


def matmul(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """numpy.matmul."""
    a, b = _shape(node.input(0)), _shape(node.input(1))
    dtype = _dtype(node.input(0)) or _dtype(node.input(1))
    if a is None or b is None or not a or not b:
        return (TensorType(dtype, None),)
    rows: tuple[Dim, ...] = a[-2:-1]
    columns: tuple[Dim, ...] = b[-1:] if len(b) > 1 else ()
    batch = broadcast_shapes(a[:-2], b[:-2])
    return (TensorType(dtype, None if batch is None else batch + rows + columns),)


def transpose(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """The permuted shape; without `perm` the axes are reversed."""
    shape = _shape(node.input(0))
    perm = node.attrs.get("perm")
    dtype = _dtype(node.input(0))
    if shape is None:
        return (TensorType(dtype, (None,) * len(perm) if isinstance(perm, tuple) else None),)
    axes = perm if isinstance(perm, tuple) else tuple(reversed(range(len(shape))))
    if sorted(axes) != list(range(len(shape))):  # type: ignore[type-var]
        return (TensorType(dtype, None),)
    return (TensorType(dtype, tuple(shape[axis] for axis in axes)),)  # type: ignore[index]


def reshape(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """The first input's dtype, in the shape of a target that is constant, 0 and -1 resolved as far as can be."""
    dtype, shape, target = _dtype(node.input(0)), _shape(node.input(0)), node.attrs.get("shape")
    if not isinstance(target, tuple):
        array = evaluator.array(node.input(1))
        target = None if array is None else tuple(int(dim) for dim in array.ravel())
    if target is None or (node.attrs.get("allowzero") and 0 in target):
        return (TensorType(dtype, None if target is None else (None,) * len(target)),)
    dims: list[Dim] = []
    for i, dim in enumerate(target):
        kept = shape[i] if dim == 0 and shape is not None and i < len(shape) else None
        dims.append(dim if isinstance(dim, int) and dim > 0 else kept)
    if target.count(-1) == 1 and shape is not None:
        copied = {i for i, dim in enumerate(target) if dim == 0 and i < len(shape)}
        extents = [dim for i, dim in enumerate(shape) if i not in copied]
        rest = element_count(dim for dim in target if isinstance(dim, int) and dim > 0)
        numbers = [dim for dim in extents if isinstance(dim, int)]
        count = element_count(numbers)
        if ELEMENT_COUNT_LIMIT in (count, rest):
            pass
        elif len(numbers) == len(extents) and 0 not in shape:
            dims[target.index(-1)] = count // rest
        elif rest == count and len(numbers) == len(extents) - 1:
            dims[target.index(-1)] = next(dim for dim in extents if not isinstance(dim, int))
    return (TensorType(dtype, tuple(dims)),)


def dtype_only(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """The first input's dtype, the shape unknown."""
    return (TensorType(_dtype(node.input(0)), None),)


def parts(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """The first input's dtype for every result, the shapes unknown."""
    return dtype_only(node, evaluator) * len(node.outputs)


def cast_like(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """The first input's shape in the second one's dtype."""
    return (TensorType(_dtype(node.input(1)), _shape(node.input(0))),)


def shape_only(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """The first input's shape, the dtype unknown."""
    return (TensorType(None, _shape(node.input(0))),)


def shape_vector(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """i64[rank]."""
    shape = _shape(node.input(0))
    known = shape is not None and not node.attrs
    return (TensorType(I64, (len(shape),) if known and shape is not None else (None,)),)


def constant(node: Node, evaluator: ConstantEvaluator) -> tuple[Type, ...]:
    """The payload's type."""
    payload = node.attrs.get("value")
    return (payload.type if isinstance(payload, Tensor) else UNKNOWN,)
