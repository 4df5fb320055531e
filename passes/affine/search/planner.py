"""The search for plans: where an affine can go, decided without changing anything.

Backward, every branch of the region between a value and the layers before it must take its part,
and no value in it may have a second reader. Forward, all readers must take the affine, and so on
after each operator that it passes. A region may be deep, so neither search recurses.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush
from math import prod

from msgspec.structs import replace

from ....ir.graph import Graph, Node, Value
from ....ir.ops import op_info, reads_elements
from ....ir.ops.normalization import batch_norm_of
from ....ir.provenance import Refusal, Refused
from ....ir.tensor import Array
from ....ir.types import shape_of
from ..algebra.affine import Affine
from ..algebra.layers import Fold
from ..algebra.operands import Parameters
from ..algebra.transfer import Transfer
from ..rules.checks import (
    batch_norm_parameters,
    check_axis_exists,
    check_constants,
    check_extents,
    check_no_integers,
    check_not_kept,
    check_one_axis,
    check_reader,
    check_sole_reader,
)
from ..rules.table import affine_rule
from ..units.unit import CODE, Unit
from ..units.units import units_of
from .plan import Change, Path, Plan, crossed
from .written_norms import into_written_norm

MAX_REGION = 256
"""Operators that one search looks at: every affine may search the same region."""

EFFORT = 1 << 21
"""Cost that all searches of a planner may have together, beyond OWN_EFFORT for each.

