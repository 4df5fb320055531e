"""The unfolded model: the folded one with the checkpoint's weights, and norms after layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper, numpy_helper

from ...frontends.onnx.codec.protos import ModelProto, NodeProto
from ...frontends.onnx.opsets import opset_versions
from ...ir.name_pool import NamePool
from ...ir.tensor import Array
from .explanation import Explanation

MIXED_TYPES = 15
"""The first opset whose BatchNormalization has parameters of another type than its data."""


def unfolded_model(folded: ModelProto, explanations: Sequence[Explanation]) -> ModelProto:
    """Return a copy of `folded` without its folds; its tensors have the checkpoint's names."""
    return _Unfolder(folded, explanations).run()


class _Unfolder:
    def __init__(self, folded: ModelProto, explanations: Sequence[Explanation]) -> None:
        self.undone = {each.layer.index: each for each in explanations}
        self.model = ModelProto()
        self.model.CopyFrom(folded)
        self.opset = opset_versions(folded.opset_import)[""]
        graph = self.model.graph
        self.drop_unread()
        names = {name for node in graph.node for name in node.output}
        names.update(
            item.name for items in (graph.input, graph.output, graph.initializer) for item in items
        )
        self.values = NamePool(names)
        self.nodes = NamePool({node.name for node in graph.node})
        self.made: dict[tuple[str, tuple[int, ...], bool], str] = {}

    def drop_unread(self) -> None:
        """Remove the weights and biases that only the folded layers read."""
        graph = self.model.graph
        own, others = set[str](), {info.name for info in graph.output}
        for index, node in enumerate(graph.node):
            (own if index in self.undone else others).update(node.input)
        kept = [
            tensor
            for tensor in graph.initializer
            if tensor.name not in own or tensor.name in others
        ]
        del graph.initializer[:]
        graph.initializer.extend(kept)

    def run(self) -> ModelProto:
        nodes = self.model.graph.node
        fresh: list[NodeProto] = []
        for index, node in enumerate(list(nodes)):
            fresh.append(node)
            if index in self.undone:
                fresh.append(self.undo(node, self.undone[index]))
        del nodes[:]
        nodes.extend(fresh)
        return self.model

    def undo(self, node: NodeProto, found: Explanation) -> NodeProto:
        """Give a layer its own weight and bias back; return the norm that follows it."""
        kernel, norm, layer = found.kernel, found.norm, found.layer
        weight = kernel.stored_for(layer)
        assert weight is not None, layer.label
        dtype, turned = layer.weight.dtype, layer.is_transposed
        inputs = [node.input[0], self.constant(kernel.name, weight.astype(dtype), is_turned=turned)]
        if kernel.bias is not None and kernel.bias_name is not None:
            inputs.append(self.constant(kernel.bias_name, kernel.bias.astype(dtype)))
        result = node.output[0]
        node.input[:] = inputs
        node.output[0] = self.values.fresh(f"{result}.unfolded")
        params = [
            self.constant(name, array if self.opset >= MIXED_TYPES else array.astype(dtype))
            for name, array in zip(norm.names, norm.params, strict=True)
        ]
        name = self.nodes.fresh(norm.path or "BatchNormalization")
        return helper.make_node(
            "BatchNormalization",
            [node.output[0], *params],
            [result],
            name=name,
            epsilon=found.epsilon,
        )

    def constant(self, name: str, array: Array, *, is_turned: bool = False) -> str:
        """Return the name of an initializer, by preference the checkpoint's."""
        key = (name, array.shape, is_turned)
        if key not in self.made:
            self.made[key] = self.values.fresh(name)
            made = numpy_helper.from_array(np.ascontiguousarray(array), self.made[key])
            self.model.graph.initializer.append(made)
        return self.made[key]
