"""MergeBranches: layers of one value whose results are added become one layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.module import Module
from ..ir.provenance import Refused
from ..ir.record import Record
from ..ir.rewriter import Rewriter
from ..ir.types import DType, element_count, shape_of
from .affine.algebra.layers import check_numbers
from .affine.algebra.operands import Parameters
from .branches.layer_writing import write_layer
from .branches.linear_kernels import (
    DENSE,
    LinearKernel,
    added,
    composed,
    diagonal,
    identity,
    kernel_of,
    weight_of,
)
from .branches.records import record_sum
from .branches.sums import SUMS, Sum, Term, axis_of, data_of, is_sum, may_merge, sum_of
from .infra import Pass, PassContext

MAX_BRANCHES = 64
"""Most branches of one value that are tried together."""


@dataclass(frozen=True)
class MergeBranches(Pass):
    """Compute a sum of layers of one value by one layer.

    1. A branch is a Conv, a ConvTranspose, a Gemm or a MatMul with constant weights, an AveragePool
       that divides by one number, or the value itself; each with the affines after it. Nothing else
       reads the values between the data and the sum. Products in a row are one branch.
    2. Branches become one layer if they have equal strides, groups and output_padding, their taps
       lie on one grid, and their results have equal extents whatever the data's are, or known ones.
    3. The value itself, a depthwise Conv and an AveragePool take one number for each channel and
       tap. They fit a layer of any number of groups. A layer reads no element that no branch reads.
    4. The layer has neither more weights than the branches, nor more multiplications. So 1xk beside
       kx1 stays, and a dense 1x1 beside a depthwise kxk.
    5. Weights and bias are added in float64 and rounded once. A sum that is not finite, or exceeds
       the type of the weights, stays.
    """

    name: ClassVar[str] = "MergeBranches"
    after: ClassVar[tuple[str, ...]] = ("FoldScaleAxis",)

    def run(self, module: Module, ctx: PassContext) -> bool:
        merger = _Merger(Rewriter(module))
        for graph in module.graphs():
            merger.run(graph)
        return merger.rewriter.changed


class BranchTerm(Record):
    """A term of a sum as a kernel of `data`, by `layers`, the last one first."""

    term: Term
    data: Value
    layers: tuple[Node, ...]

    @property
    def is_layer(self) -> bool:
        """Whether it has weights of its own."""
        return bool(self.layers) and self.layers[0].op != "nn.avg_pool"


class MergeChoice(Record):
    """Branches that become one layer, and its kernel."""

    branches: list[BranchTerm]
    kernel: LinearKernel

    @property
    def op(self) -> str:
        """The operator of the layer: a product is a Gemm if a branch is one."""
        ops = [each.layers[0].op for each in self.branches if each.layers]
        return "nn.dense" if "nn.dense" in ops else self.kernel.kind


class _Merger:
    """Merges the branches of each sum of a graph with one Rewriter."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.module = rewriter.module
        self.evaluator = rewriter.module.constants
        self.params = Parameters(self.evaluator)

    def run(self, graph: Graph) -> None:
        """Merge from the last sum to the first: a sum contains those before it."""
        for node in reversed(graph.operators_of(SUMS)):
            root: Node | None = node if self._is_root(node) else None
            while root is not None and may_merge(root, self.evaluator):
                root = self._merge(root)

    def _is_root(self, node: Node) -> bool:
        if node.graph is None or not is_sum(node, self.evaluator):
            return False
        reader = node.output.sole_user()
        return (
            reader is None or reader.graph is not node.graph or not is_sum(reader, self.evaluator)
        )

    def _merge(self, root: Node) -> Node | None:
        """Merge branches of each value, and return the sum that is left, if one is."""
        counter = self.rewriter.debug_counter
        if counter.exhausted:
            return None
        label = counter.label(root)
        opaque: set[Value] = set()
        try:
            while True:
                total = sum_of(root, self.evaluator, opaque)
                choices = self._choices(total)
                parts = _partial(total, choices)
                if not parts:
                    break
                opaque |= parts
        except Refused as refused:
            counter.decline("merge branches", label, refused.refusal.detail)
            return None
        with self.rewriter.step("merge branches", label):
            return self._commit(root, total, choices)

    def _choices(self, total: Sum) -> list[MergeChoice]:
        """Return branches that are one layer, of each value that has some.

        No term is in two of them, and each saves an operator. Raises Refused if there are none.
        """
        refused = Refused("no_foldable_neighbour", "no two branches are layers of one value")
        found: list[MergeChoice] = []
        taken: set[Term] = set()
        for group in self._groups(total):
            branches = [each for each in group if each.term not in taken]
            for kind in (("nn.conv", "nn.avg_pool"), ("nn.conv_transpose",), DENSE):
                some = [each for each in branches if not each.layers or each.layers[0].op in kind]
                try:
                    choice = self._of_kind(some)
                    _check_saves(total, choice)
                except Refused as why:
                    if any(each.layers for each in some):
                        refused = why
                    continue
                found.append(choice)
                taken.update(each.term for each in choice.branches)
                break
        if not found:
            raise refused
        return found

    def _groups(self, total: Sum) -> Iterator[list[BranchTerm]]:
        """Yield the terms that read one value, for each value that several read."""
        groups: dict[Value, list[BranchTerm]] = {}
        for term in total.terms:
            for branch in _branches(term):
                groups.setdefault(branch.data, []).append(branch)
        for group in groups.values():
            if len({each.term for each in group}) > 1:
                yield group[:MAX_BRANCHES]

    def _of_kind(self, branches: Sequence[BranchTerm]) -> MergeChoice:
        """Return as many branches as are one layer, from the largest kernel on."""
        refused = Refused("no_foldable_neighbour", "no two branches are layers of one value")
        layers: list[tuple[BranchTerm, LinearKernel]] = []
        for each in branches:
            try:
                if each.is_layer:
                    layers.append((each, self._kernel(each)))
            except Refused as why:
                refused = why
        layers.sort(key=lambda pair: (pair[1].is_diagonal, -pair[1].weight.size))
        others = [each for each in branches if not each.is_layer]
        for i, (first, kernel) in enumerate(layers):
            choice = MergeChoice([first], kernel)
            for other, known in (*layers[i + 1 :], *[(each, None) for each in others]):
                if any(each.term is other.term for each in choice.branches):
                    continue
                try:
                    choice = self._with(choice, other, known or self._like(other, kernel))
                except Refused as why:
                    refused = why
            if len(choice.branches) > 1:
                return choice
        raise refused

    def _kernel(self, branch: BranchTerm) -> LinearKernel:
        kernel = kernel_of(branch.layers[0], self.params)
        for layer in branch.layers[1:]:
            kernel = composed(kernel, kernel_of(layer, self.params))
        return _after(kernel, branch, kernel.dtype)

    def _like(self, branch: BranchTerm, like: LinearKernel) -> LinearKernel:
        """Return the kernel of a pool, or of the value itself, with the channels of `like`."""
        if like.channels != like.results:
            detail = f"{branch.data.source_name!r} has another number of channels than the sum"
            raise Refused("channel_mismatch", detail)
        if branch.layers:
            pool = diagonal(kernel_of(branch.layers[0], self.params), like.channels)
            return _after(pool, branch, like.dtype)
        return _after(identity(like), branch, like.dtype)

    def _with(self, choice: MergeChoice, branch: BranchTerm, kernel: LinearKernel) -> MergeChoice:
        """Return the choice with one more branch. Raises Refused."""
        own = choice.kernel.dtype
        if kernel.dtype not in (None, own):
            raise Refused("dtype_mismatch", "the weights of the branches have different types")
        branches, merged = [*choice.branches, branch], added([choice.kernel, kernel])
        _check_cost(branches, merged.weight.size)
        merged.check_fits("sum")
        return MergeChoice(branches, merged)

    def _commit(self, root: Node, total: Sum, choices: Sequence[MergeChoice]) -> Node | None:
        """Write the layers and the rest of the sum, and return its last operator."""
        operands = {each.term.operand for choice in choices for each in choice.branches}
        left = [pair for i, pair in enumerate(total.operands) if i not in operands]
        made = [self._layer(root, choice) for choice in choices]
        addends = [*[(1.0, merged) for _, merged in made], *left]
        with self.rewriter.rewriting(root):
            result = self._sum(addends, root, with_one=_adds_all(total, addends[1:]))
        whole = root.output if len(addends) == 1 else None
        for choice, (layer, merged) in zip(choices, made, strict=True):
            parts = [(each.term, each.layers) for each in choice.branches]
            record_sum(self.module, layer, merged, parts, whole)
        self.rewriter.replace(root.output, result, take_name=True, heir=made[0][0])
        for layer, _ in made:
            layer.name = self.module.unique_node_name(layer, layer.output.name)
        return result.node if len(addends) > 1 else None

    def _layer(self, root: Node, choice: MergeChoice) -> tuple[Node, Value]:
        """Write the layer of a choice, and return it with its result."""
        first = choice.branches[0]
        hint = first.term.value.name
        return write_layer(
            self.rewriter, choice.kernel, choice.op, first.data, first.layers[0], root, hint
        )

    def _sum(self, addends: Sequence[tuple[float, Value]], root: Node, *, with_one: bool) -> Value:
        """Add the results of layers and the rest of the sum, `with_one` operator or with many."""
        (_, result), *others = addends
        hint = result.name
        if with_one:
            values = [value for _, value in addends]
            return self.rewriter.make(
                "add_n", values, before=root, hint=hint, type_=root.output.type
            ).output
        for sign, value in others:
            op = "add" if sign > 0 else "subtract"
            result = self.rewriter.make(op, [result, value], before=root, hint=hint).output
        return result


