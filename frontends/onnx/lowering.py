"""Lowering: which ONNX nodes become in-house operators.

A node becomes an in-house operator only if that operator means exactly the same as the node in its
opset; any other stays foreign. Parameters that older opsets state as attributes become operands
(`ir/ops/parameters.py`), which the backend makes attributes again. No other input, output or
attribute changes, so that it can write the node as it was.
"""

from __future__ import annotations

from ...ir.attributes import AttributeRef
from ...ir.ops import BY_ONNX_NAME
from ...ir.ops.parameters import mixed_forms
from ...ir.ops.row import MANY, NodeView, OpInfo, invalid_attribute, missing_operands
from ...ir.provenance import Refusal
from .codec.onnx_parts import get_schema, has_schema


def has_too_many_results(op_type: str, info: OpInfo, node: NodeView) -> bool:
    """Return whether a node has more results than its operator."""
    if node.opset > 0 and len(node.outputs) <= info.result_counts[1]:
        return False
    known = node.opset > 0 and has_schema(op_type, node.opset)
    return not known or len(node.outputs) > int(get_schema(op_type, node.opset).max_output)


def lower(domain: str, op_type: str, node: NodeView) -> tuple[str | None, Refusal | None]:
    """Return the in-house operator of a node, or None and, for an affine, why it has none."""
    info = BY_ONNX_NAME.get(op_type)
    if info is None or domain or node.opset < info.since:
        return None, None
    for value in node.attrs.values():
        if isinstance(value, AttributeRef):
            return None, Refusal("unsupported_attr", "an attribute is a parameter of the function")
    refusal = None if info.when is None else info.when(node)
    low, high = info.arity
    needed = node.inputs if high == MANY else node.inputs[:low]
    if not low <= len(node.inputs) <= high or None in needed:
        missing = missing_operands(info.inputs, low, node.inputs)
        detail = f"it lacks {missing}" if missing else f"{len(node.inputs)} inputs"
        refusal = refusal or Refusal("unsupported_op", detail)
    if len(node.outputs) > 1 and has_too_many_results(op_type, info, node):
        refusal = refusal or Refusal("unsupported_op", f"{len(node.outputs)} results")
    if (name := invalid_attribute(info, node.attrs)) is not None:
        refusal = refusal or Refusal("unsupported_attr", f"{name} is of another kind or range")
    if info.parameters:
        refusal = refusal or mixed_forms(info, node)
    if not node.outputs or not node.outputs[0]:
        refusal = refusal or Refusal("unsupported_op", "its first result has no name")
    return (None, refusal) if refusal else (info.name, None)
