"""One name for ONNX's own domain.

onnx's inference, inliner and checker, and onnxruntime in bodies, know no other.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....ir.ops import canonical_domain
from .protos import FunctionProto, ModelProto, NodeProto, OperatorSetIdProto
from .traversal import all_nodes


def rename_domain(message: NodeProto | FunctionProto | OperatorSetIdProto) -> None:
    """Give the domain of a message its name in the IR."""
    if message.domain and not canonical_domain(message.domain):
        message.domain = ""


def with_canonical_domains(model: ModelProto) -> ModelProto:
    """Return `model`, or a copy without aliases of ONNX's own domain, which it imports once.

    O(nodes).
    """
    if all(each.domain == canonical_domain(each.domain) for each in _named(model)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for each in _named(copy):
        rename_domain(each)
    for owner in _importing(copy):
        imports = {entry.domain: entry for entry in owner.opset_import}
        if len(imports) < len(owner.opset_import):
            kept = FunctionProto(opset_import=imports.values())
            del owner.opset_import[:]
            owner.opset_import.extend(kept.opset_import)
    return copy


def _importing(model: ModelProto) -> list[ModelProto | FunctionProto]:
    return [model, *model.functions]


def _named(model: ModelProto) -> Iterator[NodeProto | FunctionProto | OperatorSetIdProto]:
    """Yield the messages that name a domain."""
    for owner in _importing(model):
        yield from owner.opset_import
    yield from model.functions
    yield from all_nodes(model)
