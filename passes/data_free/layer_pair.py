"""Pairs of layers: an affine that the layers before a value apply, and the layers after it undo.

A pair is a plan backward from a value, joined to a plan forward from it. So the rules that refuse an affine refuse a
pair. No operator is added, no weight is copied, and every end is a layer with a constant weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.graph import Value
from ...ir.module import Module
from ...ir.ops import has_trait, sole_reader
from ...ir.ops.row import Trait
from ...ir.provenance import Refused
from ...ir.rewriter import Rewriter
from ..affine.algebra import Affine
from ..affine.commit import Committer
from ..affine.layers import Fold
from ..affine.operands import Parameters
from ..affine.plan import Plan
from ..affine.planner import Planner
from ..affine.statistics import StatisticRef, statistic_refs

MAX_GROWTH = 1 << 16
"""Bytes by which the constants that a pair passes, and new biases, may grow."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerPair:
    """Two plans around `value`, which becomes the affine `taken` of itself.

    The readers of `tail` read the affine `given` of its new numbers. `tail` is the value itself, or the result of an
    activation that commutes with the affine.
    """

    value: Value
    taken: Affine
    before: Plan
    tail: Value
    given: Affine
    after: Plan

    def folds(self) -> Iterator[tuple[str, Fold]]:
        """Yield the folds of the ends: `out` for layers whose result changes, `in` for layers whose data do."""
        for side, plan in (("out", self.before), ("in", self.after)):
            for change in plan.changes:
                if change.fold is not None:
                    yield side, change.fold

    def changed(self) -> dict[Value, Affine]:
        """Return the affine that each changed value becomes of its old numbers."""
        found = {self.value: self.taken}
        for change in self.before.changes:
            for index, part in change.transfer.operands if change.transfer is not None else ():
                operand = change.node.inputs[index]
                assert operand is not None
                found[operand] = part
        found[self.tail] = inverse(self.given)
        for change in self.after.changes:
            if change.lacks is not None:
                found[change.value] = inverse(change.lacks)
            for index, moved in change.transfer.results if change.transfer is not None else ():
                found[change.node.outputs[index]] = inverse(moved)
        return found


class LayerPairs:
    """Finds pairs in a module and writes them; `border` is the option of `Parameters`."""

    def __init__(self, module: Module, *, border: str = "keep") -> None:
        self.module = module
        self.rewriter = Rewriter(module)
        self.params = Parameters(module.constants, border=border)
        self.planner = Planner(self.params)
        self.committer = Committer(self.rewriter)
        self.statistics = statistic_refs(module)

    def find(self, value: Value, taken: Affine, given: Affine, tail: Value | None = None) -> LayerPair:
        """Return the pair at `value`. Changes nothing; O(region).

        Raises Refused where there is none.
        """
        before = self._before(value, taken, alone=tail is not None)
        after = self.planner.forward(tail or value, given)
        pair = LayerPair(value, taken, before, tail or value, given, after)
        _check(pair)
        return pair

    def _before(self, value: Value, taken: Affine, *, alone: bool) -> Plan:
        """Return the plan backward. Any number may read the result of a layer, unless the value must have one reader
        `alone`.
        """
        if not alone and value.node is not None and has_trait(value.node, Trait.LINEAR):
            return Plan([self.planner.into(value, taken)])
        reader = sole_reader(value)
        if reader is None:
            raise Refused("multi_consumer", f"{value.name!r} has not one reader")
        return self.planner.backward(value, reader, taken)

    def find_or_none(self, value: Value, taken: Affine, given: Affine, tail: Value | None = None) -> LayerPair | None:
        """Return the pair at `value`, None where there is none."""
        try:
            return self.find(value, taken, given, tail)
        except Refused:
            return None

    def commit(self, pair: LayerPair) -> None:
        """Write a pair, and move the statistics of its values."""
        changed = pair.changed()
        known = {value: self.statistics[value] for value in changed if value in self.statistics}
        for change in (*pair.before.changes, *pair.after.changes):
            self.committer.commit(Plan([change]), change.node, change.node)
        if pair.tail is not pair.value:
            self.committer.rename(pair.tail)
        for value, statistic in known.items():
            moved = applied(statistic, changed[value])
            if moved is not None:
                self.statistics[value] = moved


def applied(reference: StatisticRef, affine: Affine) -> StatisticRef | None:
    """Return the reference for an affine of the value, None where the channels are others."""
    along = affine.axis is None or (
        affine.axis == reference.source.axis and affine.channels == reference.source.channels
    )
    return reference.applied(affine.scale, affine.shift) if along and not affine.extents else None


def inverse(affine: Affine) -> Affine:
    """Return x as an affine of scale * x + shift; no scale is zero."""
    return Affine.joined(affine.axis, 1 / affine.scale, -affine.shift / affine.scale)


def _check(pair: LayerPair) -> None:
    """Refuse a pair that may not be written though each of its plans is legal."""
    both = pair.before.joined(pair.after)
    label = repr(pair.value.name)
    if not both.is_sound:
        raise Refused("multi_consumer", f"{label}: an operator would have to change on two paths that meet")
    if both.added:
        raise Refused("bias_slot", f"{label}: a layer that it reaches has no bias")
    ends = {"out": 0, "in": 0}
    for side, fold in pair.folds():
        if not has_trait(fold.node, Trait.LINEAR):
            raise Refused("no_foldable_neighbour", f"{fold.node.description} is no layer with a weight")
        if fold.factor is not None and fold.weight.sole_user() is not fold.node:
            raise Refused("shared_weight", f"{fold.node.description}: others read its weight")
        ends[side] += 1
    if not all(ends.values()):
        raise Refused("no_foldable_neighbour", f"{label}: no layer on one of its sides")
    growth = Plan([change for change in both.changes if change.fold is None]).growth()
    growth += sum(8 * fold.bias.size for _, fold in pair.folds() if fold.bias is not None and _is_new(fold))
    if growth > MAX_GROWTH:
        raise Refused("constant_growth", f"{label}: constants grow by {growth} bytes")


def _is_new(fold: Fold) -> bool:
    return fold.node.input(fold.bias_index) is None
