"""Walks over all graphs, nodes and tensors of a ModelProto."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from ....ir.ops import DEFAULT_DOMAINS
from .protos import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

_KINDS = AttributeProto.AttributeType
_LEAF_KINDS: frozenset[int] = frozenset(
    (_KINDS.FLOAT, _KINDS.INT, _KINDS.STRING, _KINDS.FLOATS, _KINDS.INTS, _KINDS.STRINGS)
)
"""Kinds of attributes that contain neither graphs nor tensors."""


def may_hold_tensors(node: NodeProto) -> bool:
    """Return whether an attribute of `node` may contain graphs or tensors.

    Old files do not state the kind.
    """
    return any(attribute.type not in _LEAF_KINDS for attribute in node.attribute[:])


def has_one_tensor(node: NodeProto) -> bool:
    """Return whether `node` is as Constant is: its only attribute is one tensor."""
    if len(node.attribute) != 1:
        return False
    set_fields = {field.name for field, _ in node.attribute[0].ListFields()}
    return "t" in set_fields and set_fields <= {"name", "type", "t", "doc_string"}


def _attributes(part: GraphProto | FunctionProto, *, any_kind: bool) -> Iterator[AttributeProto]:
    """Yield the attributes of nodes, and defaults of functions, that may contain graphs or tensors.

    With `any_kind` yield all attributes: one may contain a tensor in spite of its kind.
    """
    leaves = frozenset[int]() if any_kind else _LEAF_KINDS
    yield from [
        attribute
        for node in part.node
        for attribute in node.attribute[:]
        if attribute.type not in leaves
    ]
    if isinstance(part, FunctionProto):
        yield from part.attribute_proto


def _parts_of_model(
    model: ModelProto, *, any_kind: bool = False
) -> Iterator[tuple[GraphProto | FunctionProto, list[AttributeProto]]]:
    """Yield every function and graph with its `_attributes`, also those of training and bodies."""
    training = [
        graph for info in model.training_info for graph in (info.initialization, info.algorithm)
    ]
    return _parts([*reversed(training), model.graph, *reversed(model.functions)], any_kind=any_kind)


def _parts(
    pending: list[GraphProto | FunctionProto], *, any_kind: bool = False
) -> Iterator[tuple[GraphProto | FunctionProto, list[AttributeProto]]]:
    """Yield the `pending` parts and the graphs in their attributes, each with its `_attributes`."""
    graphs: list[GraphProto | FunctionProto] = []
    while pending or graphs:
        part = (pending or graphs).pop()
        attributes = list(_attributes(part, any_kind=any_kind))
        yield part, attributes
        for attribute in attributes:
            if attribute.HasField("g"):
                graphs.append(attribute.g)
            graphs.extend(attribute.graphs)


def all_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """Yield the main graph, those of training, and every graph in an attribute, at any depth."""
    return (part for part, _ in _parts_of_model(model) if isinstance(part, GraphProto))


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield every node that inference runs, in graphs and functions, but not those of training."""
    yield from model.graph.node
    yield from body_nodes(model)


def body_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield every node of functions, and of graphs in attributes of the main graph at any depth."""
    for function in model.functions:
        yield from nodes_in(function)
    for attribute in _attributes(model.graph, any_kind=False):
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            yield from nodes_in(graph)


def nodes_in(part: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """Yield every node of a graph or function, and of graphs in its attributes, at any depth."""
    return chain.from_iterable(each.node for each, _ in _parts([part]))


def operators(model: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes of `all_nodes` without Constants, as `Module.operators` counts them."""
    return (
        node
        for node in all_nodes(model)
        if node.op_type != "Constant" or node.domain not in DEFAULT_DOMAINS
    )


def value_names(model: ModelProto) -> set[str]:
    """Return the names of the results of all nodes, and of the inputs of the main graph."""
    names = {info.name for info in model.graph.input}
    for part, _ in _parts_of_model(model):
        names.update([name for node in part.node for name in node.output[:]])
    return names


def all_tensors(model: ModelProto, *, any_kind: bool = False) -> Iterator[TensorProto]:
    """Yield the initializers of all graphs, then the tensors in attributes.

    With `any_kind` also yield tensors in attributes whose kind says that they have none.
    """
    return chain.from_iterable(_tensor_lists(model, any_kind=any_kind))


def _tensor_lists(model: ModelProto, *, any_kind: bool) -> Iterator[Iterable[TensorProto]]:
    found: list[AttributeProto] = []
    for part, attributes in _parts_of_model(model, any_kind=any_kind):
        found.extend(attributes)
        if isinstance(part, GraphProto):
            yield part.initializer
            for sparse in part.sparse_initializer:
                yield (sparse.values, sparse.indices)
    for attribute in found:
        if attribute.HasField("t"):
            yield (attribute.t,)
        yield attribute.tensors
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield (sparse.values, sparse.indices)


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of the model whose elements are in another file."""
    return (tensor for tensor in all_tensors(model) if tensor.data_location == TensorProto.EXTERNAL)
