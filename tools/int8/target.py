"""A quality that the user names: which tensors take 16 bits for it, and which layers are float.

Each rounding is measured alone. Within their budget tensors have 16 bits, those of most noise
first; then layers are made float in the order of noise per multiplication. The sum of the roundings
that are left predicts the quality; how many moves it takes is then measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from ...backends.quantizers.onnxruntime import quantizable_types
from ...frontends.onnx import from_model
from ...ir.multiplications import multiplications
from ...ir.tensor import Array
from ...support.errors import EmitError
from ...support.progress import Advance
from ..verify.inputs import Feeds
from ..verify.onnx_graph import makers_of
from .candidates import OTHERS, Candidate, Candidates
from .coverage import LAYERS, Coverage, Method, Reason
from .fidelity import Fidelity, least, measure
from .goal import Goal, Reached
from .integer_limits import LIMITS
from .noise_table import first_samples, measured_noise, noises_of, power_of, ratio_of
from .preparation import WIDER
from .switchboard import Switchboard

MORE = 20
"""One part of so many of the moves is added if the model itself misses the target."""
GUESSES = 4
"""Places that follow from the prediction, before the rest is halved."""
TRIES = 5
"""Most models that are made."""


def int8_share(model: ModelProto, coverage: Sequence[Coverage]) -> float | None:
    """Return the share of the layers' multiplications that are integers, None if not known."""
    counts = _multiplications(model)
    layers = [one for one in coverage if one.is_layer]
    if not layers or any(counts.get(one.node) is None for one in layers):
        return None
    total = sum(counts[one.node] or 0 for one in layers)
    integer = sum(counts[one.node] or 0 for one in layers if one.method is not Method.FLOAT)
    return integer / total if total else None


def reach(
    candidates: Candidates,
    found: Candidate,
    goal: Goal,
    batches: Sequence[Feeds],
    advance: Advance,
) -> tuple[Candidate, Reached]:
    """Return a model that meets a goal, and how, made from a candidate that may not.

    Each rounding is measured alone on `batches`. Raises EmitError if no choice of layers meets
    the goal.
    """
    search = _Moves(candidates, found, goal, list(first_samples(batches)), advance)
    return search.result()


@dataclass(frozen=True, slots=True)
class _Move:
    """Nodes that become float, or a rounding of tensors that takes 16 bits."""

    nodes: frozenset[str] = frozenset()
    wide: int | None = None


