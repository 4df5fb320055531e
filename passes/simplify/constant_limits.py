"""Rules for operators that limit elements: Clip, Relu, and Max and Min with constants.

Each computes min(max(x, low), high) with low <= high, so it is monotone, and a row of them maps the
interval of the first onto the interval between its limited ends. NaN passes all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.graph import Node, Value, producer_of
from ...ir.matching import (
    elements,
    is_only_reader,
    known_dtype,
    static_shape,
)
from ...ir.ops import is_legal, takes_operand
from ...ir.ops.parameters import is_exact_attribute
from ...ir.ops.views import ClipBounds, clip_bounds
from ...ir.provenance import Declined
from ...ir.record import Record
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.tensor import Array, ArrayTensor, numpy_dtype
from ...ir.types import F64, DType, element_count
from .rules import MAX_BYTES, MAX_CHAIN, check_keeps_shape, substitute

_EXTREMA = ("maximum", "minimum")
_CLAMPS = (*_EXTREMA, "clip", "nn.relu")


def _ordered_bounds(node: Node, evaluator: ShapeEvaluator) -> ClipBounds:
    bounds = clip_bounds(node, evaluator)
    if bounds is None or not bounds.is_ordered:
        raise Declined("a bound is not a constant, or min is larger than max")
    return bounds


def _bound(node: Node, rewriter: Rewriter, name: str, array: Array, dtype: DType) -> Value:
    """Return a new constant before `node`."""
    tensor = ArrayTensor(array.astype(numpy_dtype(dtype)), dtype)
    return rewriter.constant(tensor, before=node, hint=f"{node.output.name}.{name}")


class _Limits(Record):
    """The limits of `data`, constants that broadcast into them; None if there is none."""

    data: Value
    low: Array | None
    high: Array | None

    def then(self, outer: _Limits) -> _Limits:
        """Return the limits of the data by these, then by `outer`."""

        def limited(bound: Array | None, absent: Array | None) -> Array | None:
            if bound is None:
                return absent
            raised = bound if outer.low is None else np.maximum(bound, outer.low)
            return np.asarray(raised if outer.high is None else np.minimum(raised, outer.high))

        return _Limits(self.data, limited(self.low, outer.low), limited(self.high, outer.high))

    def is_as(self, other: _Limits) -> bool:
        """Return whether `other` has the same limits."""
        return _is_same(self.low, other.low) and _is_same(self.high, other.high)

    @property
    def bounds(self) -> tuple[Array, ...]:
        """The limits that there are."""
        return tuple(each for each in (self.low, self.high) if each is not None)

    @property
    def are_numbers(self) -> bool:
        """Whether each limit is one number."""
        return all((each == each.ravel()[0]).all() for each in self.bounds)


def _is_same(a: Array | None, b: Array | None) -> bool:
    """Return whether two bounds are absent, or broadcast to the same numbers."""
    if a is None or b is None or a is b:
        return a is b
    return bool(np.equal(a, b).all())


def _limits(node: Node, evaluator: ShapeEvaluator) -> _Limits:
    """Return the limits that a clamp sets by itself."""
    if node.op in ("clip", "nn.relu"):
        bounds, kind = _ordered_bounds(node, evaluator), numpy_dtype(known_dtype(node.output))
        low, high = (
            None if each is None else np.asarray(each, kind) for each in (bounds.low, bounds.high)
        )
        return _Limits(node.operand(), low, high)
    computed = [value for value in node.inputs if not evaluator.is_constant(value)]
    if len(computed) != 1 or computed[0] is None or len(node.inputs) < 2:
        raise Declined("it has no constant operand, or several others")
    data, dtype = computed[0], known_dtype(node.output)
    if known_dtype(data) is not dtype or not (dtype.is_float or dtype.kind in ("int", "uint")):
        raise Declined("its operands are not numbers of one type")
    combine, found = np.maximum if node.op == "maximum" else np.minimum, None
    for value in node.inputs:
        if value is not data and value is not None:
            array = _small(value, evaluator)
            check_keeps_shape(data, array)
            found = array if found is None else np.asarray(combine(found, array))
    return _Limits(data, found, None) if node.op == "maximum" else _Limits(data, None, found)


def _small(value: Value, evaluator: ShapeEvaluator) -> Array:
    """Return the elements of a constant of some size, none of which is NaN."""
    if element_count(static_shape(value)) * known_dtype(value).bits > 8 * MAX_BYTES:
        raise Declined("a constant is too large")
    array = elements(value, evaluator)
    if array.size == 0 or (array != array).any():
        raise Declined("a constant has no elements, or a NaN")
    return array


@rule(
    affine="obstructs",
    reads=_CLAMPS,
    identity=(
        "minimum(maximum(x, a), b) == clip(x, least(a, b), b); "
        "maximum(minimum(x, a), b) == clip(x, b, greatest(a, b)); "
        "maximum(maximum(x, a), b) == maximum(x, greatest(a, b)); "
        "minimum(minimum(x, a), b) == minimum(x, least(a, b)); "
        "maximum(clip(x, a, b), c) == clip(x, greatest(a, c), greatest(b, c)); "
        "minimum(clip(x, a, b), c) == clip(x, least(a, c), least(b, c)); "
        "clip(maximum(x, a), c, d) == clip(x, clip(a, c, d), d); "
        "clip(minimum(x, a), c, d) == clip(x, clip(c, c, d), clip(a, c, d)); "
        "clip(clip(x, a, b), c, d) == clip(x, clip(a, c, d), clip(b, c, d)); "
        "relu(clip(x, a, b)) == clip(x, relu(a), relu(b)); "
        "clip(relu(x), c, d) == clip(x, clip(zero(c), c, d), d); "
        "relu(relu(x)) == relu(x)"
    ),
)
def merge_extrema(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """min(max(x, a), b) -> clip(x, min(a, b), b); rows of max, min, clip, relu -> one or two"""
    own = merged = _limits(node, evaluator)
    row, best = [node], 0
    found = own
    while len(row) < MAX_CHAIN and (before := producer_of(merged.data, *_CLAMPS)) is not None:
        try:
            limits = _limits(before, evaluator)
        except Declined:
            break
        merged = limits.then(merged)
        if len(row) == 1 and merged.is_as(limits):
            return rewriter.forward(node.output, before.output)
        if not is_only_reader(before.output, row[-1]):
            break
        row.append(before)
        if _count(merged, row, own, node) < len(row):
            found, best = merged, len(row)
    if not best:
        return rewriter.decline("it is in no row of constant limits that takes fewer operators")
    return _limit(node, rewriter, found, row[:best], own)


def _count(limits: _Limits, row: Sequence[Node], own: _Limits, node: Node) -> int:
    """Return how many operators set `limits` in place of a row that ends with `node`."""
    if limits.is_as(own):
        return 1
    if sum(each.nbytes for each in limits.bounds) > MAX_BYTES:
        return MAX_CHAIN
    if _takes_clip(limits, node) and (len(limits.bounds) == 2 or not _are_extrema(row)):
        return 1
    return (
        len(limits.bounds) if _are_extrema(row) else MAX_CHAIN
    )  # kernels compute a layer and its Clip or Relu as one


def _are_extrema(row: Sequence[Node]) -> bool:
    return all(each.op in _EXTREMA for each in row)


def _takes_clip(limits: _Limits, node: Node) -> bool:
    """Return whether a Clip can set `limits` beside `node`."""
    dtype = known_dtype(node.output)
    # onnxruntime has no Clip of float64 either before the opset that brought integers.
    is_old_type = dtype.is_float and dtype is not F64
    if not limits.are_numbers or not (is_old_type or is_legal("clip", "integers", node)):
        return False
    if takes_operand("clip", "min", node):
        return True
    return all(is_exact_attribute(each) for each in limits.bounds)  # float32


def _limit(
    node: Node, rewriter: Rewriter, limits: _Limits, row: Sequence[Node], own: _Limits
) -> bool:
    """Set `limits` in place of a row of clamps, of which `node` is the last."""
    data, dtype = limits.data, known_dtype(node.output)
    if limits.is_as(own):
        rewriter.set_inputs(node, [data if value is own.data else value for value in node.inputs])
        return True
    named = {"maximum": ("min", limits.low), "minimum": ("max", limits.high)}
    if _takes_clip(limits, node) and (len(limits.bounds) == 2 or not _are_extrema(row)):
        ends = [
            None if each is None else _bound(node, rewriter, name, each.ravel()[0], dtype)
            for name, each in named.values()
        ]
        return substitute(
            node, rewriter, "clip", [data, *(ends if ends[-1] is not None else ends[:-1])]
        )

    def bound(op: str, before: Node = node) -> Value:
        name, array = named[op]
        assert array is not None
        return _bound(before, rewriter, name, array, dtype)

    if len(limits.bounds) == 1:
        op = "minimum" if limits.low is None else "maximum"
        if node.op != op:
            return substitute(node, rewriter, op, [data, bound(op)])
        rewriter.set_inputs(node, [data, bound(op)])
        return True
    other = next(
        each for each in row if each.op != node.op
    )  # low <= high, so the two may change places
    rewriter.set_inputs(other, [data, bound(other.op, other)])
    other.output.rename(rewriter.module.fresh_name(f"{other.output.name}.limited"))
    rewriter.set_inputs(node, [other.output, bound(node.op)])
    return True


RULES: Rules[ShapeEvaluator] = dict.fromkeys(_CLAMPS, (merge_extrema,))
"""The rules for each operator, in the order in which they are tried."""
