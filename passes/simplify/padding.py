"""Rules that move an explicit Pad into the `pads` attribute of a Conv or a pool."""

from __future__ import annotations

import numpy as np

from ...ir.graph import Node, Value
from ...ir.matching import check_unread, known_dtype, known_shape, result_of
from ...ir.ops import has_trait, is_legal
from ...ir.ops.inference import integer_of, list_attribute, number_of
from ...ir.ops.row import Trait, text_of
from ...ir.ops.views import Window, clip_bounds, pads_of, window_of
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...support.record import record
from .extents import ShapeEvaluator


@rule(affine="obstructs")
def pad_into_conv(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """conv(pad(x, 0)) -> conv(x) with more pads"""
    pad = _spatial_pad(node, evaluator)
    if pad.value != 0:
        return rewriter.decline("the padding is not 0")
    return _grow_pads(node, rewriter, pad)


@rule(affine="obstructs")
def pad_into_average_pool(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """avg_pool(pad(x, 0)) -> avg_pool(x) with pads that the mean includes"""
    pad = _spatial_pad(node, evaluator)
    if pad.value != 0:
        return rewriter.decline("the padding is not 0")
    _check_windows(node, pad, evaluator)
    # The mean includes the zeros of the Pad, so the pool has to count its pads. It may not begin to count its own.
    if not node.attrs.get("count_include_pad"):
        if not is_legal("nn.avg_pool", "count_include_pad", node):
            return rewriter.decline("AveragePool of this opset has no count_include_pad")
        if any(_explicit_window(node, pad)[1]):
            return rewriter.decline("it has pads of its own and count_include_pad is 0")
        rewriter.set_attr(node, "count_include_pad", 1)
    return _grow_pads(node, rewriter, pad)


@rule(affine="obstructs")
def pad_into_max_pool(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """max_pool(pad(x, -inf)) -> max_pool(x) with pads; a pad of 0 does as well where x is not negative"""
    pad = _spatial_pad(node, evaluator)
    check_unread(node)
    # A MaxPool ignores its pads, as if they were -inf. Every window has an element of x, so a 0 beside it changes no
    # maximum where x >= 0.
    if pad.value != -np.inf and not (pad.value == 0 and is_not_negative(pad.data, evaluator)):
        return rewriter.decline("the padding is neither -inf, nor 0 around data that is never negative")
    if not known_dtype(node.output).is_float:
        return rewriter.decline("its elements are not floats")
    _check_windows(node, pad, evaluator)
    return _grow_pads(node, rewriter, pad)


def is_not_negative(value: Value, evaluator: ShapeEvaluator) -> bool:
    """Whether the operator that computes `value` never returns a negative number."""
    node = value.node
    if node is None:
        return False
    if node.op == "clip":
        bounds = clip_bounds(node, evaluator)
        return bounds is not None and bounds.is_ordered and bounds.low is not None and bounds.low >= 0
    return has_trait(node, Trait.NOT_NEGATIVE)


@record
class _SpatialPad:
    """A constant `nn.pad` of spatial axes: its data, pads (begins, then ends) and value."""

    data: Value
    pads: tuple[int, ...]
    value: float


def _spatial_pad(node: Node, evaluator: ShapeEvaluator) -> _SpatialPad:
    """Return the `nn.pad` that only `node` reads."""
    pad = result_of(node.operand(), "nn.pad", only_for=node)
    pads, value = pads_of(pad, evaluator), number_of(pad, 2, evaluator, 0.0)
    if text_of(pad, "mode", "constant") != "constant" or pads is None or value is None:
        raise Declined("the Pad pads with data, or with numbers that are not constant")
    rank = len(known_shape(node.operand())) if pad.input(3) is not None else len(pads)
    every = [pads.get(axis, (0, 0)) for axis in range(rank)]
    if not every or any(map(any, every[:2])) or any(min(each) < 0 for each in every):
        raise Declined("the Pad pads the batch or channels, or crops")
    return _SpatialPad(pad.operand(), (*[begin for begin, _ in every[2:]], *[end for _, end in every[2:]]), value)


def _explicit_window(node: Node, pad: _SpatialPad) -> tuple[Window, tuple[int, ...]]:
    """Return the window of `node`, and its pads."""
    window = window_of(node, len(pad.pads) // 2)
    if window is None or window.pads is None:
        raise Declined("its own pads depend on the extents of its data (auto_pad)")
    return window, window.pads


def _check_windows(node: Node, pad: _SpatialPad, evaluator: ShapeEvaluator) -> None:
    """Decline unless every window of a pool keeps an element of the data when its pads grow by those of `pad`."""
    (window, own), kernel = _explicit_window(node, pad), list_attribute(node, "kernel_shape") or ()
    if integer_of(node, "ceil_mode", 0) or any(item != 1 for item in window.dilations):
        raise Declined("it has ceil_mode or dilations")
    if 2 * len(kernel) != len(own) or any(a + b >= n for a, b, n in zip(own, pad.pads, kernel * 2, strict=True)):
        raise Declined("a window would have no element of the data")


def _grow_pads(node: Node, rewriter: Rewriter, pad: _SpatialPad) -> bool:
    """Add the pads of `pad` to those of `node`, and read the data of the `nn.pad`."""
    _, own = _explicit_window(node, pad)
    if node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        rewriter.set_attr(node, "auto_pad", "NOTSET")
    rewriter.set_attr(node, "pads", tuple(a + b for a, b in zip(own, pad.pads, strict=True)))
    rewriter.set_inputs(node, [pad.data, *node.inputs[1:]])
    return True


RULES: Rules[ShapeEvaluator] = {
    "nn.avg_pool": (pad_into_average_pool,),
    "nn.conv": (pad_into_conv,),
    "nn.max_pool": (pad_into_max_pool,),
}
"""The rules for each operator, in the order in which they are tried."""
