"""Rules that make a Gemm of MatMul and Add."""

from __future__ import annotations

from ...ir.graph import Node, Value, producer_of
from ...ir.matching import is_only_reader
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.types import shape_of
from .rules import broadcasts_into, check_dense_takes_bias, substitute


@rule(
    affine="merges",
    identity="x @ w + b == gemm(x, w, b, 1, 1) if rank(x) == 2 and keeps_shape(x @ w, b)",
)
def add_to_dense(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """matmul(x, w) + b -> dense(x, w, b), if b is computed, one number, or a matrix"""
    if "axis" in node.attrs:
        return rewriter.decline("its operands are aligned at an axis")
    for product, bias in (node.inputs, node.inputs[::-1]):
        matmul = producer_of(product, "matmul")
        if matmul is None or not is_only_reader(product, node):
            continue
        check_dense_takes_bias(node)
        if all(evaluator.is_constant(value) for value in matmul.inputs):
            return rewriter.decline(
                "the product is a constant expression, which FoldConstant computes"
            )
        if all(_is_matrix(value) for value in matmul.inputs) and _is_bias(bias, matmul.output):
            return substitute(
                node, rewriter, "nn.dense", [*matmul.inputs, bias], name=matmul.name or node.name
            )
    return rewriter.decline(
        "no operand is the product of two matrices without other readers, or the bias is larger"
    )


def _is_matrix(value: Value | None) -> bool:
    shape = None if value is None else shape_of(value.type)
    return shape is not None and len(shape) == 2


def _is_bias(bias: Value | None, product: Value) -> bool:
    """Return whether `bias` has one or two axes, and broadcasts into the shape of `product`."""
    shape = None if bias is None else shape_of(bias.type)
    if shape is None or not 1 <= len(shape) <= 2:
        return False
    return broadcasts_into(shape, shape_of(product.type))


RULES: Rules[ShapeEvaluator] = {"add": (add_to_dense,)}
"""The rule for Add."""
