"""Rules that make a Gemm of MatMul and Add."""

from __future__ import annotations

import numpy as np

from ...ir.graph import Node, Value, producer_of
from ...ir.matching import is_only_reader
from ...ir.provenance import Declined
from ...ir.rewriter import Rewriter
from ...ir.rule_driver import Rules, rule
from ...ir.shape_evaluator import ShapeEvaluator
from ...ir.tensor import ArrayTensor, to_float64
from ...ir.types import shape_of
from .rules import broadcasts_into, check_dense_takes_bias, substitute


@rule(
    affine="merges",
    identity="x @ w + b == gemm(x, w, b, 1, 1) if rank(x) == 2 and keeps_shape(x @ w, b)",
)
def add_to_dense(node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator) -> bool:
    """matmul(x, w) + b -> dense(x, w, b)"""
    for product, bias in (node.inputs, node.inputs[::-1]):
        matmul = producer_of(product, "matmul")
        if matmul is None or not is_only_reader(product, node):
            continue
        check_dense_takes_bias(node)
        if all(evaluator.is_constant(value) for value in matmul.inputs):
            return rewriter.decline(
                "the product is a constant expression, which FoldConstant computes"
            )
        if all(_is_matrix(value) for value in matmul.inputs) and _is_bias(bias, node, matmul):
            operands = [*matmul.inputs, _as_gemm_takes(bias, node, rewriter, evaluator)]
            name = matmul.name or node.name
            return substitute(node, rewriter, "nn.dense", operands, name=name)
    return rewriter.decline(
        "no operand is the product of two matrices without other readers, or the bias is larger"
    )


def _is_matrix(value: Value | None) -> bool:
    shape = None if value is None else shape_of(value.type)
    return shape is not None and len(shape) == 2


def _is_bias(bias: Value | None, node: Node, matmul: Node) -> bool:
    """Return whether `bias` has one or two axes, and broadcasts into the product."""
    shape = None if bias is None else shape_of(bias.type)
    if shape is not None and node.attrs.get("axis") == 0:
        shape = (*shape, 1)
    if shape is None or not 1 <= len(shape) <= 2:
        return False
    return broadcasts_into(shape, shape_of(matmul.output.type))


def _as_gemm_takes(
    bias: Value | None, node: Node, rewriter: Rewriter, evaluator: ShapeEvaluator
) -> Value | None:
    """Return numbers for each row as [m, 1], and a constant of shape [1, n] as [n].

    Quantizers expect one axis. Declines if numbers for each row are computed.
    """
    shape = None if bias is None else shape_of(bias.type)
    is_of_rows = node.attrs.get("axis") == 0
    if shape is None or not (is_of_rows or (len(shape) == 2 and shape[0] == 1)):
        return bias
    array = evaluator.exact(bias)
    if array is None:
        if is_of_rows:
            raise Declined("its bias for each row is computed")
        return bias
    wide = to_float64(array)
    tensor = ArrayTensor(wide[:, np.newaxis] if is_of_rows else wide[0])
    return rewriter.constant(tensor, before=node, hint=f"{node.output.name}.bias")


RULES: Rules[ShapeEvaluator] = {"add": (add_to_dense,)}
"""The rule for Add."""
