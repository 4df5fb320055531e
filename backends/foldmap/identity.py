"""Digests that tell models and tensors apart, however they are stored.

They find what got mixed up, not what was forged: who can change a model can change its fold map. So they are made by
xxHash, which is as fast as memory is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from xxhash import xxh3_128, xxh3_128_hexdigest

from ...frontends.onnx.protos import ModelProto, TensorProto
from ...frontends.onnx.tensors import OnnxTensor, elsewhere
from ...frontends.onnx.wire import splice
from ...ir.payload import raw
from .readings import Readings, finished


def payload(proto: TensorProto, base_dir: Path) -> bytes:
    """The elements of a tensor as ONNX's raw data, whichever field or file they stand in.

    Raises ModelError where a file cannot be read, ValueError for strings and elements that do not fit their shape.
    """
    found = elsewhere(proto, base_dir)
    if found is not None:
        return b"".join(map(raw, found.blocks()))
    if proto.HasField("raw_data"):
        return proto.raw_data
    if proto.data_type == TensorProto.STRING:
        raise ValueError("strings have no raw data")
    from onnx import numpy_helper

    return numpy_helper.from_array(OnnxTensor(proto, base_dir).numpy()).raw_data


def tensor_digest(proto: TensorProto, base_dir: Path, readings: Readings | None = None) -> str:
    """The digest (xxHash, 128 bits) of elements, element type and shape; `readings` may know of the elements.

    Raises ModelError where a file cannot be read.
    """
    found = elsewhere(proto, base_dir)
    if found is not None:
        return (readings or Readings()).digest(found, proto)
    try:
        return finished(xxh3_128(payload(proto, base_dir)), proto)
    except ValueError:
        bare = TensorProto()
        bare.CopyFrom(proto)
        bare.ClearField("name")
        return xxh3_128_hexdigest(bare.SerializeToString(deterministic=True))


def _json(document: object) -> bytes:
    """JSON; a name that is no UTF-8, of which protobuf gives bytes, is written as they are."""
    return json.dumps(document, default=repr).encode()


def graph_digest(model: ModelProto, base_dir: Path | None = None, digests: Sequence[str] | None = None) -> str:
    """The digest (xxHash, 128 bits) of opsets, main graph and functions: names and types of the interface, nodes as
    they are written, and initializers of the main graph by name, type, shape and elements, whatever field or file they
    are stored in and in whatever order. Documentation and metadata of model and graph do not count, nor do types of
    other values.

    `base_dir` is the folder of the external data; `digests` are those of the main graph's initializers, if known.
    Raises ModelError where a file cannot be read.
    """
    hasher = xxh3_128()
    graph = model.graph
    hasher.update(_json(sorted((str(entry.domain), entry.version) for entry in model.opset_import)))
    for infos in (graph.input, graph.output):
        hasher.update(_json([info.name for info in infos]))
        for info in infos:
            hasher.update(info.type.SerializeToString(deterministic=True))
    if digests is None:
        digests = [tensor_digest(tensor, base_dir or Path()) for tensor in graph.initializer]
    encode = json.JSONEncoder().encode
    for name, digest in sorted(zip((str(tensor.name) for tensor in graph.initializer), digests, strict=True)):
        hasher.update(f'[{encode(name)}, "{digest}"]'.encode())
    for message in (*graph.sparse_initializer, *graph.node, *model.functions):
        for piece in splice(message.SerializeToString(deterministic=True), message.DESCRIPTOR.name):
            for block in [piece] if isinstance(piece, bytes) else map(raw, piece.blocks()):
                hasher.update(block)
    return f"xxh128:{hasher.hexdigest()}"
