"""Purity of operators: of those in the operator table, and of foreign ones that ONNX specifies."""

from __future__ import annotations

from ..ir.attributes import AttributeRef
from ..ir.graph import Node
from ..ir.module import Module
from ..ir.ops import op_info

RANDOM = frozenset(
    (
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    )
)
"""ONNX operators that draw random numbers.

Dropout is among the foreign operators only in training mode.
"""


def standard_type(node: Node, module: Module) -> str | None:
    """Return the type of a foreign node of ONNX's default domain, None for others."""
    domain, _, op_type = node.op.partition("::")
    # An overload is a function of the model. In-house operators have no `::`.
    if domain or not op_type or node.overload or node.graph is None:
        return None
    if ("", op_type, "") in module.functions:
        return None
    return op_type if module.foreign.since(op_type, node.opset) else None


def is_deterministic(node: Node, module: Module) -> bool:
    """Return whether equal operands give equal results; False for control flow."""
    if node.regions or any(isinstance(value, AttributeRef) for value in node.attrs.values()):
        return False
    info = op_info(node.op)
    if info is not None:
        return info.pure
    op_type = standard_type(node, module)
    return op_type is not None and op_type not in RANDOM


def is_erasable(node: Node, module: Module) -> bool:
    """Return whether `node` may be erased once nobody reads its results.

    O(nodes in its regions).
    """
    if not node.regions:
        return is_deterministic(node, module)
    if standard_type(node, module) is None:
        return False
    return all(
        _is_erasable_inside(inner, module) for region in node.regions for inner in region.walk()
    )


def _is_erasable_inside(node: Node, module: Module) -> bool:
    """Return `is_erasable` of a node whose own regions are walked by the caller."""
    if node.op == "return":
        return True
    return (
        standard_type(node, module) is not None if node.regions else is_deterministic(node, module)
    )
