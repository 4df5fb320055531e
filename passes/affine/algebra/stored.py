"""Constants of layers as the model stores them: payloads, or dequantized payloads."""

from __future__ import annotations

from ....ir.graph import Node, Value, producer_of
from ....ir.ops.reshaping import permutation
from ....ir.provenance import SideTable
from ....ir.tensor import Array
from .operands import Parameters


class UnroundedConstants(SideTable):
    """The numbers in float64 that constants of folded layers were rounded from, by the constant."""

    def __init__(self) -> None:
        self.numbers: dict[Value, Array] = {}


def is_stored(value: Value | None, params: Parameters) -> bool:
    """Return whether `value` is a constant, or dequantized from one."""
    if params.evaluator.is_constant(value):
        return True
    node, _ = dequantize_of(value)
    return node is not None and params.evaluator.is_constant(node["data"])


def dequantize_of(value: Value | None) -> tuple[Node | None, Node | None]:
    """Return the DequantizeLinear that makes `value`, and the Transpose between them."""
    moved = producer_of(value, "transpose")
    if moved is None or permutation(moved) is None:
        return producer_of(value, "dequantize"), None
    return producer_of(moved.operand(), "dequantize"), moved
