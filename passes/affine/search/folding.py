"""Folding the chains of a graph: choose, write, and record why affines stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....ir.graph import Graph, Node, Value, flatten_origins
from ....ir.ops import AFFINE_KINDS
from ....ir.provenance import Refused
from ....ir.rewriter import Rewriter
from ....ir.type_inference import is_known
from ..algebra.operands import Parameters
from ..algebra.recognise import AffineOp
from .chains import Chain, ChainFinder, affine_of, is_identity
from .choice import ATTEMPTS, Choice, Chooser
from .commit import Committer


class ChainFolder:
    """Folds chains of affines with `chooser`, in the name of the pass `name`."""

    def __init__(self, rewriter: Rewriter, params: Parameters, chooser: Chooser) -> None:
        self.rewriter = rewriter
        self.module = rewriter.module
        self.chooser = chooser
        self.planner = chooser.planner
        self.finder = ChainFinder(self.module, params)
        self.committer = Committer(rewriter)

    def fold_round(self, graph: Graph) -> bool:
        """Try every chain of the graph once, and return whether anything moved.

        Chains are tried along the graph, where folding backward opens the way for the next chain,
        and then against it, where folding forward opens the way for the one before. Folding a part
        comes last, when nothing goes whole.
        """
        nodes = [node for node in graph.operators_of(AFFINE_KINDS) if "folded" not in node.attrs]
        if not nodes:
            return False
        self.planner.number(graph)
        self.finder.units = self.planner.units
        moved, left = False, []
        for firsts in self.finder.batches(nodes):
            some_moved, some_left = self._fold_each(firsts, whole=True)
            moved |= some_moved
            left += some_left
        if moved and self.chooser.goes_forward:
            self._fold_each(left[::-1], whole=True)
        if not moved:
            moved, left = self._fold_each(left, whole=False)
        return moved or self._drop_undone(left)

    def _fold_each(self, firsts: Sequence[Node], *, whole: bool) -> tuple[bool, list[Node]]:
        """Try the chain that begins at each node.

        Returns whether anything moved, and the first nodes of the chains that are left.
        """
        moved, left = False, []
        for node in firsts:
            chain = self.finder.at(node)
            if chain is None or self.rewriter.debug_counter.exhausted:
                continue
            ops = chain.ops
            if not chain.is_reduced:
                ops = self._reduce(ops)
                chain.is_reduced = len(ops) == len(chain.ops)
                moved = moved or not chain.is_reduced
            if not ops:
                continue
            label = self.rewriter.debug_counter.label(node)
            try:
                choice = self.chooser.choose(ops, whole=whole)
            except Refused as refused:
                left.append(ops[0].nodes[0])
                self.rewriter.debug_counter.decline("fold", label, refused.refusal.detail)
                for op in ops if whole else ():
                    self.module.provenance.refuse(tuple(op.origins), refused.refusal)
                continue
            moved = True
            self.finder.known.pop(node, None)
            with self.rewriter.step("fold forward" if choice.forward else "fold backward", label):
                rest = self._commit(choice, ops)
            left.extend(rest)
            self._remember_rest(rest, ops)
        return moved, left

    def _remember_rest(self, firsts: Sequence[Node], ops: list[AffineOp]) -> None:
        """Remember the rest of a long chain: only its first data changed."""
        if len(ops) <= ATTEMPTS:
            return
        for i, op in enumerate(ops):
            if op.nodes[0] in firsts:
                first = self.finder.renewed(op)
                if first is not None:
                    self.finder.known[op.nodes[0]] = chain = Chain([first, *ops[i + 1 :]])
                    chain.is_reduced = True
                return

    def _reduce(self, ops: Sequence[AffineOp]) -> list[AffineOp]:
        """Erase identities and neighbours that undo each other; return the others."""
        left: list[AffineOp] = []
        counter = self.rewriter.debug_counter
        for op in ops:
            candidates = ([op], [*left[-1:], op]) if left else ([op],)
            undone = next((each for each in candidates if is_identity(affine_of(each))), [])
            # Its data may be another value by now.
            now = self.finder.renewed(undone[0]) if undone else None
            label = counter.label(op.nodes[0]) if undone else ""
            if now is None or counter.exhausted or not self._drop(op.result, now.data, label):
                left.append(op)
                continue
            del left[len(left) - len(undone) + 1 :]
        if len(left) == len(ops):
            return left
        return [op for op in map(self.finder.renewed, left) if op is not None]

    def _drop_undone(self, firsts: Iterable[Node]) -> bool:
        """Erase affines that undo the shared one before them; return whether any did."""
        changed, counter = False, self.rewriter.debug_counter
        for node in firsts:
            chain = self.finder.at(node)
            before = None if chain is None else self.finder.before(chain)
            if chain is None or before is None or counter.exhausted:
                continue
            first, label = chain.ops[0], counter.label(node)
            undoes = is_identity(affine_of([before, first]))
            changed |= undoes and self._drop(first.result, before.data, label)
        return changed

    def _drop(self, result: Value, data: Value, label: str) -> bool:
        """Let readers of an affine that is none read its data; return whether they may."""
        with self.rewriter.step("drop identity", label):
            return self.rewriter.forward(result, data)

    def _commit(self, choice: Choice, ops: Sequence[AffineOp]) -> list[Node]:
        """Write the choice, and return the first node of the chain that is left, if one is."""
        self._note_statistics(ops)
        if choice.kept is not None:
            self._commit_into(choice.kept, choice)
            return [ops[0].nodes[0] if ops[0] is not choice.ops[0] else choice.kept.nodes[0]]
        first, last = choice.ops[0], choice.ops[-1]
        tail = last.nodes[-1]
        position = first.nodes[0].inputs.index(first.data)
        between = [op.data.name for op in choice.ops[1:]]
        recorded = self.committer.commit(
            choice.plan, tail, first.nodes[0], between, self._carried(choice.ops)
        )
        data = first.nodes[0].inputs[position]
        assert data is not None
        origins = [origin for op in choice.ops for origin in op.origins]
        partial = self.committer.records.partial
        (partial.update if choice.leftovers else partial.difference_update)(origins)
        # An operator that a chain is compacted into computes all of it, and none of its affines.
        made = self._make_leftovers(choice, data, tail, tail if recorded else None)
        new = made[-1].output if made else data
        if not choice.forward and not is_known(new.type):
            new.type = last.result.type
        layers = [change.node for change in choice.plan.changes if change.fold is not None]
        heir = layers[0] if layers else new.node
        self.rewriter.replace(
            last.result, new, take_name=not choice.forward, heir=heir if new is data else new.node
        )
        if made:
            made[-1].name = tail.name
            return made[:1]
        gone = {op.nodes[0] for op in choice.ops}
        return [op.nodes[0] for op in ops if op.nodes[0] not in gone][:1]

    def _carried(self, ops: Iterable[AffineOp]) -> dict[int, list[int]]:
        """Return, by the origin of each affine, the folded affines of which it holds a part.

        A BatchNormalization that is folded past an Add leaves its shift in the constant of the Add.
        A layer that takes the Add takes this part of the BatchNormalization, too.
        """
        folded = self.committer.records.folded
        carried: dict[int, list[int]] = {}
        for op in ops:
            ropes = tuple(node.inherited for node in op.nodes if node.inherited)
            parts = [origin for origin in flatten_origins(ropes) if origin in folded]
            if parts:
                carried[op.origins[0]] = parts
        return carried

    def _make_leftovers(
        self, choice: Choice, data: Value, tail: Node, origin: Node | None
    ) -> list[Node]:
        made = []
        with self.rewriter.rewriting(origin):
            for operator, affine in choice.leftovers:
                made.append(self.committer.leftover(operator, affine, data, tail))
                data = made[-1].output
        return made

    def _commit_into(self, kept: AffineOp, choice: Choice) -> None:
        """Let the BatchNormalization `kept` apply all affines of the choice."""
        first, last = choice.ops[0], choice.ops[-1]
        product, total = kept.nodes
        self.committer.commit(choice.plan, total, first.nodes[0])
        if first is not kept:
            self.rewriter.set_inputs(product, [first.data, *product.inputs[1:]])
        if last is not kept:
            self.rewriter.replace(last.result, total.output, take_name=True)

    def _note_statistics(self, ops: Iterable[AffineOp]) -> None:
        """Record the statistics of each affine's result if the statistics of its data are known."""
        known = self.committer.statistics
        for op in ops:
            reference = known.get(op.data)
            if reference is None or op.result in known:
                continue
            if op.axis in (None, reference.source.axis):
                known[op.result] = reference.applied(op.scale, op.shift)
