"""Helpers to read a folded model."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from onnx import ModelProto, NodeProto

from ...support.errors import FoldMapError
from ..foldmap.fold_map import FoldMap
from ..foldmap.inverse import OTHER_MODEL, belongs_to

ACTIVATIONS = frozenset(["Clip", "Dropout", "Identity", "LeakyRelu", "PRelu", "Relu"])
"""Operators between layers that high-bias fold and absorption pass through."""


def check_belongs(model: ModelProto, fold_map: FoldMap) -> None:
    """Raise FoldMapError unless `model` is the folded model of the map, unchanged."""
    if not belongs_to(fold_map, model):
        raise FoldMapError(OTHER_MODEL)


class Readers:
    """The nodes that read each value, in the main graph of a model. O(nodes)."""

    def __init__(self, model: ModelProto) -> None:
        self._nodes: dict[str, list[NodeProto]] = defaultdict(list)
        for node in model.graph.node:
            for name in node.input:
                self._nodes[name].append(node)

    def through_activations(self, name: str) -> Iterator[NodeProto]:
        """Yield the nodes that read a value, directly or through activations.

        Activations are not among them.
        """
        waiting = deque([name])
        while waiting:
            for node in self._nodes.get(waiting.popleft(), ()):
                if node.op_type in ACTIVATIONS:
                    waiting.append(node.output[0])
                else:
                    yield node