A unit takes a microsecond.
"""

OWN_EFFORT = 100
"""More than the cost of a search that finds a layer nearby."""

OPERATOR_EFFORT = 20
"""Cost of looking at an operator, beyond 1 for each operand and result and 1 for 64 channels."""

MAX_NESTING = 8
"""MatMuls in a row whose shifts are pushed on; after more of them an `add` stays."""

Request = tuple[Value, Node, Affine, "Path | None"]
Search = Generator[Request, "Refusal | None"]


class Planner:
    """Finds plans in the graph as it is; only magnitudes of weights are remembered."""

    def __init__(self, params: Parameters) -> None:
        self.params = params
        self._trail: list[Change] = []
        self._visited = 0
        self._left = EFFORT
        self._positions: dict[Node, float] = {}
        self._unnumbered: Graph | None = None
        self.units: dict[Node, Unit] = {}

    def backward(self, value: Value, reader: Node, affine: Affine) -> Plan:
        """Return a plan that makes `value`, as `reader` reads it, its affine. O(region).

        Raises Refused if there is none, with the operators that the affine would have passed in
        the notes.
        """
        self._trail, self._visited = [], 0
        self._left += OWN_EFFORT
        refusal = self._run((value, reader, affine, None))
        if refusal is not None:
            raise Refused.of(refusal)
        return Plan(self._trail)

    def _run(self, request: Request) -> Refusal | None:
        """Run the search from `request` on, with a stack of its own.

        A search yields a request for each operand, and is sent the refusal of it, or None.
        """
        stack = [(self._search(*request), request[3])]
        answer: Refusal | None = None
        while stack:
            search, path = stack[-1]
            try:
                following = search.send(answer)
            except StopIteration:
                answer = None
                stack.pop()
            except Refused as refused:
                answer = _with_path(refused.refusal, path)
                stack.pop()
            else:
                answer = None
                stack.append((self._search(*following), following[3]))
        return answer

    def _search(self, value: Value, reader: Node, affine: Affine, path: Path | None) -> Search:
        """Let the node of `value` take the affine, and put the changes on the trail."""
        node = self._producer(value, reader, affine)
        # A layer that takes the affine is not counted: it ends the search.
        self._visited += 1
        fold = self._absorbed(node, affine) if value.index == 0 else None
        if fold is not None:
            self._visited -= 1
            self._trail.append(Change(node, value, "backward", fold=fold, path=path))
            return
        if self._visited > MAX_REGION:
            detail = f"more than {MAX_REGION} operators would have to change"
            raise Refused("no_foldable_neighbour", detail)
        rule = affine_rule(node.op).backward
        if rule is None:
            check_not_kept(node, "before")
            check_no_integers(node)
            detail = f"{node.description} before it cannot absorb an affine"
            raise Refused("no_foldable_neighbour", detail)
        first: Refusal | None = None
        for way in rule(node, value.index, affine, self.params):
            length = len(self._trail)
            try:
                transfer = self._within_unit(node, way)
                check_constants(node, transfer)
            except Refused as refused:
                first = first or refused.refusal
                continue
            self._trail.append(Change(node, value, "backward", transfer=transfer, path=path))
            refusal: Refusal | None = None
            for index, part in transfer.operands:
                operand = node.operand(index)
                if refusal is None and (part.has_scale or part.has_shift):
                    refusal = yield operand, node, part, (node, path)
            if refusal is None:
                return
            first = first or refusal
            del self._trail[length:]
        if first is not None:
            raise Refused.of(first)

    def _producer(self, value: Value, reader: Node, affine: Affine) -> Node:
        """Return the node that computes `value`, if that may change and may be looked at."""
        check_sole_reader(value, reader)
        node = value.node
        if node is None:
            detail = f"{value.source_name!r} is an input of the graph"
            raise Refused("no_foldable_neighbour", detail)
        if self.params.evaluator.tensor(value) is not None:
            raise Refused("no_foldable_neighbour", f"{value.source_name!r} is a constant")
        self._spend(node, affine)
        check_one_axis(node, affine)
        check_extents(node)
        check_axis_exists(value, affine)
        return node

    def into(self, value: Value, affine: Affine) -> Change:
        """Return the change by which the layer or BatchNormalization of `value` applies `affine`.

        Raises Refused, also if `value` is the result of neither.
        """
        assert value.node is not None
        fold = self._absorbed(value.node, affine)
        if fold is None:
            detail = f"{value.node.description} has no constant weight"
            raise Refused("no_foldable_neighbour", detail)
        return Change(fold.node, value, "backward", fold=fold)

    def _absorbed(self, node: Node, affine: Affine) -> Fold | None:
        """Return the fold of a layer or a BatchNormalization that stays; None of others."""
        rule = affine_rule(node.op)
        if rule.absorb_result is not None:
            if rule.is_layer(node, self.params):
                return rule.absorb_result(node, affine, self.params)
            return None
        parameters = batch_norm_parameters(node)
        if parameters is None:
            return None
        shared = any(output.sole_user() is None for output in parameters.outputs)
        if batch_norm_of(node) is None or shared:
            detail = f"{node.description} is half of a BatchNormalization"
            raise Refused("no_foldable_neighbour", detail)
        absorb = affine_rule("nn.batch_norm_to_affine").absorb_result
        assert absorb is not None
        return absorb(parameters, affine, self.params)

    def forward(self, value: Value, affine: Affine) -> Plan:
        """Return a plan that takes `affine` off `value` for all readers. O(region).

        Raises Refused if there is none.
        """
        self._left += OWN_EFFORT
        try:
            plan = _ForwardSearch(self, value, 0).run(affine)
            return plan if plan.is_sound else _ForwardSearch(self, value, MAX_NESTING).run(affine)
        except Refused as refused:
            raise Refused.of(_with_note(refused.refusal, "forward: ")) from None

    def _spend(self, node: Node, affine: Affine) -> None:
        """Count the cost of looking at `node`; many affines may search the same operators."""
        width = (affine.channels or 1) >> 6
        self._left -= OPERATOR_EFFORT + len(node.inputs) + len(node.outputs) + width
        if self._left <= 0:
            detail = f"{node.description} is not looked at: searches cost too much"
            raise Refused("no_foldable_neighbour", detail)

    def _within_unit(self, node: Node, transfer: Transfer) -> Transfer:
        """Return the transfer as a unit admits it.

        At the end of a unit a constant may change, and stays a vector or a number.
        """
        unit = self.units.get(node)
        if unit is None:
            return transfer
        are_vectors = all(array.size == prod(array.shape[-1:]) for _, array in transfer.constants)
        if node not in unit.ends or not are_vectors:
            raise Refused(CODE, unit.obstacle(node))
        constants = tuple((i, _of_rank(array, node.operand(i))) for i, array in transfer.constants)
        return replace(transfer, constants=constants)

    def written_norm(self, node: Node) -> Unit | None:
        """Return the unit of a normalization of which `node` computes anything before gamma."""
        unit = self.units.get(node)
        return unit if unit is not None and unit.parts and node not in unit.ends else None

    def position(self, node: Node) -> float:
        """Return a number that grows along the graph, for nodes made later, too."""
        if self._unnumbered is not None:
            self._positions = {node: float(i) for i, node in enumerate(self._unnumbered)}
            self._unnumbered = None
        known = self._positions.get(node)
        if known is None:
            before, after = node.prev, node.next
            while before is not None and before not in self._positions:
                before = before.prev
            while after is not None and after not in self._positions:
                after = after.next
            low = self._positions[before] if before is not None else -1.0
            high = self._positions[after] if after is not None else low + 2.0
            known = self._positions[node] = (low + high) / 2
        return known

    def number(self, graph: Graph) -> None:
        """Find the units of a graph.

        Have its nodes numbered when `forward` first asks for their order. O(nodes).
        """
        self._unnumbered = graph
        self.units = units_of(graph, self.params.evaluator)


class _ForwardSearch:
    """One search forward from `source`, through its readers in the order of the graph.

    That order lets a node be visited once: by then all of its operands that change are known.
    """

    def __init__(self, planner: Planner, source: Value, nesting: int) -> None:
        self.planner = planner
        self.source = source
        self.nesting = nesting
        self.pending: dict[Value, Affine] = {}
        self.changes: list[Change] = []
        self.queue: list[tuple[float, int, Node]] = []
        self.queued: set[Node] = set()
        self.entered: set[Unit] = set()

    def run(self, affine: Affine) -> Plan:
        """Return the plan for `affine` of the source."""
        self.enqueue(self.source, affine)
        widest = affine
        while self.queue:
            node = heappop(self.queue)[2]
            self.planner._spend(node, widest)
            given = {
                i: self.pending[v]
                for i, v in enumerate(node.inputs)
                if v in self.pending and _reads(node, i)
            }
            for i, each in given.items():
                check_one_axis(node, each)
                check_axis_exists(node.inputs[i], each)
            unit = self.planner.written_norm(node)
            if unit is not None:
                if unit not in self.entered:
                    self.entered.add(unit)
                    params, position = self.planner.params, self.planner.position
                    self.changes += into_written_norm(unit, node, given, params, position)
                continue
            check_extents(node)
            rule = affine_rule(node.op)
            if rule.absorb_data is not None and rule.is_layer(node, self.planner.params):
                self.changes.extend(self.into_layer(node, given))
                continue
            assert rule.forward is not None
            transfer = rule.forward(node, given, self.planner.params)
            transfer = self.planner._within_unit(node, transfer)
            check_constants(node, transfer)
            self.changes.append(Change(node, node.output, "forward", transfer=transfer))
            for index, moved in transfer.results:
                widest = moved if (moved.channels or 1) > (widest.channels or 1) else widest
                if moved.has_scale or moved.has_shift:
                    self.enqueue(node.outputs[index], moved)
        return Plan(self.changes)

    def enqueue(self, changed: Value, affine: Affine) -> None:
        """Queue the readers of a value that is `affine` of its new numbers."""
        self.pending[changed] = affine
        for node in changed.users:
            if not reads_elements(node, changed):
                continue
            if node.graph is not self.source.graph or self.planner.written_norm(node) is None:
                check_reader(changed, self.source, node)
            if node not in self.queued:
                self.queued.add(node)
                heappush(self.queue, (self.planner.position(node), len(self.queued), node))
        if len(self.queued) > MAX_REGION:
            detail = f"more than {MAX_REGION} operators would have to change"
            raise Refused("no_foldable_neighbour", detail)

    def into_layer(self, node: Node, given: dict[int, Affine]) -> list[Change]:
        """Return the change of a layer, and of readers that add a shift it has no slot for."""
        absorb = affine_rule(node.op).absorb_data
        assert absorb is not None
        (index, affine), *others = given.items()
        if others or (index and node.op != "matmul"):
            raise Refused("unsupported_op", f"{node.description} reads the affine as a parameter")
        fold = absorb(node, affine, self.planner.params)
        change = Change(node, node.output, "forward", fold=fold)
        shift = fold.shift
        if shift is None or shift.ndim != 1 or self.nesting == MAX_NESTING:
            return [change]
        rest = Affine.joined(fold.axis, 1.0 + 0.0 * shift, shift, affine.origins)
        try:
            pushed = _ForwardSearch(self.planner, node.output, self.nesting + 1).run(rest)
        except Refused:
            return [change]
        return [replace(change, fold=replace(fold, shift=None), lacks=rest), *pushed.changes]


def _reads(node: Node, index: int) -> bool:
    info = op_info(node.op)
    return info is None or index not in info.type_operands


def _with_path(found: Refusal, path: Path | None) -> Refusal:
    """Return the refusal with the operators passed before it, unless it has them."""
    if found.notes:
        return found
    passed = "".join(f"through {node.description}, " for node in crossed(path))
    return _with_note(found, f"backward: {passed}")


def _with_note(refusal: Refusal, prefix: str) -> Refusal:
    return replace(refusal, notes=(f"{prefix}{refusal.detail} ({refusal.code})",))


def _of_rank(array: Array, operand: Value) -> Array:
    """Return a vector on the last axis at the rank of `operand`, which the result may need."""
    rank = len(shape_of(operand.type) or ())
    return array if array.ndim == rank == 0 else array.reshape((1,) * (rank - 1) + (-1,))
