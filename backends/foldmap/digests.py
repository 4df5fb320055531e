"""Digests that tell models and tensors apart, however they are stored.

They find what got mixed up, not what was forged: who can change a model can change its fold map. So they are made by
xxHash, which is as fast as memory is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from json.encoder import encode_basestring_ascii
from pathlib import Path

from xxhash import xxh3_128, xxh3_128_hexdigest

from ...codec.protos import FunctionProto, ModelProto, NodeProto, SparseTensorProto, TensorProto
from ...codec.streaming import contains_placeholder, materialize_in_place
from ...codec.tensors import ELEMENT_FIELDS, detached_payload, raw_elements
from ...codec.traversal import all_tensors, may_hold_tensors
from .readings import Readings, type_text


def tensor_digest(proto: TensorProto, base_dir: Path, readings: Readings | None = None) -> str:
    """The digest (xxHash, 128 bits) of elements, element type and shape; `readings` may know of the elements.

    Raises ModelError where a file cannot be read.
    """
    found = detached_payload(proto, base_dir)
    if found is not None:
        return (readings or Readings()).digest(found, proto)
    try:
        elements = proto.raw_data if proto.HasField("raw_data") else raw_elements(proto, base_dir)
        return xxh3_128_hexdigest(elements + type_text(proto.data_type, tuple(proto.dims)))
    except ValueError:
        bare = TensorProto()
        bare.CopyFrom(proto)
        bare.ClearField("name")
        return xxh3_128_hexdigest(bare.SerializeToString(deterministic=True))


def _json(document: object) -> bytes:
    """JSON; a name that is no UTF-8, of which protobuf gives bytes, is written as they are."""
    return json.dumps(document, default=repr).encode()


def graph_digest(
    model: ModelProto,
    base_dir: Path | None = None,
    digests: Iterable[tuple[str, str]] | None = None,
    *,
    bare_nodes: bool = False,
) -> str:
    """The digest (xxHash, 128 bits) of opsets, main graph and functions: names and types of the interface, nodes as
    they are written, and initializers of the main graph in whatever order. Tensors count by type, shape and elements,
    whatever field or file these are stored in. Documentation and metadata of model and graph do not count, nor do types
    of other values.

    `base_dir` is the folder of the external data; `digests` are names and digests of the main graph's initializers, if
    these are known, and with `bare_nodes` no attribute holds a tensor.
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
        digests = [(tensor.name, tensor_digest(tensor, base_dir or Path())) for tensor in graph.initializer]
    named = sorted((str(name), digest) for name, digest in digests)  # protobuf gives bytes where a name is not UTF-8
    pairs = [f'[{encode_basestring_ascii(name)}, "{digest}"]' for name, digest in named]
    hasher.update("".join(pairs).encode())
    for node in graph.node:
        data = node.SerializeToString(deterministic=True) if bare_nodes or not may_hold_tensors(node) else None
        hasher.update(_digested(node, base_dir or Path()) if data is None or contains_placeholder(data) else data)
    for sparse in graph.sparse_initializer:
        hasher.update(_digested(sparse, base_dir or Path()))
    for function in model.functions:
        hasher.update(_digested(function, base_dir or Path()))
    return f"xxh128:{hasher.hexdigest()}"


def _digested(message: SparseTensorProto | NodeProto | FunctionProto, base_dir: Path) -> bytes:
    """A message in which the elements of tensors are replaced by their digests."""
    model = ModelProto()
    if isinstance(message, NodeProto):
        model.graph.node.append(message)
    elif isinstance(message, SparseTensorProto):
        model.graph.sparse_initializer.append(message)
    else:
        model.functions.append(message)
    materialize_in_place(model)
    for tensor in all_tensors(model):
        digest = tensor_digest(tensor, base_dir)
        for field in (*ELEMENT_FIELDS, "data_location"):
            tensor.ClearField(field)
        tensor.raw_data = digest.encode()
    parts = (*model.graph.node, *model.graph.sparse_initializer, *model.functions)
    return b"".join(part.SerializeToString(deterministic=True) for part in parts)
