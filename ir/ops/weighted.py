"""Layers with weights: convolutions, dense layers, matrix products and their biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf, prod

import numpy as np

from ..extents import product, total
from ..graph import Node
from ..tensor import Array, round_to
from ..types import Dim, TensorType, dtype_of
from .bounds import extents_product, operand_bounds
from .evaluation import NotEvaluable, binary, check_size, operands
from .inference import (
    Types,
    broadcast_shapes,
    input_dtype,
    input_shape,
    integer_of,
    list_attribute,
    same,
)
from .interval import ZERO, Interval, added, interval, multiplied, repeated
from .numeric import addend
from .row import (
    NUMPY_BROADCAST,
    AffineForm,
    Constants,
    Inputs,
    OpInfo,
    Terms,
    Trait,
    complete_by_types,
    integer,
    integers,
    number,
    positive_integers,
)
from .views import normalizes_last_axis, window_of

_WINDOW = {
    "dilations": positive_integers,
    "group": integer,
    "kernel_shape": positive_integers,
    "pads": integers,
    "strides": positive_integers,
}


def _convolved(node: Node, extent: Callable[[int, Dim, int], Dim] | None) -> tuple[Dim, list[Dim]]:
    """Return batch and spatial extents of a convolution.

    The spatial ones are `extent`(axis, extent of the input, extent of the kernel).
    """
    x, weight = input_shape(node), input_shape(node, "weight")
    assert weight is not None
    if x is None or len(x) != len(weight):
        return None, [None] * (len(weight) - 2)
    dims: list[Dim] = []
    for i, (size, kernel) in enumerate(zip(x[2:], weight[2:], strict=True)):
        is_known = extent is not None and isinstance(kernel, int)
        result = extent(i, size, kernel) if is_known else None  # type: ignore[misc, arg-type]
        dims.append(None if isinstance(result, int) and result < 0 else result)
    return x[0], dims


@complete_by_types
def infer_conv(node: Node, constants: Constants) -> Types:
    """Infer [N, M, spatial...] with rank and M from the weight [M, C/group, k...]."""
    weight = input_shape(node, "weight")
    dtype = input_dtype(node, "weight") or input_dtype(node)
    if weight is None or len(weight) < 2:
        return (TensorType(dtype, None),)
    window = window_of(node, len(weight) - 2)
    extent = None if window is None else partial(window.extent, fits=True)
    batch, dims = _convolved(node, extent)
    return (TensorType(dtype, (batch, weight[0], *dims)),)


@complete_by_types
def infer_conv_transpose(node: Node, constants: Constants) -> Types:
    """Infer [N, M, spatial...] with rank and M from the weight [C, M/group, k...]."""
    weight = input_shape(node, "weight")
    dtype = input_dtype(node, "weight") or input_dtype(node)
    if weight is None or len(weight) < 2:
        return (TensorType(dtype, None),)
    group = node.attrs.get("group", 1)
    channels = weight[1] * group if isinstance(weight[1], int) and isinstance(group, int) else None
    batch, dims = _convolved(node, transposed_extents(node, len(weight) - 2))
    return (TensorType(dtype, (batch, channels, *dims)),)


def transposed_extents(node: Node, rank: int) -> Callable[[int, Dim, int], Dim] | None:
    """Return the function of spatial axis, extent of the data and of the kernel that gives the
    extents of an `nn.conv_transpose`, None if its attributes decide otherwise on them.
    """
    window, extra = window_of(node, rank), list_attribute(node, "output_padding", (0,) * rank)
    if window is None or window.pads is None or extra is None:
        return None
    if window.auto_pad != "NOTSET" or "output_shape" in node.attrs:
        return None
    pads = window.pads

    def extent(axis: int, size: Dim, kernel: int) -> Dim:
        beside = window.reach(axis, 0, kernel) + extra[axis] - pads[axis] - pads[rank + axis]
        return total(product(size, window.strides[axis]), beside)

    return extent


@complete_by_types
def infer_dense(node: Node, constants: Constants) -> Types:
    """Infer [M, N] of Gemm."""
    a, b = input_shape(node), input_shape(node, "weight")
    rows: Dim = None
    columns: Dim = None
    if a is not None and len(a) == 2:
        rows = a[1] if node.attrs.get("transA") else a[0]
    if b is not None and len(b) == 2:
        columns = b[0] if node.attrs.get("transB") else b[1]
    return (TensorType(input_dtype(node, "weight") or input_dtype(node), (rows, columns)),)


@complete_by_types
def infer_matmul(node: Node, constants: Constants) -> Types:
    """Infer the type of numpy.matmul."""
    a, b = input_shape(node), input_shape(node, "rhs")
    dtype = input_dtype(node) or input_dtype(node, "rhs")
    if a is None or b is None or not a or not b:
        return (TensorType(dtype, None),)
    rows: tuple[Dim, ...] = a[-2:-1]
    columns: tuple[Dim, ...] = b[-1:] if len(b) > 1 else ()
    batch = broadcast_shapes(a[:-2], b[:-2])
    return (TensorType(dtype, None if batch is None else batch + rows + columns),)


def evaluate_matmul(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """Compute numpy.matmul; floating products are summed in float64 and rounded once."""
    a, b = operands(inputs)
    dtype = dtype_of(node.output.type)
    if a.dtype != b.dtype or dtype is None or not a.ndim or not b.ndim:
        raise NotEvaluable(f"operands are {a.dtype} and {b.dtype}")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    check_size(prod(batch) * prod(a.shape[-2:-1]) * prod(b.shape[-1:] if b.ndim > 1 else ()), a)
    if not dtype.is_float:
        return (np.matmul(a, b),)
    with np.errstate(all="ignore"):
        return (round_to(np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))), dtype),)


def _extents(dims: Sequence[Dim]) -> float:
    return prod([float(extent) if isinstance(extent, int) else inf for extent in dims])


def conv_terms(node: Node) -> float:
    """Count the taps of all channels that a result of Conv reads."""
    shape = input_shape(node, "weight")
    return inf if shape is None or len(shape) < 2 else _extents(shape[1:])


def conv_transpose_terms(node: Node) -> float:
    """Count the taps of all channels, of which a result of ConvTranspose may read fewer."""
    shape = input_shape(node, "weight")
    return inf if shape is None or len(shape) < 2 else _extents((shape[0], *shape[2:]))


def matrix_terms(node: Node) -> float:
    """Count the elements of a row of the first operand of Gemm or MatMul, by either operand."""
    terms = extents_product(node, (0 if node.attrs.get("transA", 0) else -1,))
    shape = input_shape(node, "rhs" if node.op == "matmul" else "weight")
    if terms < inf or not shape:
        return terms
    return _extents((shape[-1 if node.attrs.get("transB", 0) else max(-2, -len(shape))],))


def conv_groups(node: Node, weight: Array, index: int) -> Array:
    """View [M, C/group, k...]: the first M/group channels are the first group's."""
    group, (rows, columns, *kernel) = integer_of(node, "group", 1), weight.shape
    return weight.reshape(group, rows // group, columns, prod(kernel))


def conv_transpose_groups(node: Node, weight: Array, index: int) -> Array:
    """View [C, M/group, k...]: the first C/group channels of the data are the first group's."""
    return conv_groups(node, weight, index).swapaxes(1, 2)


def dense_groups(node: Node, weight: Array, index: int) -> Array:
    """View [C, M], or [M, C] with `transB`."""
    return (weight if node.attrs.get("transB", 0) else weight.T)[None, :, :, None]


def matmul_groups(node: Node, weight: Array, index: int) -> Array:
    """View the matrix [C, M] of x W, or [M, C] of W x."""
    return (weight.T if index == 1 else weight)[None, :, :, None]


def _products(node: Node, x: Sequence[Interval], terms: float) -> Interval:
    return repeated(multiplied(x[0].whole, x[1].whole), terms)


def _convolution_bounds(
    node: Node, x: Sequence[Interval], constants: Constants, *, terms: Terms
) -> list[Interval]:
    """Bound Conv and ConvTranspose: sums of products, of which padding takes some or all."""
    bias = operand_bounds(node, x, "bias", ZERO).whole
    return [added(_products(node, x, terms(node)).hull(ZERO), bias)]


def _dense_bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound Gemm: alpha A B + beta C."""
    alpha, beta = (node.attrs.get(name, 1.0) for name in ("alpha", "beta"))
    assert isinstance(alpha, int | float) and isinstance(beta, int | float)
    bias = operand_bounds(node, x, "bias", ZERO).whole
    product = multiplied(_products(node, x, matrix_terms(node)), interval(alpha, alpha))
    return [added(product, multiplied(bias, interval(beta, beta)))]


def _matmul_bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    """Bound MatMul.

    The rows of a Softmax along its last axis add up to 1: the product with them is an average.
    """
    first = node.operand().node
    if first is not None and first.op == "nn.softmax" and normalizes_last_axis(first):
        return [x[1].whole]
    return [_products(node, x, matrix_terms(node))]


_LINEAR = frozenset({Trait.ABSORBS, Trait.HEAVY, Trait.LINEAR})
_LAYER = _LINEAR | {Trait.BIASED, Trait.DECIDES_RANK}
_MADE = frozenset({Trait.ALIGNED, Trait.MADE_BY_PASSES})

ROWS = (
    OpInfo(
        "nn.conv",
        ("data", "weight", "bias?"),
        infer_conv,
        terms=conv_terms,
        grouped=conv_groups,
        bounds=partial(_convolution_bounds, terms=conv_terms),
        onnx="Conv",
        attrs=_WINDOW,
        wide="bias",
        traits=_LAYER,
    ),
    OpInfo(
        "nn.conv_transpose",
        ("data", "weight", "bias?"),
        infer_conv_transpose,
        terms=conv_transpose_terms,
        grouped=conv_transpose_groups,
        bounds=partial(_convolution_bounds, terms=conv_transpose_terms),
        onnx="ConvTranspose",
        attrs={**_WINDOW, "output_padding": integers},
        wide="bias",
        traits=_LAYER,
    ),
    OpInfo(
        "nn.dense",
        ("data", "weight", "bias?"),
        infer_dense,
        terms=matrix_terms,
        grouped=dense_groups,
        bounds=_dense_bounds,
        onnx="Gemm",
        forms={NUMPY_BROADCAST: 7, "bf16": 13},
        attrs={
            "alpha": number,
            "beta": number,
            "broadcast": integer,
            "transA": integer,
            "transB": integer,
        },
        wide="bias",
        traits=_LAYER,
    ),
    OpInfo(
        "matmul",
        ("lhs", "rhs"),
        infer_matmul,
        evaluate_matmul,
        terms=matrix_terms,
        grouped=matmul_groups,
        bounds=_matmul_bounds,
        onnx="MatMul",
        traits=_LINEAR,
    ),
    OpInfo(
        "nn.bias_add",
        ("lhs", "rhs"),
        same,
        binary(np.add, wide=True),
        onnx="Add",
        forms={NUMPY_BROADCAST: 7},
        attrs={"axis": integer},
        wide="rhs",
        affine=AffineForm("add", addend),
        traits=_MADE,
    ),
)
