"""Links: what is taken off a value between two layers, and given back to what reads it.

A link is a plan backward, which makes the layers in front of a value compute an affine of it, joined to a plan
forward, which makes the layers behind it compute what they did. So everything that can stand in the way of an affine
stands in the way of a link. No operator is added, no weight copied, and every end is a layer with a constant weight.
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
"""Bytes by which the constants that a link passes, and new biases, may grow."""


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """`value` becomes the affine `taken` of itself; what reads `behind` (itself, or the result of an activation that
    commutes with the affine) reads the affine `given` of what is there then.
    """

    value: Value
    taken: Affine
    before: Plan
    behind: Value
    given: Affine
    after: Plan

    def folds(self) -> Iterator[tuple[str, Fold]]:
        """The ends: `out` for the layers whose result changes, `in` for those whose data do."""
        for side, plan in (("out", self.before), ("in", self.after)):
            for change in plan.changes:
                if change.fold is not None:
                    yield side, change.fold

    def changed(self) -> dict[Value, Affine]:
        """The affines that values become of what they were."""
        found = {self.value: self.taken}
        for change in self.before.changes:
            for index, part in change.transfer.operands if change.transfer is not None else ():
                operand = change.node.inputs[index]
                assert operand is not None
                found[operand] = part
        found[self.behind] = inverse(self.given)
        for change in self.after.changes:
            if change.lacks is not None:
                found[change.value] = inverse(change.lacks)
            for index, moved in change.transfer.results if change.transfer is not None else ():
                found[change.node.outputs[index]] = inverse(moved)
        return found


class Linker:
    """Finds links in a module and writes them; `border` is that of `Parameters`."""

    def __init__(self, module: Module, *, border: str = "keep") -> None:
        self.module = module
        self.rewriter = Rewriter(module)
        self.params = Parameters(module.constants, border=border)
        self.planner = Planner(self.params)
        self.committer = Committer(self.rewriter)
        self.statistics = statistic_refs(module)

    def find(self, value: Value, taken: Affine, given: Affine, behind: Value | None = None) -> Link:
        """Return the link at `value`. Changes nothing; O(region).

        Raises Refused where there is none.
        """
        before = self._before(value, taken, alone=behind is not None)
        after = self.planner.forward(behind or value, given)
        link = Link(value, taken, before, behind or value, given, after)
        _check(link)
        return link

    def _before(self, value: Value, taken: Affine, *, alone: bool) -> Plan:
        """The plan backward. Unless the value must have one reader `alone`, any number may read a layer's result."""
        if not alone and value.node is not None and has_trait(value.node, Trait.LINEAR):
            return Plan([self.planner.into(value, taken)])
        reader = sole_reader(value)
        if reader is None:
            raise Refused("multi_consumer", f"%{value.name} has not one reader")
        return self.planner.backward(value, reader, taken)

    def find_or_none(self, value: Value, taken: Affine, given: Affine, behind: Value | None = None) -> Link | None:
        """Return the link at `value`, None where there is none."""
        try:
            return self.find(value, taken, given, behind)
        except Refused:
            return None

    def commit(self, link: Link) -> None:
        """Write a link, and what becomes of the statistics."""
        changed = link.changed()
        known = {value: self.statistics[value] for value in changed if value in self.statistics}
        for change in (*link.before.changes, *link.after.changes):
            self.committer.commit(Plan([change]), change.node, change.node)
        if link.behind is not link.value:
            self.committer.rename(link.behind)
        for value, statistic in known.items():
            moved = applied(statistic, changed[value])
            if moved is not None:
                self.statistics[value] = moved


def applied(clue: StatisticRef, affine: Affine) -> StatisticRef | None:
    """What is known of an affine of the value, None where the channels are others."""
    along = affine.axis is None or (affine.axis == clue.source.axis and affine.channels == clue.source.channels)
    return clue.applied(affine.scale, affine.shift) if along and not affine.extents else None


def inverse(affine: Affine) -> Affine:
    """X as an affine of scale * x + shift; no scale is zero."""
    return Affine.joined(affine.axis, 1 / affine.scale, -affine.shift / affine.scale)


def _check(link: Link) -> None:
    """Refuse a link that may not be written though each of its plans is legal."""
    both = link.before.joined(link.after)
    label = f"%{link.value.name}"
    if not both.is_sound:
        raise Refused("multi_consumer", f"{label}: an operator would have to change on two paths that meet")
    if both.added:
        raise Refused("bias_slot", f"{label}: a layer that it reaches has no bias")
    ends = {"out": 0, "in": 0}
    for side, fold in link.folds():
        if not has_trait(fold.node, Trait.LINEAR):
            raise Refused("no_foldable_neighbour", f"{fold.node.label} is no layer with a weight")
        if fold.factor is not None and fold.weight.sole_user() is not fold.node:
            raise Refused("shared_weight", f"{fold.node.label}: others read its weight")
        ends[side] += 1
    if not all(ends.values()):
        raise Refused("no_foldable_neighbour", f"{label}: no layer on one of its sides")
    growth = Plan([change for change in both.changes if change.fold is None]).growth()
    growth += sum(8 * fold.bias.size for _, fold in link.folds() if fold.bias is not None and _is_new(fold))
    if growth > MAX_GROWTH:
        raise Refused("constant_growth", f"{label}: constants grow by {growth} bytes")


def _is_new(fold: Fold) -> bool:
    return fold.node.input(fold.bias_index) is None
