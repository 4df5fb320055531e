"""What the values of a graph are without noise, beside those that carry it."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto

from .graph_builder import STEM
from .graph_reads import bodies, reads


class Plain:
    """Computes values of a graph once more from the nodes that it had before noise, which `keep` is given in order.

    What is added goes to the end of `nodes`. `outer` is that of the graph which a body stands in. What a body is given,
    as by the run before, is taken as it is, with its noise.
    """

    def __init__(self, nodes: list[NodeProto], outer: Plain | None) -> None:
        self.nodes = nodes
        self.outer = outer
        self.kept: list[NodeProto] = []
        self.places: dict[str, int] = {}
        self.made: set[str] = set()
        """What was computed once more."""

    def keep(self, node: NodeProto) -> None:
        """Take the next node of the graph, as it is now."""
        copy = NodeProto()
        copy.CopyFrom(node)
        self.places.update((name, len(self.kept)) for name in node.output if name)
        self.kept.append(copy)

    def value(self, name: str) -> str:
        """The name of a value without noise. O(nodes that compute it, and are not computed once more yet)."""
        if name not in self.places:
            return name if self.outer is None else self.outer.value(name)
        for place in sorted(self._needed(name)):
            self._add(self.kept[place])
        return plain_name(name)

    def _needed(self, name: str) -> set[int]:
        """Places of the nodes that are to be computed once more."""
        found: set[int] = set()
        waiting = [name]
        while waiting:
            name = waiting.pop()
            place = self.places.get(name)
            if place is not None and place not in found and name not in self.made:
                found.add(place)
                waiting += reads(self.kept[place])
        return found

    def _add(self, node: NodeProto) -> None:
        names = {name: self.value(name) for name in reads(node)}
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = ""
        rename(copy, names)
        for i, name in enumerate(node.output):
            if name:
                copy.output[i] = plain_name(name)
                self.made.add(name)
        self.nodes.append(copy)


def plain_name(name: str) -> str:
    """What a value without noise is called in a model that has noise."""
    return f"{STEM}.plain.{name}"


def rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Let a node, and the graphs in its attributes, read other values."""
    node.input[:] = [names.get(name, name) for name in node.input]
    for body in bodies(node):
        for inner in body.node:
            rename(inner, names)
        for info in body.output:
            info.name = names.get(info.name, info.name)
