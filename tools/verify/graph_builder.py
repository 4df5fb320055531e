"""Builder of ONNX nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

PREFIX = "irc.noise"
DROPOUT_OPSET = 22
"""From this opset on onnxruntime computes no RandomUniformLike, but still Dropout."""
SEEDS = 1009
"""Distance of the seeds of Dropouts: one takes the next number as its seed in every run."""


class GraphBuilder:
    """A builder that appends nodes to `nodes` and constants to `graph`.

    All graphs of a model share `numbers`, from which names and seeds are made. Its operators are of
    `opset`.
    """

    def __init__(self, graph: GraphProto, numbers: Iterator[int], opset: int) -> None:
        self.graph = graph
        self.numbers = numbers
        self.opset = opset
        self.nodes: list[NodeProto] = []

    def op(self, op_type: str, inputs: Sequence[str], **attrs: Any) -> str:
        """Append a node, and return the name of its result."""
        out = self.fresh(op_type)
        self.nodes.append(helper.make_node(op_type, inputs, [out], **attrs))
        return out

    def scalar(self, value: float, elem_type: int) -> str:
        """Add a scalar constant, and return its name."""
        name = self.fresh("number")
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(elem_type))
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def cast(self, name: str, source: int, target: int) -> str:
        """Return a value of element type `source` as one of element type `target`."""
        return name if source == target else self.op("Cast", [name], to=target)

    def widen(self, name: str, elem_type: int) -> str:
        """Return a value of `elem_type` in the element type in which noise is computed."""
        return self.cast(name, elem_type, noise_type(elem_type))

    def random_uniform(self, like: str, elem_type: int, low: float, high: float) -> str:
        """Return random numbers between low and high, of the shape of `like`: double or float.

        From DROPOUT_OPSET on they have four values, evenly spaced.
        """
        if self.opset < DROPOUT_OPSET:
            seed = float(next(self.numbers))
            return self.op(
                "RandomUniformLike", [like], dtype=elem_type, low=low, high=high, seed=seed
            )
        shape = self.op("Shape", [like])
        parts = [self._zero_or(shape, elem_type, part * (high - low)) for part in (1 / 3, 2 / 3)]
        return self.op("Add", [self.op("Add", parts), self.scalar(low, elem_type)])

    def _zero_or(self, shape: str, elem_type: int, value: float) -> str:
        """Return a tensor of zeros and of `value`, each as likely."""
        # A Dropout doubles the elements that it keeps.
        half = np.array([value / 2], helper.tensor_dtype_to_np_dtype(elem_type))
        filled = self.op("ConstantOfShape", [shape], value=numpy_helper.from_array(half))
        ratio, trains = self.scalar(0.5, TensorProto.FLOAT), self.scalar(True, TensorProto.BOOL)
        return self.op("Dropout", [filled, ratio, trains], seed=next(self.numbers) * SEEDS)

    def fresh(self, label: str) -> str:
        """Return a name that no value has."""
        return f"{PREFIX}.{label}.{next(self.numbers)}"


def noise_type(elem_type: int) -> int:
    """Return the element type of noise for tensors of `elem_type`: at least float32."""
    return TensorProto.DOUBLE if elem_type == TensorProto.DOUBLE else TensorProto.FLOAT
