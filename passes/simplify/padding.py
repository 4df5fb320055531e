"""Rules of windows: a Pad goes into the `pads` of a Conv or pool, and `ceil_mode` goes."""

from __future__ import annotations

from ...ir.graph import Node, Value
from ...ir.matching import check_unread, known_dtype, known_shape, result_of
from ...ir.ops import is_legal
from ...ir.ops.inference import integer_of, list_attribute, number_of
from ...ir.ops.row import text_of
from ...ir.ops.views import Window, pads_of, window_of
from ...ir.provenance import Declined
from ...ir.record import Record
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.types import DType


@rule(
    affine="obstructs",
    reads=("nn.pad",),
    identity=(
        "conv(pad(x, spatial(p), v), w, b, 1, d, q) == conv(x, w, b, 1, d, added(p, q)) if v == 0"
    ),
)
def pad_into_conv(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """conv(pad(x, 0)) -> conv(x) with more pads"""
    pad = _spatial_pad(node, evaluator)
    if pad.value != 0:
        return rewriter.decline("the padding is not 0")
    return _grow_pads(node, rewriter, pad)


@rule(
    affine="obstructs",
    reads=("nn.pad",),
    identity=(
        "avg_pool(pad(x, spatial(p), v), kernel, strides, q, c) == avg_pool(x, kernel, strides,"
        " added(p, q), 1) if v == 0 and (c == 1) | unpadded(q) and all_below(added(p, q), kernel)"
    ),
)
def pad_into_average_pool(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """avg_pool(pad(x, 0)) -> avg_pool(x) with pads that the mean includes"""
    pad = _spatial_pad(node, evaluator)
    if pad.value != 0:
        return rewriter.decline("the padding is not 0")
    _check_windows(node, pad)
    _check_has_elements(pad)
    # The mean includes the zeros of the Pad, so the pool has to count its pads. It may not begin to
    # count its own.
    if not node.attrs.get("count_include_pad"):
        if not is_legal("nn.avg_pool", "count_include_pad", node):
            return rewriter.decline("AveragePool of this opset has no count_include_pad")
        if any(_explicit_window(node, pad)[1]):
            return rewriter.decline("it has pads of its own and count_include_pad is 0")
        rewriter.set_attr(node, "count_include_pad", 1)
    return _grow_pads(node, rewriter, pad)


@rule(
    affine="obstructs",
    reads=("nn.pad",),
    identity=(
        "max_pool(pad(x, spatial(p), v), kernel, strides, q) == max_pool(x, kernel, strides,"
        " added(p, q)) if v == -128 and all_below(added(p, q), kernel)"
    ),
)
def pad_into_max_pool(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """max_pool(pad(x, c)) -> max_pool(x) with pads, if c is the least integer of the type"""
    pad = _spatial_pad(node, evaluator)
    check_unread(node)
    dtype = known_dtype(node.output)
    # Of floats, not even -inf is as good as the pads, which a MaxPool ignores: where a window has
    # NaN beside the padding, onnxruntime returns -inf or another element, but NaN or the least
    # finite number without a Pad.
    if dtype.is_float:
        return rewriter.decline(
            "beside NaN, a MaxPool takes the numbers of a Pad, and ignores its own pads"
        )
    if pad.value != _least(dtype):
        return rewriter.decline("the padding is not the least integer")
    _check_windows(node, pad)
    _check_has_elements(pad)
    return _grow_pads(node, rewriter, pad)


def _least(dtype: DType) -> float | None:
    """Return the least integer of a type, None of any other type."""
    return {"uint": 0.0, "int": -(2.0 ** (dtype.bits - 1))}.get(dtype.kind)


@rule(
    affine="untouched",
    identity=(
        "ceil_pool(x, kernel, strides, p) == max_pool(x, kernel, strides, p) if adds_no_window(x,"
        " kernel, strides, p)"
    ),
)
def drop_ceil_mode(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """pool(x) {ceil_mode=1} -> pool(x), if rounding up adds no window"""
    # onnx's shape inference counts windows that start in the padding after the data, and then finds
    # readers with constant sizes, as those of a Split, in conflict with a model that runs.
    if not integer_of(node, "ceil_mode", 0):
        return rewriter.decline("it does not round up")
    kernel, sizes = list_attribute(node, "kernel_shape") or (), known_shape(node.operand())[2:]
    window = window_of(node, len(kernel))
    if window is None or not kernel or len(sizes) != len(kernel):
        return rewriter.decline("its attributes do not fit the rank of its data")
    for axis, (size, extent) in enumerate(zip(sizes, kernel, strict=True)):
        if not isinstance(size, int):
            return rewriter.decline("a spatial extent of its data is unknown")
        count = window.count(axis, size, extent)
        if count is None or count < 1 or count != window.count(axis, size, extent, ceil=True):
            return rewriter.decline("rounding up adds a window, or auto_pad decides")
    rewriter.drop_attr(node, "ceil_mode")
    return True


class _SpatialPad(Record):
    """A constant `nn.pad` of spatial axes: its data, pads (begins, then ends) and value."""

    data: Value
    pads: tuple[int, ...]
    value: float


def _spatial_pad(node: Node, evaluator: ShapeEvaluator) -> _SpatialPad:
    """Return the `nn.pad` that only `node` reads."""
    pad = result_of(node.operand(), "nn.pad", only_for=node)
    pads, value = pads_of(pad, evaluator), number_of(pad, "constant_value", evaluator)
    if text_of(pad, "mode", "constant") != "constant" or pads is None or value is None:
        raise Declined("the Pad pads with data, or with numbers that are not constant")
    rank = len(known_shape(node.operand())) if pad["axes"] is not None else len(pads)
    every = [pads.get(axis, (0, 0)) for axis in range(rank)]
    numbers = [side for sides in zip(*every, strict=True) for side in sides]
    known = [number for number in numbers if isinstance(number, int) and number >= 0]
    if not every or len(known) < len(numbers) or any(map(any, every[:2])):
        raise Declined("the Pad pads the batch or channels, crops, or is computed at run time")
    rank = len(every)
    return _SpatialPad(pad.operand(), (*known[2:rank], *known[rank + 2 :]), value)


def _explicit_window(node: Node, pad: _SpatialPad) -> tuple[Window, tuple[int, ...]]:
    """Return the window of `node`, and its pads."""
    window = window_of(node, len(pad.pads) // 2)
    if window is None or window.pads is None:
        raise Declined("its own pads depend on the extents of its data (auto_pad)")
    return window, window.pads


def _check_has_elements(pad: _SpatialPad) -> None:
    """Decline if a padded extent may be 0: onnxruntime pads no elements, but pools none."""
    ends = zip(pad.pads, pad.pads[len(pad.pads) // 2 :], strict=False)
    pairs = zip(known_shape(pad.data)[2:], ends, strict=False)
    padded = [size for size, pads in pairs if any(pads)]
    if not all(isinstance(size, int) and size > 0 for size in padded):
        raise Declined("a padded extent may be 0, and runtimes pool no data without elements")


def _check_windows(node: Node, pad: _SpatialPad) -> None:
    """Decline unless every window of a pool, padded by `pad` too, keeps an element."""
    (window, own), kernel = _explicit_window(node, pad), list_attribute(node, "kernel_shape") or ()
    if integer_of(node, "ceil_mode", 0) or any(item != 1 for item in window.dilations):
        raise Declined("it has ceil_mode or dilations")
    # a window at the border has an element of the data if the pads are less than its extent
    if 2 * len(kernel) != len(own):
        raise Declined("a window would have no element of the data")
    if any(a + b >= n for a, b, n in zip(own, pad.pads, kernel * 2, strict=True)):
        raise Declined("a window would have no element of the data")


def _grow_pads(node: Node, rewriter: Rewriter, pad: _SpatialPad) -> bool:
    """Let `node` read the data of `pad`, an `nn.pad`, and add its pads."""
    _, own = _explicit_window(node, pad)
    if node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        rewriter.set_attr(node, "auto_pad", "NOTSET")
    rewriter.set_attr(node, "pads", tuple(a + b for a, b in zip(own, pad.pads, strict=True)))
    rewriter.set_inputs(node, [pad.data, *node.inputs[1:]])
    return True


RULES: Rules[ShapeEvaluator] = {
    "nn.avg_pool": (drop_ceil_mode, pad_into_average_pool),
    "nn.conv": (pad_into_conv,),
    "nn.lp_pool": (drop_ceil_mode,),
    "nn.max_pool": (drop_ceil_mode, pad_into_max_pool),
}
"""The rules for each operator, in the order in which they are tried."""
