"""FoldConstant: constant expressions are computed, and float64 parameters rounded, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Module, Node, Value
from ..ir.ops import op_info
from ..ir.rewrite import Rewriter
from ..ir.tensor import Array, ArrayTensor, Tensor, round_to
from ..ir.types import F32, F64, dtype_of
from .infra import Pass, PassContext

KEPT = ("constant", "nn.batch_norm_to_affine")
"""Operators that stay though they are constant: the second is how an unfolded BatchNormalization is remembered."""


@dataclass(frozen=True)
class FoldConstant(Pass):
    """Compute constant regions.

    1. A folded weight, `multiply(w, factor)` with a float64 factor, is computed in float64 and rounded once to w's
       dtype. It takes over the name of w where nothing else reads w.
    2. A float64 parameter beside narrower data is rounded once to the data's dtype.
    3. Any other operator of the op table whose operands are all constant is computed, as part of the largest such
       region, if the result has at most `max_bytes`, or no more than the constants that die with the region. Results
       of the graph are left alone, and so is what the op table cannot compute exactly.
    """

    name: ClassVar[str] = "FoldConstant"
    max_bytes: int = 64 << 10

    def run(self, module: Module, ctx: PassContext) -> bool:
        folder = _Folder(module, self.max_bytes)
        for graph in module.graphs():
            for node in graph:
                folder.visit(node)
        return folder.rewriter.changed


class _Folder:
    def __init__(self, module: Module, max_bytes: int) -> None:
        self.rewriter = Rewriter(module)
        self.evaluator = ConstantEvaluator()
        self.max_bytes = max_bytes

    def visit(self, node: Node) -> None:
        info = op_info(node.op)
        if info is None:
            return
        if is_folded_weight(node) and self.fold_weight(node):
            return
        if info.evaluate is not None and node.op not in KEPT and len(node.outputs) == 1 and self.is_frontier(node):
            self.fold(node)
        elif info.wide is not None:
            self.round(node, info.wide)

    def is_constant(self, node: Node) -> bool:
        info = op_info(node.op)
        if info is None or info.evaluate is None or node.op in KEPT:
            return False
        return all(self.evaluator.array(value) is not None for value in node.outputs)

    def is_frontier(self, node: Node) -> bool:
        """Whether `node` is constant and somebody who is not reads it."""
        readers = node.output.users
        if not readers or any(reader.op == "return" for reader in readers) or not self.is_constant(node):
            return False
        return any(not self.is_constant(reader) for reader in readers)

    def fold(self, node: Node) -> None:
        """Rule 3."""
        tensor = self.evaluator.tensor(node.output)
        if tensor is None or (tensor.nbytes > self.max_bytes and tensor.nbytes > dying_bytes(node)):
            return
        array = np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape)
        self.write(node, ArrayTensor(array, tensor.dtype))

    def fold_weight(self, node: Node) -> bool:
        """Rule 1."""
        weight, factor = node.inputs
        assert weight is not None and factor is not None
        data, scale = self.evaluator.array(weight), self.evaluator.array(factor)
        dtype = dtype_of(weight.type)
        if data is None or scale is None or dtype is None:
            return False
        result = ArrayTensor(
            scaled(data, scale) if dtype is F32 else round_to(data.astype(np.float64) * scale, dtype), dtype
        )
        self.write(node, result)
        return True

    def write(self, node: Node, tensor: Tensor) -> None:
        first = node.inputs[0] if is_folded_weight(node) else None
        with self.rewriter.rewriting(node):
            constant = self.rewriter.constant(tensor, before=node, hint=node.output.name)
        self.rewriter.replace(node.output, constant, take_name=True)
        if first is not None and first.node is not None and first.node.graph is None:
            constant.name = first.name

    def round(self, node: Node, index: int) -> None:
        """Rule 2."""
        parameter = node.input(index)
        dtype = dtype_of(node.output.type)
        if parameter is None or dtype is None or dtype is F64 or dtype_of(parameter.type) is not F64:
            return
        producer = parameter.node
        if producer is None or producer.op != "constant":
            return
        wide = self.evaluator.array(parameter)
        assert wide is not None
        with self.rewriter.rewriting(node):
            rounded = self.rewriter.constant(
                ArrayTensor(round_to(wide, dtype), dtype), before=node, hint=parameter.name
            )
        inputs: list[Value | None] = list(node.inputs)
        inputs[index] = rounded
        self.rewriter.set_inputs(node, inputs)
        if producer.graph is None:
            rounded.name = parameter.name


def is_folded_weight(node: Node) -> bool:
    """Whether FoldScaleAxis made `node` to scale the weight of a layer."""
    return node.op == "multiply" and "folded" in node.attrs


def scaled(weight: Array, factor: Array) -> Array:
    """float32 `weight` times float64 `factor`, computed in float64 and rounded once, without a float64 copy."""
    result = np.empty(weight.shape, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        np.multiply(weight, factor, out=result, dtype=np.float64, casting="same_kind")
    return result


def dying_bytes(node: Node) -> int:
    """Bytes of the constants that nobody reads any more once `node` is gone. O(region)."""
    total, gone = 0, {value: value.use_count for value in node.outputs}
    stack = [node]
    while stack:
        top = stack.pop()
        for value in top.inputs:
            if value is None or value.node is None:
                continue
            gone[value] = gone.get(value, 0) + 1
            if gone[value] < value.use_count:
                continue
            payload = value.node.attrs.get("value") if value.node.op == "constant" else None
            total += payload.nbytes if isinstance(payload, Tensor) else 0
            stack.append(value.node)
    return total
