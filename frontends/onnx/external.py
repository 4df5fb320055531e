"""External data: files beside a model that hold its large tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from .tensors import check_location, external_location


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


def check_external_data(model: ModelProto, base_dir: Path) -> None:
    """Raises ModelError where a file of external data is missing or lies outside `base_dir`."""
    seen: set[str] = set()
    for tensor in external_tensors(model):
        location = external_location(tensor)
        if location not in seen:
            seen.add(location)
            check_location(tensor, base_dir)
