"""FoldScaleAxis: per-channel scales and shifts move into the weights and biases of the layers around them.

Invariant, backward: for a value v and an affine A along an axis, a plan is a way to make the graph compute A(v)
wherever it computed v, without an operator for A. It exists if v has no other reader and

- v is the result of a layer whose weight and bias are constant and can take A, or
- v is the result of an operator that A passes through, and there are plans for its operands.

Forward it is a way to make all readers of A(v) compute what they did from v. What each operator does with an affine
stands in one table, `passes.affine.table`.

Two phases. Planning asks every question that can fail, on the actual numbers at each point and on every branch, and
changes nothing. Committing cannot fail: it leaves the weight as `multiply(w, factor)` with a float64 factor and the
bias as a float64 constant, which FoldConstant, or the backend, computes and rounds once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ..ir.evaluate import ConstantEvaluator
from ..ir.graph import Graph, Node
from ..ir.module import Module
from ..ir.ops import sole_reader
from ..ir.provenance import Refusal
from ..ir.rewriter import Rewriter, is_known
from ..ir.tensor import round_to
from ..ir.types import dtype_of, shape_of
from ..support.errors import UsageError
from ..support.record import record
from .affine.algebra import Affine
from .affine.commit import Committer
from .affine.fold_records import fold_records
from .affine.operands import Parameters
from .affine.plan import Plan, Planner
from .affine.recognise import ARITHMETIC, AffineOp, recognise
from .affine.statistics import statistic_refs
from .infra import Pass, PassContext
from .simplify.arithmetic import CANCELLATION
from .simplify_expr import clean_up

PARTIAL = ("never", "pays", "always")

ELSEWHERE = ("no_foldable_neighbour", "graph_output", "multi_consumer", "subgraph_boundary")
"""Reasons that say that there is no layer in reach, rather than why it cannot take the affine."""

MAX_NUMBERS = 1 << 20
"""Channels that the affines of a chain may have together: many may read one parameter, and each has a copy of it."""

MAX_SEEN = 1 << 22
"""Channels of the affines of one round beyond which no more are remembered from one sweep to the next."""

BATCH = 1 << 10
"""Chains that are recognised before they are tried: enough to compute for all at once what they have in common."""

MIN_CHAIN = 8
"""Affines that are a chain whatever they hold."""

ATTEMPTS = 32
"""Beginnings and ends of a chain that are all tried where it cannot go whole; of a longer one only some are."""


@dataclass(frozen=True)
class FoldScaleAxis(Pass):
    """Fold constant per-channel affines into the layers in front of and behind them.

    1. An affine is a `multiply`, `add`, `subtract`, `divide`, `negative` or sum or mean of two with a constant that
       varies along at most one axis and does not change the data's shape, or the two nodes of a lowered
       BatchNormalization. Consecutive affines along one axis form a chain; each link has no reader but the next.
    2. A chain goes backward into the layers that produce its data, through every operator that lets it pass (the table
       in `passes.affine.table`). No value in between may have another reader, or be a result of the graph. Readers of
       the shape or dtype alone do not count.
    3. Else, with `forward`, it goes into the layers that read it, all of them, in the same way.
    4. Else its scale goes one way and its shift the other.
    5. Else a part of it goes: a beginning of the chain backward, an end of it forward, or the scale or the shift alone,
       the other staying as one `add` or `multiply`; with `partial=pays` only where operators get fewer, with `always`
       also where a BatchNormalization becomes an `add`, with `never` not at all. What then stays of a chain becomes one
       BatchNormalization if there is one in it, else one product and one sum.
    6. A fold is refused where a number is infinite or not a number, exceeds the weight's dtype, or a whole channel
       would vanish. Scales are never moved through an operator that needs their sign without testing every one.
    7. The number of operators never rises: a layer without a bias may leave one `add` in the place of an affine that
       scales. Constants grow by at most `max_growth` bytes in one fold. No layer is ever duplicated.
    8. A shift in front of a layer that pads with zeros stays (`border=keep`), becomes an explicit Pad where it is the
       same in all channels (`pad`), or a constant behind the layer, as large as its result (`map`).
    9. Weights that are dequantized at run time are left alone but with `quantized_weights`: then their scales take
       positive scales, and the integers stay.
    10. Two sums in a row that round to whole numbers, x + 1.5 * 2**23 - 1.5 * 2**23 in float32, are no affines.
    11. What only stands in the way goes first, by the rules of SimplifyExpr that remove operators and touch no affine.
    12. What stays is recorded with the reason.
    """

    name: ClassVar[str] = "FoldScaleAxis"
    forward: bool = True
    partial: str = "pays"
    border: str = "keep"
    quantized_weights: bool = False
    max_growth: int = 16 << 20

    def __post_init__(self) -> None:
        """Raises UsageError for a value that an option does not have."""
        for option, known in (("partial", PARTIAL), ("border", ("keep", "pad", "map"))):
            if getattr(self, option) not in known:
                raise UsageError(f"{self.name}: option {option} is one of {', '.join(known)}")

    def run(self, module: Module, ctx: PassContext) -> bool:
        folder = _Folder(self, module)
        for graph in module.graphs():
            folder.fold(graph)
        return folder.rewriter.changed


@record
class _Choice:
    """A plan for a chain: `steps` go, and what `stays` of them is operators with what each applies.

    `kept` is the step, a BatchNormalization, that takes the others.
    """

    plan: Plan
    steps: Sequence[AffineOp]
    stays: tuple[tuple[str, Affine], ...] = ()
    forward: bool = False
    kept: AffineOp | None = None

    @property
    def added(self) -> int:
        """Operators in the place of the steps."""
        return self.plan.added + len(self.stays) + (self.kept is not None)

    @property
    def gain(self) -> int:
        """Operators that there are less."""
        return len(self.steps) - self.added


class _Seen:
    """A chain of affines, with the state of the nodes that it was recognised from; `settled` where nothing in it does
    nothing.
    """

    __slots__ = ("chain", "settled", "state")

    def __init__(self, chain: list[AffineOp]) -> None:
        self.chain = chain
        self.settled = False
        self.state = {node: (node.inputs, node.attrs) for step in chain for node in step.nodes}

    @property
    def stands(self) -> bool:
        """Whether recognising it once more would find the same: inputs and attributes are replaced, never changed."""
        for node, (inputs, attrs) in self.state.items():
            if node.graph is None or node.inputs is not inputs or node.attrs is not attrs:
                return False
        for step in self.chain:
            if len(step.nodes) > 1 and step.nodes[0].output.sole_user() is not step.nodes[1]:
                return False
        for step, following in pairwise(self.chain):
            if sole_reader(step.result) is not following.nodes[0]:
                return False
        reader = sole_reader(self.chain[-1].result)
        return reader is None or reader.op not in ARITHMETIC


class _Folder:
    def __init__(self, options: FoldScaleAxis, module: Module) -> None:
        self.options = options
        self.module = module
        self.rewriter = Rewriter(module)
        evaluator = ConstantEvaluator(module.limits.max_constant_bytes, known=module.computed)
        self.params = Parameters(evaluator, quantized=options.quantized_weights, border=options.border)
        self.planner = Planner(self.params)
        self.committer = Committer(self.rewriter)
        self.seen: dict[Node, _Seen] = {}

    def fold(self, graph: Graph) -> None:
        """Fold every chain in `graph`, until nothing moves any more.

        Sweeps run along the graph, where folding backward opens the way for what follows, and against it, where
        folding forward opens the way for what comes before. What only gets smaller comes last. What is left is cleaned
        up before each round: two operators may be one without the affine that stood between them.
        """
        moved = True
        while moved:
            clean_up(graph, self.rewriter, self.params.evaluator)
            self.planner.number(graph)
            moved, left = False, []
            for heads in self.batches(graph):
                some_moved, some_left = self.sweep(heads, whole=True)
                moved |= some_moved
                left += some_left
            if moved and self.options.forward:
                self.sweep(left[::-1], whole=True)
            if not moved:
                moved, _ = self.sweep(left, whole=False)

    def batches(self, graph: Graph) -> Iterator[list[Node]]:
        """The first node of every chain of affines, a batch at a time: chains of one batch may be folded before the
        next is recognised. What is nearly an affine is recorded with the reason.

        Nodes that are made meanwhile wait for the next round, so that a round ends. What has been looked at is let go,
        as nodes that a fold erases should not wait in memory for the last batch.
        """
        before, self.seen = self.seen, {}
        heads: list[Node] = []
        new: list[AffineOp] = []
        visited: set[Node] = set()
        numbers = 0
        nodes = graph.nodes()[::-1]
        while nodes:
            node = nodes.pop()
            if node.op not in ARITHMETIC or node.graph is None:
                continue
            if node in visited:
                visited.remove(node)
                continue
            seen = before.pop(node, None)
            known = seen is not None and seen.stands
            if seen is None or not known:
                first = recognise(node, self.params.evaluator)
                if isinstance(first, Refusal):
                    self.module.provenance.refuse(node.origins, first)
                if not isinstance(first, AffineOp):
                    continue
                seen = _Seen(self.chain(first))
            visited.update(other for other in seen.state if other is not node)
            heads.append(node)
            numbers += sum(step.scale.size for step in seen.chain)
            if numbers <= MAX_SEEN:
                self.seen[node] = seen
                new += seen.chain if not known else ()
            if len(heads) == BATCH:
                self.prepare(new)
                yield heads
                heads, new = [], []
        self.prepare(new)
        yield heads

    def prepare(self, steps: Sequence[AffineOp]) -> None:
        """Find out together what will be asked of each step, and of the layer in front of it."""
        affines = Affine.of_each([(step.axis, step.stage) for step in steps])
        for step, affine in zip(steps, affines, strict=True):
            step.__dict__["affine"] = affine
        producers = (step.data.node for step in steps)
        self.params.measure_rows(
            weight for node in producers if node is not None and node.op == "nn.conv" and (weight := node.inputs[1])
        )

    def sweep(self, heads: Sequence[Node], *, whole: bool) -> tuple[bool, list[Node]]:
        """Try every chain once; whether anything moved, and the heads of the chains that are left."""
        moved, left = False, []
        for head in heads:
            seen = self.chain_at(head)
            if seen is None or self.rewriter.debug_counter.exhausted:
                continue
            chain = seen.chain
            if not seen.settled:
                chain = self.cancelled(chain)
                moved = moved or len(chain) < len(seen.chain)
                seen.settled = len(chain) == len(seen.chain)
            found = self.choose(chain, whole=whole) if chain else None
            if isinstance(found, _Choice):
                moved = True
                self.seen.pop(head, None)
                label = head.label
                rest = self.commit(found, chain)
                left.extend(rest)
                self.keep_rest(rest, chain)
                self.rewriter.debug_counter.note("fold forward" if found.forward else "fold backward", label)
            elif found is not None:
                left.append(chain[0].nodes[0])
                for step in chain if whole else ():
                    self.module.provenance.refuse(tuple(step.origins), found)
        return moved, left

    def keep_rest(self, heads: Sequence[Node], chain: list[AffineOp]) -> None:
        """Remember what is left of a long chain, of which only the first affine reads something else now."""
        if len(chain) <= ATTEMPTS:
            return
        for i, step in enumerate(chain):
            if step.nodes[0] in heads:
                first = self.renewed(step)
                if first is not None:
                    self.seen[step.nodes[0]] = seen = _Seen([first, *chain[i + 1 :]])
                    seen.settled = True
                return

    def chain_at(self, head: Node) -> _Seen | None:
        """The chain that begins at `head`, as it is now."""
        seen = self.seen.get(head)
        if seen is not None and seen.stands:
            return seen
        self.seen.pop(head, None)
        first = recognise(head, self.params.evaluator) if head.graph is not None else None
        return _Seen(self.chain(first)) if isinstance(first, AffineOp) else None

    def chain(self, first: AffineOp) -> list[AffineOp]:
        """The affines that follow `first`, each the only reader of the one before, as many as have so few numbers that
        they can be held at once; the next sweep joins what becomes of them.
        """
        chain, axis, size = [first], first.axis, first.scale.size
        while len(chain) < MIN_CHAIN or size <= MAX_NUMBERS:
            reader = sole_reader(chain[-1].result)
            if reader is None or reader.graph is not first.nodes[0].graph:
                return chain
            step = recognise(reader, self.params.evaluator)
            if not isinstance(step, AffineOp) or step.data is not chain[-1].result:
                return chain
            if axis is not None and step.axis is not None and step.axis != axis:
                return chain
            axis = step.axis if axis is None else axis
            chain.append(step)
            size += step.scale.size
        return chain

    def cancelled(self, chain: Sequence[AffineOp]) -> list[AffineOp]:
        """The chain without steps that do nothing and neighbours that undo each other, which are erased."""
        left: list[AffineOp] = []
        for step in chain:
            parts = ([step], [*left[-1:], step]) if left else ([step],)
            undone = next((part for part in parts if is_identity(affine_of(part))), [])
            now = self.renewed(undone[0]) if undone else None  # what it reads may have changed
            if now is None or not self.rewriter.forward(step.result, now.data):
                left.append(step)
                continue
            self.note_merged(undone)
            del left[len(left) - len(undone) + 1 :]
        if len(left) == len(chain):
            return left
        return [step for step in map(self.renewed, left) if step is not None]

    def renewed(self, step: AffineOp) -> AffineOp | None:
        found = recognise(step.nodes[0], self.params.evaluator) if step.nodes[0].graph is not None else None
        return found if isinstance(found, AffineOp) else None

    def choose(self, chain: Sequence[AffineOp], *, whole: bool) -> _Choice | Refusal:
        """The cheapest way to fold the chain, or why there is none."""
        affine = affine_of(chain)
        tries = self.whole(chain, affine) if whole else self.parts(chain, affine)
        best: _Choice | None = None
        refusals: list[Refusal] = []
        for found in tries:
            found = self.cost(found) if isinstance(found, _Choice) else found
            if isinstance(found, Refusal):
                refusals.append(found)
            elif best is None or found.gain > best.gain:
                best = found
            if best is not None and best.gain == len(chain):
                break
        return best or _summary(refusals)

    def whole(self, chain: Sequence[AffineOp], affine: Affine) -> Iterable[_Choice | Refusal]:
        """The ways in which nothing of the chain stays."""
        data, result, reader = chain[0].data, chain[-1].result, chain[0].nodes[0]
        if not affine.is_finite:
            yield Refusal("nonfinite", f"%{chain[0].result.name}: a scale or shift is infinite or not a number")
            return
        plan = self.planner.backward(data, reader, affine)
        yield plan if isinstance(plan, Refusal) else _Choice(plan, chain)
        if not self.options.forward:
            return
        ahead = self.planner.forward(result, affine)
        yield ahead if isinstance(ahead, Refusal) else _Choice(ahead, chain, forward=True)
        if not (affine.has_scale and affine.has_shift):
            return
        back = self.planner.backward(data, reader, affine.only_scale())
        if not isinstance(back, Refusal):
            ahead = self.planner.forward(result, affine.only_shift())
            yield ahead if isinstance(ahead, Refusal) else _Choice(back.joined(ahead), chain, forward=True)
        before = affine.shift_before()
        if before.is_finite:
            ahead = self.planner.forward(result, affine.only_scale())
            if not isinstance(ahead, Refusal):
                back = self.planner.backward(data, reader, before)
                yield back if isinstance(back, Refusal) else _Choice(back.joined(ahead), chain, forward=True)

    def parts(self, chain: Sequence[AffineOp], affine: Affine) -> Iterable[_Choice | Refusal]:
        """The ways in which something of the chain stays, or goes into what stays in front of it."""
        data, reader = chain[0].data, chain[0].nodes[0]
        for length in _lengths(len(chain)):
            beginning = affine_of(chain[:length])
            if beginning.is_finite:
                plan = self.planner.backward(data, reader, beginning)
                yield plan if isinstance(plan, Refusal) else _Choice(plan, chain[:length])
        for length in _lengths(len(chain)) if self.options.forward else ():
            end = affine_of(chain[-length:])
            if end.is_finite:
                plan = self.planner.forward(chain[-1].result, end)
                yield plan if isinstance(plan, Refusal) else _Choice(plan, chain[-length:], forward=True)
        yield from self.scale_or_shift(chain, affine)
        if len(chain) > 1 and affine.is_finite and fits(affine, chain[-1]):
            yield self.compact(chain, affine)

    def compact(self, chain: Sequence[AffineOp], affine: Affine) -> _Choice | Refusal:
        """The chain as one BatchNormalization if there is one in it, else as one product and one sum.

        What shifts the data before they are scaled goes on doing so: the sum of two large numbers that nearly cancel
        is exact, that of their products is not, and may overflow.
        """
        late = Refusal("bias_slot", f"%{chain[0].result.name}: it shifts the data before they are scaled")
        place = next((i for i, step in enumerate(chain) if step.mean is not None), None)
        if place is not None:
            part = chain if not affine_of(chain[:place]).has_shift else chain[place:]
            return self.into_batch_norm(part, chain[place]) if len(part) > 1 else late
        if not cancels_nothing(chain, affine):
            return late
        scale = (("multiply", affine.only_scale()),) if affine.has_scale else ()
        shift = (("add", affine.only_shift()),) if affine.has_shift else ()
        data = chain[0].data
        if shape_of(data.type) is None and affine.axis is not None:
            return Refusal("unknown_rank", f"%{data.name}: the rank is unknown")
        return _Choice(Plan(), chain, (*scale, *shift), forward=not scale and not shift)

    def into_batch_norm(self, chain: Sequence[AffineOp], kept: AffineOp) -> _Choice | Refusal:
        """The BatchNormalization `kept` with the parameters that make it do what the chain around it does."""
        own, affine = affine_of([kept]), affine_of(chain)
        scale = np.where(own.scale == 0, 1.0, affine.scale / np.where(own.scale == 0, 1.0, own.scale))
        origins = [origin for step in chain if step is not kept for origin in step.origins]
        rest = Affine.joined(kept.axis, scale, affine.shift - scale * own.shift, origins)
        change = self.planner.into(kept.result, rest)
        return change if isinstance(change, Refusal) else _Choice(Plan([change]), chain, kept=kept)

    def scale_or_shift(self, chain: Sequence[AffineOp], affine: Affine) -> Iterable[_Choice | Refusal]:
        """The scale goes and an `add` stays, or the shift goes and a `multiply` stays."""
        data, result, reader = chain[0].data, chain[-1].result, chain[0].nodes[0]
        rank_known = affine.axis is None or shape_of(data.type) is not None
        both = affine.is_finite and affine.has_scale and affine.has_shift
        if self.options.partial == "never" or not both or not rank_known or not fits(affine, chain[-1]):
            return
        before = affine.shift_before()
        plan = self.planner.backward(data, reader, affine.only_scale())
        yield plan if isinstance(plan, Refusal) else _Choice(plan, chain, (("add", affine.only_shift()),))
        if self.options.forward and before.is_finite:
            plan = self.planner.forward(result, affine.only_scale())
            yield plan if isinstance(plan, Refusal) else _Choice(plan, chain, (("add", before),), forward=True)
        if len(chain) == 1:
            return
        scale = (("multiply", affine.only_scale()),)
        if before.is_finite:
            plan = self.planner.backward(data, reader, before)
            yield plan if isinstance(plan, Refusal) else _Choice(plan, chain, scale)
        if self.options.forward:
            plan = self.planner.forward(result, affine.only_shift())
            yield plan if isinstance(plan, Refusal) else _Choice(plan, chain, scale, forward=True)

    def cost(self, choice: _Choice) -> _Choice | Refusal:
        """Rule 7: operators must not rise in number, nor constants beyond the bound."""
        growth, removed = choice.plan.growth(), len(choice.steps)
        first = choice.steps[0].nodes[0]
        if not choice.plan.is_sound:
            return Refusal("multi_consumer", f"{first.label}: an operator would have to change on two paths that meet")
        if growth > self.options.max_growth:
            return Refusal(
                "constant_growth",
                f"{first.label}: constants grow by {growth} bytes, max_growth={self.options.max_growth}",
            )
        if choice.added < removed:
            return choice
        wanted = choice.kept is None and (not choice.stays or self.options.partial == "always")
        if choice.added == removed and wanted and choice.plan.changes and affine_of(choice.steps).has_scale:
            return choice  # a sum in the place of a product and a sum
        return Refusal("bias_slot", f"{first.label}: {choice.added} operators would stand in the place of {removed}")

    def commit(self, choice: _Choice, chain: Sequence[AffineOp]) -> list[Node]:
        """Write the choice; the heads of the chains that are left of this one."""
        if choice.kept is not None:
            self.note_statistics(chain)
            self.commit_into(choice.kept, choice)
            return [chain[0].nodes[0] if chain[0] is not choice.steps[0] else choice.kept.nodes[0]]
        self.note_statistics(chain)
        first, last = choice.steps[0], choice.steps[-1]
        tail = last.nodes[-1]
        place = first.nodes[0].inputs.index(first.data)
        between = [step.data.name for step in choice.steps[1:]]
        recorded = self.committer.commit(choice.plan, tail, first.nodes[0], between)
        data = first.nodes[0].inputs[place]
        assert data is not None
        self.note_merged([step for step in choice.steps if not recorded.intersection(step.origins)])
        origins = [origin for step in choice.steps for origin in step.origins]
        partial = fold_records(self.module).partial
        (partial.update if choice.stays else partial.difference_update)(origins)
        new, made = data, []
        with self.rewriter.rewriting(tail):
            for op, affine in choice.stays:
                made.append(self.committer.leftover(op, affine, new, tail))
                new = made[-1].output
        if not choice.forward and not is_known(new.type):
            new.type = last.result.type
        heir = next((change.node for change in choice.plan.changes if change.fold is not None), new.node)
        self.rewriter.replace(last.result, new, take_name=not choice.forward, heir=heir if new is data else new.node)
        gone = {step.nodes[0] for step in choice.steps}
        rest = [step.nodes[0] for step in chain if step.nodes[0] not in gone][:1]
        if made:
            made[-1].name = tail.name
        return made[:1] or rest

    def commit_into(self, kept: AffineOp, choice: _Choice) -> None:
        """Let the BatchNormalization `kept` do what the steps of the choice did."""
        first, last = choice.steps[0], choice.steps[-1]
        product, total = kept.nodes
        self.committer.commit(choice.plan, total, first.nodes[0])
        self.note_merged([step for step in choice.steps if step is not kept])
        if first is not kept:
            self.rewriter.set_inputs(product, [first.data, *product.inputs[1:]])
        if last is not kept:
            self.rewriter.replace(last.result, total.output, take_name=True)

    def note_statistics(self, chain: Iterable[AffineOp]) -> None:
        """What is known of the data of an affine tells what is known of its result."""
        known = statistic_refs(self.module)
        for step in chain:
            clue = known.get(step.data)
            if clue is not None and step.result not in known and step.axis in (None, clue.source.axis):
                known[step.result] = clue.applied(step.scale, step.shift)

    def note_merged(self, steps: Iterable[AffineOp]) -> None:
        """Record that affines went into other constants than those of a layer."""
        for step in steps:
            for node in step.nodes:
                self.module.provenance.merged.append((node.origins, self.options.name))
            self.committer.merged.update(dict.fromkeys(step.origins, self.options.name))


def _summary(refusals: Sequence[Refusal]) -> Refusal:
    """One refusal for all ways that were tried: the first, or one that says more than that nothing is there."""
    if not refusals:
        return Refusal("no_foldable_neighbour", "no part of it can go anywhere")
    first = refusals[0]
    if first.code == "no_foldable_neighbour":
        first = next((refusal for refusal in refusals if refusal.code not in ELSEWHERE), first)
    return replace(first, notes=tuple(dict.fromkeys(note for refusal in refusals for note in refusal.notes)))


def _lengths(count: int) -> Iterable[int]:
    """Lengths of the beginnings of a chain that are tried, the longest first."""
    return range(count - 1, 0, -1) if count <= ATTEMPTS else (count >> i for i in range(1, count.bit_length()))


def fits(affine: Affine, step: AffineOp) -> bool:
    """Whether scale and shift, and the shift divided by the scale, can stand as constants beside the data."""
    dtype = dtype_of(step.result.type)
    if dtype is None or not dtype.is_float:
        return False
    arrays = [affine.scale, affine.shift, affine.shift_before().shift]
    rounded = [round_to(array, dtype).astype(np.float64) for array in arrays]
    pairs = zip(arrays, rounded, strict=True)
    return all(bool(((np.isfinite(b) | ~np.isfinite(a)) & ((b != 0) | (a == 0))).all()) for a, b in pairs)


def is_identity(affine: Affine) -> bool:
    """Whether the affine does nothing."""
    return not affine.has_scale and not affine.has_shift


def cancels_nothing(chain: Sequence[AffineOp], affine: Affine) -> bool:
    """Whether scale * x + shift is as good as the chain: it scales first, and no shifts cancel on the way."""
    if not (affine.has_scale and affine.has_shift) or not affine_of(chain[:1]).has_scale:
        return is_identity(affine)
    total, greatest = np.zeros(()), np.zeros(())
    for step in chain:
        moved = step.stage.apply(total)
        greatest = np.maximum(greatest * np.abs(step.scale), np.abs(moved))
        total = moved
    return bool((np.abs(total) >= CANCELLATION * greatest).all())


def affine_of(chain: Sequence[AffineOp]) -> Affine:
    """The affine that the steps of a chain make together."""
    if len(chain) == 1:
        return chain[0].affine
    axis = next((step.axis for step in chain if step.axis is not None), None)
    return Affine.of(axis, [step.stage for step in chain])
