"""The fold map: what became of every affine of a source model, as JSON.

Affine parameters are stored as they were, little-endian in base64, so that nothing is lost to decimal notation. The
format is described by `fold_map.schema.json` in this folder and in docs/fold_map.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, NodeProto

from ..frontends.onnx.tensors import OnnxTensor
from ..ir.errors import FoldMapError
from ..ir.graph import Module, Node, flatten_origins
from ..ir.ledger import Layer, Refusal, Source
from ..ir.tensor import Array
from ..passes.sources import collect_sources, scopes

FORMAT = "irc.fold_map"
VERSION = "0.1"

NOT_ATTEMPTED = Refusal("not_attempted", "no pass that could fold it was run")


class FoldMap:
    """A fold map in memory: `data` is the JSON document; see docs/fold_map.md for its fields."""

    def __init__(self, data: dict[str, Any]) -> None:
        """Raises FoldMapError where `data` is no fold map of a version that is known here."""
        if data.get("format") != FORMAT:
            raise FoldMapError("this is not a fold map")
        if str(data.get("version", "")).split(".")[0] != VERSION.split(".")[0]:
            raise FoldMapError(f"fold map version {data.get('version')!r} is not known here (this is {VERSION})")
        self.data = data

    @classmethod
    def load(cls, path: str | Path) -> FoldMap:
        """Read a fold map.

        Raises FoldMapError where the file cannot be read or is no fold map.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise FoldMapError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError:
            raise FoldMapError(f"{path}: this is not JSON") from None
        try:
            return cls(data if isinstance(data, dict) else {})
        except FoldMapError as error:
            raise FoldMapError(f"{path}: {error}") from None

    def to_json(self) -> str:
        """The document as text, with a final newline; equal maps give equal text."""
        return json.dumps(self.data, indent=1, ensure_ascii=False) + "\n"

    @property
    def sources(self) -> list[dict[str, Any]]:
        """One entry for every affine of the source model, in the model's order."""
        sources: list[dict[str, Any]] = self.data["sources"]
        return sources

    @property
    def layers(self) -> list[dict[str, Any]]:
        """One entry for every layer that absorbed something, in the model's order."""
        layers: list[dict[str, Any]] = self.data["layers"]
        return layers

    def count(self) -> Counter[str]:
        """Affines by status: `folded`, `partial`, `merged`, `dead`, and those kept as `kept: <reason>`."""
        return count_statuses((source["status"], source["reason"]) for source in self.sources)


