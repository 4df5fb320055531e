"""Pairs of layers: an affine that the layers before a value apply, and the layers after it undo.

A pair is a backward plan and a forward plan from one value. Both follow the rules of FoldScaleAxis,
so an operator that stops an affine there stops a pair here. No operator is added but a Max or Min
after a Clip that gets bounds per channel (`limits`), no weight is copied, and both ends of a pair
are layers with constant weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Value
from ...ir.module import Module
from ...ir.ops import has_trait, sole_reader
from ...ir.ops.row import Trait
from ...ir.provenance import Refused
from ...ir.record import Record
from ...ir.rewriter import Rewriter
from ..affine.algebra.affine import Affine
from ..affine.algebra.layers import Fold
from ..affine.algebra.operands import Parameters
from ..affine.records.statistics import StatisticRef, statistic_refs
from ..affine.rules.clipping import clip_shifted
from ..affine.search.commit import Committer
from ..affine.search.plan import Change, Plan
from ..affine.search.planner import Planner

MAX_GROWTH = 1 << 16
"""Bytes by which new biases and the constants between the layers of one pair may grow in total."""


class LayerPair(Record):
    """The layers before and after `value`, as the two plans that change them.

    `backward` replaces `value` by `backward_affine` of it. `forward` applies `forward_affine` to
    the data of the readers of `result`. `result` is `value`, or the result of an activation that
    reads it and commutes with the affine.
    """

    value: Value
    backward_affine: Affine
    backward: Plan
    result: Value
    forward_affine: Affine
    forward: Plan

    @property
    def limits(self) -> int:
        """Number of Max and Min that the pair adds."""
        return self.backward.limits + self.forward.limits

    def folds(self) -> Iterator[tuple[str, Fold]]:
        """Yield the folds into layers: `out` changes the result, `in` reads other data."""
        for side, plan in (("out", self.backward), ("in", self.forward)):
            for change in plan.changes:
                if change.fold is not None:
                    yield side, change.fold

    def changed(self) -> dict[Value, Affine]:
        """Return each value that changes, with the affine from its old elements to the new ones."""
        found = {self.value: self.backward_affine}
        for change in self.backward.changes:
            for index, part in change.transfer.operands if change.transfer is not None else ():
                found[change.node.operand(index)] = part
        found[self.result] = inverse(self.forward_affine)
        for change in self.forward.changes:
            if change.lacks is not None:
                found[change.value] = inverse(change.lacks)
            for index, moved in change.transfer.results if change.transfer is not None else ():
                found[change.node.outputs[index]] = inverse(moved)
        return found


class LayerPairs:
    """Finds layer pairs in a module and rewrites them, with options of `Parameters`."""

    def __init__(self, module: Module, *, border: str = "keep", limits: bool = False) -> None:
        self.module = module
        self.rewriter = Rewriter(module)
        self.params = Parameters(module.constants, border=border, limits=limits)
        self.planner = Planner(self.params)
        self.committer = Committer(self.rewriter)
        self.statistics = statistic_refs(module)

    def find(
        self,
        value: Value,
        backward_affine: Affine,
        forward_affine: Affine,
        activated: Value | None = None,
    ) -> LayerPair | None:
        """Return the layer pair at `value`, if the rules allow one; nothing changes. O(region).

        `activated` is the result of the activation that is the only reader of `value`, if there is
        one: a rectifier, or a Clip, of which the upper bound is shifted.
        """
        result = activated or value
        try:
            backward = self._plan_backward(value, backward_affine, one_reader=activated is not None)
            forward = self.planner.forward(result, forward_affine)
            if result.node is not None and result is not value and result.node.op == "clip":
                shifted = clip_shifted(result.node, forward_affine, self.params)
                forward.changes.insert(0, Change(result.node, result, "forward", transfer=shifted))
            pair = LayerPair(value, backward_affine, backward, result, forward_affine, forward)
            _check(pair)
        except Refused as refused:
            self.rewriter.decline(refused.refusal.detail)
            return None
        return pair

    def _plan_backward(self, value: Value, affine: Affine, *, one_reader: bool) -> Plan:
        # The forward plan changes all readers of the result of a layer, so there may be several.
        if not one_reader and value.node is not None and has_trait(value.node, Trait.LINEAR):
            return Plan([self.planner.into(value, affine)])
        reader = sole_reader(value)
        if reader is None:
            detail = f"{value.source_name!r} has no reader, or more than one"
            raise Refused("multi_consumer", detail)
        return self.planner.backward(value, reader, affine)

    def commit(self, pair: LayerPair) -> None:
        """Rewrite the layers of a pair, and update the statistics of the values that change."""
        changed = pair.changed()
        known = {value: self.statistics[value] for value in changed if value in self.statistics}
        for change in (*pair.backward.changes, *pair.forward.changes):
            self.committer.commit(Plan([change]), change.node, change.node)
        if pair.result is not pair.value:
            self.committer.rename(self.committer.limited.get(pair.result, pair.result))
        for value, statistic in known.items():
            moved = applied(statistic, changed[value])
            if moved is not None:
                self.statistics[self.committer.limited.get(value, value)] = moved


def applied(reference: StatisticRef, affine: Affine) -> StatisticRef | None:
    """Return the statistic of an affine of its value, if both have the same channels."""
    source = reference.source
    is_of_source = affine.axis == source.axis and affine.channels == source.channels
    same_channels = affine.axis is None or is_of_source
    if same_channels and not affine.extents:
        return reference.applied(affine.scale, affine.shift)
    return None


def inverse(affine: Affine) -> Affine:
    """Return the affine that maps scale * x + shift back to x; no scale may be zero."""
    return Affine.joined(affine.axis, 1 / affine.scale, -affine.shift / affine.scale)


def _check(pair: LayerPair) -> None:
    """Refuse a pair of plans that are legal alone only, that add operators or copy weights."""
    both = pair.backward.joined(pair.forward)
    label = repr(pair.value.source_name)
    if not both.is_sound:
        detail = f"{label}: an operator would change twice, on two paths that meet"
        raise Refused("multi_consumer", detail)
    if both.added > both.limits:
        raise Refused("bias_slot", f"{label}: a layer to be shifted has no place for a bias")
    ends = {"out": 0, "in": 0}
    for side, fold in pair.folds():
        if not has_trait(fold.node, Trait.LINEAR):
            detail = f"{fold.node.description} is not a layer with a weight"
            raise Refused("no_foldable_neighbour", detail)
        if fold.factor is not None and fold.weight.sole_user() is not fold.node:
            detail = f"{fold.node.description}: another operator reads its weight"
            raise Refused("multi_consumer", detail)
        ends[side] += 1
    if not all(ends.values()):
        raise Refused("no_foldable_neighbour", f"{label}: there is no layer before or after it")
    growth = Plan([change for change in both.changes if change.fold is None]).growth()
    growth += sum(
        8 * fold.bias.size for _, fold in pair.folds() if fold.bias is not None and _is_new(fold)
    )
    if growth > MAX_GROWTH:
        raise Refused("constant_growth", f"{label}: constants would grow by {growth} bytes")


def _is_new(fold: Fold) -> bool:
    return fold.node.input(fold.bias_index) is None
