"""Where numbers of the source grow beyond its element type: a model that sums in another order may stay within it, so
that nothing can be said of these, nor of what is computed from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

from ..ir.ops import DEFAULT_DOMAINS
from .graph_reads import bodies, constants_of, reads
from .inputs import Feeds
from .noise import SUMS
from .reference import channels, is_tensor, pieces

GROWING = SUMS | {
    *("Mul", "Pow", "Exp", "Cast", "PRelu", "LRN", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
    *("InstanceNormalization", "LayerNormalization", "GroupNormalization", "LpPool", "GlobalLpPool", "Sinh", "Cosh"),
}
"""Operators that make of finite operands no infinity unless that is too large a number; so does Div by a constant
without zeros.
"""


MAKING = frozenset(["Log", "Sqrt", "Div", "Reciprocal", "Mod", "Tan", "Acos", "Asin", "Acosh", "Atanh"])
"""Operators that make infinities or NaN of small numbers too."""


class Overflow:
    """The tensors that overflow for one set of inputs, by name, and those `behind` them.

    Tensors that are not handed out, as those of functions, which are inlined in `model`, may overflow unseen. Such are
    the `unseen`; those that may be infinite by themselves, and what is behind them, are taken to be.
    """

    def __init__(self, model: ModelProto, base_dir: Path, feeds: Feeds) -> None:
        self.nodes: Sequence[NodeProto] = model.graph.node
        self.places = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.constants = constants_of(model.graph)
        for name in feeds:
            self.constants.pop(name, None)
        self.base_dir = base_dir
        self.overflown: set[str] = set()
        self.behind: set[str] = set()
        self.unseen: set[str] = set()
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
        names = set(reads(node))
        if not names.isdisjoint(self.behind | self.overflown):
            self.behind.update(node.output)
            return
        odd = [name for name in node.output if name not in values or not is_finite(values[name])]
        if not odd or (node.op_type == "Constant" and node.output[0] in self.constants):
            return
        clean = names.isdisjoint(self.infinite) and all(map(self._is_finite, names)) and not self._makes(node)
        grows = clean and (self._grows(node) or not names.isdisjoint(self.unseen))
        for name in odd:
            if name in values:
                (self.overflown if grows else self.infinite).add(name)
            elif grows:
                self.unseen.add(name)
            elif not clean:
                self.infinite.add(name)

    def _grows(self, node: NodeProto) -> bool:
        """Whether what is infinite behind finite operands of a node, or in its bodies, is too large a number."""
        inner = (inner for body in bodies(node) for inner in body.node)
        return node.op_type in GROWING or self._divides(node) or any(map(self._grows, inner))

    def _makes(self, node: NodeProto) -> bool:
        """Whether a node, or one in its bodies, may make infinities of numbers that are not too large."""
        graphs = bodies(node)
        return (
            node.domain not in DEFAULT_DOMAINS
            or (node.op_type in MAKING and not self._divides(node))
            or not all(map(self._has_numbers, node.attribute))
            or any(self._makes(inner) for graph in graphs for inner in graph.node)
            or not all(self._holds(tensor) for graph in graphs for tensor in graph.initializer)
        )

    def _divides(self, node: NodeProto) -> bool:
        """Whether a node divides by a constant without zeros."""
        divisor = self.constants.get(node.input[1]) if node.op_type == "Div" else None
        return divisor is not None and bool(numpy_helper.to_array(divisor, str(self.base_dir)).all())

    def _is_finite(self, name: str) -> bool:
        """Whether a constant is; others are known to be."""
        tensor = self.constants.get(name)
        return tensor is None or self._holds(tensor)

    def _holds(self, tensor: TensorProto) -> bool:
        """Whether a constant holds finite numbers alone."""
        return is_finite(numpy_helper.to_array(tensor, str(self.base_dir)))

    def _has_numbers(self, attribute: AttributeProto) -> bool:
        """Whether an attribute, as that of a Constant, has finite numbers alone; graphs are looked at apart."""
        held = not attribute.HasField("t") or self._holds(attribute.t)
        return held and bool(np.isfinite([attribute.f, *attribute.floats]).all())


def is_finite(value: object) -> bool:
    """Whether there is no NaN or infinity."""
    if not is_tensor(value) or value.dtype.kind not in "fc":
        return True
    view = channels(value)
    return all(np.isfinite(view[at]).all() for at in pieces(view.shape))
