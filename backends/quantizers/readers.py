"""Who reads a value of an ONNX graph."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from onnx import ModelProto, NodeProto

ACTIVATIONS = frozenset(
    "Abs Celu Clip Dropout Elu Exp Gelu HardSigmoid HardSwish Identity LeakyRelu Mish PRelu Relu Selu Sigmoid Softplus "
    "Softsign Swish Tanh ThresholdedRelu".split()
)
"""Operators that act on every element of their first input alone, with at most a parameter per channel."""


class Readers:
    """The nodes that read each value, in the main graph of a model. O(nodes)."""

    def __init__(self, model: ModelProto) -> None:
        self._nodes: dict[str, list[NodeProto]] = defaultdict(list)
        for node in model.graph.node:
            for name in node.input:
                self._nodes[name].append(node)

    def through_activations(self, name: str) -> Iterator[NodeProto]:
        """Every node that reads the value or what activations make of it, activations left out."""
        waiting = deque([name])
        while waiting:
            for node in self._nodes.get(waiting.popleft(), ()):
                if node.op_type in ACTIVATIONS:
                    waiting.append(node.output[0])
                else:
                    yield node
