"""Whether a model means the same in a newer opset, as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...ir.ops import DEFAULT_DOMAINS
from .codec.onnx_parts import get_schema, has_schema
from .codec.protos import ModelProto, NodeProto
from .codec.traversal import all_nodes
from .opsets import opset_versions

if TYPE_CHECKING:
    from onnx.defs import OpSchema

CHANGED = {
    "GridSample": 20,
    "GroupNormalization": 21,
    "Hardmax": 13,
    "LogSoftmax": 13,
    "Softmax": 13,
}
"""Operators that compute something else since an opset, with the same operands and attributes."""


def obstacle_to_opset(model: ModelProto, opset: int) -> str | None:
    """Return why an operator means something else in a newer opset, None if all mean the same.

    Those of bodies and functions count as the others. An operator means the same if its
    schema is the same, or has more types, optional operands or attributes with a default only.
    O(nodes).
    """
    own = opset_versions(model.opset_import)[""]
    found: dict[str, bool] = {}
    for node in all_nodes(model):
        if node.domain not in DEFAULT_DOMAINS:
            continue
        name = node.op_type
        if name not in found:
            found[name] = _means_the_same(name, own, opset)
        ceils = name == "AveragePool" and any(a.name == "ceil_mode" and a.i for a in node.attribute)
        if not found[name] or ceils or _has_lost_result(node, opset):
            label = node.name or next(filter(None, node.output), "")
            return f"{name} {label!r} means something else in opset {opset} than in opset {own}"
    return None


def _means_the_same(name: str, own: int, opset: int) -> bool:
    if not (has_schema(name, own) and has_schema(name, opset)):
        return False
    if own < CHANGED.get(name, 0) <= opset:
        return False
    before, after = get_schema(name, own), get_schema(name, opset)
    if before.since_version == after.since_version:
        return True
    if after.deprecated:
        return False
    return _are_kept(before, after) and _only_more(before.inputs, after.inputs)


def _are_kept(before: OpSchema, after: OpSchema) -> bool:
    """Return whether attributes are as before, and new ones may be absent."""
    for name, attribute in after.attributes.items():
        old = before.attributes.get(name)
        if old is None and attribute.required:
            return False
        if old is not None and (
            old.type != attribute.type
            or old.required != attribute.required
            or old.default_value != attribute.default_value
        ):
            return False
    return before.attributes.keys() <= after.attributes.keys()


def _only_more(
    before: Sequence[OpSchema.FormalParameter], after: Sequence[OpSchema.FormalParameter]
) -> bool:
    """Return whether operands are as before, and new ones may be absent."""
    had, has = ([str(each.option).endswith("Single") for each in some] for some in (before, after))
    if len(has) < len(had) or any(has[len(had) :]):
        return False
    # An operand that had to be given, and no longer has to, changes nothing.
    return all(was or not now for was, now in zip(had, has, strict=False))


def _has_lost_result(node: NodeProto, opset: int) -> bool:
    return len(node.output) > get_schema(node.op_type, opset).max_output
