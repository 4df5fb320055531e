"""The IR as a networkx graph, for analyses that networkx has."""

from __future__ import annotations

import networkx

from .graph import Graph, Node


def to_networkx(graph: Graph) -> networkx.MultiDiGraph[Node]:
    """The dataflow between the nodes of `graph`, `return` included: an edge for each use, with the `value` and the
    reader's `input` number. Uses inside a region count as uses by the node that holds the region; values that no node
    of this graph defines have no edge. O(nodes + uses).
    """
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
