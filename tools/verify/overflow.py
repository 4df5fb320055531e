"""Tensors that overflow their element type, of the source and of a float16 model.

A model that sums in another order, or scales first, may stay within the type. So neither the
overflown elements nor tensors computed from them can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

from ...ir.ops import DEFAULT_DOMAINS
from ...ir.record import Record
from .difference import json_value
from .inputs import Feeds
from .numeric_traits import OVERFLOWS, SINGULAR
from .onnx_graph import bodies, constant_tensors, reads
from .tensor_blocks import is_finite


class Overflow(Record):
    """An operator whose result exceeds its type, where the source has a finite one."""

    op_type: str
    node: str
    tensor: str
    most: float
    """The greatest magnitude before it is rounded; infinite if it is so in float32, too."""
    inputs: str

    @property
    def sentence(self) -> str:
        """What overflows, for a person."""
        size = "not finite before it is rounded, either"
        if np.isfinite(self.most):
            size = f"up to {self.most:.6g} before it is rounded"
        return f"the first to overflow is {self.op_type} {self.node!r}: {self.tensor!r} is {size}"

    def to_json(self) -> dict[str, Any]:
        """Return the overflow as a JSON object."""
        return {
            "op_type": self.op_type,
            "node": self.node,
            "tensor": self.tensor,
            "most": json_value(self.most),
            "inputs": self.inputs,
        }


class OverflowTracker:
    """The tensors that overflow for one stimulus, and the `dependent` ones computed from them.

    Tensors inside bodies and inlined functions are not returned, so they may overflow unseen
    (`unseen`). Infinities that a node may make without overflow (`infinite`), as Log(0) does, are
    no overflow, nor are those they cause.
    """

    def __init__(self, model: ModelProto, base_dir: Path, feeds: Feeds) -> None:
        self.nodes: Sequence[NodeProto] = model.graph.node
        self.places = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.constants = constant_tensors(model.graph)
        for name in feeds:
            self.constants.pop(name, None)
        self.base_dir = base_dir
        self.overflown: set[str] = set()
        self.dependent: set[str] = set()
        self.unseen: set[str] = set()
        self.infinite = {name for name, array in feeds.items() if not is_finite(array)}
        self.num_visited = 0

    def update(self, values: Mapping[str, Any]) -> None:
        """Visit the nodes up to those that compute `values`, the next tensors of the model."""
        end = max((self.places.get(name, -1) for name in values), default=-1) + 1
        for node in self.nodes[self.num_visited : end]:
            if node.op_type not in ("Shape", "Size"):
                self._visit(node, values)
        self.num_visited = max(self.num_visited, end)

    def _visit(self, node: NodeProto, values: Mapping[str, Any]) -> None:
        names = set(reads(node))
        if not names.isdisjoint(self.dependent | self.overflown):
            self.dependent.update(node.output)
            return
        suspects = [n for n in node.output if n not in values or not is_finite(values[n])]
        is_constant = node.op_type == "Constant" and node.output[0] in self.constants
        if not suspects or is_constant:
            return
        is_finite_before = names.isdisjoint(self.infinite)
        is_finite_before = is_finite_before and all(map(self._is_finite_constant, names))
        is_clean = is_finite_before and not self._may_be_singular(node)
        # An operand that is not compared may be the one that has overflowed.
        overflows = is_clean and (self._overflows(node) or not names.isdisjoint(self.unseen))
        for name in suspects:
            if name in values:
                (self.overflown if overflows else self.infinite).add(name)
            elif overflows:
                self.unseen.add(name)
            elif not is_clean:
                self.infinite.add(name)

    def _overflows(self, node: NodeProto) -> bool:
        """Return whether an infinity that a node makes of finite operands is an overflow."""
        if node.op_type in OVERFLOWS or self._has_no_pole(node):
            return True
        return any(self._overflows(inner) for body in bodies(node) for inner in body.node)

    def _may_be_singular(self, node: NodeProto) -> bool:
        """Return whether a node, or one in its bodies, may make an infinity without overflow."""
        if node.domain not in DEFAULT_DOMAINS:
            return True
        if node.op_type in SINGULAR and not self._has_no_pole(node):
            return True
        graphs = bodies(node)
        tensors = (tensor for graph in graphs for tensor in graph.initializer)
        # Its own numbers may be infinite: values, attributes, and constants of its bodies.
        if not all(map(self._is_finite_attribute, node.attribute)):
            return True
        if not all(map(self._is_finite_tensor, tensors)):
            return True
        return any(self._may_be_singular(inner) for graph in graphs for inner in graph.node)

    def _has_no_pole(self, node: NodeProto) -> bool:
        """Return whether a Div has no divisor of zero, or a Pow no negative exponent."""
        if node.op_type not in ("Div", "Pow"):
            return False
        constant = self.constants.get(node.input[1])
        if constant is None:
            return False
        numbers = numpy_helper.to_array(constant, str(self.base_dir))
        return bool((numbers if node.op_type == "Div" else numbers >= 0).all())

    def _is_finite_constant(self, name: str) -> bool:
        tensor = self.constants.get(name)
        return tensor is None or self._is_finite_tensor(tensor)

    def _is_finite_tensor(self, tensor: TensorProto) -> bool:
        return is_finite(numpy_helper.to_array(tensor, str(self.base_dir)))

    def _is_finite_attribute(self, attribute: AttributeProto) -> bool:
        """Return whether an attribute has finite numbers alone; graphs in it do not count."""
        is_finite_value = not attribute.HasField("t") or self._is_finite_tensor(attribute.t)
        return is_finite_value and bool(np.isfinite([attribute.f, *attribute.floats]).all())