def _check_saves(total: Sum, choice: MergeChoice) -> None:
    """Refuse a layer with which the sum is as many operators as before."""
    operands = {each.term.operand for each in choice.branches}
    left = [pair for i, pair in enumerate(total.operands) if i not in operands]
    inner = {node for each in choice.branches for node in each.term.inner}
    gone = len(total.nodes) + len(inner)
    gone += sum(len(each.layers) + len(each.term.affines) for each in choice.branches)
    made = 1 + (1 if _adds_all(total, left) else len(left))
    made += choice.op == "matmul" and bool(choice.kernel.bias.any())
    if made >= gone:
        raise Refused("bias_slot", "one layer would save no operator")


def _adds_all(total: Sum, left: Sequence[tuple[float, Value]]) -> bool:
    """Return whether one Sum adds what is left beside a layer, as one did before."""
    has_sum = any(node.op == "add_n" for node in total.nodes)
    return has_sum and len(left) > 1 and all(sign > 0 for sign, _ in left)


def _branches(term: Term) -> Iterator[BranchTerm]:
    """Yield a term as a kernel of its layer's data, and of the data of products before it."""
    if term.layer is None:
        yield BranchTerm(term, term.data, ())
        return
    layers: tuple[Node, ...] = ()
    layer = term.layer
    for data in data_of(term.layer):
        layers = (*layers, layer)
        yield BranchTerm(term, data, layers)
        layer = data.node if data.node is not None else layer


