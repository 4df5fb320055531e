"""Rules that move an explicit Pad into the `pads` attribute of a Conv or a pool."""

from __future__ import annotations

import numpy as np

from ...ir.graph import Node, Value
from ...ir.ops import has_trait
from ...ir.ops.inference import integer_of, is_given, listed
from ...ir.ops.row import Trait
from ...ir.ops.views import clip_bounds, window_of
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.types import dtype_of, shape_of
from .extents import ShapeEvaluator
from .rules import data_of, only_reader


@rule(affine="obstructs")
def pad_into_conv(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """conv(pad(x, 0)) -> conv(x) with more pads"""
    found = _spatial_pads(node, evaluator)
    if found is None or found[1] != 0:
        return rewriter.decline("its data is not the result of a spatial Pad of zeros without other readers")
    return _pads_grow(node, rewriter, found[0])


@rule(affine="obstructs")
def pad_into_average_pool(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """avg_pool(pad(x, 0)) -> avg_pool(x) with pads that the mean includes"""
    found = _spatial_pads(node, evaluator)
    if found is None or found[1] != 0 or node.opset < 7 or not _fit_windows(node, found[0]):
        return rewriter.decline("its data is not the result of a spatial Pad of zeros that its windows can take")
    # The mean includes the zeros of the Pad, so the pool has to count its pads. It may not begin to count its own.
    own = _own_pads(node, len(found[0]))
    if not node.attrs.get("count_include_pad"):
        if own is None or any(own):
            return rewriter.decline("it has pads of its own and count_include_pad is 0")
        rewriter.set_attr(node, "count_include_pad", 1)
    return _pads_grow(node, rewriter, found[0])


@rule(affine="obstructs")
def pad_into_max_pool(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """max_pool(pad(x, -inf)) -> max_pool(x) with pads; a pad of 0 does as well where x is not negative"""
    found = _spatial_pads(node, evaluator)
    dtype = dtype_of(node.output.type)
    if found is None or dtype is None or not dtype.is_float or not _fit_windows(node, found[0]):
        return rewriter.decline("its data is not the result of a spatial Pad that its windows can take")
    if any(value.users for value in node.outputs[1:]):
        return rewriter.decline("its Indices output is read")
    pads, value = found
    producer = data_of(node).node
    assert producer is not None
    # A MaxPool ignores its pads, as if they were -inf. Every window has an element of x, so a 0 beside it changes no
    # maximum where x >= 0.
    if value != -np.inf and not (value == 0 and is_not_negative(data_of(producer), evaluator)):
        return rewriter.decline("the padding is neither -inf, nor 0 around data that is never negative")
    return _pads_grow(node, rewriter, pads)


def is_not_negative(value: Value, evaluator: ShapeEvaluator) -> bool:
    """Whether the operator that computes `value` never returns a negative number."""
    node = value.node
    if node is None:
        return False
    if node.op == "clip":
        bounds = clip_bounds(node, evaluator)
        return bounds is not None and bounds.is_ordered and bounds.low is not None and bounds.low >= 0
    return has_trait(node, Trait.NOT_NEGATIVE)


def _spatial_pads(node: Node, evaluator: ShapeEvaluator) -> tuple[list[int], float] | None:
    """Return the pads (begins, then ends) of a constant `nn.pad` that only `node` reads, and their value.

    Return None where there is no `nn.pad`, it pads the batch or channel axis, crops, or is not constant.
    """
    padded = data_of(node)
    pad = padded.node
    if (
        pad is None
        or pad.op != "nn.pad"
        or not only_reader(padded, node)
        or pad.attrs.get("mode", "constant") != "constant"
    ):
        return None
    pads, axes = listed(pad, "pads", 1, evaluator), listed(pad, "axes", 3, evaluator)
    if pads is None or min(pads, default=0) < 0 or (axes is None and is_given(pad, "axes", 3)):
        return None
    rank = len(pads) // 2 if axes is None else len(shape_of(padded.type) or ())
    if not rank:
        return None
    padded_axes = range(rank) if axes is None else [axis % rank for axis in axes]
    if len(pads) != 2 * len(padded_axes) or len(set(padded_axes)) != len(padded_axes):
        return None
    begins, ends = [0] * rank, [0] * rank
    for i, axis in enumerate(padded_axes):
        begins[axis], ends[axis] = pads[i], pads[len(padded_axes) + i]
    if any(begins[:2]) or any(ends[:2]):
        return None
    value: object = pad.attrs.get("value", 0.0)
    if pad.input(2) is not None:
        array = evaluator.array(pad.input(2))
        value = None if array is None or array.size != 1 else float(array.ravel()[0])
    return ([*begins[2:], *ends[2:]], float(value)) if isinstance(value, int | float) else None


def _own_pads(node: Node, count: int) -> list[int] | None:
    """Return the pads of the window of `node`, None where they depend on the extents of its data."""
    window = window_of(node, count // 2)
    return None if window is None or window.pads is None else list(window.pads)


def _fit_windows(node: Node, pads: list[int]) -> bool:
    """Whether every window of a pool keeps an element of the data when its pads grow by `pads`."""
    own, kernel = _own_pads(node, len(pads)), node.attrs.get("kernel_shape")
    dilations = node.attrs.get("dilations", ())
    if own is None or not isinstance(kernel, tuple) or integer_of(node, "ceil_mode", 0):
        return False
    if not isinstance(dilations, tuple) or any(item != 1 for item in dilations):
        return False
    sizes: list[int] = [int(item) for item in kernel] * 2  # type: ignore[arg-type]
    return all(a + b < size for a, b, size in zip(own, pads, sizes, strict=True))


def _pads_grow(node: Node, rewriter: Rewriter, pads: list[int]) -> bool:
    """Add the pads of the `nn.pad` before `node` to its own, and read the data before the `nn.pad`."""
    own, pad = _own_pads(node, len(pads)), data_of(node).node
    if own is None or pad is None:
        return rewriter.decline("its own pads depend on the extents of its data (auto_pad)")
    if node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        rewriter.set_attr(node, "auto_pad", "NOTSET")
    rewriter.set_attr(node, "pads", tuple(a + b for a, b in zip(own, pads, strict=True)))
    rewriter.set_inputs(node, [pad.inputs[0], *node.inputs[1:]])
    return True


RULES: Rules[ShapeEvaluator] = {
    "nn.avg_pool": (pad_into_average_pool,),
    "nn.conv": (pad_into_conv,),
    "nn.max_pool": (pad_into_max_pool,),
}
"""The rules for each operator, in the order in which they are tried."""
