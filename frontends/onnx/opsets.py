"""Operator set versions of a model, and of the installed onnx package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...ir.ops import DEFAULT_DOMAINS, canonical_domain
from ...support.errors import clipped
from .codec.onnx_parts import newest_opset
from .codec.protos import (
    IR_VERSION,
    FunctionProto,
    GraphProto,
    ModelProto,
    OperatorSetIdProto,
    require_utf8,
)
from .codec.traversal import nodes_in

SURE_OPSET = 24
"""The last opset of the default domain in the oldest onnx package that irc supports."""


def opset_versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """Return the version of each domain.

    The default domain is "", and has version 1 if it is not imported.
    """
    versions = {"": 1}
    for entry in imports:
        versions[canonical_domain(require_utf8(entry.domain, "a domain"))] = entry.version
    return versions


def is_newer(opset: int) -> bool:
    """Return whether an opset is newer than all that are known.

    The schemas of onnx are loaded only if it may be.
    """
    return opset > SURE_OPSET and opset > newest_opset()


def version_warnings(model: ModelProto) -> Iterator[str]:
    """Yield a warning for each version that is newer than the installed onnx package."""
    if model.ir_version > IR_VERSION:
        yield f"IR version {model.ir_version} is newer than the {IR_VERSION} known here"
    owners: list[tuple[str, ModelProto | FunctionProto, GraphProto | FunctionProto]]
    owners = [("the model", model, model.graph)]
    owners.extend(
        (f"function {clipped(function.name)}", function, function) for function in model.functions
    )
    for owner, importing, part in owners:
        is_imported = any(entry.domain in DEFAULT_DOMAINS for entry in importing.opset_import)
        if not is_imported and any(node.domain in DEFAULT_DOMAINS for node in nodes_in(part)):
            yield (
                f"{owner} imports no opset of ONNX, so its operators are taken to be of opset"
                " 1: if they are newer, set opset_import, for example to"
                " onnx.helper.make_opsetid('', 17)"
            )
        version = opset_versions(importing.opset_import)[""]
        if is_newer(version):
            yield (
                f"{owner} is in opset {version}, newer than the {newest_opset()} known here: its"
                " operators are kept"
            )
