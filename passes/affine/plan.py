"""Plans: where an affine can go, decided without changing anything.

Backward, every branch of the region between a value and the layers in front of it must take its part; nothing in it
may have a second reader. Forward all readers must take the affine, and so on behind each operator that it passes.
Branches may meet again, behind a Split or forward; a plan that would change a node twice is not sound, and is not
written. A region may be deep, so neither search recurses.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.ops import op_info, reads_elements, sole_reader
from ...ir.provenance import Refusal
from ...ir.tensor import round_to, to_float64
from ...ir.types import dtype_of, shape_of
from ...support.record import record, replaced
from .algebra import MAX_EXTENT, Affine
from .layers import Fold
from .operands import Parameters
from .recognise import batch_norm_of
from .table import affine_rule
from .transfer import Transfer

Path = tuple[Node, "Path | None"]
"""The operators that an affine has passed, the last one first."""

MAX_REGION = 256
"""Operators that one search looks at: every affine may search the same region."""

EFFORT = 1 << 21
"""What all searches of a planner may cost together, beyond OWN_EFFORT for each: a unit takes about a microsecond."""

OWN_EFFORT = 100
"""More than a search needs that finds a layer nearby."""

OPERATOR_EFFORT = 20
"""What looking at an operator costs, but for its operands and results, one each, and its channels, one for 64."""

MAX_NESTING = 8
"""MatMuls in a row whose shifts are pushed on; behind more of them an `add` stays."""


@record
class Change:
    """One node of a plan: it becomes what `fold` or `carry` says; `value` is the one that means something else then.

    `lacks` is an affine that a layer's result had and those who read it have to add.
    """

    node: Node
    value: Value
    direction: str
    fold: Fold | None = None
    carry: Transfer | None = None
    path: Path | None = None
    lacks: Affine | None = None

    @property
    def crossed(self) -> list[Node]:
        """The operators between the affine and this node, from the affine on."""
        found, path = [], self.path
        while path is not None:
            found.append(path[0])
            path = path[1]
        return found[::-1]


@dataclass(slots=True)
class Plan:
    """Changes that together make an affine disappear, and what they cost."""

    changes: list[Change] = field(default_factory=list)

    @property
    def added(self) -> int:
        """Operators that the plan adds: what a layer cannot take of a shift is added behind it, or padded in front."""
        folds = [change.fold for change in self.changes if change.fold is not None]
        return sum((fold.shift is not None) + (fold.padding is not None) for fold in folds)

    def growth(self) -> int:
        """Bytes of constants that the plan adds: copies of weights that others read too, and larger constants."""
        return sum(map(_growth, self.changes))

    @property
    def is_sound(self) -> bool:
        """Whether no node is to change twice: each change is computed from the node as it is."""
        return len({change.node for change in self.changes}) == len(self.changes)

    def joined(self, other: Plan) -> Plan:
        """Both plans."""
        return Plan([*self.changes, *other.changes])


def _growth(change: Change) -> int:
    total = 0
    if change.fold is not None:
        fold = change.fold
        old = _stored(fold.weight, change.node)
        if fold.factor is not None and old is None:
            total += fold.weight_bytes
        for array in (fold.bias, fold.shift):
            total += 0 if array is None else array.size * fold.dtype.bits // 8
    for index, array in change.carry.constants if change.carry is not None else ():
        value = change.node.input(index)
        dtype = dtype_of(change.node.output.type)
        total += array.size * (32 if dtype is None else dtype.bits) // 8
        total -= (None if value is None else _stored(value, change.node)) or 0
    return total


def _stored(value: Value, reader: Node) -> int | None:
    """Bytes of the constant that goes when `reader` does without `value`, None where nothing does."""
    if value.sole_user() is not reader or value.node is None or value.node.op != "constant":
        return None
    return int(value.node.attrs["value"].nbytes)  # type: ignore[union-attr]


Request = tuple[Value, Node, Affine, "Path | None"]
Search = Generator[Request, "Refusal | None", "Refusal | None"]


class Planner:
    """Finds plans. It reads the graph as it is at each question, and remembers nothing but weights' magnitudes."""

    def __init__(self, params: Parameters) -> None:
        self.params = params
        self._trail: list[Change] = []
        self._visited = 0
        self._left = EFFORT
        self._places: dict[Node, float] = {}
        self._unnumbered: Graph | None = None

    def backward(self, value: Value, reader: Node, affine: Affine) -> Plan | Refusal:
        """A plan that makes `value`, as `reader` reads it, its affine. O(region)."""
        self._trail, self._visited = [], 0
        self._left += OWN_EFFORT
        refusal = self._run((value, reader, affine, None))
        return refusal or Plan(self._trail)

    def _run(self, request: Request) -> Refusal | None:
        stack = [self._take(*request)]
        answer: Refusal | None = None
        started = False
        while stack:
            try:
                following = stack[-1].send(answer if started else None)
            except StopIteration as stop:
                answer, started = stop.value, True
                stack.pop()
            else:
                stack.append(self._take(*following))
                answer, started = None, False
        return answer

    def _take(self, value: Value, reader: Node, affine: Affine, path: Path | None) -> Search:
        """Let the node of `value` take the affine, and put what that takes on the trail."""
        refusal = barrier(value, reader)
        node = value.node
        if refusal is None and node is None:
            refusal = Refusal("no_foldable_neighbour", f"%{value.name} is an input of the graph")
        if refusal is None and self.params.evaluator.tensor(value) is not None:
            refusal = Refusal("no_foldable_neighbour", f"%{value.name} is a constant")
        if refusal is None and node is not None:
            refusal = self._spend(node, affine) or _needs_one_axis(node, affine)
            refusal = refusal or too_wide(node) or disagrees(value, affine)
        if refusal is not None or node is None:
            return _told(refusal, path)
        fold = self._absorbed(node, affine) if value.index == 0 else None
        if isinstance(fold, Fold):
            self._trail.append(Change(node, value, "backward", fold=fold, path=path))
            return None
        rule = affine_rule(node.op).backward
        self._visited += 1
        if self._visited > MAX_REGION:
            return _told(
                Refusal("no_foldable_neighbour", f"more than {MAX_REGION} operators would have to change"), path
            )
        if fold is not None or rule is None:
            return _told(fold or Refusal("no_foldable_neighbour", f"{node.label} in front of it absorbs nothing"), path)
        ways = rule(node, value.index, affine, self.params)
        if isinstance(ways, Refusal):
            return _told(ways, path)
        mark, first = len(self._trail), None
        for way in ways:
            answer = _overflow(node, way)
            if answer is not None:
                first = first or _told(answer, path)
                continue
            self._trail.append(Change(node, value, "backward", carry=way, path=path))
            for index, part in way.operands:
                operand = node.inputs[index]
                assert operand is not None
                if part.has_scale or part.has_shift:
                    answer = yield operand, node, part, (node, path)
                if answer is not None:
                    break
            if answer is None:
                return None
            first = first or answer
            del self._trail[mark:]
        return first

    def into(self, value: Value, affine: Affine) -> Change | Refusal:
        """The change that makes the layer or BatchNormalization with the result `value` do its `affine`, too, for
        whoever reads it.
        """
        assert value.node is not None
        fold = self._absorbed(value.node, affine)
        assert fold is not None
        return fold if isinstance(fold, Refusal) else Change(fold.node, value, "backward", fold=fold)

    def _absorbed(self, node: Node, affine: Affine) -> Fold | Refusal | None:
        """The fold of a layer, or of a BatchNormalization that stays; None where the node is neither."""
        absorb = affine_rule(node.op).absorb_result
        if absorb is not None:
            return absorb(node, affine, self.params)
        parameters = _batch_norm_parameters(node)
        if parameters is None:
            return None
        found = batch_norm_of(node)
        absorb = affine_rule("nn.batch_norm_to_affine").absorb_result
        assert absorb is not None
        if found is None or any(output.sole_user() is None for output in parameters.outputs):
            return Refusal("no_foldable_neighbour", f"{node.label} is half of a BatchNormalization")
        return absorb(parameters, affine, self.params)

    def forward(self, value: Value, affine: Affine) -> Plan | Refusal:
        """A plan that lets all readers of `value` read x, where `value` is the affine of x. O(region)."""
        self._left += OWN_EFFORT
        found = self._forward(value, affine, 0)
        if isinstance(found, Plan) and not found.is_sound:
            found = self._forward(value, affine, MAX_NESTING)
        return found

    def _forward(self, value: Value, affine: Affine, nesting: int) -> Plan | Refusal:
        pending = {value: affine}
        changes: list[Change] = []
        queue: list[tuple[float, int, Node]] = []
        queued: set[Node] = set()

        def enqueue(changed: Value) -> Refusal | None:
            for node in changed.users:
                if not reads_elements(node, changed):
                    continue
                refusal = _forward_barrier(changed, value, node)
                if refusal is not None:
                    return refusal
                if node not in queued:
                    queued.add(node)
                    heappush(queue, (self.place(node), len(queued), node))
            if len(queued) > MAX_REGION:
                return Refusal("no_foldable_neighbour", f"more than {MAX_REGION} operators would have to change")
            return None

        refusal = enqueue(value)
        while queue and refusal is None:
            node = heappop(queue)[2]
            refusal = self._spend(node, affine)
            if refusal is not None:
                continue
            given = {i: pending[v] for i, v in enumerate(node.inputs) if v in pending and _reads(node, i)}
            rule = affine_rule(node.op)
            reasons = (_needs_one_axis(node, each) or disagrees(node.inputs[i], each) for i, each in given.items())
            refusal = next(filter(None, reasons), None) or too_wide(node)
            if refusal is not None:
                continue
            if rule.absorb_data is not None:
                found = self._layer(node, given, nesting)
                if isinstance(found, Refusal):
                    refusal = found
                else:
                    changes.extend(found)
                continue
            assert rule.forward is not None
            carry = rule.forward(node, given, self.params)
            refusal = carry if isinstance(carry, Refusal) else _overflow(node, carry)
            if refusal is not None or isinstance(carry, Refusal):
                continue
            changes.append(Change(node, node.output, "forward", carry=carry))
            for index, moved in carry.results:
                affine = moved if (moved.channels or 1) > (affine.channels or 1) else affine
                if moved.has_scale or moved.has_shift:
                    pending[node.outputs[index]] = moved
                    refusal = refusal or enqueue(node.outputs[index])
        return Plan(changes) if refusal is None else _labelled(refusal, "forward")

    def _spend(self, node: Node, affine: Affine) -> Refusal | None:
        """Why `node` is not looked at, None where it is: many affines may search the same operators."""
        self._left -= OPERATOR_EFFORT + len(node.inputs) + len(node.outputs) + ((affine.channels or 1) >> 6)
        if self._left > 0:
            return None
        return Refusal("no_foldable_neighbour", f"{node.label} is not looked at: searches cost too much")

    def place(self, node: Node) -> float:
        """A number that grows along the graph: nodes made since the last `number` stand between their neighbours."""
        if self._unnumbered is not None:
            self._places = {node: float(i) for i, node in enumerate(self._unnumbered)}
            self._unnumbered = None
        known = self._places.get(node)
        if known is None:
            before, after = node.prev, node.next
            while before is not None and before not in self._places:
                before = before.prev
            while after is not None and after not in self._places:
                after = after.next
            low = self._places[before] if before is not None else -1.0
            known = self._places[node] = (low + (self._places[after] if after is not None else low + 2.0)) / 2
        return known

    def number(self, graph: Graph) -> None:
        """Number the nodes of a graph, in whose order `forward` proceeds, when it first does. O(nodes)."""
        self._unnumbered = graph

    def _layer(self, node: Node, given: dict[int, Affine], nesting: int) -> list[Change] | Refusal:
        absorb = affine_rule(node.op).absorb_data
        assert absorb is not None
        (index, affine), *others = given.items()
        if others or (index and node.op != "matmul"):
            return Refusal("unsupported_op", f"{node.label} reads the affine as a parameter")
        fold = absorb(node, affine, self.params)
        if isinstance(fold, Refusal):
            return fold
        change = Change(node, node.output, "forward", fold=fold)
        shift = fold.shift
        if shift is None or shift.ndim != 1 or nesting == MAX_NESTING:
            return [change]
        stage = Affine.joined(fold.axis, 1.0 + 0.0 * shift, shift, affine.origins)
        pushed = self._forward(node.output, stage, nesting + 1)
        if isinstance(pushed, Refusal):
            return [change]
        return [replaced(change, fold=replaced(fold, shift=None), lacks=stage), *pushed.changes]


