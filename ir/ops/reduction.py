"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import Node
from ..tensor import Array, round_to
from ..types import TensorType, dtype_of
from .evaluation import NotEvaluable, listed_operand, operand
from .inference import Types, input_dtype, input_shape, integer_of, is_given, listed, normal_axes
from .row import Constants, Evaluate, Inputs, OpInfo, Trait, integer, integers


def infer_reduction(node: Node, constants: Constants) -> Types:
    """Infer extents of 1 in place of the reduced ones or, without `keepdims`, none."""
    dtype, shape = input_dtype(node), input_shape(node)
    axes = listed(node, "axes", 1, constants)
    if shape is None or (axes is None and is_given(node, "axes", 1)):
        return (TensorType(dtype, None),)
    if not axes and integer_of(node, "noop_with_empty_axes", 0):
        return (TensorType(dtype, shape),)
    reduced = normal_axes(axes, len(shape)) if axes else list(range(len(shape)))
    if reduced is None:
        return (TensorType(dtype, None),)
    if integer_of(node, "keepdims", 1):
        return (TensorType(dtype, tuple(1 if i in reduced else dim for i, dim in enumerate(shape))),)
    return (TensorType(dtype, tuple(dim for i, dim in enumerate(shape) if i not in reduced)),)


def _reduction(function: Callable[..., Array], *, of_integers: bool) -> Evaluate:
    """Make the evaluation of a reduction; floating terms are taken in float64 and the result is rounded once."""

    def evaluate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
        data, axes = operand(inputs), listed_operand(node, inputs, "axes", 1)
        dtype = dtype_of(node.inputs[0].type) if node.inputs[0] is not None else None
        if dtype is None or not data.size or not (dtype.is_float or (of_integers and data.dtype.kind in "iu")):
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


def _row(name: str, onnx: str, function: Callable[..., Array], *traits: Trait, of_integers: bool = False) -> OpInfo:
    evaluate = _reduction(function, of_integers=of_integers)
    attrs = {"axes": integers, "keepdims": integer, "noop_with_empty_axes": integer}
    return OpInfo(
        name, (1, 2), infer_reduction, evaluate, onnx=onnx, attrs=attrs, traits=frozenset({Trait.REDUCES, *traits})
    )


ROWS = (
    _row("max", "ReduceMax", np.max, Trait.EXTREMUM, of_integers=True),
    _row("min", "ReduceMin", np.min, Trait.EXTREMUM, of_integers=True),
    _row("mean", "ReduceMean", np.mean, Trait.AVERAGES),
    _row("sum", "ReduceSum", np.sum, of_integers=True),
    _row("reduce_l1", "ReduceL1", _norm(1)),
    _row("reduce_l2", "ReduceL2", _norm(2)),
)
