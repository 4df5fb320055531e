"""Module paths: the module of a torch model that a node was exported from, such as `layer1.0.bn1`.

Exporters leave up to three traces of it: the scopes in the metadata of a node, the names that its
parameters have in the state_dict, and, by the TorchScript exporter, the name of the node. Tools in
between may drop any of them.
"""

from __future__ import annotations

import re

from .protos import NodeProto

SCOPES = "pkg.torch.onnx.name_scopes"
RULES = "pkg.onnxscript.rewriter.rule_name"

BATCH_NORM_INTO_LAYER = "FuseBatchNorm"
"""In RULES: the layer has the scopes of a BatchNormalization that was folded into it."""

_LAYER = {1: "weight", 2: "bias"}
_PARAMETERS = {
    "BatchNormalization": {3: "running_mean", 4: "running_var", 1: "weight", 2: "bias"},
    "Conv": _LAYER,
    "ConvTranspose": _LAYER,
    "Gemm": _LAYER,
    "MatMul": {1: "weight"},
    "InstanceNormalization": _LAYER,
    "GroupNormalization": _LAYER,
    "LayerNormalization": _LAYER,
    "RMSNormalization": {1: "weight"},
}
"""Operands that are parameters, and their names in a state_dict, by operator; surest first."""

_SCOPE_LIST = r"\['[^'\\]*'(, '[^'\\]*')*\]"
_CALL = r"(\d+)_\d+"


def module_path(node: NodeProto) -> str | None:
    """Return the path of the module that `node` was exported from, None if it is unknown.

    The path of the model itself is "".
    """
    props = node.metadata_props
    notes = (
        {entry.key: entry.value for entry in props if isinstance(entry.value, str)} if props else {}
    )
    found = (
        None if BATCH_NORM_INTO_LAYER in notes.get(RULES, "") else scope_path(notes.get(SCOPES, ""))
    )
    if found is None:
        found = _parameter_path(node)
    return _node_path(node) if found is None else found


def scope_path(text: str) -> str | None:
    """Return the innermost module of the scopes that torch notes.

    Scopes are the text of a list: `['', 'layer1', 'layer1.0', 'conv2d']` gives `layer1.0`.
    """
    if not text or re.fullmatch(_SCOPE_LIST, text) is None:
        return None
    scopes = text[2:-2].split("', '")
    return scopes[-2] if len(scopes) > 1 else None


def parameter_path(name: str, parameter: str) -> str | None:
    """Return the module whose `parameter`, such as weight, is called `name` in a state_dict."""
    path, _, last = name.rpartition(".")
    return path if last == parameter else None


def _parameter_path(node: NodeProto) -> str | None:
    names = node.input[:]
    for index, parameter in _PARAMETERS.get(node.op_type, {}).items():
        if index < len(names) and (found := parameter_path(names[index], parameter)) is not None:
            return found
    return None


def _node_path(node: NodeProto) -> str | None:
    """Return the path in a name such as `/layer1/layer1.0/bn1/BatchNormalization`.

    Elements of containers repeat the name of the container: `/layer1/layer1.0` is `layer1.0`, not
    `layer1.layer1.0`.
    """
    root, *scopes, last = node.name.split("/") if "/" in node.name else ("?", "")
    if root or not re.fullmatch(rf"{re.escape(node.op_type)}(_\d+)?", last):
        return None
    path: list[str] = []
    for scope in scopes:
        parts = scope.split(".")
        call = re.fullmatch(_CALL, parts[-1])
        if call is not None:  # the second call of one module
            parts[-1] = call[1]
        shared = next(
            (k for k in range(min(len(path), len(parts) - 1), 0, -1) if path[-k:] == parts[:k]), 0
        )
        path += parts[shared:]
    return ".".join(path)
