"""Ranks that a value cannot have, as some operator that reads it fails on them in every run."""

from __future__ import annotations

from collections.abc import Set

from ...ir.evaluate import ConstantEvaluator
from ...ir.graph import Graph, Node, Value
from ...ir.ops import has_trait
from ...ir.ops.inference import are_distinct
from ...ir.ops.row import Trait
from ...ir.types import shape_of

RECURRENT = ("gru", "lstm", "rnn")
RECURRENT_RANK = 3
"""The rank of the data of a recurrent operator. Runtimes refuse any other."""

MAX_VALUES = 64
"""Most values that are followed from the one in question."""

Ranks = frozenset[int]


def must_fail(value: Value, rank: int, evaluator: ConstantEvaluator) -> bool:
    """Return whether every run fails in which `value` has `rank`. O(nodes) if so, else O(1).

    The ranks that values may have are followed forward from it, both branches of an If taken for
    possible. A recurrent operator must get one of them that it does not take. It counts only if it
    is computed whenever `value` is, and if a result of the model needs it: a runtime may leave out
    all others.
    """
    known: dict[Value, Ranks] = {value: frozenset((rank,))}
    always = set(value.graph.ancestors())
    stack = [value]
    while stack and len(known) < MAX_VALUES:
        top = stack.pop()
        for reader in top.users:
            data = reader.op in RECURRENT and reader.operand() is top
            is_impossible = data and RECURRENT_RANK not in known[top]
            if is_impossible and reader.graph in always and _is_needed(reader):
                return True
            for result, ranks in _ranks_of(reader, top, known, evaluator):
                if result not in known:
                    known[result] = ranks
                    stack.append(result)
    return False


def _ranks_of(
    reader: Node, value: Value, known: dict[Value, Ranks], evaluator: ConstantEvaluator
) -> list[tuple[Value, Ranks]]:
    """Return results of `reader`, or of the If that returns `value`, with known ranks."""
    if reader.op == "return":
        branch = reader.graph
        choice = None if branch is None else branch.parent
        if branch is None or choice is None or choice.op.rpartition("::")[2] != "If":
            return []
        return [
            (choice.outputs[i], ranks)
            for i, result in enumerate(branch.outputs)
            if result is value
            and i < len(choice.outputs)
            and (ranks := _of_branches(choice, i, known)) is not None
        ]
    shift = _added_axes(reader, evaluator)
    if shift is None or reader.operand() is not value:
        return []
    return [(reader.output, frozenset(rank + shift for rank in known[value] if rank + shift >= 0))]


def _of_branches(choice: Node, index: int, known: dict[Value, Ranks]) -> Ranks | None:
    """Return the ranks that a result of an If may have, None if a branch has unknown ones."""
    found: set[int] = set()
    for branch in choice.regions:
        results = branch.outputs
        ranks = _ranks(results[index], known) if index < len(results) else None
        if ranks is None:
            return None
        found |= ranks
    return frozenset(found)


def _ranks(value: Value, known: dict[Value, Ranks]) -> Set[int] | None:
    if value in known:
        return known[value]
    shape = shape_of(value.type)
    return None if shape is None else {len(shape)}


def _added_axes(node: Node, evaluator: ConstantEvaluator) -> int | None:
    """Return how many axes the result of `node` has more than its first operand."""
    if len(node.outputs) != 1 or not node.inputs or node.inputs[0] is None:
        return None
    if node.op == "identity" or (has_trait(node, Trait.ELEMENTWISE) and len(node.inputs) == 1):
        return 0
    if node.op in ("expand_dims", "squeeze") and len(node.inputs) == 2:
        axes = evaluator.array(node["axes"])
        if axes is None:
            return None
        if node.op == "expand_dims":
            return axes.size
        # A Squeeze may list an axis twice, also once from either end. Runtimes disagree on one that
        # lists none.
        if are_distinct(axes.ravel().tolist()):
            return -axes.size
    return None


def _is_needed(node: Node) -> bool:
    """Return whether a result of the outermost graph depends on `node`."""
    seen: set[Node] = {node}
    stack = [node]
    while stack:
        for value in stack.pop().outputs:
            for reader in value.users:
                user: Node | None = reader
                if reader.op == "return":
                    graph: Graph | None = reader.graph
                    if graph is None or graph.parent is None:
                        return graph is not None
                    user = graph.parent
                if user is not None and user not in seen:
                    seen.add(user)
                    stack.append(user)
    return False