def encode_array(array: Array) -> dict[str, Any]:
    """An array as JSON: numpy's name of its dtype, its shape, and its little-endian bytes in base64."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    little = array.astype(array.dtype.newbyteorder("<")) if array.dtype.kind in "fiu" else array
    data = base64.b64encode(little.tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def decode_array(entry: Mapping[str, Any]) -> Array:
    """The array of `encode_array`, read-only.

    Raises FoldMapError where the entry does not hold together.
    """
    try:
        dtype = np.dtype(ml_dtypes.bfloat16) if entry["dtype"] == "bfloat16" else np.dtype(entry["dtype"])
        return np.frombuffer(base64.b64decode(entry["data"], validate=True), dtype).reshape(entry["shape"])
    except (KeyError, TypeError, ValueError) as error:
        raise FoldMapError(f"an array of the fold map cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class Status:
    """What became of one affine: the fields of that name in the fold map."""

    status: str
    reason: str | None = None
    detail: str = ""
    notes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()


def numbered_layers(module: Module, protos: Mapping[Node, NodeProto]) -> dict[str, Layer]:
    """The layers of the ledger that were emitted, as the keys of `protos` say, by their ids in the fold map."""
    emitted = (node for node in module.walk() if node in module.ledger.layers and node in protos)
    return {f"L{i}": module.ledger.layers[node] for i, node in enumerate(emitted)}


def statuses(module: Module, layers: Mapping[str, Layer]) -> dict[int, Status]:
    """What became of every affine of the source, by origin. O(nodes)."""
    collect_sources(module)
    ledger = module.ledger
    where: dict[int, list[str]] = {}
    for number, layer in layers.items():
        for fold in layer.folds:
            where.setdefault(fold.origin, []).append(number)
    merged = ledger.merged_origins()
    sources = ledger.sources or {}
    alive = _alive(module, set(sources) - set(where) - set(merged))
    found: dict[int, Status] = {}
    for origin in sources:
        refusal = ledger.refusals.get(origin, NOT_ATTEMPTED)
        if origin in where:
            whole = origin not in ledger.partial
            detail = "" if whole else "its scale or its shift stays as an operator"
            found[origin] = Status("folded" if whole else "partial", detail=detail, layers=tuple(where[origin]))
        elif origin in merged:
            found[origin] = Status("merged", detail=f"went into another operator by {merged[origin]}")
        elif origin in alive:
            found[origin] = Status("kept", refusal.code, refusal.detail, refusal.notes)
        else:
            found[origin] = Status("dead", detail="nothing reads its result")
    return found


def count_statuses(found: Iterable[tuple[str, str | None]]) -> Counter[str]:
    """Affines by status, given with their reasons; those that are kept as `kept: <reason>`."""
    return Counter(f"kept: {reason}" if status == "kept" else status for status, reason in found)


def build_fold_map(module: Module, model: ModelProto, protos: Mapping[Node, NodeProto]) -> FoldMap:
    """The fold map of `module`, which was emitted as `model` with `protos` for the layers of its ledger."""
    from .. import __version__

    layers = numbered_layers(module, protos)
    became = statuses(module, layers)
    sources = module.ledger.sources or {}
    scope_of = dict(scopes(module))
    source_model = module.source if isinstance(module.source, ModelProto) else None
    return FoldMap(
        {
            "format": FORMAT,
            "version": VERSION,
            "producer": {"name": "irc", "version": __version__, "passes": list(module.ledger.passes)},
            "source_model": None if source_model is None else _identity(source_model),
            "folded_model": _identity(model),
            "sources": [_source(source, became[origin]) for origin, source in sources.items()],
            "layers": [_layer(layer, number, protos[layer.node], scope_of) for number, layer in layers.items()],
        }
    )


def _alive(module: Module, wanted: set[int]) -> set[int]:
    """Those of the `wanted` origins that some node of the module still comes from."""
    if not wanted:
        return set()
    seen: set[int] = set()
    return wanted.intersection(origin for node in module.walk() for origin in flatten_origins(node.origins, seen))


def _source(source: Source, became: Status) -> dict[str, Any]:
    return {
        "id": f"A{source.origin}",
        "kind": source.kind,
        "scope": _scope(source.scope),
        "node": {"name": source.name, "op_type": source.op_type, "index": source.index},
        "input": source.input,
        "output": source.output,
        "axis": source.axis,
        "channels": source.channels,
        "epsilon": source.epsilon,
        "params": {
            key: {"name": param.name, "value": None if param.tensor is None else encode_array(param.tensor.numpy())}
            for key, param in source.params.items()
        },
        "status": became.status,
        "reason": became.reason,
        "detail": became.detail,
        "notes": list(became.notes),
        "layers": list(became.layers),
    }


def _scope(scope: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"function": b} if a == "function" else {"node": a, "attribute": b} for a, b in scope]


def _layer(layer: Layer, number: str, proto: NodeProto, scope_of: Mapping[Any, Any]) -> dict[str, Any]:
    attributes = {attribute.name: attribute.i for attribute in proto.attribute}
    weight = layer.weight_index
    bias = proto.input[2] if len(proto.input) > 2 and proto.input[2] else None
    remainder = layer.shift_add.node if layer.shift_add is not None else None
    added = remainder is not None and remainder.graph is not None and remainder is not layer.node
    return {
        "id": number,
        "scope": _scope(scope_of.get(layer.node.graph, ())),
        "node": {"name": proto.name, "op_type": proto.op_type, "original_name": layer.original_name},
        "weight": {
            "name": proto.input[weight],
            "original_name": layer.weight_name,
            "out_axis": layer.weight_axis,
            "group": attributes.get("group", 1),
        },
        "bias": None
        if bias is None
        else {"name": bias, "original_name": layer.bias_name, "created": layer.bias_name is None},
        "input": proto.input[1 - weight],
        "output": {
            "name": remainder.output.name if added and remainder is not None else proto.output[0],
            "original_names": layer.output_names,
        },
        "remainder": {"op_type": "Add", "output": remainder.output.name} if added and remainder is not None else None,
        "folds": [
            {
                "source": f"A{fold.origin}",
                "direction": fold.direction,
                "axis": fold.axis,
                "crossed": list(fold.crossed),
                "scale": encode_array(fold.scale),
                "shift": encode_array(fold.shift),
            }
            for fold in layer.folds
        ],
    }


def _identity(model: ModelProto) -> dict[str, Any]:
    return {
        "digest": graph_digest(model),
        "ir_version": model.ir_version,
        "opset": {entry.domain: entry.version for entry in model.opset_import},
    }


def graph_digest(model: ModelProto) -> str:
    """SHA-256 over the main graph and the functions: interface names, nodes, and initializers by name, type, shape and
    elements, whatever field they are stored in and in whatever order. Documentation and metadata do not count.
    """
    hasher = hashlib.sha256()
    graph = model.graph
    for names in ([info.name for info in graph.input], [info.name for info in graph.output]):
        hasher.update(json.dumps(names).encode())
    for tensor in sorted(graph.initializer, key=lambda tensor: tensor.name):
        payload = OnnxTensor(tensor, Path())
        hasher.update(json.dumps([tensor.name, _payload_digest(payload)]).encode())
    for sparse in graph.sparse_initializer:
        hasher.update(sparse.SerializeToString(deterministic=True))
    for node in graph.node:
        hasher.update(node.SerializeToString(deterministic=True))
    for function in model.functions:
        hasher.update(function.SerializeToString(deterministic=True))
    return f"sha256:{hasher.hexdigest()}"


def _payload_digest(payload: OnnxTensor) -> str:
    if payload.is_external:
        return hashlib.sha256(payload.proto.SerializeToString(deterministic=True)).hexdigest()
    return payload.digest()
