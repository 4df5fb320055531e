"""Choices: the ways to fold a chain, of which the best leaves the fewest operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from ....ir.provenance import Refusal, Refused
from ....ir.record import Record
from ....ir.types import shape_of
from ..algebra.affine import Affine
from ..algebra.recognise import AffineOp
from ..rules.checks import check_not_the_scale, check_stays_integer
from .chains import affine_of, cancels_nothing, fits
from .plan import Plan
from .planner import Planner

ELSEWHERE = ("no_foldable_neighbour", "graph_output", "multi_consumer", "subgraph_boundary")
"""Codes that say that no layer is in reach, rather than why it cannot take the affine."""

ATTEMPTS = 32
"""Length of a chain whose beginnings and ends are all tried; of a longer one only some are."""

Leftovers = tuple[tuple[str, Affine], ...]
"""Operators that stay of a chain, each with the affine that it applies."""


class Choice(Record):
    """A plan for a chain: the affines `ops` go, and the operators `leftovers` take their place.

    `kept` is the affine, a BatchNormalization, that takes the others.
    """

    plan: Plan
    ops: Sequence[AffineOp]
    leftovers: Leftovers = ()
    forward: bool = False
    kept: AffineOp | None = None

    @property
    def added(self) -> int:
        """Operators in the place of the affines."""
        return self.plan.added + len(self.leftovers) + (self.kept is not None)

    @property
    def label(self) -> str:
        """The first affine, in messages to users."""
        return self.ops[0].nodes[0].description


Attempt = Callable[[], Choice]
"""Finds a choice, or raises Refused."""


class Chooser:
    """Finds the cheapest way to fold a chain. The options are as in FoldScaleAxis."""

    def __init__(self, planner: Planner, *, forward: bool, partial: str, max_growth: int) -> None:
        self.planner = planner
        self.goes_forward = forward
        self.partial = partial
        self.max_growth = max_growth

    def choose(self, ops: Sequence[AffineOp], *, whole: bool) -> Choice:
        """Return the cheapest way to fold the chain, as a `whole` or in part.

        Raises Refused if there is none.
        """
        affine = affine_of(ops)
        best: Choice | None = None
        most = 0
        refusals: list[Refusal] = []
        for attempt in self._whole(ops, affine) if whole else self._parts(ops, affine):
            try:
                found = attempt()
                gain = self._checked_gain(found)
            except Refused as refused:
                refusals.append(refused.refusal)
                continue
            if best is None or gain > most:
                best, most = found, gain
            if most == len(ops):
                break
        if best is None:
            raise Refused.of(_summary(refusals))
        return best

    def _backward(
        self, ops: Sequence[AffineOp], affine: Affine, leftovers: Leftovers = ()
    ) -> Choice:
        plan = self.planner.backward(ops[0].data, ops[0].nodes[0], affine)
        return Choice(plan, ops, leftovers)

    def _forward(
        self, ops: Sequence[AffineOp], affine: Affine, leftovers: Leftovers = ()
    ) -> Choice:
        plan = self.planner.forward(ops[-1].result, affine)
        return Choice(plan, ops, leftovers, forward=True)

    def _whole(self, ops: Sequence[AffineOp], affine: Affine) -> Iterator[Attempt]:
        """Yield the ways in which nothing of the chain stays. Raises Refused."""
        if not affine.is_finite:
            detail = f"{ops[0].nodes[0].description}: a scale or shift is infinite or not a number"
            raise Refused("nonfinite", detail)
        yield lambda: self._backward(ops, affine)
        if not self.goes_forward:
            return
        yield lambda: self._forward(ops, affine)
        if not (affine.has_scale and affine.has_shift):
            return
        back = self._plan_or_none(lambda: self._backward(ops, affine.only_scale()))
        if back is not None:
            yield lambda: self._both(back, self._forward(ops, affine.only_shift()))
        before = affine.shift_before()
        if before.is_finite:
            ahead = self._plan_or_none(lambda: self._forward(ops, affine.only_scale()))
            if ahead is not None:
                yield lambda: self._both(self._backward(ops, before), ahead)

    @staticmethod
    def _plan_or_none(attempt: Attempt) -> Choice | None:
        """Return half of a way, or None: the whole chain's refusal says why."""
        try:
            return attempt()
        except Refused:
            return None

    @staticmethod
    def _both(back: Choice, ahead: Choice) -> Choice:
        return Choice(back.plan.joined(ahead.plan), back.ops, forward=True)

    def _parts(self, ops: Sequence[AffineOp], affine: Affine) -> Iterator[Attempt]:
        """Yield the ways in which a part of the chain stays, or goes into the part before it."""
        for length in _lengths(len(ops)):
            beginning = affine_of(ops[:length])
            if beginning.is_finite:
                yield lambda length=length, part=beginning: self._backward(ops[:length], part)  # type: ignore[misc]
        for length in _lengths(len(ops)) if self.goes_forward else ():
            end = affine_of(ops[-length:])
            if end.is_finite:
                yield lambda length=length, part=end: self._forward(ops[-length:], part)  # type: ignore[misc]
        yield from self._scale_or_shift(ops, affine)
        if len(ops) > 1 and affine.is_finite and fits(affine, ops[-1]):
            yield lambda: self._compact(ops, affine)

    def _scale_or_shift(self, ops: Sequence[AffineOp], affine: Affine) -> Iterator[Attempt]:
        """Yield the ways in which an `add` of the shift, or a `multiply`, stays."""
        rank_known = affine.axis is None or shape_of(ops[0].data.type) is not None
        both = affine.is_finite and affine.has_scale and affine.has_shift
        # The operator that stays places its parameter by axis and rank, and stores it as the data.
        if self.partial == "never" or not both or not rank_known or not fits(affine, ops[-1]):
            return
        before = affine.shift_before()
        scale: Leftovers = (("multiply", affine.only_scale()),)
        yield lambda: self._backward(ops, affine.only_scale(), (("add", affine.only_shift()),))
        if self.goes_forward and before.is_finite:
            yield lambda: self._forward(ops, affine.only_scale(), (("add", before),))
        if len(ops) == 1:
            return
        if before.is_finite:
            yield lambda: self._backward(ops, before, scale)
        if self.goes_forward:
            yield lambda: self._forward(ops, affine.only_shift(), scale)

    def _compact(self, ops: Sequence[AffineOp], affine: Affine) -> Choice:
        """Fold the chain into its BatchNormalization, or into one product and one sum.

        An affine that shifts the data before they are scaled goes on doing so: the sum of two large
        numbers that nearly cancel is exact; the sum of their products is not, and may overflow.
        """
        late = Refused(
            "bias_slot", f"{ops[0].nodes[0].description}: it shifts the data before they are scaled"
        )
        position = next((i for i, op in enumerate(ops) if op.mean is not None), None)
        if position is not None:
            start = 0 if not affine_of(ops[:position]).has_shift else position
            while start and not ops[start - 1].affine.has_shift:
                start -= 1
            part = ops[start:]
            if len(part) == 1:
                raise late
            return self._into_batch_norm(part, ops[position])
        if not cancels_nothing(ops, affine):
            raise late
        scale: Leftovers = (("multiply", affine.only_scale()),) if affine.has_scale else ()
        shift: Leftovers = (("add", affine.only_shift()),) if affine.has_shift else ()
        data = ops[0].data
        if shape_of(data.type) is None and affine.axis is not None:
            detail = f"{ops[0].nodes[0].description}: the rank of its data is unknown"
            raise Refused("unknown_rank", detail)
        return Choice(Plan(), ops, (*scale, *shift), forward=not scale and not shift)

    def _into_batch_norm(self, ops: Sequence[AffineOp], kept: AffineOp) -> Choice:
        """Let the BatchNormalization `kept` apply the chain around it, too.

        With its own scale s and shift t, and S and T of the chain, it takes the affine S / s and T
        - (S / s) t. If s is zero, so is S, and the quotient does not matter: 1 keeps it finite.
        """
        own, affine = affine_of([kept]), affine_of(ops)
        is_zero = own.scale == 0
        scale = np.where(is_zero, 1.0, affine.scale / np.where(is_zero, 1.0, own.scale))
        origins = [origin for op in ops if op is not kept for origin in op.origins]
        rest = Affine.joined(kept.axis, scale, affine.shift - scale * own.shift, origins)
        return Choice(Plan([self.planner.into(kept.result, rest)]), ops, kept=kept)

    def _checked_gain(self, choice: Choice) -> int:
        """Return the number of operators that the choice removes beyond those that it adds.

        Refuse more operators than before, and constants beyond the bound.
        """
        growth, removed, added = choice.plan.growth(), len(choice.ops), choice.added
        check_not_the_scale(choice.ops[0].data)
        for fold in choice.plan.folds:
            check_stays_integer(fold, choice.ops[-1].result)
        if not choice.plan.is_sound:
            raise Refused(
                "multi_consumer",
                f"{choice.label}: an operator would have to change on two paths that meet",
            )
        if growth > self.max_growth:
            detail = (
                f"{choice.label}: constants grow by {growth} bytes, max_growth={self.max_growth}"
            )
            raise Refused("constant_growth", detail)
        if added < removed:
            return removed - added
        # As many operators as before are worth it if a sum takes the place of a product, or of both
        # in one, and for a preprocessing, of which nothing but a Pad is to be left.
        wanted = choice.kept is None and (not choice.leftovers or self.partial == "always")
        affine = affine_of(choice.ops)
        wanted = wanted and (affine.has_scale or self.planner.params.has_inserted(affine))
        if added == removed and wanted and choice.plan.changes:
            return 0
        detail = f"saves no operator: it needs {added} in place of {removed}"
        if added == removed == 1:
            detail = "would only replace it by another operator"
        raise Refused("bias_slot", f"{choice.label}: folding it {detail}")


def _summary(refusals: Sequence[Refusal]) -> Refusal:
    """Return the first refusal that names a concrete obstacle, else the first."""
    if not refusals:
        return Refusal("no_foldable_neighbour", "no part of it can be folded in either direction")
    first = refusals[0]
    if first.code == "no_foldable_neighbour":
        first = next((refusal for refusal in refusals if refusal.code not in ELSEWHERE), first)
    notes = dict.fromkeys(note for refusal in refusals for note in refusal.notes)
    return replace(first, notes=tuple(notes))


def _lengths(count: int) -> Iterator[int]:
    """Yield the lengths of the beginnings of a chain that are tried, the longest first."""
    if count <= ATTEMPTS:
        yield from range(count - 1, 0, -1)
    else:
        yield from (count >> i for i in range(1, count.bit_length()))
