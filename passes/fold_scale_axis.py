"""FoldScaleAxis: constant scales and shifts move into the weights and biases of the layers in front of them.

Invariant: for a value v and an affine A = (scale, shift) along an axis, `plan(v, A)` is a way to make the graph compute
A(v) wherever it computed v, without an operator for A. It exists if v has no other reader and

- v is the result of a layer whose weight and bias are constant and can take A (the table in `absorbers`), or
- v is the result of an operator that A passes through (the table of carriers below), and there is a plan for its
operand.

Two phases. Planning asks every question that can fail, on the actual numbers, and changes nothing. Committing cannot
fail: it leaves the weight as `multiply(w, factor)` with a float64 factor and the bias as a float64 constant, which
FoldConstant, or the backend, computes and rounds once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Graph, Module, Node, Value
from ..ir.ledger import Fold, Layer, Refusal
from ..ir.ops import sole_reader
from ..ir.rewrite import Rewriter, is_known
from ..ir.tensor import Array, ArrayTensor
from .absorbers import ABSORBERS, Absorber, Plan
from .affine import Step, recognise
from .infra import Pass, PassContext
from .simplify_expr import clean_up

CARRIERS: tuple[str, ...] = ("nn.dropout",)
"""Operators through which any affine passes unchanged."""


@dataclass(frozen=True)
class FoldScaleAxis(Pass):
    """Fold chains of constant per-channel affines backward into the layer that produces their data.

    1. An affine is a `multiply`, `add`, `subtract`, `divide`, `negative` or `nn.bias_add` with a constant that varies
       along at most one axis and does not change the data's shape, or the two nodes of a lowered BatchNormalization.
    2. Consecutive affines along one axis form a chain; each link has no reader but the next.
    3. The data of a chain must have no reader but the chain, in the same graph, and be no result of the graph. Readers
       of the shape or dtype alone do not count.
    4. `nn.conv`, `nn.conv_transpose`, `nn.dense` and `matmul` with a constant weight, and a constant bias or none,
       absorb a chain along their channel axis: W' = scale * W on the output channels and b' = the chain applied to b,
       a bias being made where there was none and the shift is not zero. `matmul` leaves the shift behind as one `add`.
    5. What only stands in the way goes first, by rules 1, 3 and 6 of SimplifyExpr: identities, casts that change
       nothing, Transposes that cancel, operators nobody reads. Inference-mode Dropout in between is passed over.
    6. A fold is refused where a number is infinite or not a number, exceeds the weight's dtype, or a whole channel
       would vanish; a shorter chain is tried then, one BatchNormalization never being cut in two.
    7. The number of operators never rises, and a fold that adds a copy of a weight, because others read it or because
       it was computed from less, adds at most `max_growth` bytes.
    8. What stays is recorded with the reason.
    """

    name: ClassVar[str] = "FoldScaleAxis"
    max_growth: int = 16 << 20

    def run(self, module: Module, ctx: PassContext) -> bool:
        folder = _Folder(module, self.max_growth)
        for graph in module.graphs():
            clean_up(graph, folder.rewriter, folder.evaluator)
            folder.fold(graph)
        return folder.rewriter.changed


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A chain of affines, the layer that can absorb the first `len(steps)` of them, and how."""

    absorber: Absorber
    steps: tuple[Step, ...]
    plan: Plan


