"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from ...support.statement import states
from ..graph import Node
from ..provenance import Refusal, Refused
from ..tensor import Array, round_to
from ..types import ELEMENT_COUNT_LIMIT, TensorType, element_count, static_dims
from .bounds import extents_product
from .channel_map import NO_NEGATIVE_SCALE, NO_SHIFT, ChannelAxis, ChannelMap, Limit
from .evaluation import NotEvaluable, listed_operand, operand
from .inference import Types, input_dtype, input_shape, integer_of, integers_of, listed, normal_axes
from .interval import Interval, repeated
from .row import (
    Bounds,
    Channels,
    Constants,
    Evaluate,
    Inputs,
    OpInfo,
    Parameter,
    Trait,
    complete,
    integer,
    integers,
)


@complete
def infer_reduction(node: Node, constants: Constants) -> Types:
    """Infer extents of 1 in place of the reduced ones or, without `keepdims`, none."""
    dtype, shape = input_dtype(node), input_shape(node)
    axes = listed(node, "axes", constants)
    if shape is None or (axes is None and node["axes"] is not None):
        return (TensorType(dtype, None),)
    if not axes and integer_of(node, "noop_with_empty_axes", 0):
        return (TensorType(dtype, shape),)
    reduced = normal_axes(axes, len(shape)) if axes else list(range(len(shape)))
    if reduced is None:
        return (TensorType(dtype, None),)
    if integer_of(node, "keepdims", 1):
        return (
            TensorType(dtype, tuple(1 if i in reduced else dim for i, dim in enumerate(shape))),
        )
    return (TensorType(dtype, tuple(dim for i, dim in enumerate(shape) if i not in reduced)),)


def _reduction(function: Callable[..., Array], *, of_integers: bool) -> Evaluate:
    """Make the evaluation of a reduction: floats in float64, and rounded once."""

    def evaluate(node: Node, inputs: Inputs) -> tuple[Array, ...]:
        data, axes = operand(inputs), listed_operand(node, inputs, "axes")
        dtype = input_dtype(node)
        has_integers = of_integers and data.dtype.kind in "iu"
        # Of no elements a maximum is an error, and a sum 0.
        if dtype is None or not data.size or not (dtype.is_float or has_integers):
            raise NotEvaluable(f"a reduction of {dtype} elements")
        if not axes and node.attrs.get("noop_with_empty_axes", 0):
            return (data,)
        keepdims = bool(node.attrs.get("keepdims", 1))
        wide = data.astype(np.float64) if dtype.is_float else data
        over = tuple(axes) if axes else None
        with np.errstate(all="ignore"):
            grows = not dtype.is_float and function in (np.sum, np.prod)
            if grows and not _fits(function(data.astype(np.float64), axis=over), data.dtype):
                raise NotEvaluable("a reduction of integers that overflows")
            result = np.asarray(function(wide, axis=over, keepdims=keepdims))
        return (round_to(result, dtype) if dtype.is_float else result.astype(data.dtype),)

    return evaluate


