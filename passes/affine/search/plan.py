"""Plans: the changes that make an affine disappear, decided before anything is written.

A plan goes backward, into the layers that compute a value, or forward, into the layers that read
it. A plan that would change a node twice is not sound and is not written: each change is computed
from the node as it is.
"""

from __future__ import annotations

from msgspec import Struct, field

from ....ir.attributes import SparseTensor
from ....ir.graph import Node, Value, payload_of
from ....ir.record import Record
from ....ir.tensor import Tensor
from ....ir.types import dtype_of
from ..algebra.affine import Affine
from ..algebra.layers import Fold
from ..algebra.transfer import Transfer

Path = tuple[Node, "Path | None"]
"""The operators that an affine has passed, the last one first."""


class Change(Record):
    """One node of a plan, which `fold` or `transfer` changes; `value` then holds other numbers.

    `lacks` is an affine that the result of a layer had before and that its readers have to add.
    """

    node: Node
    value: Value
    direction: str
    fold: Fold | None = None
    transfer: Transfer | None = None
    path: Path | None = None
    lacks: Affine | None = None

    @property
    def crossed(self) -> list[Node]:
        """The operators between the affine and this node, from the affine on."""
        return crossed(self.path)


def crossed(path: Path | None) -> list[Node]:
    """Return the operators of a path, the first one first."""
    found = []
    while path is not None:
        found.append(path[0])
        path = path[1]
    return found[::-1]


class Plan(Struct, eq=False):
    """Changes that together make an affine disappear, and their cost."""

    changes: list[Change] = field(default_factory=list)

    @property
    def folds(self) -> list[Fold]:
        """The changes of layers."""
        return [change.fold for change in self.changes if change.fold is not None]

    @property
    def added(self) -> int:
        """Operators added: limits, sums after layers without a slot, and Pads."""
        count = self.limits
        for fold in self.folds:
            count += (fold.shift is not None) + (fold.padding is not None) + (fold.ones is not None)
        return count

    @property
    def limits(self) -> int:
        """Number of Max and Min that limit results per channel."""
        count = 0
        for change in self.changes:
            if change.transfer is not None:
                count += sum(limit is not None for limit in change.transfer.limits)
        return count

    def growth(self) -> int:
        """Return the bytes of constants added: copies of shared weights, and larger constants."""
        return sum(map(_growth, self.changes))

    @property
    def is_sound(self) -> bool:
        """Whether no node is to change twice."""
        return len({change.node for change in self.changes}) == len(self.changes)

    def joined(self, other: Plan) -> Plan:
        """Return the plan that makes the changes of both."""
        return Plan([*self.changes, *other.changes])


def _growth(change: Change) -> int:
    total = 0
    if change.fold is not None:
        fold = change.fold
        if fold.factor is not None and _stored_bytes(fold.weight, change.node) is None:
            total += fold.weight_bytes
        for array in (fold.bias, fold.shift, fold.ones):
            if array is not None:
                total += array.size * fold.dtype.bits // 8
    if change.transfer is not None:
        dtype = dtype_of(change.node.output.type)
        for index, array in change.transfer.constants:
            value = change.node.input(index)
            total += array.size * (32 if dtype is None else dtype.bits) // 8
            total -= (None if value is None else _stored_bytes(value, change.node)) or 0
        limits = [limit for limit in change.transfer.limits if limit is not None]
        total += sum(limit.size for limit in limits) * (32 if dtype is None else dtype.bits) // 8
    return total


def _stored_bytes(value: Value, reader: Node) -> int | None:
    """Return the bytes of the constant that goes if `reader` reads another value."""
    payload = payload_of(value) if value.sole_user() is reader else None
    return payload.nbytes if isinstance(payload, Tensor | SparseTensor) else None
