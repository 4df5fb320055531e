"""Where numbers of the source grow beyond its element type: a model that sums in another order may stay within it, so
that nothing can be said of these, nor of what is computed from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from .inputs import Feeds
from .noise import SUMS, captured
from .reference import channels, is_tensor, pieces

GROWING = SUMS | {
    *("Mul", "Pow", "Exp", "Cast", "PRelu", "LRN", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
    *("InstanceNormalization", "LayerNormalization", "GroupNormalization", "LpPool", "GlobalLpPool", "Sinh", "Cosh"),
}
"""Operators that make of finite operands no infinity unless that is too large a number; so does Div by a constant
without zeros.
"""


class Overflow:
    """The tensors that overflow for one set of inputs, by name, and those `behind` them."""

    def __init__(self, model: ModelProto, base_dir: Path, feeds: Feeds) -> None:
        self.nodes: Sequence[NodeProto] = model.graph.node
        self.places = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.constants: dict[str, TensorProto] = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
        for name in feeds:
            self.constants.pop(name, None)
        self.base_dir = base_dir
        self.overflown: set[str] = set()
        self.behind: set[str] = set()
        self.infinite = {name for name, array in feeds.items() if not is_finite(array)}
        self.seen = 0

    def see(self, values: Mapping[str, Any]) -> None:
        """The next tensors, in the model's order; what was seen before is as it was."""
        end = max((self.places.get(name, -1) for name in values), default=-1) + 1
        for node in self.nodes[self.seen : end]:
            if node.op_type not in ("Shape", "Size"):
                self._node(node, values)
        self.seen = max(self.seen, end)

    def _node(self, node: NodeProto, values: Mapping[str, Any]) -> None:
        names = {*node.input, *captured(node)}
        if not names.isdisjoint(self.behind | self.overflown):
            self.behind.update(node.output)
            return
        tainted = not names.isdisjoint(self.infinite)
        for name in node.output:
            if name not in values:
                self.infinite.update([name] if tainted else [])
            elif not is_finite(values[name]):
                grows = self._grows(node) and not tainted and all(map(self._is_finite, names))
                (self.overflown if grows else self.infinite).add(name)

    def _grows(self, node: NodeProto) -> bool:
        """Whether what is infinite behind finite operands of a node is too large a number."""
        if node.op_type != "Div":
            return node.op_type in GROWING
        divisor = self.constants.get(node.input[1])
        return divisor is not None and bool(numpy_helper.to_array(divisor, str(self.base_dir)).all())

    def _is_finite(self, name: str) -> bool:
        """Whether a constant is; others are known to be."""
        tensor = self.constants.get(name)
        return tensor is None or is_finite(numpy_helper.to_array(tensor, str(self.base_dir)))


def is_finite(value: object) -> bool:
    """Whether there is no NaN or infinity."""
    if not is_tensor(value) or value.dtype.kind not in "fc":
        return True
    view = channels(value)
    return all(np.isfinite(view[at]).all() for at in pieces(view.shape))
