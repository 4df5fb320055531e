"""SimplifyInference: operators with a training mode become arithmetic, or go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Node
from ..ir.module import Module
from ..ir.ops.normalization import DEFAULT_EPSILON, first_of_channel, scale_and_shift
from ..ir.provenance import Refusal, Refused
from ..ir.rewriter import Rewriter
from ..ir.rule_driver import RuleDriver, Rules, rule
from ..ir.tensor import Array
from ..ir.types import F64, TensorType
from .affine.algebra.recognise import made_of_little, not_constant, too_much_made, too_much_shared
from .infra import Pass, PassContext
from .simplify.elementwise import drop_dropout


@dataclass(frozen=True)
class SimplifyInference(Pass):
    """Turn inference-mode BatchNormalization into arithmetic, and drop Dropout.

    1. `nn.batch_norm(x, gamma, beta, mean, var)` becomes `add(multiply(x, scale), shift)` along
       axis 1, where `scale, shift = nn.batch_norm_to_affine(gamma, beta, mean, var)` are float64
       and never rounded. The parameters must be constant floating vectors of one length, finite,
       with var + epsilon > 0 and a finite result.
    2. `nn.dropout(x)` becomes `x`, if the mask is not read and the result is not returned in place
       of a graph input.

    A BatchNormalization that stays as rule 1 left it is written to ONNX as the node it was, bit for
    bit.
    """

    name: ClassVar[str] = "SimplifyInference"
    after: ClassVar[tuple[str, ...]] = ("InlineFunctions",)

    def run(self, module: Module, ctx: PassContext) -> bool:
        rewriter = Rewriter(module)
        for graph in module.graphs():
            nodes = graph.operators_of(RULES)
            norms = [node for node in nodes if node.op == "nn.batch_norm"]
            RuleDriver(rewriter, RULES, scales_and_shifts(norms, module.constants)).run(nodes)
        return rewriter.changed


Numbers = Mapping[Node, "tuple[Array, Array] | Refusal"]
"""The scale and shift of every BatchNormalization, or the reason why it has none."""


@rule(
    affine="merges",
    identity=(
        "batch_norm(x, g, b, m, v) == affine(x, g / deviation(v), b - m * (g / deviation(v)), 1)"
    ),
)
def lower_batch_norm(node: Node, rewriter: Rewriter, numbers: Numbers) -> bool:
    """batch_norm(x, gamma, beta, mean, var) -> add(multiply(x, scale), shift)"""
    found = numbers[node]
    if isinstance(found, Refusal):
        rewriter.module.provenance.refuse(node.origins, found)
        return rewriter.decline(found.detail)
    data, *params = node.inputs
    hint, type_ = node.output.name, node.output.type
    vector = TensorType(F64, found[0].shape)
    affine = rewriter.make(
        "nn.batch_norm_to_affine",
        params,
        node.attrs,
        before=node,
        hint=hint,
        name=node.name,
        type_=vector,
    )
    # With its source, the node is written as the same BatchNormalization if no pass changes the
    # pair.
    affine.stand_for(node)
    for value, array in zip(affine.outputs, found, strict=True):
        rewriter.module.constants.provide(value, array, keep=True)
    scale, shift = affine.outputs
    product = rewriter.make(
        "multiply", [data, scale], {"axis": 1}, before=node, hint=hint, type_=type_
    )
    result = rewriter.make(
        "add",
        [product.output, shift],
        {"axis": 1},
        before=node,
        hint=hint,
        name=node.name,
        type_=type_,
    )
    rewriter.replace(node.output, result.output, take_name=True)
    return True


RULES: Rules[Numbers] = {"nn.batch_norm": (lower_batch_norm,), "nn.dropout": (drop_dropout,)}
"""The rules for each operator."""


def scales_and_shifts(
    nodes: Iterable[Node], evaluator: ConstantEvaluator
) -> dict[Node, tuple[Array, Array] | Refusal]:
    """Return scale and shift of every BatchNormalization, or the Refusal of its parameters.

    Nodes with equally many channels are computed together, because numpy takes about as long for
    one short vector as for many.
    """
    found: dict[Node, tuple[Array, Array] | Refusal] = {}
    by_channels: dict[int, list[tuple[Node, list[Array]]]] = {}
    for node in nodes:
        try:
            vectors = parameters(node, evaluator)
        except Refused as refused:
            found[node] = refused.refusal
        else:
            by_channels.setdefault(vectors[0].size, []).append((node, vectors))
    for group in by_channels.values():
        found.update(_computed(group))
    return found


def parameters(node: Node, evaluator: ConstantEvaluator) -> list[Array]:
    """Return gamma, beta, mean and variance as vectors of one length.

    Raises Refused if they are not.
    """
    arrays = []
    for value in map(node.operand, range(1, 5)):
        if made_of_little(value):
            raise too_much_made(value)
        array = evaluator.exact(value)
        if array is None or array.dtype.kind in "cO":
            raise not_constant(value)
        if not evaluator.affords(array.size):
            raise too_much_shared(value)
        vector = first_of_channel(array)
        arrays.append(array if vector is None else vector)
    shape = arrays[0].shape
    if len(shape) != 1 or any([array.shape != shape for array in arrays]):
        shapes = ", ".join(str(list(array.shape)) for array in arrays)
        raise Refused("channel_mismatch", f"{node.description}: parameters of shapes {shapes}")
    return arrays


def _computed(
    group: Sequence[tuple[Node, list[Array]]],
) -> Iterator[tuple[Node, tuple[Array, Array] | Refusal]]:
    epsilons = [node.attrs.get("epsilon", DEFAULT_EPSILON) for node, _ in group]
    with np.errstate(all="ignore"):
        gamma, beta, mean, var = (
            np.array([vectors[i] for _, vectors in group], np.float64) for i in range(4)
        )
        epsilon = np.array([[each if isinstance(each, float) else np.nan] for each in epsilons])
        positive = _rows(var + epsilon > 0)
    scales, shifts = scale_and_shift(gamma, beta, mean, var, epsilon)
    finite = _rows(np.isfinite(gamma) & np.isfinite(beta) & np.isfinite(mean) & np.isfinite(var))
    fits = _rows(np.isfinite(scales) & np.isfinite(shifts))
    for i, (node, _) in enumerate(group):
        if finite[i] and positive[i] and fits[i]:
            yield node, (scales[i], shifts[i])
        elif not finite[i]:
            yield (
                node,
                Refusal(
                    "nonfinite", f"{node.description}: a parameter is infinite or not a number"
                ),
            )
        elif not positive[i]:
            why = f"{node.description}: var + epsilon is not positive in every channel"
            yield node, Refusal("non_positive_variance", why)
        else:
            why = f"{node.description}: gamma / sqrt(var + epsilon) is not finite in every channel"
            yield node, Refusal("overflow", why)


def _rows(mask: Array) -> list[bool]:
    """Return for each row whether it is true in every channel."""
    return list(np.logical_and.reduce(mask, axis=1).tolist())
