"""Queries of ONNX graphs, and extraction of the subgraph that computes some tensors.

A body is a graph in an attribute of a node, as If, Loop and Scan have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    numpy_helper,
)

from ...frontends.onnx.codec.onnx_types import declare
from ...frontends.onnx.codec.protos import copy_fields
from ...frontends.onnx.codec.traversal import all_graphs, all_nodes
from ...ir.ops import DEFAULT_DOMAINS
from ...passes.foreign import RANDOM

VARIADIC = ("Split", "If", "Loop", "Scan")
"""Operators of ONNX that have any number of results."""
BRANCHES = ("then_branch", "else_branch")


def constant_tensors(graph: GraphProto) -> dict[str, TensorProto]:
    """Return the tensors of the initializers and the Constant nodes of a graph by name."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and [each.name for each in node.attribute[:1]] == ["value"]:
            found[node.output[0]] = node.attribute[0].t
    return found


def makers_of(graph: GraphProto) -> dict[str, NodeProto]:
    """Return the node that computes each value of a graph, by the name of the value."""
    return {name: node for node in graph.node for name in node.output if name}


def tensor_names(model: ModelProto) -> list[str]:
    """Return the names of computed tensors of the main graph in its order, without Constants."""
    nodes = (node for node in model.graph.node if node.op_type != "Constant")
    computed = [name for node in nodes for name in node.output if name]
    return list(dict.fromkeys(computed + [info.name for info in model.graph.output]))


