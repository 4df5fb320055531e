"""A unit: operators that together write out one that runtimes have, and their search."""

from __future__ import annotations

from msgspec import Struct, field

from ....ir.evaluate import ConstantEvaluator
from ....ir.graph import Node, Value
from ....ir.matching import reader_of
from ....ir.provenance import Declined
from ....ir.record import Record
from ....ir.types import element_count, static_shape_of

CODE = "fused_unit"
"""The reason code of an affine that stays for the sake of a unit."""

TOLERANCE = 1e-3
"""Relative deviation of a written constant from the true one: f16 and truncated decimals pass."""


class NormParts(Record):
    """The parts of a normalization that is written out.

    - `data` is normalized, and the results of the operators `changed` change with it.
    - `epsilon` adds the constant epsilon, and `gamma` multiplies by gamma: their operands are at
      `epsilon_index` and `gamma_index`.
    """

    data: Value
    changed: frozenset[Node]
    epsilon: Node
    epsilon_index: int
    gamma: Node
    gamma_index: int


class Unit(Record):
    """The operators `nodes` that together are the operator `kind`.

    The constants of `ends` may change. A normalization has `parts`.
    """

    kind: str
    nodes: frozenset[Node]
    ends: frozenset[Node] = frozenset()
    parts: NormParts | None = None

    def obstacle(self, node: Node) -> str:
        """Return the reason why an affine does not move at `node`, for messages."""
        return (
            f"{node.description} is part of a {self.kind}: folding it would keep runtimes from"
            " computing that as one operator"
        )


class UnitMatch(Struct, eq=False):
    """The operators of a unit found so far around its `anchor`, and the constants."""

    anchor: Node
    constants: ConstantEvaluator
    nodes: set[Node] = field(default_factory=set)

    def scalar(self, value: Value | None) -> float | None:
        """Return the number that a constant of one element holds."""
        if value is None or not self.constants.is_constant(value):
            return None
        shape = static_shape_of(value.type)
        if shape is None or element_count(shape) != 1:
            return None
        array = self.constants.array(value)
        return None if array is None or array.dtype.kind not in "fiu" else float(array.reshape(()))

    def reader(self, node: Node, *ops: str) -> Node:
        """Return the only reader of `node`, which must be one of `ops`, and add it to the nodes."""
        reader = reader_of(node, *ops)
        self.nodes.add(reader)
        return reader

    def unit(
        self, kind: str, ends: frozenset[Node] = frozenset(), parts: NormParts | None = None
    ) -> Unit:
        """Return the unit of the nodes found, whose last one alone may be read elsewhere."""
        open_ends = [
            node for node in self.nodes if any(user not in self.nodes for user in node.output.users)
        ]
        if len(open_ends) > 1:
            raise Declined("an operator inside has other readers")
        return Unit(kind, frozenset(self.nodes), ends, parts)
