"""The conversion of a graph to networkx, for its analyses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .graph import Graph, Node
from .module import Module, check_module

if TYPE_CHECKING:
    import networkx


def to_networkx(graph: Graph | Module) -> networkx.MultiDiGraph[Node]:
    """Return the dataflow between the nodes of `graph`, `return` included. O(nodes + uses).

    Of a module it is that of its main graph.

    Each use is an edge with the attributes `value` and `input`, the index of the input that reads
    it. A use inside a region is a use by the node that has the region. Values that no node of this
    graph defines have no edge.

    Raises UsageError if `graph` is neither.
    """
    import networkx

    if not isinstance(graph, Graph):
        check_module(graph)
        graph = graph.graph
    result: networkx.MultiDiGraph[Node] = networkx.MultiDiGraph(name=graph.name)
    result.add_nodes_from([*graph, graph.return_])
    for reader in graph.walk():
        holder = reader
        while holder.graph is not graph:
            assert holder.graph is not None and holder.graph.parent is not None
            holder = holder.graph.parent
        for i, value in enumerate(reader.inputs):
            if value is not None and value.node is not None and value.node.graph is graph:
                result.add_edge(value.node, holder, value=value, input=i)
    return result
