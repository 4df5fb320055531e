"""Chains: affines in a row that are folded together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from ....ir.graph import Node, producer_of
from ....ir.module import Module
from ....ir.ops import AFFINE_KINDS, sole_reader
from ....ir.provenance import Refused
from ....ir.tensor import round_to
from ....ir.types import dtype_of
from ....support.statement import states
from ..algebra.affine import CANCELLATION, Affine
from ..algebra.operands import Parameters
from ..algebra.recognise import AffineOp, find_affine, recognise
from ..units.unit import CODE, Unit

MAX_NUMBERS = 1 << 20
"""Channels of all affines of a chain: many may read one parameter, and each has a copy of it."""

MAX_REMEMBERED = 1 << 22
"""Channels of the affines of one round beyond which no more are remembered for the next round."""

BATCH = 1 << 10
"""Chains that are recognised before they are tried, whose numbers are computed together."""

MIN_CHAIN = 8
"""Affines that are a chain whatever they hold."""


class Chain:
    """The affines `ops`, each the only reader of the one before, and their nodes' state.

    `is_reduced` is set once no affine in it is the identity and no two neighbours undo each other.
    """

    __slots__ = ("is_reduced", "ops", "state")

    def __init__(self, ops: list[AffineOp]) -> None:
        self.ops = ops
        self.is_reduced = False
        self.state = {node: (node.inputs, node.attrs) for op in ops for node in op.nodes}

    @property
    def is_current(self) -> bool:
        """Whether recognising it once more would find the same.

        Inputs and attributes of a node are replaced, never changed in place, so identity tells
        whether they changed.
        """
        for node, (inputs, attrs) in self.state.items():
            if node.graph is None or node.inputs is not inputs or node.attrs is not attrs:
                return False
        for op in self.ops:
            if len(op.nodes) > 1 and op.nodes[0].output.sole_user() is not op.nodes[1]:
                return False
        for op, following in pairwise(self.ops):
            if sole_reader(op.result) is not following.nodes[0]:
                return False
        reader = sole_reader(self.ops[-1].result)
        return reader is None or reader.op not in AFFINE_KINDS


class ChainFinder:
    """Finds the chains of a graph, and remembers them from one round to the next."""

    def __init__(self, module: Module, params: Parameters) -> None:
        self.provenance = module.provenance
        self.params = params
        self.known: dict[Node, Chain] = {}
        self.units: Mapping[Node, Unit] = {}

    def batches(self, nodes: list[Node]) -> Iterator[list[Node]]:
        """Yield the first nodes of the chains in batches; record why others are not affines.

        Chains of one batch may be folded before the next is recognised. Nodes that are made
        meanwhile wait for the next round, so that a round ends. Each of `nodes`, in the order of
        the graph, leaves the list once it was looked at: one that a fold erases should not wait in
        memory for the last batch.
        """
        before, self.known = self.known, {}
        firsts: list[Node] = []
        new: list[AffineOp] = []
        visited: set[Node] = set()
        numbers = 0
        nodes.reverse()
        while nodes:
            node = nodes.pop()
            if node.graph is None:
                continue
            if node in visited:
                visited.remove(node)
                continue
            chain = before.pop(node, None)
            is_known = chain is not None and chain.is_current
            if chain is None or not is_known:
                chain = self._begin(node)
                if chain is None:
                    continue
            visited.update(chain.state)
            visited.discard(node)
            firsts.append(node)
            for op in chain.ops:
                numbers += op.scale.size
            if numbers <= MAX_REMEMBERED:
                self.known[node] = chain
                new += chain.ops if not is_known else ()
            if len(firsts) == BATCH:
                self._prepare(new)
                yield firsts
                firsts, new = [], []
        self._prepare(new)
        yield firsts

    def _begin(self, node: Node) -> Chain | None:
        try:
            first = recognise(node, self.params.evaluator)
            unit = None if first is None else self.units.get(node)
            if unit is not None:
                raise Refused(CODE, unit.obstacle(node))
        except Refused as refused:
            self.provenance.refuse(node.origins, refused.refusal)
            return None
        return None if first is None else Chain(self._following(first))

    def _prepare(self, ops: Sequence[AffineOp]) -> None:
        """Compute the numbers of many affines, and of the layers before them, at once."""
        affines = Affine.of_each([(op.axis, op.stage) for op in ops])
        for op, affine in zip(ops, affines, strict=True):
            op.__dict__["affine"] = affine
        convolutions = (producer_of(op.data, "nn.conv") for op in ops)
        self.params.measure_rows(node["weight"] for node in convolutions if node is not None)

    def at(self, node: Node) -> Chain | None:
        """Return the chain that begins at `node`, as it is now."""
        chain = self.known.get(node)
        if chain is not None and chain.is_current:
            return chain
        self.known.pop(node, None)
        first = self._find(node) if node.graph is not None else None
        return None if first is None else Chain(self._following(first))

    def _following(self, first: AffineOp) -> list[AffineOp]:
        """Return `first` and the affines after it, each the only reader of the one before.

        There are as many as have so few numbers that they can be held at once; the next round joins
        the rest to the result.
        """
        ops, axis, size = [first], first.axis, first.scale.size
        while len(ops) < MIN_CHAIN or size <= MAX_NUMBERS:
            reader = sole_reader(ops[-1].result)
            if reader is None or reader.op not in AFFINE_KINDS:
                return ops
            if reader.graph is not first.nodes[0].graph:
                return ops
            op = self._find(reader)
            if op is None or op.data is not ops[-1].result:
                return ops
            if axis is not None and op.axis is not None and op.axis != axis:
                return ops
            axis = op.axis if axis is None else axis
            ops.append(op)
            size += op.scale.size
        return ops

    def renewed(self, op: AffineOp) -> AffineOp | None:
        """Return the affine that begins at the first node of `op` now."""
        return self._find(op.nodes[0]) if op.nodes[0].graph is not None else None

    def before(self, chain: Chain) -> AffineOp | None:
        """Return the affine of one operator that the chain and others read."""
        first = chain.ops[0]
        producer = first.data.node
        op = None if producer is None or producer.op not in AFFINE_KINDS else self._find(producer)
        if op is None or op.result is not first.data:
            return None
        return op if op.axis == first.axis or None in (op.axis, first.axis) else None

    def _find(self, node: Node) -> AffineOp | None:
        """Return the affine that begins at `node`, if there is one that may move."""
        return None if node in self.units else find_affine(node, self.params.evaluator)


@states("u * (s * x + t) + v == u * s * x + (u * t + v)")
def affine_of(ops: Sequence[AffineOp]) -> Affine:
    """Return the affine that consecutive ones make together."""
    if len(ops) == 1:
        return ops[0].affine
    axis = next((op.axis for op in ops if op.axis is not None), None)
    return Affine.of(axis, [op.stage for op in ops])


def is_identity(affine: Affine) -> bool:
    """Return whether the affine changes nothing."""
    return not affine.has_scale and not affine.has_shift


def fits(affine: Affine, op: AffineOp) -> bool:
    """Return whether scale, shift and shift / scale can be constants in the dtype of `op`.

    None of them may become infinite, or zero, by rounding.
    """
    dtype = dtype_of(op.result.type)
    if dtype is None or not dtype.is_float:
        return False
    arrays = [affine.scale, affine.shift, affine.shift_before().shift]
    rounded = [round_to(array, dtype).astype(np.float64) for array in arrays]
    pairs = zip(arrays, rounded, strict=True)
    return all(
        bool(((np.isfinite(b) | ~np.isfinite(a)) & ((b != 0) | (a == 0))).all()) for a, b in pairs
    )


def cancels_nothing(ops: Sequence[AffineOp], affine: Affine) -> bool:
    """Return whether scale * x + shift is as exact as the chain.

    It is if the chain scales first and its shifts do not cancel: a sum of two large numbers that
    nearly cancel is exact, the sum of their products is not.
    """
    if not (affine.has_scale and affine.has_shift) or not affine_of(ops[:1]).has_scale:
        return is_identity(affine)
    total, greatest = np.zeros(()), np.zeros(())
    for op in ops:
        moved = op.stage.apply(total)
        greatest = np.maximum(greatest * np.abs(op.scale), np.abs(moved))
        total = moved
    return bool((np.abs(total) >= CANCELLATION * greatest).all())