class _Folder:
    def __init__(self, module: Module, max_growth: int) -> None:
        self.module = module
        self.max_growth = max_growth
        self.rewriter = Rewriter(module)
        self.evaluator = ConstantEvaluator()
        self.merged = module.ledger.merged_origins()

    def fold(self, graph: Graph) -> None:
        """Fold every chain that begins in `graph`."""
        visited: set[Node] = set()
        for node in graph:
            if node in visited:
                continue
            first = recognise(node, self.evaluator)
            if isinstance(first, Refusal):
                self.refuse(node.origins, first)
            elif first is not None:
                chain = self.chain(first)
                visited.update(member for step in chain for member in step.nodes)
                self.fold_chain(chain)

    def chain(self, first: Step) -> list[Step]:
        """The affines that follow `first`, each the only reader of the one before."""
        chain, axis = [first], first.axis
        while True:
            reader = sole_reader(chain[-1].result)
            if reader is None or reader.graph is not first.nodes[0].graph:
                return chain
            step = recognise(reader, self.evaluator)
            if not isinstance(step, Step) or step.data is not chain[-1].result:
                return chain
            if axis is not None and step.axis is not None and step.axis != axis:
                return chain
            axis = step.axis if axis is None else axis
            chain.append(step)

    def fold_chain(self, chain: Sequence[Step]) -> None:
        found = self.plan(chain)
        if isinstance(found, Refusal):
            for step in chain:
                self.refuse(tuple(step.origins), found)
            return
        rest = chain[len(found.steps) :]
        if rest:
            reason = found.absorber.misfit(rest[0]) or Refusal("no_foldable_neighbour", "the fold ends in front of it")
            for step in rest:
                self.refuse(tuple(step.origins), reason)
        self.commit(found)

    def plan(self, chain: Sequence[Step]) -> _Candidate | Refusal:
        """The fold of the longest beginning of `chain` that is legal, or why there is none."""
        layer = self.producer(chain[0])
        if isinstance(layer, Refusal):
            return layer
        absorb = ABSORBERS.get(layer.op)
        if absorb is None:
            return Refusal("no_foldable_neighbour", f"{layer.label} in front of it absorbs nothing")
        absorber = absorb(layer, self.evaluator)
        if isinstance(absorber, Refusal):
            return absorber
        steps: list[Step] = []
        for step in chain:
            misfit = absorber.misfit(step)
            if misfit is not None and not steps:
                return misfit
            if misfit is not None:
                break
            steps.append(step)
        return self.longest(absorber, tuple(steps))

    def longest(self, absorber: Absorber, steps: tuple[Step, ...]) -> _Candidate | Refusal:
        """The fold of the longest beginning of `steps` that is legal, or why that of all of them is not."""
        best: _Candidate | None = None
        last: Refusal | None = None
        for length, plan in enumerate(absorber.plans(steps), start=1):
            refusal = plan if isinstance(plan, Refusal) else self.cost(absorber, length, plan)
            if refusal is None:
                assert isinstance(plan, Plan)
                best = _Candidate(absorber, steps[:length], plan)
            last = refusal or last
        assert best is not None or last is not None
        return best or last  # type: ignore[return-value]

    def cost(self, absorber: Absorber, length: int, plan: Plan) -> Refusal | None:
        """Rule 7: operators must not rise in number, nor constants beyond the bound."""
        if plan.shift is not None and plan.factor is None and length == 1:
            return Refusal("bias_slot", f"{absorber.node.label} has no bias: this is it")
        weight = absorber.weight
        stays = weight.sole_user() is None or weight.node is None or weight.node.op != "constant"
        tensor = self.evaluator.tensor(weight)
        if plan.factor is not None and stays and tensor is not None and tensor.nbytes > self.max_growth:
            detail = f"{absorber.node.label}: a copy of its weight takes {tensor.nbytes} bytes"
            return Refusal("constant_growth", f"{detail}, more than max_growth={self.max_growth}")
        if plan.bias is not None and plan.bias.size * absorber.dtype.bits // 8 > self.max_growth:
            return Refusal("constant_growth", f"{absorber.node.label}: the bias takes {plan.bias.size} elements")
        return None

    def producer(self, step: Step) -> Node | Refusal:
        """The node that computes the data of `step`, carriers passed over, if nothing else reads what is in between."""
        value, reader = step.data, step.nodes[0]
        while True:
            refusal = barrier(value, reader)
            if refusal is not None:
                return refusal
            node = value.node
            if node is None:
                return Refusal("no_foldable_neighbour", f"%{value.name} is an input of the graph")
            if node.op not in CARRIERS:
                return node
            operand = node.inputs[0]
            assert operand is not None
            value, reader = operand, node

    def commit(self, found: _Candidate) -> None:
        """Write the fold. Nothing here can fail."""
        absorber, plan, steps = found.absorber, found.plan, found.steps
        node, tail = absorber.node, steps[-1].nodes[-1]
        layer = self.layer(absorber)
        for step in steps:
            self.record(layer, step)
        with self.rewriter.rewriting(tail):
            if plan.factor is not None:
                self.write_weight(absorber, plan.factor)
            if plan.bias is not None:
                self.write_bias(absorber, plan.bias, steps[0])
            result = node.output
            if plan.shift is not None:
                result = self.write_shift(absorber, plan.shift, tail)
                layer.shift_add = result
        if not is_known(result.type):
            result.type = steps[-1].result.type
        layer.output_names.extend(step.data.name for step in steps)
        self.rewriter.replace(steps[-1].result, result, take_name=True)

    def write_weight(self, absorber: Absorber, factor: Array) -> None:
        node, weight = absorber.node, absorber.weight
        scale = self.rewriter.constant(ArrayTensor(factor), before=node, hint=f"{weight.name}.scale")
        product = self.rewriter.make(
            "multiply", [weight, scale], {"folded": 1}, before=node, hint=f"{weight.name}.folded", type_=weight.type
        )
        inputs = list(node.inputs)
        inputs[absorber.index] = product.output
        self.rewriter.set_inputs(node, inputs)

    def write_bias(self, absorber: Absorber, bias: Array, first: Step) -> None:
        node, old = absorber.node, absorber.node.input(2)
        if old is None and first.nodes[0].op == "nn.bias_add":
            old = first.parameter
        hint = bias_name(node) if old is None else old.name
        constant = self.rewriter.constant(ArrayTensor(np.ascontiguousarray(bias)), before=node, hint=hint)
        self.rewriter.set_inputs(node, [*node.inputs[:2], constant])
        if old is not None and (old.node is None or old.node.graph is None or old.sole_user() is first.nodes[0]):
            constant.name, old.name = old.name, constant.name
        if node.op != "nn.dense":
            return
        if absorber.divisor == 1.0 and node.attrs.get("beta", 1.0) != 1.0:
            self.rewriter.set_attr(node, "beta", 1.0)
        assert node.graph is not None
        if node.graph.opsets.get("", 1) < 7:
            self.rewriter.set_attr(node, "broadcast", 1)

    def write_shift(self, absorber: Absorber, shift: Array, tail: Node) -> Value:
        name = bias_name(absorber.node)
        constant = self.rewriter.constant(ArrayTensor(np.ascontiguousarray(shift)), before=tail, hint=name)
        inputs = [absorber.node.output, constant]
        add = self.rewriter.make(
            "add", inputs, {"axis": absorber.axis}, before=tail, hint=tail.output.name, name=tail.name
        )
        add.output.type = tail.output.type
        return add.output

    def layer(self, absorber: Absorber) -> Layer:
        """The ledger's record of the layer, which from now on has a node name that no other node has."""
        node = absorber.node
        layer = self.module.ledger.layers.get(node)
        if layer is None:
            bias = node.input(2) if absorber.slot else None
            layer = Layer(
                node,
                node.name,
                absorber.axis,
                absorber.index,
                absorber.weight_axis,
                absorber.weight.name,
                None if bias is None else bias.name,
                [],
            )
            self.module.ledger.layers[node] = layer
            node.name = self.module.unique_node_name(node, node.output.name)
        return layer

    def record(self, layer: Layer, step: Step) -> None:
        sources = self.module.ledger.sources or {}
        for origin in step.origins:
            self.module.ledger.refusals.pop(origin, None)
            if origin in sources and origin not in self.merged:
                layer.folds.append(Fold(origin, "backward", step.scale, step.shift))

    def refuse(self, origins: tuple[object, ...], refusal: Refusal) -> None:
        for origin in origins:
            if isinstance(origin, int) and origin in (self.module.ledger.sources or {}):
                self.module.ledger.refusals[origin] = refusal


def barrier(value: Value, reader: Node) -> Refusal | None:
    """Why `value` may not change for the sake of `reader`: something else sees it."""
    if value.is_returned:
        return Refusal("graph_output", f"%{value.name} is a result of the graph")
    if sole_reader(value) is None:
        # a value may have any number of readers, each of which may ask: a few of them make a good enough sentence
        some = list(islice(value.users, 16))
        inner = next((user for user in some if user.graph is not reader.graph), None)
        if inner is not None:
            return Refusal("subgraph_boundary", f"%{value.name} is read inside a subgraph by {inner.label}")
        return Refusal("multi_consumer", f"%{value.name} is read by {', '.join(user.label for user in some[:3])}")
    if value.graph is not reader.graph:
        return Refusal("subgraph_boundary", f"%{value.name} is computed outside the subgraph that reads it")
    return None


def bias_name(node: Node) -> str:
    """A name for the bias that a layer is about to get: `conv.bias` beside `conv.weight`, else from the node."""
    weight = node.inputs[1].name if len(node.inputs) > 1 and node.inputs[1] is not None else ""
    weight = weight.removesuffix(".folded")
    if weight.endswith("weight"):
        return weight.removesuffix("weight") + "bias"
    return f"{node.name or node.output.name}.bias"
