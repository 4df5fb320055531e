"""Digests that tell models and tensors apart, however they are stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto, TensorProto, numpy_helper

from ...frontends.onnx.tensors import OnnxTensor


def payload(proto: TensorProto, base_dir: Path) -> bytes:
    """The elements of a tensor as ONNX's raw data, whichever field or file they stand in.

    Raises ModelError and OSError where external data cannot be read, ValueError for strings and elements that do not
    fit their shape.
    """
    tensor = OnnxTensor(proto, base_dir)
    if proto.HasField("raw_data") and not tensor.is_external:
        return proto.raw_data
    if proto.data_type == TensorProto.STRING:
        raise ValueError("strings have no raw data")
    return numpy_helper.from_array(tensor.numpy()).raw_data


def tensor_digest(proto: TensorProto, base_dir: Path) -> str:
    """SHA-256 over element type, shape and elements."""
    hasher = hashlib.sha256(json.dumps([proto.data_type, list(proto.dims)]).encode())
    try:
        hasher.update(payload(proto, base_dir))
    except ValueError:
        bare = TensorProto()
        bare.CopyFrom(proto)
        bare.ClearField("name")
        hasher.update(bare.SerializeToString(deterministic=True))
    return hasher.hexdigest()


def _json(document: object) -> bytes:
    """JSON; a name that is no UTF-8, of which protobuf gives bytes, is written as they are."""
    return json.dumps(document, default=repr).encode()


def graph_digest(model: ModelProto, base_dir: Path | None = None, digests: Sequence[str] | None = None) -> str:
    """SHA-256 over opsets, main graph and functions: names and types of the interface, nodes as they are written, and
    initializers of the main graph by name, type, shape and elements, whatever field or file they are stored in and in
    whatever order. Documentation and metadata of model and graph do not count, nor do types of other values.

    `base_dir` is the folder of the external data; `digests` are those of the main graph's initializers, if known.
    Raises ModelError and OSError where external data cannot be read.
    """
    hasher = hashlib.sha256()
    graph = model.graph
    hasher.update(_json(sorted((str(entry.domain), entry.version) for entry in model.opset_import)))
    for infos in (graph.input, graph.output):
        hasher.update(_json([info.name for info in infos]))
        for info in infos:
            hasher.update(info.type.SerializeToString(deterministic=True))
    if digests is None:
        digests = [tensor_digest(tensor, base_dir or Path()) for tensor in graph.initializer]
    for pair in sorted(zip((str(tensor.name) for tensor in graph.initializer), digests, strict=True)):
        hasher.update(_json(pair))
    for sparse in graph.sparse_initializer:
        hasher.update(sparse.SerializeToString(deterministic=True))
    for node in graph.node:
        hasher.update(node.SerializeToString(deterministic=True))
    for function in model.functions:
        hasher.update(function.SerializeToString(deterministic=True))
    return f"sha256:{hasher.hexdigest()}"
