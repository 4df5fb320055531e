"""Rules for Identity, Dropout and Cast."""

from __future__ import annotations

import numpy as np

from ...ir.graph import Node
from ...ir.matching import check_unread, known_dtype, result_of, static_shape
from ...ir.ops import is_legal, op_info
from ...ir.ops.evaluation import NotEvaluable
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.tensor import ArrayTensor, Tensor
from ...ir.types import DType, element_count
from .rules import MAX_BYTES, substitute

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
    """dropout(x) -> x, if the mask is not read"""
    check_unread(node)
    return rewriter.forward(node.output, node.operand())


@rule(affine="untouched", identity="mask(x) == ones(x)")
def constant_mask(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """Mask of dropout(x) -> true, of static shape"""
    masks = [each for each in node.outputs[1:] if each.users]
    if len(masks) != 1 or masks[0].is_returned or not is_legal("nn.dropout", "mask", node):
        return rewriter.decline(
            "its mask is not read, is a result of the graph, or has no defined elements"
        )
    dims = static_shape(node.operand())
    if element_count(dims) > MAX_BYTES:
        return rewriter.decline("the mask is too large")
    constant = rewriter.constant(
        ArrayTensor(np.ones(dims, np.bool_)), before=node, hint=masks[0].name
    )
    rewriter.replace(masks[0], constant, take_name=True)
    return True


@rule(affine="untouched", identity="cast(x, kind) == x if kind == source")
def drop_cast(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """cast(x: T) to T -> x"""
    if known_dtype(node.operand()) is not known_dtype(node.output):
        return rewriter.decline("it changes the type")
    return rewriter.forward(node.output, node.operand())


@rule(
    affine="untouched",
    reads=("cast", "cast_like"),
    identity=(
        "cast(cast(x, via), kind) == cast(x, kind) if via in LOSSLESS[source] and"
        " casts_alike(source, via, kind)"
    ),
)
def merge_casts(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """cast(cast(x: S) to M) to T -> cast(x) to T, if M represents every value of S"""
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
    """Return whether equal numbers of `source` and `via` are equal after a cast to `target`."""
    # The text of a number depends on its type: 1 and 1.0.
    if target.kind == "string":
        return False
    # Out of the range of `target`, an integer wraps and the result of a float is undefined.
    narrows = (
        target.kind in ("int", "uint")
        and target is not source
        and target.name not in LOSSLESS[source.name]
    )
    return not (narrows and via.is_float and source.kind in ("int", "uint"))


@rule(
    affine="untouched", reads=("full",), identity="cast(full(s, v), kind) == full(s, cast(v, kind))"
)
def cast_of_full(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """cast(ConstantOfShape(s) of v) -> ConstantOfShape(s) of cast(v)"""
    full, dtype = result_of(node.operand(), "full", only_for=node), known_dtype(node.output)
    value, cast = full.attrs.get("value"), op_info("cast")
    assert cast is not None and cast.evaluate is not None
    if not is_legal("full", dtype.name, node) or not isinstance(value, Tensor | None):
        return rewriter.decline("ConstantOfShape of this opset makes no elements of the type")
    number = np.zeros(1, np.float32) if value is None else value.numpy()
    try:
        (converted,) = cast.evaluate(node, [number])
    except NotEvaluable:
        return rewriter.decline("ONNX leaves the result of the Cast open")
    return substitute(
        node, rewriter, "full", full.inputs, {"value": ArrayTensor(converted.reshape(1), dtype)}
    )


RULES: Rules[ShapeEvaluator] = {
    "cast": (drop_cast, merge_casts, cast_of_full),
    "cast_like": (drop_cast, merge_casts, cast_of_full),
    "identity": (drop_identity,),
    "nn.dropout": (drop_dropout, constant_mask),
}
"""The rules for each operator, in the order in which they are tried."""