class _Moves:
    """Finds how many moves meet a goal."""

    def __init__(
        self,
        candidates: Candidates,
        found: Candidate,
        goal: Goal,
        batches: Sequence[Feeds],
        advance: Advance,
    ) -> None:
        self.candidates, self.found, self.goal = candidates, found, goal
        self.advance = advance
        names = [node.name for node in candidates.first.model.graph.node]
        base = candidates.preparation.corrected(names).model
        types = quantizable_types()
        free = {n.name for n in base.graph.node if n.op_type in types} - found.reasons.keys()
        self.dynamic = {one.node for one in found.coverage if one.method is Method.DYNAMIC}
        self.board = Switchboard(
            base,
            found.model,
            candidates.judge.base_dir,
            free,
            self.dynamic,
            per_channel=candidates.per_channel,
        )
        self.results = [one.name for one in found.fidelity]
        self.layers = {node.name for node in base.graph.node if node.op_type in LAYERS}
        self.makers = makers_of(base.graph)
        self.costs = _costs(base)
        self.total = sum(self.costs[name] for name in self.layers)
        self.powers = measured_noise(self.board, self.results, batches, advance)
        # Steps of 16 bits, of a range that statistics make wider.
        step = (WIDER if candidates.calibration is None else 1.0) / ((2**16 - 1) / (2**8 - 1))
        self.fine_powers = self.powers * step**2
        self.spared: frozenset[int] = frozenset()
        """Roundings that keep 8 bits though a move gives them 16, as a goal does not need it."""
        widened = list(self._ordered_tensors())
        left = np.where(self._widened_rows(widened)[:, None], self.fine_powers, self.powers)
        self.moves = [*widened, *self._ordered(left, free | self.dynamic)]

    def result(self) -> tuple[Candidate, Reached]:
        """Return the model of the fewest moves that meets the goal."""
        goal, count = self.goal, len(self.moves)
        if not goal.has_quality:
            return self._made(count), self._reached(count)
        if goal.is_met(self.found.fidelity):
            return self.found, self._reached(0)
        place = self._least_place()
        if place is None:
            best = self._made(count)
        for _ in range(TRIES if place is not None else 0):
            assert place is not None
            best = self._made(place)
            if goal.is_met(best.fidelity):
                return best, self._reached(place)
            if self.spared:
                self.spared = frozenset()
                continue
            if place == count:
                break
            place = min(place + max(1, count // MORE), count)
        judge = self.candidates.judge
        said = f"the best is {_said(best.fidelity, goal)} on {judge.measured_on}"
        if goal.ratio is not None and judge.is_predicted:
            small = judge.in_float(self.board.running(()), goal.ratio)
            said = "; ".join([said, *small.values(), *([OTHERS] if small else [])])
        raise EmitError(f"the target of {goal} is not reached{goal.within}: {said}")

    def _least_place(self) -> int | None:
        """Return the number of moves from which the switchboard meets the goal, None if none.

        The next place follows from the prediction, less what this was off at the last place.
        """
        low, high = 0, len(self.moves) + 1
        place, tried = self._predicted_place(0.0), 0
        while high - low > 1:
            found = self._measure(place)
            tried += 1
            if self.goal.is_met(found):
                high = place
                self.spared = self._needless(place, found)
            else:
                low = place
            middle = (low + high) // 2
            if self.goal.ratio is not None and tried < GUESSES:
                off = ratio_of(self._predicted(place).max(initial=0.0)) - least(found)
                middle = self._predicted_place(off if np.isfinite(off) else 0.0)
            place = min(max(middle, low + 1), high - 1)
        return high if high <= len(self.moves) else None

    def _measure(self, place: int) -> list[Fidelity]:
        judge = self.candidates.judge
        self.advance(f"{place} of {len(self.moves)} moves")
        return measure(
            judge.source, self.board.running(self._on(place)), judge.source.results, judge.batches
        )

    def _needless(self, place: int, found: Sequence[Fidelity]) -> frozenset[int]:
        """Return the roundings of 16 bits that are not needed where the switchboard has `found`."""
        if self.goal.ratio is None:
            return frozenset()
        left = np.array([power_of(self.goal.ratio) - power_of(one.sqnr) for one in found])
        kept: set[int] = set()
        for i in sorted(self._wide(place, ()), key=lambda i: float(self.powers[i].max())):
            if np.all(self.powers[i] <= left):
                left = left - self.powers[i]
                kept.add(i)
        return frozenset(kept)

    def _predicted_place(self, off: float) -> int:
        """Return the number of moves whose prediction, less `off` dB, meets the goal."""
        low, high = 0, len(self.moves)
        if self.goal.ratio is None:
            return high // 2
        limit = power_of(self.goal.ratio + off)
        while low < high:
            middle = (low + high) // 2
            if self._predicted(middle).max(initial=0.0) <= limit:
                high = middle
            else:
                low = middle + 1
        return low

    def _left(self, place: int) -> dict[str, Reason]:
        """Return why nodes are float after some moves."""
        reason = Reason(f"the target of {self.goal}" if self.goal.has_quality else "--float-budget")
        made = {name: reason for move in self.moves[:place] for name in move.nodes}
        return self.candidates.with_islands({**self.found.reasons, **made})

    def _float(self, place: int) -> set[str]:
        """Return the nodes that are float after some moves."""
        made = {name for move in self.moves[:place] for name in move.nodes}
        return self._left(place).keys() - (self.dynamic - made)

    def _rounded(self, place: int) -> set[int]:
        left = self._float(place)
        return {i for i, each in enumerate(self.board.roundings) if each.is_on(left)}

    def _wide(self, place: int, spared: Collection[int]) -> set[int]:
        """Return the roundings to 16 bits after some moves, but for some of them."""
        found = {move.wide for move in self.moves[:place] if move.wide is not None}
        return (found & self._rounded(place)).difference(spared)

    def _on(self, place: int) -> set[int]:
        """Return the roundings to 8 bits after some moves: 16 bits are as good as exact."""
        return self._rounded(place) - self._wide(place, ())

    def _predicted(self, place: int, spared: Collection[int] = ()) -> Array:
        """Return the sums of the noise powers [results]."""
        wide = self._wide(place, spared)
        rows = (
            self.fine_powers[i] if i in wide else self.powers[i]
            for i in sorted(self._rounded(place))
        )
        return np.asarray(sum(rows, np.zeros(len(self.results))))

    def _made(self, place: int) -> Candidate:
        found = self.found
        if place:
            roundings = (self.board.roundings[i] for i in self._wide(place, self.spared))
            names = {name for one in roundings for name in self._with_data(one.tensors)}
            found = self.candidates.make(self._left(place), names)
        self.advance("model")
        return found

    def _with_data(self, names: Collection[str]) -> Iterator[str]:
        """Yield tensors, and those that a Min or Max limits to them: these are rounded, too."""
        for name in names:
            yield name
            maker = self.makers.get(name)
            if maker is not None and maker.op_type in LIMITS:
                yield from self._with_data([each for each in maker.input if each in self.makers])

    def _reached(self, place: int) -> Reached:
        made = (self._float(place) - self._float(0)) & self.layers
        return Reached(
            self.goal,
            ratio_of(self._predicted(place, self.spared).max(initial=0.0)),
            len(made),
            len(self.layers),
            sum(self._count(i) for i in self._wide(place, self.spared)),
            noises_of(self.board, self.powers),
        )

    def _count(self, i: int) -> int:
        return len(self.board.roundings[i].tensors)

    def _widened_rows(self, moves: Sequence[_Move]) -> Array:
        """Return whether a move gives a rounding 16 bits [roundings]."""
        found = np.zeros(len(self.powers), bool)
        found[[move.wide for move in moves if move.wide is not None]] = True
        return found

    def _ordered_tensors(self) -> Iterator[_Move]:
        """Yield the roundings that take 16 bits, the most noise for a tensor first.

        A few of them are at most the budget of all rounded tensors.
        """
        counts = np.array([self._count(i) for i in range(len(self.powers))], int)
        room = (self.goal.int16_budget or 0.0) * counts.sum()
        left = self.powers.sum(axis=0)
        places = set(np.flatnonzero(counts))
        while places:
            weights = self._weights(left) / np.where(left > 0, left, 1.0)
            gains = {i: float(self.powers[i] @ weights) / counts[i] for i in places}
            best = max(sorted(places), key=gains.__getitem__)
            places.discard(best)
            if gains[best] > 0 and counts[best] <= room:
                room -= counts[best]
                left = left - self.powers[best] + self.fine_powers[best]
                yield _Move(wide=int(best))

    def _ordered(self, powers: Array, free: set[str]) -> Iterator[_Move]:
        """Yield the nodes to make float, the most noise for a multiplication first.

        A move makes a layer float, or all that round a tensor. No move exceeds the budget. `powers`
        are those of the roundings [roundings, results].
        """
        roundings = self.board.roundings
        moves = [{one.owner} if one.owner else set(one.touching) for one in roundings]
        missing = [set(move) for move in moves]
        by_node: dict[str, list[int]] = {}
        for i, move in enumerate(moves):
            for name in move:
                by_node.setdefault(name, []).append(i)
        left = powers.sum(axis=0)
        full = np.where(left > 0, left, 1.0)
        spent = sum(self.costs[name] for name in self.layers - free)
        limit = self.goal.most_float * self.total
        while True:
            weights = self._weights(left) / full
            best, gain, freed = -1, 0.0, np.zeros(0, int)
            for i, move in enumerate(moves):
                new = move & missing[i]
                if not new or not new <= free:
                    continue
                price = sum(self.costs[name] for name in new)
                layers = sum(self.costs[name] for name in new & self.layers)
                if spent + layers > limit:
                    continue
                near = sorted({j for name in new for j in by_node[name] if missing[j] <= new})
                gained = float((powers[near].sum(axis=0) * weights).sum()) / max(price, 1)
                if gained > gain:
                    best, gain, freed = i, gained, np.array(near, int)
            if best < 0:
                return
            new = moves[best] & missing[best]
            spent += sum(self.costs[name] for name in new & self.layers)
            left = left - powers[freed].sum(axis=0)
            for name in new:
                for j in by_node[name]:
                    missing[j].discard(name)
            yield _Move(nodes=frozenset(new))

    def _weights(self, left: Array) -> Array:
        """Return what a result's noise weighs: nothing if the result meets the goal."""
        if self.goal.ratio is None:
            return np.ones_like(left)
        exceeds = left > power_of(self.goal.ratio)
        return np.asarray(exceeds if exceeds.any() else np.ones_like(left), np.float64)


def _costs(model: ModelProto) -> dict[str, int]:
    """Return the multiplications of layers, or elements of their weights, and 1 of other nodes."""
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in model.graph.initializer}
    counts = _multiplications(model)
    return {
        node.name: counts.get(node.name)
        or (max(sizes.get(name, 1) for name in node.input) if node.op_type in LAYERS else 1)
        for node in model.graph.node
    }


def _multiplications(model: ModelProto) -> Mapping[str, int | None]:
    return {node.name: multiplications(node) for node in from_model(model).graph.operators()}


def _said(found: Sequence[Fidelity], goal: Goal) -> str:
    if goal.agreement is None:
        return f"{least(found):.1f} dB"
    said = [one.agreement for one in found if one.agreement is not None]
    return f"{100 * min(said):.1f} %" if said else "no row of scores"
