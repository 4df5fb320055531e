"""SimplifyInference: what only training needs becomes plain arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.affine.recognise import made_of_little, not_constant, too_much_made
from ..ir.evaluate import DEFAULT_EPSILON, ConstantEvaluator, batch_norm_to_affine, first_of_channel
from ..ir.graph import Module, Node
from ..ir.ledger import Refusal
from ..ir.rewrite import Rewriter
from ..ir.tensor import Array, all_finite
from .infra import Pass, PassContext


@dataclass(frozen=True)
class SimplifyInference(Pass):
    """Turn inference-mode BatchNormalization into arithmetic, and drop Dropout.

    1. `nn.batch_norm(x, gamma, beta, mean, var)` becomes `add(multiply(x, scale), shift)` along axis 1, where `scale,
       shift = nn.batch_norm_to_affine(gamma, beta, mean, var)` are float64 and never rounded. The parameters must be
       constant floating vectors of one length, finite, with var + epsilon > 0 and a finite result.
    2. `nn.dropout(x)` becomes `x`, if nobody reads the mask and the result is not returned in place of a graph input.

    A BatchNormalization that stays as rule 1 left it is written to ONNX as the node it was, bit for bit.
    """

    name: ClassVar[str] = "SimplifyInference"

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        evaluator = ConstantEvaluator(module.limits.max_constant_bytes)
        for graph in module.graphs():
            for node in graph:
                if node.op not in ("nn.batch_norm", "nn.dropout"):
                    continue
                if rewriter.steps.exhausted:
                    break
                if node.op == "nn.batch_norm":
                    refusal = lower_batch_norm(node, rewriter, evaluator)
                    if refusal is not None:
                        for origin in node.origins:
                            if isinstance(origin, int):
                                module.ledger.refusals[origin] = refusal
                    else:
                        rewriter.steps.note("lower_batch_norm", node.label)
                elif drop(node, rewriter):
                    rewriter.steps.note("drop", node.label)
        return rewriter.changed


def lower_batch_norm(node: Node, rewriter: Rewriter, evaluator: ConstantEvaluator) -> Refusal | None:
    """batch_norm(x, gamma, beta, mean, var) -> add(multiply(x, scale), shift)"""
    data, *params = node.inputs
    numbers = check_parameters(node, evaluator)
    if isinstance(numbers, Refusal):
        return numbers
    hint = node.output.name
    with rewriter.rewriting(node):
        affine = rewriter.make("nn.batch_norm_to_affine", params, node.attrs, before=node, hint=hint, name=node.name)
        affine.source = node.source
        rewriter.module.computed.update(zip(affine.outputs, numbers, strict=True))
        scale, shift = affine.outputs
        type_ = node.output.type
        product = rewriter.make("multiply", [data, scale], {"axis": 1}, before=node, hint=hint, type_=type_)
        result = rewriter.make(
            "add", [product.output, shift], {"axis": 1}, before=node, hint=hint, name=node.name, type_=type_
        )
    rewriter.replace(node.output, result.output, take_name=True)
    return None


def check_parameters(node: Node, evaluator: ConstantEvaluator) -> tuple[Array, ...] | Refusal:
    """The scale and the shift of a BatchNormalization, or why its parameters do not make an affine."""
    arrays = []
    for value in node.inputs[1:]:
        if made_of_little(value):
            return too_much_made(value)
        array = evaluator.array(value)
        if array is None or array.dtype.kind in "cO":
            return not_constant(value)
        with np.errstate(invalid="ignore"):  # NaN of another float
            vector = first_of_channel(array.astype(np.float64))
        arrays.append(array if vector is None else vector)
    label = node.name or f"%{node.output.name}"
    if arrays[0].ndim != 1 or len({array.shape for array in arrays}) > 1:
        shapes = ", ".join(str(list(array.shape)) for array in arrays)
        return Refusal("channel_mismatch", f"{label}: parameters of shapes {shapes}")
    if not all(map(all_finite, arrays)):
        return Refusal("nonfinite", f"{label}: a parameter is infinite or not a number")
    epsilon = node.attrs.get("epsilon", DEFAULT_EPSILON)
    if not isinstance(epsilon, float) or np.count_nonzero(arrays[3] + epsilon > 0) < arrays[3].size:
        return Refusal("non_positive_variance", f"{label}: var + epsilon is not positive in every channel")
    numbers = batch_norm_to_affine(node, arrays)
    if not all(map(all_finite, numbers)):
        return Refusal("overflow", f"{label}: gamma / sqrt(var + epsilon) is not finite in every channel")
    return numbers


def drop(node: Node, rewriter: Rewriter) -> bool:
    """dropout(x) -> x"""
    data = node.inputs[0]
    assert data is not None
    return not any(value.users for value in node.outputs[1:]) and rewriter.forward(node.output, data)
