"""The driver of rewrite rules: every pass that rewrites node by node uses it.

A rule edits the graph at one node, or declines. The driver asks the debug counter before each rule,
counts and traces each attempt, and has the Rewriter stamp new nodes with the origins of the node
that is rewritten. Without counter and trace it is

    for node in graph.operators():
        for rule in rules.get(node.op, ()):
            if rule(node, rewriter, context):
                break

until no rule applies.

Speed: the loop runs over all nodes in every pass, and most nodes have no rule that could apply. So

- `run` calls nothing for a node whose operator has no rules;
- a rule says which operators must compute an operand (`reads`), and whether it skips floats: the
  driver does not try it elsewhere (`_Tried`), unless somebody watches;
- `_apply` sets `Rewriter.root` itself: a context would cost more than most rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from ..support.errors import PassError
from .graph import ONNX_NAMES, Graph, Node
from .ops import op_info
from .provenance import Declined
from .record import Record
from .rewriter import Rewriter
from .types import dtype_of

C = TypeVar("C", contravariant=True)
"""The context of a pass, which its rules get: an evaluator of constants, as a rule."""

AffineEffect = Literal["untouched", "merges", "obstructs"]
"""The effect of a rule on affines.

- `untouched`: no affine goes or changes, and nothing new comes between an affine and a layer.
- `merges`: an affine may go, or become part of another operator.
- `obstructs`: no affine goes, but a fold may need an operator that the rule removes.
"""

ANY = "*"
"""Stands for every operator in a table of rules that has no row of its own."""

MAX_NAMED = 3
"""Most operators that a reason names."""

ROUNDS = 64
"""Rounds over a graph before rules are taken to run in circles; chains collapse in one."""


class Rule(Record, Generic[C]):
    """A rewrite at one node: `apply` edits the graph and returns True, or declines.

    It declines before any change, with a reason: it returns `Rewriter.decline(reason)`, or raises
    Declined.

    `name` is the function's. The first line of its docstring is the rewrite. With `reads`, the rule
    is tried only if one of these operators computes an operand, with `skips_floats` only if the
    first result is not of floats. `identity` is the identity that it applies: docs/proofs.md.
    """

    name: str
    apply: Callable[[Node, Rewriter, C], bool]
    affine: AffineEffect
    reads: frozenset[str] | None = None
    skips_floats: bool = False
    identity: str = ""

    def __call__(self, node: Node, rewriter: Rewriter, context: C) -> bool:
        """Apply the rule without a driver."""
        return self.apply(node, rewriter, context)


Rules = Mapping[str, Sequence[Rule[C]]]
"""The rules for each operator, in the order in which they are tried."""


def rule(
    *,
    affine: AffineEffect,
    reads: Iterable[str] | None = None,
    skips_floats: bool = False,
    identity: str = "",
) -> Callable[[Callable[[Node, Rewriter, C], bool]], Rule[C]]:
    """Make a rule of a function.

    Declare its effect on affines, the nodes at which it is tried, and its identity: see `Rule`.
    """
    operands = None if reads is None else frozenset(reads)
    return lambda function: Rule(
        function.__name__, function, affine, operands, skips_floats, identity
    )


@rule(affine="untouched")
def erase_unread(node: Node, rewriter: Rewriter, context: object) -> bool:
    """op(x) -> nothing, if nobody reads a result"""
    info = op_info(node.op)
    if info is None or not info.is_erasable or node.op == "constant" or node.is_read:
        return rewriter.decline(
            "a result of it is read, or it may have an effect beyond its results"
        )
    rewriter.erase(node)
    return True


class _Tried(Generic[C]):
    """The `rules` of one operator, and whether they are tried `everywhere`, or at some nodes."""

    __slots__ = ("_reads", "_skips_floats", "everywhere", "rules")

    def __init__(self, rules: Sequence[Rule[C]]) -> None:
        self.rules = rules
        others = [each for each in rules if each.reads is None]
        self.everywhere = not all(each.skips_floats for each in others)
        self._skips_floats = bool(others)
        self._reads = frozenset[str]().union(
            *[each.reads for each in rules if each.reads is not None]
        )

    def is_tried_at(self, node: Node) -> bool:
        """Return whether `node` has an operand that a rule reads, or a result as rules want."""
        if self._skips_floats and not _is_of_floats(node):
            return True
        reads = self._reads
        for value in node.inputs:
            if value is not None and value.node is not None and value.node.op in reads:
                return True
        return False


class RuleDriver(Generic[C]):
    """Applies `rules` with one Rewriter.

        driver = RuleDriver(rewriter, {"cast": (drop_cast,)}, module.constants)
        driver.to_fixpoint(module.graph)

    With `erase_dead`, pure in-house operators that nobody reads go before any rule is tried at
    them. `before_node` is called with a node and the context before the rules are tried at it, once
    something was changed, and `before_round` after a round that changed something.
    """

    def __init__(
        self,
        rewriter: Rewriter,
        rules: Rules[C],
        context: C,
        *,
        erase_dead: bool = False,
        before_node: Callable[[Node, C], None] | None = None,
        before_round: Callable[[], None] | None = None,
    ) -> None:
        self.rewriter = rewriter
        self.context = context
        self._rules = rules
        self._any = rules.get(ANY, ())
        self._erase_dead = erase_dead
        self._before_node = before_node
        self._before_round = before_round
        self._counter = rewriter.debug_counter
        self._is_watched = False
        self._tried: dict[str, _Tried[C]] = {}
        """The rules of each operator that was met, with the places where they are tried."""

    def to_fixpoint(self, graph: Graph) -> None:
        """Visit the operators of `graph`, but no constants, until no rule applies.

        Raises PassError if the rules run in circles.
        """
        for _ in range(ROUNDS):
            if not self.run(graph.operators()):
                return
            if self._before_round is not None:
                self._before_round()
        raise PassError(f"the rewrites do not come to an end in graph {graph.name!r}")

    def run(self, nodes: Iterable[Node]) -> bool:
        """Visit the nodes in order; return whether anything was rewritten."""
        changed = False
        before_node, context = self._before_node, self.context
        known, erase_dead = self._tried, self._erase_dead
        is_watched = self._is_watched = self._counter.is_watched
        is_old = self.rewriter.changed
        for node in nodes:
            if node.graph is None:  # a rule has erased it
                continue
            if is_old and before_node is not None:
                before_node(node, context)
            op = node.op
            tried = known.get(op)
            if tried is None:
                tried = known[op] = _Tried(self._rules.get(op, self._any))
            rules = tried.rules
            # The first result decides for nearly all nodes, without a walk over the others.
            if erase_dead and not (node.outputs and node.output.users) and not node.is_read:
                rules = (erase_unread, *rules)
            elif not rules or not (tried.everywhere or is_watched or tried.is_tried_at(node)):
                continue
            if self._apply(rules, node):
                changed = is_old = True
        return changed

    def _apply(self, rules: Sequence[Rule[C]], node: Node) -> bool:
        """Apply the first of `rules` that does not decline, and return whether there was one."""
        rewriter, context, counter = self.rewriter, self.context, self._counter
        if counter.limit is not None and counter.exhausted:
            return False
        outer, rewriter.root = rewriter.root, node
        trace = counter.trace
        label = counter.label(node) if self._is_watched else ""
        operands = is_of_floats = None
        try:
            for each in rules:
                if each.skips_floats:
                    if is_of_floats is None:
                        is_of_floats = _is_of_floats(node)
                    if is_of_floats:
                        if trace is not None:
                            trace(label, each.name, "its result is of floats")
                        continue
                if each.reads is not None:
                    if operands is None:
                        operands = {value.node.op for value in node.inputs if value and value.node}
                    if each.reads.isdisjoint(operands):
                        if trace is not None:
                            trace(label, each.name, _not_read(each.reads))
                        continue
                rewriter.rule = each.name
                try:
                    applied = each.apply(node, rewriter, context)
                except Declined as declined:
                    applied = rewriter.decline(declined.reason)
                if applied:
                    counter.note(each.name, label)
                    rewriter.take_reason()  # of an attempt inside the rule
                    return True
                if trace is not None:
                    trace(label, each.name, rewriter.take_reason())
        finally:
            rewriter.root, rewriter.rule = outer, ""
        return False


def _is_of_floats(node: Node) -> bool:
    """Return whether the first result of `node` is a tensor of floats."""
    dtype = dtype_of(node.outputs[0].type) if node.outputs else None
    return dtype is not None and dtype.is_float


def _not_read(ops: frozenset[str]) -> str:
    names = sorted({ONNX_NAMES.get(op, op) for op in ops})
    return f"it reads no result of {', '.join(names[:MAX_NAMED])}" + (
        " or the like" if len(names) > MAX_NAMED else ""
    )
