"""FoldConstant: constant expressions are computed, and float64 parameters rounded, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Graph, Node, Value
from ..ir.module import Module
from ..ir.ops import op_info
from ..ir.rewriter import Rewriter
from ..ir.tensor import ArrayTensor, ScaledTensor, Tensor, round_to
from ..ir.types import F64, dtype_of
from .constant_regions import ConstantRegions, dying_bytes
from .infra import Pass, PassContext

KEPT = ("constant", "nn.batch_norm_to_affine")
"""Operators that stay though they are constant: the second is how an unfolded BatchNormalization is remembered."""

LAZY = 1 << 13
"""Folded weights of so many bytes are computed when they are written."""


@dataclass(frozen=True)
class FoldConstant(Pass):
    """Compute constant regions.

    1. A folded weight, `multiply(w, factor)` with a float64 factor, is computed in float64 and rounded once to w's
       dtype. It takes over the name of w where nothing else reads w.
    2. A float64 parameter beside narrower data is rounded once to the data's dtype.
    3. Any other operator of the op table whose operands are all constant is computed, as part of the largest such
       region, if the result has at most `max_bytes`, or no more than the constants that die with the region. Results
       of the graph are left alone, and so is what the op table cannot compute exactly.
    4. Other deterministic operators of ONNX's default domain whose operands are all constant are computed by
       onnxruntime, all of a graph in one session, under the same rule of size, which every result has to obey by its
       inferred type beforehand. Random numbers, control flow, text, sequences and optionals, other domains, and
       DequantizeLinear (which keeps a weight small) are left alone, and so is what onnxruntime cannot compute.
    """

    name: ClassVar[str] = "FoldConstant"
    max_bytes: int = 64 << 10

    def run(self, module: Module, ctx: PassContext) -> bool:
        folder = _Folder(module, self.max_bytes)
        for graph in module.graphs():
            folder.sweep(graph)
            if folder.regions.compute(graph):  # now that parameters are rounded
                folder.sweep(graph)
                folder.erase_computed()
        return folder.rewriter.changed


class _Folder:
    def __init__(self, module: Module, max_bytes: int) -> None:
        self.rewriter = Rewriter(module)
        self.evaluator = ConstantEvaluator(module.limits.max_constant_bytes)
        self.max_bytes = max_bytes
        self.regions = ConstantRegions(module, self.evaluator, max_bytes)

    def sweep(self, graph: Graph) -> None:
        """Write everything in `graph` that is known."""
        for node in graph:
            if node.op != "constant":
                self.visit(node)

    def erase_computed(self) -> None:
        """Erase what nobody reads any more of the operators that a runtime computed."""
        for node in reversed(self.regions.computed):
            if node.graph is not None and not any(value.users for value in node.outputs):
                self.rewriter.erase(node)
        self.regions.computed.clear()

    def visit(self, node: Node) -> None:
        if self.rewriter.debug_counter.exhausted:
            return
        if node in self.regions.computed:
            self.fold_computed(node)
            return
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
        if node in self.regions.computed:
            return True
        info = op_info(node.op)
        if info is None or info.evaluate is None or node.op in KEPT:
            return False
        return all(self.evaluator.array(value) is not None for value in node.outputs)

    def is_frontier(self, node: Node) -> bool:
        """Whether `node` is constant and somebody who is not reads it."""
        readers = [reader for value in node.outputs for reader in value.users]
        if not readers or any(reader.op == "return" for reader in readers) or not self.is_constant(node):
            return False
        return any(not self.is_constant(reader) for reader in readers)

    def fold_computed(self, node: Node) -> None:
        """Write what a runtime computed."""
        if not self.is_frontier(node):
            return
        for value in node.outputs:
            array = self.evaluator.array(value) if value.users else None
            if array is not None:
                self.write(node, ArrayTensor(np.ascontiguousarray(array).reshape(array.shape)), value)

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
        data, scale = self.evaluator.tensor(weight), self.evaluator.array(factor)
        if data is None or scale is None:
            return False
        result: Tensor = ScaledTensor(data, scale)
        if result.nbytes < LAZY:
            result = ArrayTensor(result.numpy(), data.dtype)
        self.write(node, result)
        return True

    def write(self, node: Node, tensor: Tensor, result: Value | None = None) -> None:
        """Let `tensor` stand for a result of `node`, by default the first."""
        result = result or node.output
        first = node.inputs[0] if is_folded_weight(node) else None
        with self.rewriter.rewriting(node):
            constant = self.rewriter.constant(tensor, before=node, hint=result.name)
        self.rewriter.replace(result, constant, take_name=True)
        if first is not None and first.node is not None and first.node.graph is None:
            constant.name = first.name
        self.rewriter.debug_counter.note("compute", node.label)

    def round(self, node: Node, index: int) -> None:
        """Rule 2."""
        parameter = node.input(index)
        dtype = dtype_of(node.output.type)
        if (
            parameter is None
            or dtype is None
            or not dtype.is_float
            or dtype is F64
            or dtype_of(parameter.type) is not F64
        ):
            return
        producer = parameter.node
        if producer is None or producer.op != "constant":
            return
        wide = self.evaluator.array(parameter)
        if wide is None:
            return
        with self.rewriter.rewriting(node):
            rounded = self.rewriter.constant(
                ArrayTensor(round_to(wide, dtype), dtype), before=node, hint=parameter.name
            )
        inputs: list[Value | None] = list(node.inputs)
        inputs[index] = rounded
        self.rewriter.set_inputs(node, inputs)
        if producer.graph is None:
            rounded.name = parameter.name
        self.rewriter.debug_counter.note("round", node.label)


def is_folded_weight(node: Node) -> bool:
    """Whether FoldScaleAxis made `node` to scale the weight of a layer."""
    return node.op == "multiply" and "folded" in node.attrs
