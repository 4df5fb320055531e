"""Values that float16 is too coarse for: angles, and numbers that integers are computed of."""

from __future__ import annotations

from ...ir.graph import Node, Value
from ...ir.module import Module
from ...ir.ops import has_trait, op_info
from ...ir.ops.inference import input_shape
from ...ir.ops.row import Trait
from ...ir.types import dtype_of
from .half_forms import HalfForm, is_single

ANGLES = ("sin", "cos", "tan")
"""Operators whose data are angles: float16 has a step of 1 from 2048 on."""

AN_ANGLE = "an angle"
AN_INTEGER = "integers are computed of it"
AN_OPERAND = "an operand that has to be float32 is computed of it"


def exact_nodes(module: Module, forms: dict[Node, HalfForm | str]) -> dict[Node, str]:
    """Return the nodes that have to compute in float32, each with the reason. O(nodes).

    They compute, element by element, angles, integers, or operands such as the scales of a Resize.
    """
    found: dict[Node, str] = {}
    for node in module.graph.nodes():
        form = forms.get(node)
        if not isinstance(form, HalfForm) or form.is_empty:
            continue
        if node.op in ANGLES:
            _mark(node.operand(), AN_ANGLE, found)
            found[node] = AN_ANGLE
        elif node.op == "cast" and _makes_integers(node):
            _mark(node.operand(), AN_INTEGER, found)
            found[node] = AN_INTEGER
        else:
            for index, value in enumerate(node.inputs):
                if value is not None and is_single(value) and index not in form.operands:
                    _mark(value, AN_OPERAND, found)
    return found


def _makes_integers(cast: Node) -> bool:
    dtype = dtype_of(cast.output.type)
    return is_single(cast.operand()) and dtype is not None and dtype.kind in ("int", "uint")


def _mark(value: Value, reason: str, found: dict[Node, str]) -> None:
    """Mark the nodes that compute `value` element by element."""
    stack = [value]
    while stack:
        node = stack.pop().node
        if node is None or node in found or node.op == "constant" or not _is_elementwise(node):
            continue
        found[node] = reason
        stack += [each for each in node.inputs if each is not None and is_single(each)]


def _is_elementwise(node: Node) -> bool:
    if op_info(node.op) is None or node.op == "nn.softmax":
        return False
    if has_trait(node, Trait.LINEAR):
        return _is_outer_product(node)
    if has_trait(node, Trait.ABSORBS) or has_trait(node, Trait.HEAVY):
        return False
    kinds = (Trait.ELEMENTWISE, Trait.BROADCASTS, Trait.MOVES)
    return any(has_trait(node, kind) for kind in kinds) or node.op in ("concatenate", "full")


def _is_outer_product(node: Node) -> bool:
    """Return whether a MatMul adds nothing up, such as frequencies times positions."""
    shape = input_shape(node, "lhs") if node.op == "matmul" else None
    return bool(shape) and shape is not None and shape[-1] == 1
