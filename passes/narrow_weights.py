"""Weights that are stored in a narrower type than they are used in, behind a Cast."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Node, payload_of
from ..ir.module import Module
from ..ir.tensor import Tensor
from ..ir.types import dtype_of, element_count

CAST_BYTES = 64
"""About the bytes of a Cast in a file, which a result may need beyond its operand."""


def narrow_weights(module: Module) -> Iterator[Node]:
    """Yield the Casts by which constants of a narrower type make the file smaller."""
    for node in module.walk():
        if _widens(node) and _growth(node) > CAST_BYTES:
            yield node


def reads_narrow(node: Node) -> bool:
    """Return whether the constant expression `node` is or reads a Cast of a narrower constant.

    O(region).
    """
    stack, seen = [node], {node}
    while stack:
        top = stack.pop()
        if _widens(top):
            return True
        new = {
            value.node for value in top.inputs if value is not None and value.node is not None
        } - seen
        stack += new
        seen |= new
    return False


def _widens(node: Node) -> bool:
    """Return whether `node` casts a constant to a wider float."""
    if node.op != "cast" or not isinstance(payload_of(node.operand()), Tensor):
        return False
    source, target = dtype_of(node.operand().type), dtype_of(node.output.type)
    if source is None or target is None or not target.is_float:
        return False
    return source.kind in ("float", "float8", "int", "uint") and source.bits < target.bits


def _growth(node: Node) -> int:
    """Return the bytes by which the result of a Cast of a constant exceeds its operand."""
    payload, target = payload_of(node.operand()), dtype_of(node.output.type)
    assert isinstance(payload, Tensor) and target is not None
    return element_count(payload.shape) * target.bits // 8 - payload.nbytes
