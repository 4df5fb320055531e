"""Adding nodes to a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

STEM = "irc.noise"


class Writer:
    """Makes nodes for a graph, which go to the end of `nodes`, and constants, which go to the graph. `numbers` are
    shared by all graphs of a model: they make names, and seeds.
    """

    def __init__(self, graph: GraphProto, numbers: Iterator[int]) -> None:
        self.graph = graph
        self.numbers = numbers
        self.nodes: list[NodeProto] = []

    def make(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        """A new node's result."""
        out = self.fresh(op)
        self.nodes.append(helper.make_node(op, inputs, [out], **attrs))
        return out

    def number(self, value: float, elem_type: int) -> str:
        """A scalar."""
        name = self.fresh("number")
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(elem_type))
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def widened(self, name: str, elem_type: int) -> str:
        """The value in the element type in which noise is computed."""
        return self.cast(name, elem_type, wide(elem_type))

    def cast(self, name: str, elem_type: int, kind: int) -> str:
        """The value in another element type."""
        return name if elem_type == kind else self.make("Cast", [name], to=kind)

    def dice(self, like: str, kind: int, reach: float = 1.0) -> str:
        """Random numbers in the shape of a value of an element type, up to some magnitude."""
        like, seed = self.cast(like, kind, TensorProto.FLOAT), float(next(self.numbers))
        return self.make("RandomUniformLike", [like], dtype=TensorProto.FLOAT, low=-reach, high=reach, seed=seed)

    def fresh(self, what: str) -> str:
        """A name that nothing has."""
        return f"{STEM}.{what}.{next(self.numbers)}"


def wide(elem_type: int) -> int:
    """The element type in which noise is computed."""
    return TensorProto.DOUBLE if elem_type == TensorProto.DOUBLE else TensorProto.FLOAT
