"""Digests that identify models and tensors, however they are stored.

They detect mix-ups, not forgery: anyone who can change a model can change its fold map too. A fast
hash (xxHash) is therefore enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii
from pathlib import Path

from xxhash import xxh3_128, xxh3_128_hexdigest

from ...frontends.onnx.codec.protos import (
    FunctionProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
)
from ...frontends.onnx.codec.streaming import (
    contains_placeholder,
    materialize_in_place,
    placeholders_exist,
)
from ...frontends.onnx.codec.tensors import ELEMENT_FIELDS, detached_payload, raw_elements
from ...frontends.onnx.codec.traversal import all_tensors, has_one_tensor, may_hold_tensors
from .observer import PayloadObserver, type_bytes

TOGETHER = 1024
"""Messages that are hashed at once: one by one takes longer, all take much memory."""


def tensor_digest(proto: TensorProto, base_dir: Path) -> str:
    """Return the digest (xxHash, 128 bits) of elements, element type and shape.

    Raises ModelError if a file cannot be read.
    """
    payload = detached_payload(proto, base_dir)
    if payload is None:
        return message_digest(proto, base_dir)
    return PayloadObserver().digest(payload, proto)


def message_digest(proto: TensorProto, base_dir: Path) -> str:
    """Return the digest of a tensor whose elements are in its message."""
    try:
        elements = proto.raw_data if proto.HasField("raw_data") else raw_elements(proto, base_dir)
        return xxh3_128_hexdigest(elements + type_bytes(proto.data_type, tuple(proto.dims[:])))
    except ValueError:  # elements without raw bytes, such as strings: the message itself is hashed
        bare = TensorProto()
        bare.CopyFrom(proto)
        bare.ClearField("name")
        return xxh3_128_hexdigest(bare.SerializeToString(deterministic=True))


def _json(document: object) -> bytes:
    # protobuf gives names that are not UTF-8 as bytes: those count by their repr
    return json.dumps(document, default=repr).encode()


def graph_digest(
    model: ModelProto,
    base_dir: Path | None = None,
    digests: Iterable[tuple[str, str]] | None = None,
    *,
    bare_nodes: bool = False,
) -> str:
    """Return the digest (xxHash, 128 bits) of opsets, main graph and functions.

    It covers names and types of inputs and outputs, the nodes, and the initializers of the main
    graph in any order. Tensors count by type, shape and elements, wherever these are stored.
    Documentation, metadata and the types of other values do not count.

    `base_dir` is the folder of external data. `digests` are names and digests of the main graph's
    initializers, if they are known. `bare_nodes` promises that no attribute holds a tensor. Raises
    ModelError if a file cannot be read.
    """
    hasher = xxh3_128()
    graph = model.graph
    hasher.update(_json(sorted((str(entry.domain), entry.version) for entry in model.opset_import)))
    for infos in (graph.input, graph.output):
        hasher.update(_json([info.name for info in infos]))
        for info in infos:
            hasher.update(info.type.SerializeToString(deterministic=True))
    folder = base_dir or Path()
    if digests is None:
        digests = [(tensor.name, tensor_digest(tensor, folder)) for tensor in graph.initializer]
    # protobuf gives a name that is not UTF-8 as bytes, which str makes comparable
    named = sorted([(str(name), digest) for name, digest in digests])
    for i in range(0, len(named), TOGETHER):
        pairs = [
            f'[{encode_basestring_ascii(name)}, "{digest}"]'
            for name, digest in named[i : i + TOGETHER]
        ]
        hasher.update("".join(pairs).encode())
    if bare_nodes and not placeholders_exist():
        for i in range(0, len(graph.node), TOGETHER):
            nodes = graph.node[i : i + TOGETHER]
            hasher.update(b"".join([node.SerializeToString(deterministic=True) for node in nodes]))
    else:
        for node in graph.node:
            has_tensors = not bare_nodes and may_hold_tensors(node)
            data = b"" if has_tensors else node.SerializeToString(deterministic=True)
            hasher.update(
                _with_digests(node, folder) if has_tensors or contains_placeholder(data) else data
            )
    for sparse in graph.sparse_initializer:
        hasher.update(_with_digests(sparse, folder))
    for function in model.functions:
        hasher.update(_with_digests(function, folder))
    return f"xxh128:{hasher.hexdigest()}"


def _with_digests(message: SparseTensorProto | NodeProto | FunctionProto, base_dir: Path) -> bytes:
    """Return a message, serialized, in which digests replace the elements of tensors."""
    if isinstance(message, NodeProto) and has_one_tensor(message):
        node = NodeProto()
        node.CopyFrom(message)
        _put_digest(node.attribute[0].t, base_dir)
        return node.SerializeToString(deterministic=True)
    model = ModelProto()
    if isinstance(message, NodeProto):
        model.graph.node.append(message)
    elif isinstance(message, SparseTensorProto):
        model.graph.sparse_initializer.append(message)
    else:
        model.functions.append(message)
    materialize_in_place(model)
    for tensor in all_tensors(model):
        _put_digest(tensor, base_dir)
    parts = (*model.graph.node, *model.graph.sparse_initializer, *model.functions)
    return b"".join(part.SerializeToString(deterministic=True) for part in parts)


def _put_digest(tensor: TensorProto, base_dir: Path) -> None:
    digest = tensor_digest(tensor, base_dir)
    for field in (*ELEMENT_FIELDS, "data_location"):
        tensor.ClearField(field)
    tensor.raw_data = digest.encode()
