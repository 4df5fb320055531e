"""Rules for elementwise operators: Identity, Dropout, and successive Casts or Clips."""

from __future__ import annotations

import numpy as np

from ...ir.graph import Node, Value
from ...ir.matching import check_only_reader, check_unread, known_dtype, result_of
from ...ir.ops import is_legal
from ...ir.ops.views import ClipBounds, clip_bounds
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.tensor import ArrayTensor, numpy_dtype
from ...ir.types import DType
from .extents import ShapeEvaluator
from .rules import substitute

_WIDER = {
    "u8": "i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64",
    "i8": "i16 i32 i64 f16 bf16 f32 f64",
    "i16": "i32 i64 f32 f64",
    "i32": "i64 f64",
    "f16": "f32 f64",
    "bf16": "f32 f64",
    "f32": "f64",
    "bool": "u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32 f64",
}
LOSSLESS = {source: frozenset(middles.split()) for source, middles in _WIDER.items()}
"""For each type, the types that represent all of its values."""


@rule(affine="untouched", identity="identity(x) == x")
def drop_identity(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """identity(x) -> x"""
    return rewriter.forward(node.output, node.operand())


@rule(affine="untouched", identity="dropout(x) == x")
def drop_dropout(node: Node, rewriter: Rewriter, context: object) -> bool:
    """dropout(x) -> x, where the mask is not read"""
    check_unread(node)
    return rewriter.forward(node.output, node.operand())


@rule(affine="untouched", identity="cast(x, kind) == x if kind == source")
def drop_cast(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """cast(x: T) to T -> x"""
    if known_dtype(node.operand()) is not known_dtype(node.output):
        return rewriter.decline("it changes the type")
    return rewriter.forward(node.output, node.operand())


@rule(
    affine="untouched",
    reads=("cast", "cast_like"),
    identity="cast(cast(x, via), kind) == cast(x, kind) if via in LOSSLESS[source] and casts_alike(source, via, kind)",
)
def merge_casts(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """cast(cast(x: S) to M) to T -> cast(x) to T, where M represents every value of S"""
    middle = node.operand()
    data = result_of(middle, "cast", "cast_like").operand()
    source, via, target = (known_dtype(value) for value in (data, middle, node.output))
    if via.name not in LOSSLESS.get(source.name, ()):
        return rewriter.decline("the type between the two Casts may not represent every value")
    if not _casts_alike(source, via, target):
        return rewriter.decline("one Cast would give other results for some values")
    if source is target:
        return rewriter.forward(node.output, data)
    rewriter.set_inputs(node, [data, *node.inputs[1:]])
    return True


def _casts_alike(source: DType, via: DType, target: DType) -> bool:
    """Whether equal numbers of types `source` and `via` are the same number after a cast to `target`."""
    # The text of a number depends on its type: 1 and 1.0.
    if target.kind == "string":
        return False
    # Out of the range of `target`, an integer wraps and the result of a float is undefined.
    narrows = target.kind in ("int", "uint") and target is not source and target.name not in LOSSLESS[source.name]
    return not (narrows and via.is_float and source.kind in ("int", "uint"))


@rule(
    affine="untouched",
    reads=("clip", "nn.relu"),
    identity="clip(clip(x, a, b), c, d) == clip(x, clip(a, c, d), clip(b, c, d)); "
    "relu(clip(x, a, b)) == clip(x, relu(a), relu(b)); "
    "clip(relu(x), c, d) == clip(x, clip(zero(c), c, d), d); "
    "relu(relu(x)) == relu(x)",
)
def merge_bounds(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """clip(clip(x, a, b), c, d) -> clip(x, clip(a, c, d), clip(b, c, d)); relu is clip(0, inf)"""
    middle = node.operand()
    producer = result_of(middle, "clip", "nn.relu")
    if node.op == producer.op == "nn.relu":
        return rewriter.forward(node.output, middle)
    inner, outer = _ordered_bounds(producer, evaluator), _ordered_bounds(node, evaluator)
    dtype = known_dtype(node.output)
    if known_dtype(producer.operand()) is not dtype:
        return rewriter.decline("the two operators differ in type")
    # The outer Clip is monotone, so it maps the interval of the inner one onto the interval between its clipped ends.
    merged = inner.clipped_to(outer)
    if producer.op == "clip" and (merged.low, merged.high) == (inner.low, inner.high):
        return rewriter.forward(node.output, middle)
    check_only_reader(middle, node)
    if not dtype.is_float and not is_legal("clip", "integers", node):
        return rewriter.decline("Clip of this opset takes floats only")
    inputs: list[Value | None] = [producer.operand()]
    for name, bound in (("min", merged.low), ("max", merged.high)):
        hint = f"{node.output.name}.{name}"
        array = None if bound is None else np.asarray(bound, numpy_dtype(dtype))
        inputs.append(None if array is None else rewriter.constant(ArrayTensor(array, dtype), before=node, hint=hint))
    return substitute(node, rewriter, "clip", inputs if inputs[-1] is not None else inputs[:-1])


def _ordered_bounds(node: Node, evaluator: ShapeEvaluator) -> ClipBounds:
    bounds = clip_bounds(node, evaluator)
    if bounds is None or not bounds.is_ordered:
        raise Declined("a bound is not a constant, or min is larger than max")
    return bounds


RULES: Rules[ShapeEvaluator] = {
    "cast": (drop_cast, merge_casts),
    "cast_like": (drop_cast, merge_casts),
    "clip": (merge_bounds,),
    "identity": (drop_identity,),
    "nn.dropout": (drop_dropout,),
    "nn.relu": (merge_bounds,),
}
"""The rules for each operator, in the order in which they are tried."""