def _check_cost(branches: Sequence[BranchTerm], size: int) -> None:
    """Refuse a layer of `size` weights that has more of them, or of multiplications, than before.

    Adapters without their matrix are merged if that saves multiplications.
    """
    layers = {layer for each in branches for layer in each.layers}
    numbers = sum(map(_numbers, branches))
    weights = {weight_of(layer): _size(layer) for layer in layers if layer.op != "nn.avg_pool"}
    stored = numbers + sum(count for value, count in weights.items() if _goes(value, layers))
    work = numbers + sum(map(_size, layers))
    are_adapters = all(len(each.layers) > 1 for each in branches if each.is_layer)
    if size > min(stored, work - are_adapters):
        raise Refused("constant_growth", "one layer would have more weights than the branches")


def _numbers(branch: BranchTerm) -> int:
    """Return how many numbers the affines of a branch multiply by that has no layer."""
    affines = () if branch.layers else branch.term.affines
    return sum(affine.scale.size for affine in affines if affine.has_scale)


def _size(layer: Node) -> int:
    """Return how many weights a layer has."""
    if layer.op == "nn.avg_pool":
        return 0
    shape = shape_of(weight_of(layer).type) or ()
    return element_count(dim for dim in shape if isinstance(dim, int))


def _goes(weight: Value, layers: Collection[Node]) -> bool:
    """Return whether only `layers` read a weight; the product of a fold will be a constant."""
    return all(user in layers or "folded" in user.attrs for user in weight.users)


def _after(kernel: LinearKernel, branch: BranchTerm, dtype: DType | None) -> LinearKernel:
    """Return the kernel with the affines after it, for weights of `dtype`.

    Raises Refused for affines of other channels, and for weights that vanish or exceed the type.
    """
    axis, shape = axis_of(branch.term), shape_of(branch.term.value.type)
    own: int | None = 1
    if kernel.kind == "matmul":
        own = None if shape is None else len(shape) - 1
    sizes = {branch.term.scale.size, branch.term.shift.size} - {1}
    if (axis is not None and axis != own) or not sizes <= {kernel.results}:
        raise Refused("axis_mismatch", "an affine of a branch acts on other channels")
    if branch.term.affines and dtype is not None:
        scale = np.broadcast_to(branch.term.scale.reshape(-1), (kernel.results,))
        node = branch.term.affines[0].nodes[0]
        check_numbers(node, scale, kernel.largest, None, dtype)
    return kernel.scaled(branch.term.scale, branch.term.shift)


def _partial(total: Sum, choices: Sequence[MergeChoice]) -> set[Value]:
    """Return the operands of the sum of which some terms are in a choice, and some are not."""
    counts = Counter(term.operand for term in total.terms)
    found: set[Value] = set()
    for choice in choices:
        chosen = Counter(term.operand for term in {each.term for each in choice.branches})
        found.update(total.operands[i][1] for i, count in chosen.items() if count < counts[i])
    return found
