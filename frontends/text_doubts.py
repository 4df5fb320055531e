"""Doubts about IR text: operators and attributes that ONNX does not have.

Its checker would refuse them later.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.foreign_operators import near_name
from ..ir.graph import Node
from ..ir.making import OWN_ATTRIBUTES, newest_form
from ..ir.module import Module
from ..ir.ops import op_info

MAX_NAMED = 3
"""Most nodes that warnings name."""


def doubts(module: Module) -> Iterator[str]:
    """Yield a sentence for the first nodes of which ONNX lacks the operator or an attribute."""
    found = [sentence for node in module.walk() for sentence in _doubts(node, module)]
    yield from found[:MAX_NAMED]
    if len(found) > MAX_NAMED:
        yield f"and {len(found) - MAX_NAMED} more that ONNX does not have"


def _doubts(node: Node, module: Module) -> Iterator[str]:
    info = op_info(node.op)
    domain, _, op_type = ("", "", info.onnx or "") if info is not None else node.op.partition("::")
    graph, schemas = node.graph, module.foreign
    is_call = (domain, op_type, node.overload) in module.functions
    # Only of ONNX's own domain is it known which operators there are.
    if graph is None or not op_type or domain or is_call:
        return
    opset = graph.opsets.get("", 1)
    schema = schemas.find("", op_type, opset)
    if info is None and schema is None:
        if (why := schemas.why_absent("", op_type, opset)) is not None:
            yield f"{node.description}: {why}"
        return
    newest = None if info is None else newest_form(info, module, node)
    known = {name for form in (schema, newest) if form is not None for name in form.attributes}
    own = () if info is None else {*info.attrs, *OWN_ATTRIBUTES}
    for name in node.attrs:
        if name not in known and name not in own:
            yield f"{node.description}: ONNX has no attribute {name!r}{near_name(name, known)}"
