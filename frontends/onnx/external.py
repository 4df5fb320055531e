"""External data: files beside a model that hold its large tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ...ir.payload import FilePart, raw
from .placeholders import any_held, held
from .protos import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto
from .tensors import external_part

_KINDS = AttributeProto.AttributeType
_BARE = frozenset((_KINDS.FLOAT, _KINDS.INT, _KINDS.STRING, _KINDS.FLOATS, _KINDS.INTS, _KINDS.STRINGS))
"""Kinds of attributes that hold neither graphs nor tensors."""


def _attributes(nodes: Iterable[NodeProto]) -> Iterator[AttributeProto]:
    """The attributes of nodes that may hold graphs or tensors; those of old files say nothing of their kind."""
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type not in _BARE:
                yield attribute


def _parts(model: ModelProto) -> Iterator[tuple[GraphProto | FunctionProto, list[AttributeProto]]]:
    """Every function, the main graph, and every graph in an attribute, with the attributes of `_attributes`."""
    pending: list[GraphProto | FunctionProto] = [model.graph, *reversed(model.functions)]
    graphs: list[GraphProto | FunctionProto] = []
    while pending or graphs:
        part = (pending or graphs).pop()
        attributes = list(_attributes(part.node))
        yield part, attributes
        for attribute in attributes:
            if attribute.HasField("g"):
                graphs.append(attribute.g)
            graphs.extend(attribute.graphs)


def all_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph and every graph in an attribute, at any depth."""
    return (part for part, _ in _parts(model) if isinstance(part, GraphProto))


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of every graph and function."""
    for part, _ in _parts(model):
        yield from part.node


def value_names(model: ModelProto) -> set[str]:
    """Names of the results of all nodes, and of the inputs of the main graph."""
    names = {info.name for info in model.graph.input}
    for node in all_nodes(model):
        names.update(node.output)
    return names


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model, in any graph, function or attribute, whose elements stand in another file."""
    for tensor in all_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model: the initializers of all graphs, the main graph first, then those in attributes."""
    holding: list[AttributeProto] = []
    for part, attributes in _parts(model):
        holding.extend(attributes)
        if isinstance(part, GraphProto):
            yield from part.initializer
            for sparse in part.sparse_initializer:
                yield from (sparse.values, sparse.indices)
    for attribute in holding:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)


def external_parts(model: ModelProto, base_dir: Path) -> list[FilePart]:
    """Where all external data of `model` stands.

    Raises ModelError where some is missing, lies outside `base_dir` or ends too early.
    """
    return [external_part(tensor, base_dir) for tensor in external_tensors(model)]


def complete(model: ModelProto) -> ModelProto:
    """`model` with the elements of all tensors that only have placeholders in it; itself where there are none.

    Raises ModelError where a file does not have them any more. O(bytes).
    """
    if not any_held():
        return model
    full = ModelProto()
    full.CopyFrom(model)
    filled = [fill(tensor) for tensor in all_tensors(full)]
    return full if any(filled) else model


def fill(tensor: TensorProto) -> bool:
    """Put the elements of a tensor in the place of its placeholder, if it has one; whether it had."""
    payload = held(tensor.raw_data) if any_held() else None
    if payload is not None:
        tensor.raw_data = b"".join(map(raw, payload.blocks()))
    return payload is not None
