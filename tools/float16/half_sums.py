"""Sums in float16: an emulated model for devices that add up in it.

Products are exact, as in a fused multiply-add, and each sum of two numbers is rounded to float16:

- MatMul and Gemm add up products one after another.
- A Conv adds up its input channels one after another; the elements under its kernel, and Convs in
  groups, are added up in float32.
- ReduceSum, ReduceMean and GlobalAveragePool add up elements axis by axis.
- LayerNormalization adds up its data, and the squares of their distances from the mean.

Other operators add up in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ...ir.ops import DEFAULT_DOMAINS
from .emulation import EXACT, copied_node

FIRST_SCAN = 13
"""The first opset of which the operators here are written: axes are operands."""


def with_half_sums(model: ModelProto) -> ModelProto:
    """Let the operators of an emulated model with float16 results add up in float16, in place.

    Models below FIRST_SCAN are left alone.
    """
    opsets = [entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS]
    if min(opsets, default=0) < FIRST_SCAN:
        return model
    writer = _SumWriter(model)
    for node in model.graph.node:
        is_half = len(node.output) == 1 and node.output[0].endswith(EXACT)
        write = WRITERS.get(node.op_type) if node.domain in DEFAULT_DOMAINS and is_half else None
        if write is None or not write(writer, node):
            writer.nodes.append(node)
    copies = [copied_node(node) for node in writer.nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model


class _SumWriter:
    """Writes operators that add up in float16."""

    def __init__(self, model: ModelProto) -> None:
        self.graph = model.graph
        self.nodes: list[NodeProto] = []
        self.numbers = count()
        self.dims = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
        self.tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def name(self) -> str:
        """Return a name that no value has."""
        return f"irc.sum.{next(self.numbers)}"

    def constant(self, array: object, dtype: type = np.int64) -> str:
        """Add a constant, and return its name."""
        name = self.name()
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def op(self, op_type: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Append an operator, and return its result."""
        out = out or self.name()
        self.nodes.append(helper.make_node(op_type, inputs, [out], **attributes))
        return out

    def rounded(self, value: str, out: str = "") -> str:
        """Return a value rounded to float16."""
        return self.op("Cast", self.op("Cast", value, to=TensorProto.FLOAT16), out=out, to=1)

    def scanned(
        self,
        like: str,
        operands: list[tuple[str, int]],
        term: Callable[[_SumWriter, list[str]], str],
    ) -> str:
        """Return the sum of a term over slices of operands along their axes.

        It has the shape of `like`. Each sum of two is rounded.
        """
        zeros = self.op("ConstantOfShape", self.op("Shape", like))
        body = _SumWriter(ModelProto())
        body.graph, body.numbers = self.graph, self.numbers  # constants of the outer graph
        total, slices = self.name(), [self.name() for _ in operands]
        result = body.rounded(body.op("Add", total, term(body, slices)))
        inputs = [
            helper.make_tensor_value_info(each, TensorProto.FLOAT, None)
            for each in (total, *slices)
        ]
        outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)]
        return self.op(
            "Scan",
            zeros,
            *(operand for operand, _ in operands),
            body=helper.make_graph(body.nodes, "sum", inputs, outputs),
            num_scan_inputs=len(operands),
            scan_input_axes=[axis for _, axis in operands],
        )

    def summed(self, data: str, axes: list[int]) -> str:
        """Return the sum over axes, which stay as 1."""
        for axis in axes:
            like = self.op("Gather", data, self.constant(0), axis=axis)
            total = self.scanned(like, [(data, axis)], lambda body, slices: slices[0])
            data = self.op("Unsqueeze", total, self.constant([axis]))
        return data

    def mean(self, data: str, axes: list[int]) -> str:
        """Return the mean over axes, which stay as 1."""
        total = self.summed(data, axes)
        terms = self.op("Div", self.op("Size", data), self.op("Size", total))
        return self.op("Div", total, self.op("Cast", terms, to=TensorProto.FLOAT))

    def product(self, lhs: str, rhs: str) -> str:
        """Return a matrix product."""

        def term(body: _SumWriter, slices: list[str]) -> str:
            column = body.op("Unsqueeze", slices[0], self.constant([-1]))
            row = body.op("Unsqueeze", slices[1], self.constant([-2]))
            return body.op("Mul", column, row)

        return self.scanned(self.op("MatMul", lhs, rhs), [(lhs, -1), (rhs, -2)], term)

    # operators: whether they are written

    def matmul(self, node: NodeProto) -> bool:
        """Write a MatMul of matrices."""
        if any(len(self.dims.get(name, (1, 1))) < 2 for name in node.input):
            return False
        self.op("Identity", self.product(*node.input), out=node.output[0])
        return True

    def gemm(self, node: NodeProto) -> bool:
        """Write a Gemm."""
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        lhs, rhs = (
            self.op("Transpose", name, perm=[1, 0]) if given.get(key, 0) else name
            for key, name in zip(("transA", "transB"), node.input, strict=False)
        )
        found = self.product(lhs, rhs)
        if given.get("alpha", 1.0) != 1.0:
            found = self.op("Mul", found, self.constant(given["alpha"], np.float32))
        if len(node.input) > 2 and node.input[2]:
            bias = node.input[2]
            if given.get("beta", 1.0) != 1.0:
                bias = self.op("Mul", bias, self.constant(given["beta"], np.float32))
            found = self.op("Add", found, bias)
        self.op("Identity", found, out=node.output[0])
        return True

    def conv(self, node: NodeProto) -> bool:
        """Write a Conv in one group."""
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        weight = self.dims.get(node.input[1])
        if given.get("group", 1) != 1 or weight is None:
            return False

        def term(body: _SumWriter, slices: list[str]) -> str:
            at = self.constant([1])
            data, kernel = (body.op("Unsqueeze", each, at) for each in slices)
            return body.op("Conv", data, kernel, **given)

        operands = [(node.input[0], 1), (node.input[1], 1)]
        found = self.scanned(self.op("Conv", *node.input[:2], **given), operands, term)
        if len(node.input) > 2 and node.input[2]:
            shape = self.constant([1, -1] + [1] * (len(weight) - 2))
            found = self.op("Add", found, self.op("Reshape", node.input[2], shape))
        self.op("Identity", found, out=node.output[0])
        return True

    def reduced(self, node: NodeProto) -> bool:
        """Write a ReduceSum or ReduceMean over known axes."""
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        axes = given.get("axes")
        if len(node.input) > 1 and node.input[1] in self.tensors:
            axes = numpy_helper.to_array(self.tensors[node.input[1]]).tolist()
        if not axes:
            return False
        is_mean = node.op_type == "ReduceMean"
        found = (self.mean if is_mean else self.summed)(node.input[0], list(axes))
        if not given.get("keepdims", 1):
            found = self.op("Squeeze", found, self.constant(axes))
        self.op("Identity", found, out=node.output[0])
        return True

    def pooled(self, node: NodeProto) -> bool:
        """Write a GlobalAveragePool over a plane."""
        self.op("Identity", self.mean(node.input[0], [2, 3]), out=node.output[0])
        return True

    def normalized(self, node: NodeProto) -> bool:
        """Write a LayerNormalization over the last axis."""
        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if given.get("axis", -1) != -1:
            return False
        data = node.input[0]
        far = self.rounded(self.op("Sub", data, self.mean(data, [-1])))
        variance = self.mean(self.op("Mul", far, far), [-1])
        epsilon = self.constant(given.get("epsilon", 1e-5), np.float32)
        found = self.op("Div", far, self.op("Sqrt", self.op("Add", variance, epsilon)))
        found = self.op("Mul", found, node.input[1])
        if len(node.input) > 2 and node.input[2]:
            found = self.op("Add", found, node.input[2])
        self.op("Identity", found, out=node.output[0])
        return True


WRITERS: dict[str, Callable[[_SumWriter, NodeProto], bool]] = {
    "MatMul": _SumWriter.matmul,
    "Gemm": _SumWriter.gemm,
    "Conv": _SumWriter.conv,
    "ReduceSum": _SumWriter.reduced,
    "ReduceMean": _SumWriter.reduced,
    "GlobalAveragePool": _SumWriter.pooled,
    "LayerNormalization": _SumWriter.normalized,
}
"""The operators that add up in float16. Each is left as it is if its writer returns False."""
