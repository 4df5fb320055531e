"""Which operators of a quantized model compute with integers, and why the others do not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from onnx import ModelProto, NodeProto

from ...frontends.onnx.codec.traversal import body_nodes

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators with a weight, which decide how much of a model is quantized."""
WEIGHTED = (*LAYERS, "LSTM")
"""The same, and those with weights that onnxruntime quantizes with scales found at run time only.
"""


class Method(Enum):
    """How an operator computes."""

    STATIC = "static"
    """With integers, whose scales are known before."""
    DYNAMIC = "dynamic"
    """With integers, whose scale follows from each tensor."""
    FLOAT = "float"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an operator stays float: `text`, and the `tensor` that it is about, or ""."""

    text: str
    tensor: str = ""

    def __str__(self) -> str:
        return f"{self.text} for {self.tensor!r}" if self.tensor else self.text


NO_RANGE = "no range is known"
GUESS = "the range is a guess"
IN_BODY = "onnxruntime quantizes no bodies"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Whether an operator is quantized, and how; `reason` is None if it is."""

    node: str
    op_type: str
    reason: Reason | None
    method: Method

    @property
    def quantized(self) -> bool:
        """Whether it computes with integers."""
        return self.reason is None

    @property
    def is_layer(self) -> bool:
        """Whether the operator has a weight."""
        return self.op_type in WEIGHTED


def coverage(
    model: ModelProto,
    quantized: ModelProto,
    activations: frozenset[str],
    op_types: Collection[str],
    reasons: Mapping[str, Reason],
) -> list[Coverage]:
    """Return the coverage of operators that compute `activations`, and of other layers.

    All nodes of `model` have names, and nodes of `quantized`, in QDQ form, have the same.
    `op_types` are those that the quantizer takes, `reasons` why nodes were kept from it, by name.
    """
    dequantized = {
        node.output[0] for node in quantized.graph.node if node.op_type == "DequantizeLinear"
    }
    left = {node.name: node for node in quantized.graph.node}
    constants = {tensor.name for tensor in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if activations.isdisjoint(node.output):
            continue
        reason = reasons.get(node.name) or _reason(
            node, left.get(node.name), dequantized, op_types, constants
        )
        method = Method.STATIC if reason is None else Method.FLOAT
        found.append(Coverage(node.name, node.op_type, reason, method))
    layers = (node for node in body_nodes(model) if node.op_type in WEIGHTED)
    found.extend(
        Coverage(node.name or node.output[0], node.op_type, Reason(IN_BODY), Method.FLOAT)
        for node in layers
    )
    return found


def _reason(
    node: NodeProto,
    kept: NodeProto | None,
    dequantized: Collection[str],
    op_types: Collection[str],
    constants: Collection[str],
) -> Reason | None:
    if node.op_type not in op_types:
        return Reason(f"onnxruntime does not quantize {node.op_type}")
    if kept is None:  # an activation that the range of the tensor before it implies
        return None
    operands = kept.input[: 2 if node.op_type in LAYERS else 1]
    if all(name in dequantized for name in operands):
        return None
    if node.op_type in LAYERS and node.input[1] not in constants:
        return Reason("its weight is computed")
    return Reason("its data are not quantized")