def _fits(result: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether results in float64 are surely numbers of an integer type.

    Beyond, runtimes wrap or clamp.
    """
    limits, slack = np.iinfo(dtype), 1 - 2.0**-30
    return bool(np.all(result >= slack * limits.min) and np.all(result <= slack * limits.max))


def _norm(order: int) -> Callable[..., Array]:
    def norm(data: Array, **options: Any) -> Array:
        if order == 1:
            return np.asarray(np.abs(data).sum(**options))
        return np.asarray(np.sqrt(np.square(data).sum(**options)))

    return norm


def _row(
    name: str,
    onnx: str,
    function: Callable[..., Array],
    channels: Channels | None,
    *traits: Trait,
    of_integers: bool = False,
    since: int = 18,
    bounds: Bounds | None = None,
) -> OpInfo:
    """Make the row of a reduction whose axes are an operand from opset `since` on."""
    evaluate = _reduction(function, of_integers=of_integers)
    attrs = {"axes": integers, "keepdims": integer, "noop_with_empty_axes": integer}
    return OpInfo(
        name,
        ("data", "axes?"),
        infer_reduction,
        evaluate,
        onnx=onnx,
        parameters={"axes": Parameter(since)},
        attrs=attrs,
        channels=channels,
        bounds=bounds,
        traits=frozenset({Trait.REDUCES, *traits}),
    )


def reduced_axes(node: Node, constants: Constants) -> tuple[tuple[int, ...], int]:
    """Return the axes that a reduction reduces, counted from the left, and the rank of its data."""
    before = input_shape(node)
    axes = integers_of(node, "axes", constants)
    if before is None:
        raise Refused("unknown_rank", f"{node.description}: the rank of its data is unknown")
    if axes is None:
        raise Refused("non_constant_params", f"{node.description}: its axes are not constant")
    rank = len(before)
    if not axes and not node.attrs.get("noop_with_empty_axes", 0):
        axes = tuple(range(rank))
    if not all(-rank <= axis < rank for axis in axes):
        raise Refused("non_constant_params", f"{node.description}: its data has no such axes")
    return tuple(sorted(axis % rank for axis in axes)), rank


def _reduced(
    node: Node, at: ChannelAxis, constants: Constants, *limits: tuple[Limit, Refusal | None]
) -> ChannelMap:
    reduced, rank = reduced_axes(node, constants)
    axis = None
    if at.axis is not None:
        axes = [None if axis in reduced else axis for axis in range(rank)]
        if not node.attrs.get("keepdims", 1):
            axes = [axis for axis in axes if axis is not None]
        axis = at.on_other_side(axes, node)
        if axis is None:
            raise Refused("axis_mismatch", f"{node.description} reduces the channels")
    return ChannelMap(axis, limits=limits)


@states("s * op(x) + t == op(s * x + t) if s >= 0")
def extremum_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """ReduceMax, ReduceMin: max(s x + t) = s max(x) + t for s >= 0."""
    return _reduced(node, at, constants, NO_NEGATIVE_SCALE)


@states("s * op(x) + t == op(s * x + t)")
def mean_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """ReduceMean: the mean of s x + t is s times the mean of x, plus t."""
    return _reduced(node, at, constants)


@states(
    "s * sum(x, axes, keepdims) + t == sum(s * x + t / count(x, axes), axes, keepdims); "
    "sum(s * x + t, axes, keepdims) == s * sum(x, axes, keepdims) + count(x, axes) * t"
)
def sum_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """ReduceSum: the sum of s x + t over n terms is s times the sum of x, plus n t."""
    found = _reduced(node, at, constants)
    shape = input_shape(node)
    assert shape is not None
    axes, _ = reduced_axes(node, constants)
    terms = static_dims(tuple([shape[axis] for axis in axes]))
    count = 0 if terms is None else element_count(terms)
    if not 0 < count < ELEMENT_COUNT_LIMIT:
        detail = f"{node.description}: data {node.operand().type} has an unknown number of terms"
        return found.limited((Limit.NO_SHIFT, Refusal("unknown_extent", detail)))
    return replace(found, factor=float(count))


@states("s * op(x) + t == op(s * x + t) if s >= 0 and t == 0")
def norm_channels(node: Node, at: ChannelAxis, constants: Constants) -> ChannelMap:
    """ReduceL1, ReduceL2: the norm of s x is s times the norm of x for s >= 0."""
    return _reduced(node, at, constants, NO_NEGATIVE_SCALE, NO_SHIFT)


def _reduced_bounds(node: Node, x: Interval, constants: Constants, power: float = 1.0) -> Interval:
    """Return the interval of a sum over the axes, of terms in x.

    The number of terms counts to a power.
    """
    try:
        axes, rank = reduced_axes(node, constants)
    except Refused:
        axes, rank, x = None, 0, x.whole
    if axes is None or x.low.ndim != rank:
        x = x.whole
        return repeated(x, extents_product(node, axes) ** power)
    once = [axis for axis in axes if x.low.shape[axis] == 1]
    along = tuple(axis for axis in axes if x.low.shape[axis] > 1)
    keep = bool(node.attrs.get("keepdims", 1))
    total = (
        x.map(lambda v: v.sum(axis=along, keepdims=True)) if power == 1 or not along else x.whole
    )
    if power != 1 and along:
        return repeated(total, extents_product(node, axes) ** power)
    total = repeated(total, extents_product(node, once) ** power)
    return (
        total
        if keep
        else total.map(lambda v: v.reshape([n for i, n in enumerate(v.shape) if i not in axes]))
    )


def _sum_bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
    return [_reduced_bounds(node, x[0], constants)]


def _norm_bounds(order: int) -> Bounds:
    """Make the bounds of a norm: at most n^(1 / order) times the greatest magnitude."""

    def bounds(node: Node, x: Sequence[Interval], constants: Constants) -> list[Interval]:
        most = Interval(np.zeros_like(x[0].magnitude), x[0].magnitude)
        return [_reduced_bounds(node, most, constants, 1.0 / order)]

    return bounds


ROWS = (
    _row("max", "ReduceMax", np.max, extremum_channels, Trait.EXTREMUM, of_integers=True),
    _row("min", "ReduceMin", np.min, extremum_channels, Trait.EXTREMUM, of_integers=True),
    _row("mean", "ReduceMean", np.mean, mean_channels, Trait.AVERAGES),
    _row("sum", "ReduceSum", np.sum, sum_channels, of_integers=True, since=13, bounds=_sum_bounds),
    _row("prod", "ReduceProd", np.prod, None, of_integers=True),
    _row("reduce_l1", "ReduceL1", _norm(1), norm_channels, bounds=_norm_bounds(1)),
    _row("reduce_l2", "ReduceL2", _norm(2), norm_channels, bounds=_norm_bounds(2)),
)
