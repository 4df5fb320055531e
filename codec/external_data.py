"""External data: files beside a model that hold its large tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..ir.payload import FilePart, raw
from .placeholders import any_held, held
from .protos import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
)
from .tensors import external_part

_KINDS = AttributeProto.AttributeType
_BARE: frozenset[int] = frozenset((_KINDS.FLOAT, _KINDS.INT, _KINDS.STRING, _KINDS.FLOATS, _KINDS.INTS, _KINDS.STRINGS))
"""Kinds of attributes that hold neither graphs nor tensors."""


def holds_tensors(node: NodeProto) -> bool:
    """Whether an attribute may hold graphs or tensors; those of old files say nothing of their kind."""
    return any(attribute.type not in _BARE for attribute in node.attribute)


def _attributes(part: GraphProto | FunctionProto, *, odd: bool) -> Iterator[AttributeProto]:
    """The attributes of nodes, and defaults of functions, that may hold graphs or tensors; with `odd` also those that
    should not, by their kind.
    """
    bare = frozenset[int]() if odd else _BARE
    yield from [attribute for node in part.node for attribute in node.attribute if attribute.type not in bare]
    if isinstance(part, FunctionProto):
        yield from part.attribute_proto


def _parts(
    model: ModelProto, *, odd: bool = False
) -> Iterator[tuple[GraphProto | FunctionProto, list[AttributeProto]]]:
    """Every function, the main graph, those of training, and every graph in an attribute, with the attributes of
    `_attributes`.
    """
    training = [graph for info in model.training_info for graph in (info.initialization, info.algorithm)]
    pending: list[GraphProto | FunctionProto] = [*reversed(training), model.graph, *reversed(model.functions)]
    graphs: list[GraphProto | FunctionProto] = []
    while pending or graphs:
        part = (pending or graphs).pop()
        attributes = list(_attributes(part, odd=odd))
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


def all_tensors(model: ModelProto, *, odd: bool = False) -> Iterator[TensorProto]:
    """Every tensor of the model: the initializers of all graphs, the main graph first, then those in attributes, with
    `odd` also in those that by their kind should have none.
    """
    holding: list[AttributeProto] = []
    for part, attributes in _parts(model, odd=odd):
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
    if not any_held() or all(held(tensor.raw_data) is None for tensor in all_tensors(model, odd=True)):
        return model
    full = ModelProto()
    full.CopyFrom(model)
    fill_all(full)
    return full


def fill_all(model: ModelProto) -> None:
    """`fill` every tensor of `model`."""
    for tensor in all_tensors(model, odd=True) if any_held() else ():
        fill(tensor)


def fill(tensor: TensorProto) -> None:
    """Put the elements of a tensor in the place of its placeholder, if it has one."""
    payload = held(tensor.raw_data) if any_held() else None
    if payload is not None:
        tensor.raw_data = b"".join(map(raw, payload.blocks()))
