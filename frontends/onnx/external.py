"""External data: files beside a model that hold its large tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from .tensors import check_location, external_location

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


def check_external_data(model: ModelProto, base_dir: Path) -> None:
    """Raises ModelError where a file of external data is missing or lies outside `base_dir`."""
    seen: set[str] = set()
    for tensor in external_tensors(model):
        location = external_location(tensor)
        if location not in seen:
            seen.add(location)
            check_location(tensor, base_dir)
