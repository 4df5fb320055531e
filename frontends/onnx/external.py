"""External data: files beside a model that hold its large tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from ...ir.payload import FilePart, raw
from .placeholders import any_held, held
from .tensors import external_part


def all_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph and every graph in an attribute, at any depth."""
    graphs: list[GraphProto] = [model.graph]
    for function in model.functions:
        graphs.extend(_graphs(function.node))
    while graphs:
        graph = graphs.pop()
        yield graph
        graphs.extend(_graphs(graph.node))


def _graphs(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            if attribute.graphs:
                yield from attribute.graphs


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of every graph and function."""
    for function in model.functions:
        yield from function.node
    for graph in all_graphs(model):
        yield from graph.node


def value_names(model: ModelProto) -> set[str]:
    """Names of the results of all nodes, and of the inputs of the main graph."""
    return {name for node in all_nodes(model) for name in node.output} | {info.name for info in model.graph.input}


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model, in any graph, function or attribute, whose elements stand in another file."""
    for tensor in all_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model, those of the main graph first."""
    for graph in all_graphs(model):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in all_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.tensors:
                yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            for sparse in attribute.sparse_tensors:
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
    found = False
    for tensor in all_tensors(full):
        payload = held(tensor.raw_data)
        if payload is not None:
            tensor.raw_data = b"".join(map(raw, payload.blocks()))
            found = True
    return full if found else model