def bodies(node: NodeProto) -> list[GraphProto]:
    """Return the graphs in the attributes of a node."""
    found: list[GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.append(attribute.g)
        elif attribute.type in (AttributeProto.GRAPHS, AttributeProto.UNDEFINED):
            found.extend(attribute.graphs)
    return found


def body_reads(node: NodeProto) -> list[str]:
    """Return the names that the bodies of a node read, their own values among them."""
    graphs = bodies(node)
    names = [name for graph in graphs for inner in graph.node for name in reads(inner)]
    return [*names, *(info.name for graph in graphs for info in graph.output)]


def reads(node: NodeProto) -> list[str]:
    """Return the names that a node and its bodies read."""
    return [*node.input, *body_reads(node)] if node.attribute else list(node.input)


def is_conditional(node: NodeProto) -> bool:
    """Return whether a node is an If with results."""
    is_if = node.op_type == "If" and node.domain in DEFAULT_DOMAINS
    return is_if and any(node.output)


def conditionals(model: ModelProto) -> dict[str, list[str]]:
    """Return the Ifs of the main graph, each as the name of its first result, by their conditions.

    Ifs with a constant condition are left out.
    """
    constants = constant_tensors(model.graph)
    found: dict[str, list[str]] = {}
    for node in model.graph.node:
        if is_conditional(node) and node.input[0] not in constants:
            found.setdefault(node.input[0], []).append(next(filter(None, node.output)))
    return found


def random_tensors(model: ModelProto, base_dir: Path) -> set[str]:
    """Return the names of the main graph's tensors that depend on random operators. O(nodes).

    Functions have to be inlined before. A Dropout is random unless its third input is absent or a
    constant False.
    """
    constants = [item for graph in all_graphs(model) for item in constant_tensors(graph).items()]
    not_training = {"", *(name for name, tensor in constants if _is_false(tensor, base_dir))}
    found: set[str] = set()
    for node in model.graph.node:
        if _is_random(node, not_training) or not found.isdisjoint(reads(node)):
            found.update(filter(None, node.output))
    return found


def _is_random(node: NodeProto, not_training: Collection[str]) -> bool:
    if node.op_type in RANDOM and node.domain in DEFAULT_DOMAINS:
        is_training = len(node.input) > 2 and node.input[2] not in not_training
        return node.op_type != "Dropout" or is_training
    return any(_is_random(inner, not_training) for graph in bodies(node) for inner in graph.node)


def _is_false(tensor: TensorProto, base_dir: Path) -> bool:
    is_single = tensor.data_type == tensor.BOOL and tensor.dims in ([], [1])
    return is_single and not numpy_helper.to_array(tensor, str(base_dir)).any()


def without_absent_results(model: ModelProto) -> ModelProto:
    """Return `model`, or a copy without absent last results of nodes, on which kernels crash.

    Those of operators with any number of results get names: how many there are tells a Split where
    to cut.
    """
    if all(node.output[-1:] != [""] for node in all_nodes(model)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for i, node in enumerate(all_nodes(copy)):
        if node.op_type in VARIADIC and node.domain in DEFAULT_DOMAINS:
            node.output[:] = [
                name or f"irc.absent.{i}.{place}" for place, name in enumerate(node.output)
            ]
        while node.output[-1:] == [""]:
            del node.output[-1]
    return copy


class NodeIndex:
    """The reads of each node of a graph, and the node that computes each value, by index."""

    def __init__(self, graph: GraphProto) -> None:
        self.reads = [reads(node) for node in graph.node]
        self.producers = {
            name: i for i, node in enumerate(graph.node) for name in node.output if name
        }


class Subgraph:
    """The nodes of a main graph that compute the `wanted` tensors, starting at the `known` ones.

    `places` are the nodes' indices in the main graph, `cut` the known tensors at which the subgraph
    begins, and `inputs` the inputs of the model that it reads. `onnx.utils.Extractor` needs the
    types of all tensors at the cut, and does not follow the reads of bodies.
    """

    def __init__(
        self,
        model: ModelProto,
        wanted: Sequence[str],
        known: Collection[str],
        index: NodeIndex | None = None,
    ) -> None:
        self.source = model
        self.wanted = tuple(wanted)
        self.known = frozenset(known)
        index = index or NodeIndex(model.graph)
        self.cut: set[str] = set()
        used: set[str] = set()
        places: set[int] = set()
        pending = [*wanted]
        while pending:
            name = pending.pop()
            if not name or name in used:
                continue
            used.add(name)
            place = index.producers.get(name)
            if name in known:
                self.cut.add(name)
            elif place is not None and place not in places:
                places.add(place)
                pending.extend(index.reads[place])
        self.used = used - self.cut
        self.places = sorted(places)
        self.inputs = {info.name for info in model.graph.input} & self.used

    def computes(self, wanted: Sequence[str], known: Collection[str]) -> bool:
        """Return whether this is the subgraph for these tensors."""
        return self.wanted == tuple(wanted) and self.known == frozenset(known)

    def extract(self, cut: Iterable[ValueInfoProto]) -> ModelProto:
        """Return the subgraph as a model, with inputs of the source and the `cut`."""
        graph, model = self.source.graph, ModelProto()
        copy_fields(self.source, model, ("graph",))
        model.graph.name = graph.name or "part"
        model.graph.node.extend(graph.node[place] for place in self.places)
        # Some results of a node may be known while others are wanted.
        for i, node in enumerate(model.graph.node):
            if not self.cut.isdisjoint(node.output):
                node.output[:] = [
                    f"irc.again.{i}.{place}" if name in self.cut else name
                    for place, name in enumerate(node.output)
                ]
        used = self.used
        model.graph.initializer.extend(t for t in graph.initializer if t.name in used)
        sparse = (t for t in graph.sparse_initializer if t.values.name in used)
        model.graph.sparse_initializer.extend(sparse)
        model.graph.input.extend(info for info in graph.input if info.name in self.inputs)
        model.graph.input.extend(cut)
        model.graph.output.extend(ValueInfoProto(name=name) for name in self.wanted)
        return model

    def declare_values(self, model: ModelProto) -> bool:
        """Declare the values of `model` as the source does, and return whether it declares any."""
        graph = self.source.graph
        infos = {info.name: info for info in (*graph.value_info, *graph.output)}
        found = [infos[name] for name in sorted(self.used) if name in infos]
        declare(model.graph, found)
        return bool(found)