def disagrees(value: Value | None, affine: Affine) -> Refusal | None:
    """Why a value has no such affine: its type, which a model may declare as it likes, has no such axis."""
    shape = None if value is None else shape_of(value.type)
    if value is None or shape is None or affine.axis is None:
        return None
    if affine.axis + max(len(affine.extents), 1) <= len(shape):
        return None
    return Refusal("channel_mismatch", f"%{value.name} is {value.type}, which has no such channels")


def too_wide(node: Node) -> Refusal | None:
    """Why an operator is not looked through: an affine along one of its axes might not fit into the memory."""
    for value in (*node.inputs, *node.outputs):
        for dim in (None if value is None else shape_of(value.type)) or ():
            if isinstance(dim, int) and dim > MAX_EXTENT:
                return Refusal("no_foldable_neighbour", f"{node.label} has an axis of more than {MAX_EXTENT} elements")
    return None


def _needs_one_axis(node: Node, affine: Affine) -> Refusal | None:
    """Why an operator cannot take channels that lie on several axes, None where it can, or they do not."""
    if not affine.extents or op_info(node.op) is None or affine_rule(node.op).several_axes:
        return None
    return Refusal("axis_mismatch", f"{node.label}: the channels lie on several axes in front of it")


def _overflow(node: Node, carry: Transfer) -> Refusal | None:
    """Why the constants of a carry do not fit the dtype of the node, None where they do.

    A number that is lost to zero beside others is lost in a sum anyway, but not in a product.
    """
    dtype = dtype_of(node.output.type)
    for _, array in carry.constants:
        rounded = array if dtype is None else to_float64(round_to(array, dtype))
        if (np.isnan(rounded) | (np.isinf(rounded) & np.isfinite(array))).any():
            return Refusal("overflow", f"{node.label}: a constant would exceed {dtype}")
        if node.op in ("multiply", "divide") and ((rounded == 0) & (array != 0)).any():
            return Refusal("underflow", f"{node.label}: a constant would vanish in {dtype}")
    return None


