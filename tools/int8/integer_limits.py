"""Min and Max of a quantized model that limit each channel, computed on integers.

onnxruntime's quantizer leaves them float, between two roundings. Rounding to a grid never falls, so
the integer of min(x, b) is the lesser of the integers of x and b. Hence the second rounding is
enough, and may come before the Min.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from ...frontends.onnx.opsets import opset_versions
from ...ir.tensor import Array
from ..verify.onnx_graph import constant_tensors, makers_of, reads
from .grid import Grid, grid_of

LIMITS = ("Min", "Max")
SINCE = 12
"""The first opset in which Min and Max take small integers."""


@dataclass(frozen=True, slots=True, eq=False)
class _Limited:
    """A Min or Max between QuantizeLinear, DequantizeLinear before it and QuantizeLinear after it.

    `limit` is its constant operand on the grid of the second QuantizeLinear.
    """

    first: NodeProto
    back: NodeProto
    node: NodeProto
    second: NodeProto
    limit: Array


def limit_integers(model: ModelProto) -> set[str]:
    """Let Min and Max of a rounded value and a constant compute on integers. O(nodes).

    The model is in QDQ form. A Min or Max stays float if something else reads a tensor between the
    roundings, if a grid is not one for the whole tensor, or if the second grid reaches beyond the
    first: its ends may be the bounds of an activation. Two in a row, between which nothing is
    rounded, stay float.
    """
    if opset_versions(model.opset_import)[""] < SINCE:
        return set()
    finder = _Finder(model)
    found = [limited for node in model.graph.node if (limited := finder.find(node)) is not None]
    moved = {one.second.output[0] for one in found}
    found = [one for one in found if one.first.output[0] not in moved]
    gone: set[str] = set()
    for one in found:
        name = f"{one.second.output[0]}_limit"
        while name in finder.names:
            name += "_"
        finder.names.add(name)
        model.graph.initializer.append(numpy_helper.from_array(one.limit, name))
        gone |= {one.back.output[0], one.node.output[0]}
        for index in (1, 2):
            one.first.input[index] = one.second.input[index]
        one.node.CopyFrom(_node_like(one.node, [one.first.output[0], name], one.second.output[0]))
    for i in reversed(range(len(model.graph.node))):
        node = model.graph.node[i]
        is_second = node.op_type == "QuantizeLinear" and node.input[0] in gone
        if is_second or not gone.isdisjoint(node.output):
            del model.graph.node[i]
    remove_unread(model, finder.names)
    return {one.node.name for one in found}


def remove_unread(model: ModelProto, names: set[str]) -> None:
    """Remove the initializers among `names` that nothing reads."""
    read = {name for node in model.graph.node for name in reads(node)} | {
        info.name for info in model.graph.output
    }
    for i in reversed(range(len(model.graph.initializer))):
        name = model.graph.initializer[i].name
        if name in names and name not in read:
            del model.graph.initializer[i]


def _node_like(node: NodeProto, inputs: list[str], output: str) -> NodeProto:
    """Return a node with other operands and another result."""
    found = NodeProto()
    found.CopyFrom(node)
    del found.input[:]
    found.input.extend(inputs)
    found.output[0] = output
    return found


class _Finder:
    """Finds the Min and Max that may compute on integers. `names` are the initializers."""

    def __init__(self, model: ModelProto) -> None:
        self.makers = makers_of(model.graph)
        self.readers: dict[str, list[NodeProto]] = {}
        self.count = Counter(info.name for info in model.graph.output)
        for node in model.graph.node:
            for name in reads(node):
                self.readers.setdefault(name, []).append(node)
                self.count[name] += 1
        self.tensors = constant_tensors(model.graph)
        self.names = {tensor.name for tensor in model.graph.initializer}

    def find(self, node: NodeProto) -> _Limited | None:
        """Return a Min or Max with the nodes around it, None if it has to stay float."""
        if node.op_type not in LIMITS or len(node.input) != 2:
            return None
        back = next((self.makers[name] for name in node.input if name in self.makers), None)
        limit = next((self.tensors[name] for name in node.input if name in self.tensors), None)
        if limit is None or back is None:
            return None
        first = self.makers.get(back.input[0])
        if first is None or not self.is_only_path(first, back, node):
            return None
        (second,) = self.readers[node.output[0]]
        if second.op_type != "QuantizeLinear":
            return None
        before, after = self.grid(first), self.grid(second)
        if before is None or after is None or before.dtype != after.dtype:
            return None
        # The first rounding becomes one to the second grid, of whose range it must have clipped
        # nothing: beyond half a step at the upper end, results would differ.
        (low, high), (least, most) = after.ends, before.ends
        if low < least or high > most + float(after.scale) / 2:
            return None
        bounds = numpy_helper.to_array(limit).astype(np.float32)
        if np.isnan(bounds).any():
            return None
        integers = np.rint(bounds / np.float32(after.scale)) + np.float32(after.zero)
        return _Limited(
            first, back, node, second, np.clip(integers, *after.limits).astype(after.dtype)
        )

    def is_only_path(self, first: NodeProto, back: NodeProto, node: NodeProto) -> bool:
        """Return whether tensors from the first QuantizeLinear to the last have one reader."""
        if first.op_type != "QuantizeLinear" or back.op_type != "DequantizeLinear":
            return False
        # The one reader of a result of the model is nobody that could be given integers.
        has_reader = bool(self.readers.get(node.output[0]))
        return has_reader and all(self.count[each.output[0]] == 1 for each in (first, back, node))

    def grid(self, node: NodeProto) -> Grid | None:
        """Return the grid of a QuantizeLinear if it is of float32 and small integers."""
        found = grid_of(node, self.tensors)
        if found is None or found.dtype not in (np.uint8, np.int8):
            return None
        return found if self.tensors[node.input[1]].data_type == TensorProto.FLOAT else None