def _told(refusal: Refusal | None, path: Path | None) -> Refusal:
    """The refusal, with the operators that the affine would have passed up to there."""
    assert refusal is not None
    passed = []
    while path is not None:
        passed.append(path[0].label)
        path = path[1]
    through = "".join(f"through {label}, " for label in reversed(passed))
    return replace(refusal, notes=(f"backward: {through}{refusal.detail} ({refusal.code})",))


def _labelled(refusal: Refusal, direction: str) -> Refusal:
    return replace(refusal, notes=(f"{direction}: {refusal.detail} ({refusal.code})",))


def _batch_norm_parameters(node: Node) -> Node | None:
    """The `nn.batch_norm_to_affine` that `node` reads, None where it reads none."""
    for value in node.inputs[:2]:
        if value is not None and value.node is not None and value.node.op == "nn.batch_norm_to_affine":
            return value.node
    return None


def _reads(node: Node, index: int) -> bool:
    info = op_info(node.op)
    return info is None or index not in info.by_type


def _forward_barrier(value: Value, source: Value, node: Node) -> Refusal | None:
    """Why the reader `node` of `value` cannot read anything else."""
    if node.op == "return":
        return Refusal("graph_output", f"%{value.name} is a result of the graph")
    if node.graph is not source.graph:
        return Refusal("subgraph_boundary", f"%{value.name} is read inside a subgraph by {node.label}")
    rule = affine_rule(node.op)
    if rule.forward is None and rule.absorb_data is None:
        return Refusal("no_foldable_neighbour", f"{node.label} behind it absorbs nothing")
    if _batch_norm_parameters(node) is not None:
        return Refusal("no_foldable_neighbour", f"{node.label} behind it is a BatchNormalization that stays")
    return None


def barrier(value: Value, reader: Node) -> Refusal | None:
    """Why `value` may not change for the sake of `reader`: something else sees it."""
    if value.is_returned:
        return Refusal("graph_output", f"%{value.name} is a result of the graph")
    if sole_reader(value) is None:
        # a value may have any number of readers, each of which may ask: a few of them make a good enough sentence
        some = list(islice(value.users, 16))
        inner = next((user for user in some if user.graph is not reader.graph), None)
        if inner is not None:
            return Refusal("subgraph_boundary", f"%{value.name} is read inside a subgraph by {inner.label}")
        return Refusal("multi_consumer", f"%{value.name} is read by {', '.join(user.label for user in some[:3])}")
    if value.graph is not reader.graph:
        return Refusal("subgraph_boundary", f"%{value.name} is computed outside the subgraph that reads it")
    return None
